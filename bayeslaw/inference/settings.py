"""Settings of a fit: names, types, defaults and help texts.

`FitSettings` is the list. From it follow the signatures that `help` shows, the options of the
commands, the checks of values, and what a posterior records. `FitKeywords` repeats names and types
for editors and mypy, which cannot see what is made at run time; a test holds that it is the same.

The command line reads the list for ``--help``, so nothing heavy is imported here.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from bayeslaw.common.defaults import AUTO, DELTA
from bayeslaw.common.errors import FitError, argument, unknown

if TYPE_CHECKING:
    from bayeslaw.laws.priors import PriorLike
    from bayeslaw.model.discrepancy import Discrepancy
    from bayeslaw.model.noise import Likelihood

MOST = 2**64
"""Whole numbers are below this; the sampler's seed has so many bits."""


@dataclass(frozen=True)
class About:
    """What is known of a setting beside its name, type and default.

    Attributes
    ----------
    help : str
        What the setting is, in a sentence or two.
    words : str, optional
        What can be given, in the words of an error message.
    metavar : str, optional
        What the help of a command calls the value, if it is given there as text.
    least : int, optional
        Least value of a whole number.
    option : bool
        Whether commands have an option for it.
    recorded : bool
        Whether a posterior records its value.
    """

    help: str
    words: str | None = None
    metavar: str | None = None
    least: int | None = None
    option: bool = True
    recorded: bool = False


def setting(default: object, text: str, **more: Any) -> Any:
    """Field of `FitSettings`: its default, its help text, and further attributes of `About`."""
    return field(default=default, metadata={"about": About(text, **more)})


def about(setting: "Field[Any]") -> About | None:
    """What is known of a field, if it is one of `FitSettings`."""
    return setting.metadata.get("about")


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """Settings of a fit, with the defaults of `bayeslaw.fit`."""

    likelihood: "str | Likelihood" = setting(
        "studentt",
        "Noise on log loss (studentt, skewed, normal, huber). skewed is for tables of which some "
        "runs are badly tuned: the law is that of well-tuned runs.",
        words="a name, such as 'studentt', or a Likelihood",
        metavar="KIND",
    )
    priors: "str | Path | Mapping[str, PriorLike]" = setting(
        "default",
        "Priors (default, flat), or a TOML file with some of them.",
        words="'default', 'flat', a mapping of priors, or a file's path",
        metavar="KIND|PATH",
    )
    delta: float = setting(DELTA, "Threshold of the huber likelihood, in log loss.")
    discrepancy: "str | Discrepancy" = setting(
        AUTO,
        "How the true loss may deviate from the law (auto, none, walk, curvature, "
        "adaptation, from_base).",
        words="a name, such as 'none', or a Discrepancy",
        metavar="KIND",
    )
    effects: "str | Sequence[str]" = setting(
        "auto",
        "Random effects on log loss: auto, none, or levels such as size,base,run. auto gives one "
        "to each run and each base, where the table has these columns and their labels repeat, "
        "and with a discrepancy to each model size if most sizes have several rows.",
        words="'auto', 'none', or names of columns",
        metavar="LEVELS",
    )
    errors: Literal["auto", "run", "independent"] = setting(
        "auto",
        "Whether measured losses deviate from the law independently, or with a correlation within "
        "a run that falls with the distance in log tokens. auto is run where runs have rows at "
        "several D, but not without a discrepancy if each run has a value of its own of a "
        "covariate that the law reads, such as one run for each size.",
        words="'auto', 'run' or 'independent'",
    )
    seed: int = setting(0, "Seed of all random numbers.", least=0, recorded=True)
    chains: int = setting(4, "Number of chains.", least=1, recorded=True)
    draws: int | None = setting(
        None,
        "Draws of each chain; by default 600 to 8000, as many as the convergence check needs.",
        least=1,
        recorded=True,
    )
    # In coordinates scaled by the curvature at the mode, so that few steps are enough.
    tune: int = setting(300, "Tuning steps of each chain.", least=1, recorded=True)
    target_accept: float = setting(
        0.95, "Target acceptance of NUTS, between 0 and 1.", recorded=True
    )
    cores: int | None = setting(
        None,
        "Processes or threads; by default all, but at most one per chain.",
        least=1,
        option=False,
    )
    progress: bool | None = setting(
        None,
        "Say what is done; by default only on a terminal or in a notebook.",
        option=False,
    )
    retry: bool | None = setting(
        None,
        "Sample again if the convergence check fails, however long it takes; otherwise for about "
        "five minutes of one idle core, and what is left out is said.",
    )

    def __post_init__(self) -> None:
        """Refuse values of other kinds; numbers of NumPy become Python's, which files can hold."""
        for setting in fields(FitSettings):
            description = setting.metadata["about"]
            value = getattr(self, setting.name)
            if description.words is not None:
                _check_kind(setting.name, value, description.words)
            elif description.least is not None:
                if value is not None or setting.default is not None:
                    whole = _whole(setting.name, value, description.least)
                    object.__setattr__(self, setting.name, whole)
            elif setting.type is float:
                object.__setattr__(self, setting.name, _number(setting.name, value))

    def arguments(self) -> dict[str, Any]:
        """All settings by name, as keyword arguments."""
        return {
            setting.name: getattr(self, setting.name) for setting in fields(FitSettings)
        }

    def recorded(self) -> dict[str, Any]:
        """The settings that a posterior records."""
        return {
            setting.name: getattr(self, setting.name)
            for setting in fields(FitSettings)
            if setting.metadata["about"].recorded
        }


class FitKeywords(TypedDict, total=False):
    """Keyword arguments of `bayeslaw.fit` beside the seed, as editors and mypy see them."""

    likelihood: "str | Likelihood"
    priors: "str | Path | Mapping[str, PriorLike]"
    delta: float
    discrepancy: "str | Discrepancy"
    effects: "str | Sequence[str]"
    errors: Literal["auto", "run", "independent"]
    chains: int
    draws: int | None
    tune: int
    target_accept: float
    cores: int | None
    progress: bool | None
    retry: bool | None


def _check_kind(name: str, value: object, words: str) -> None:
    """Refuse a value that is neither text nor of another kind that the setting has."""
    if isinstance(value, str):
        return
    from bayeslaw.model.discrepancy import Discrepancy
    from bayeslaw.model.noise import Likelihood

    kinds: dict[str, tuple[type, ...]] = {
        "likelihood": (Likelihood,),
        "priors": (Path, Mapping),
        "discrepancy": (Discrepancy,),
        "effects": (Iterable,),
    }
    valid = isinstance(value, kinds.get(name, ()))
    if valid and name == "effects":
        assert isinstance(value, Iterable)
        valid = all(isinstance(level, str) for level in value)
    if not valid:
        raise FitError(f"{argument(name, value)}: give {words}.")


def _whole(name: str, value: Any, least: int) -> int:
    try:
        whole = int(value)
    except (TypeError, ValueError, OverflowError):
        whole = -1
    if whole != value or not least <= whole < MOST:
        words = f"a whole number, {least} or more and below 2^64"
        raise FitError(f"{argument(name, value)}: give {words}.")
    return whole


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise FitError(f"{argument(name, value)}: give a number.") from None
    if name == "target_accept" and not 0 < number < 1:
        raise FitError(f"{argument(name, value)}: give a number between 0 and 1.")
    return number


def make_settings(settings: FitKeywords, seed: int) -> FitSettings:
    """Settings from keyword arguments, whose names and values are checked."""
    check_names(settings)
    return FitSettings(**settings, seed=seed)


def check_names(settings: Mapping[str, object]) -> None:
    """Refuse settings that are not known."""
    valid = FitKeywords.__annotations__
    for name in settings:
        if name not in valid:
            raise FitError(unknown("setting", name, valid))


def shows_settings[F: Callable[..., object]](
    *besides: str, **defaults: Unpack[FitKeywords]
) -> Callable[[F], F]:
    """Show each setting and its default where a function takes ``**settings``.

    `inspect.signature`, `help` and notebooks show them; an editor sees `FitKeywords`.

    Parameters
    ----------
    besides : str
        Settings that the function does not take.
    **defaults
        Settings whose default is another one than that of `bayeslaw.fit`.
    """

    def shown(function: F) -> F:
        signature = inspect.signature(function)
        parameters = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        for setting in fields(FitSettings):
            if setting.name not in FitKeywords.__annotations__:
                continue  # the seed, which functions take by themselves
            if setting.name in besides:
                continue
            parameters.append(
                inspect.Parameter(
                    setting.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=defaults.get(setting.name, setting.default),
                    annotation=setting.type,
                )
            )
        whole = signature.replace(parameters=parameters)
        function.__signature__ = whole  # type: ignore[attr-defined]
        return function

    return shown
