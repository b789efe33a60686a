"""Settings of a posterior fit, and the keyword arguments of the functions that make one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from bayeslaw.common.defaults import AUTO, CHAINS, DELTA, TARGET_ACCEPT, TUNE
from bayeslaw.common.errors import REMOVED, FitError, unknown
from bayeslaw.laws.priors import PriorLike
from bayeslaw.model.discrepancy import Discrepancy
from bayeslaw.model.noise import Likelihood

RUN = ("seed", "chains", "draws", "tune", "target_accept")
"""Settings that a posterior records."""


class ModelSettings(TypedDict, total=False):
    """Keyword arguments for a posterior's model and the sampler."""

    discrepancy: str | Discrepancy
    effects: str | Sequence[str]
    errors: str
    chains: int
    draws: int | None
    tune: int
    target_accept: float


class PosteriorSettings(ModelSettings, total=False):
    """Keyword arguments of `bayeslaw.fit` that only a posterior has."""

    cores: int | None
    progress: bool
    retry: bool


class RefitSettings(ModelSettings, total=False):
    """Keyword arguments of `bayeslaw.inference.fitting.refit`."""

    priors: str | Path | Mapping[str, PriorLike]
    likelihood: str | Likelihood
    delta: float


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a posterior fit, with the defaults of `bayeslaw.fit`."""

    priors: str | Path | Mapping[str, PriorLike] = "default"
    likelihood: str | Likelihood = "studentt"
    delta: float = DELTA
    discrepancy: str | Discrepancy = AUTO
    effects: str | Sequence[str] = "auto"
    errors: str = AUTO
    seed: int = 0
    chains: int = CHAINS
    draws: int | None = None
    tune: int = TUNE
    target_accept: float = TARGET_ACCEPT
    cores: int | None = None
    progress: bool = False
    retry: bool = True

    def __post_init__(self) -> None:
        """Numbers of NumPy become Python's, which files can hold."""
        for name in ("seed", "chains", "draws", "tune", "cores"):
            if (value := getattr(self, name)) is not None:
                try:
                    whole = int(value)
                except (TypeError, ValueError):
                    whole = None
                if whole is None or whole != value:
                    raise FitError(f"{name}={value!r}: give a whole number.")
                object.__setattr__(self, name, whole)
        for name in ("delta", "target_accept"):
            object.__setattr__(self, name, float(getattr(self, name)))

    @property
    def recorded(self) -> dict[str, Any]:
        """The settings in `RUN`."""
        return {name: getattr(self, name) for name in RUN}


def make_settings(keywords: PosteriorSettings, *, seed: int, **others: Any) -> Settings:
    """Settings from keyword arguments, and from other arguments of the same function."""
    known = PosteriorSettings.__annotations__
    for name, value in keywords.items():
        if name in REMOVED:
            raise FitError(f"{name}={value!r}: {REMOVED[name]}")
        if name not in known:
            raise FitError(unknown("setting", name, known))
    return Settings(**keywords, **others, seed=seed)
