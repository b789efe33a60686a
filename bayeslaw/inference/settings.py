"""Settings of a posterior fit, as keyword arguments of the functions that make one."""

from collections.abc import Sequence
from typing import TypedDict

from bayeslaw.common.defaults import AUTO, CHAINS, TARGET_ACCEPT, TUNE
from bayeslaw.common.errors import FitError, unknown
from bayeslaw.model.discrepancies import Discrepancy


class SamplerSettings(TypedDict, total=False):
    """Settings of the sampler."""

    chains: int
    draws: int | None
    tune: int
    target_accept: float
    sampler: str


class RunSettings(SamplerSettings, total=False):
    """Settings of one run of the sampler."""

    seed: int


class ModelSettings(SamplerSettings, total=False):
    """Settings of a posterior's model and of the sampler."""

    discrepancy: str | Discrepancy
    noise: str
    effects: str | Sequence[str]
    errors: str


class PosteriorSettings(ModelSettings, total=False):
    """Settings of `bayeslaw.fit` that only a posterior has."""

    cores: int | None
    progress: bool
    retry: bool


class FilledSettings(TypedDict):
    """`PosteriorSettings` with every setting given."""

    discrepancy: str | Discrepancy
    noise: str
    effects: str | Sequence[str]
    errors: str
    chains: int
    draws: int | None
    tune: int
    target_accept: float
    sampler: str
    cores: int | None
    progress: bool
    retry: bool


def filled(settings: PosteriorSettings) -> FilledSettings:
    """The settings with defaults for those not given.

    Raises
    ------
    FitError
        If a name is not one of a setting.
    """
    names = FilledSettings.__annotations__
    for name in settings:
        if name not in names:
            raise FitError(unknown("setting", name, names))
    defaults: FilledSettings = {
        "discrepancy": AUTO,
        "noise": "constant",
        "effects": "auto",
        "errors": AUTO,
        "chains": CHAINS,
        "draws": None,
        "tune": TUNE,
        "target_accept": TARGET_ACCEPT,
        "sampler": "nutpie",
        "cores": None,
        "progress": False,
        "retry": True,
    }
    return {**defaults, **settings}


def run_settings(settings: FilledSettings, seed: int) -> RunSettings:
    """The sampler's settings of a fit, with its seed."""
    return {
        "seed": int(seed),
        "chains": settings["chains"],
        "draws": settings["draws"],
        "tune": settings["tune"],
        "target_accept": settings["target_accept"],
        "sampler": settings["sampler"],
    }
