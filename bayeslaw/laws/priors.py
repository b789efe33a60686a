"""Priors as data: a distribution by name with its numbers, checked without importing PyMC."""

import ast
import math
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from bayeslaw.common.arrays import Array, Floats, Namespace, Untyped
from bayeslaw.common.errors import LawError, unknown
from bayeslaw.common.files import named_file

type Numbers = Mapping[str, float]


class _Family(NamedTuple):
    """A distribution: PyMC's names of its arguments, its support, log density and draws.

    It is given by one of the `ways` to choose arguments. The log density is up to a constant, with
    functions of NumPy, PyTensor or the tape. Both take the numbers as `_standard` gives them.
    """

    arguments: tuple[str, ...]
    ways: tuple[set[str], ...]
    support: tuple[float, float]
    log_density: Callable[[Array, Numbers, Namespace], Array]
    sample: Callable[[np.random.Generator, Numbers, tuple[int, ...]], Floats]


def _normal[A: Array](x: A, a: Numbers, xp: Namespace) -> A:
    u = (x - a["mu"]) / a["sigma"]
    return -0.5 * u * u


def _log_normal[A: Array](x: A, a: Numbers, xp: Namespace) -> A:
    log: A = xp.log(x)
    return _normal(log, a, xp) - log


def _student[A: Array](x: A, a: Numbers, xp: Namespace) -> A:
    u = (x - a["mu"]) / a["sigma"]
    log: A = xp.log1p(u * u / a["nu"])
    return -0.5 * (a["nu"] + 1) * log


def _flat(x: Array, a: Numbers, xp: Namespace) -> float:
    return 0.0


def _improper(rng: np.random.Generator, a: Numbers, size: tuple[int, ...]) -> Floats:
    raise LawError("a flat prior is improper: nothing can be drawn from it.")


LINE = (-math.inf, math.inf)
HALF = (0.0, math.inf)
UNIT = (0.0, 1.0)
SHAPE = ("alpha", "beta", "mu", "sigma"), ({"alpha", "beta"}, {"mu", "sigma"})
_FAMILIES = {
    "LogNormal": _Family(
        # `median` is our one convenience.
        ("mu", "sigma", "median"), ({"mu"}, {"median"}, set()), HALF, _log_normal,
        lambda rng, a, size: rng.lognormal(a["mu"], a["sigma"], size),
    ),
    "HalfNormal": _Family(
        ("sigma",), (), HALF, _normal,
        lambda rng, a, size: np.abs(rng.normal(0.0, a["sigma"], size)),
    ),
    "HalfStudentT": _Family(
        ("nu", "sigma"), ({"nu"},), HALF, _student,
        lambda rng, a, size: np.abs(a["sigma"] * rng.standard_t(a["nu"], size)),
    ),
    "Gamma": _Family(
        *SHAPE, HALF, lambda x, a, xp: (a["alpha"] - 1) * xp.log(x) - a["beta"] * x,
        lambda rng, a, size: rng.gamma(a["alpha"], 1 / a["beta"], size),
    ),
    "InverseGamma": _Family(
        *SHAPE, HALF, lambda x, a, xp: -(a["alpha"] + 1) * xp.log(x) - a["beta"] / x,
        lambda rng, a, size: a["beta"] / rng.gamma(a["alpha"], 1.0, size),
    ),
    "Exponential": _Family(
        ("lam", "scale"), ({"lam"}, {"scale"}), HALF, lambda x, a, xp: -x / a["scale"],
        lambda rng, a, size: rng.exponential(a["scale"], size),
    ),
    "HalfFlat": _Family((), (), HALF, _flat, _improper),
    "Beta": _Family(
        *SHAPE, UNIT,
        lambda x, a, xp: (a["alpha"] - 1) * xp.log(x) + (a["beta"] - 1) * xp.log(1.0 - x),
        lambda rng, a, size: rng.beta(a["alpha"], a["beta"], size),
    ),
    "Normal": _Family(
        ("mu", "sigma"), (), LINE, _normal,
        lambda rng, a, size: rng.normal(a["mu"], a["sigma"], size),
    ),
    "StudentT": _Family(
        ("nu", "mu", "sigma"), ({"nu"},), LINE, _student,
        lambda rng, a, size: a["mu"] + a["sigma"] * rng.standard_t(a["nu"], size),
    ),
    "Flat": _Family((), (), LINE, _flat, _improper),
    "Uniform": _Family(
        ("lower", "upper"), (), UNIT, _flat,
        lambda rng, a, size: rng.uniform(a["lower"], a["upper"], size),
    ),
}  # fmt: skip
_SIGNED = ("LogNormal", "Normal", "StudentT")  # their mu may have either sign


def _standard(name: str, stated: Numbers) -> Numbers:
    """The arguments of a distribution with its defaults, as its `_Family` takes them."""
    a = {"mu": 0.0, "sigma": 1.0, "lower": 0.0, "upper": 1.0, **stated}
    if "lam" in a:
        a["scale"] = 1 / a["lam"]
    if name in ("Beta", "Gamma", "InverseGamma") and "alpha" not in a:
        mu = a["mu"]
        ratio = (a["mu"] / a["sigma"]) ** 2
        if name == "Beta":
            total = mu * (1 - mu) / a["sigma"] ** 2 - 1
            a["alpha"] = mu * total
            a["beta"] = (1 - mu) * total
        elif name == "Gamma":
            a["alpha"] = ratio
            a["beta"] = ratio / mu
        else:
            a["alpha"] = ratio + 2
            a["beta"] = mu * (ratio + 1)
    return a


@dataclass(frozen=True, init=False, repr=False)
class Prior:
    """A prior distribution: PyMC's name and arguments.

    Functions that take a prior also take its text, ``"LogNormal(median=0.28, sigma=0.45)"``, or a
    PreliZ distribution.

    Parameters
    ----------
    name : str
        Such as ``"LogNormal"``, ``"HalfNormal"``, ``"Beta"``.
    **keywords : float
        Arguments by name: PyMC's, and ``median`` of a LogNormal.

    Examples
    --------
    >>> Prior("LogNormal", median=0.33, sigma=0.2)
    Prior('LogNormal', median=0.33, sigma=0.2)
    >>> Prior.parse("Beta(alpha=1.5, beta=3)").support
    (0.0, 1.0)
    """

    name: str
    arguments: tuple[tuple[str, float], ...]

    def __init__(self, name: str, **keywords: float) -> None:
        arguments = tuple((key, float(value)) for key, value in keywords.items())
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "arguments", arguments)
        self._validate()

    def _validate(self) -> None:
        if self.name not in _FAMILIES:
            raise LawError(unknown("distribution", self.name, _FAMILIES))
        family = _FAMILIES[self.name]
        given = {name for name, _ in self.arguments}
        for name, value in self.arguments:
            if name not in family.arguments:
                raise LawError(unknown(f"{self.name} argument", name, family.arguments))
            signed = name in ("lower", "upper") or (
                name == "mu" and self.name in _SIGNED
            )
            if not (math.isfinite(value) and (signed or value > 0)):
                raise LawError(
                    f"prior {self}: {name} must be finite, and a scale positive."
                )

        def in_words(ways: Sequence[set[str]]) -> str:
            return " or ".join(" and ".join(sorted(way)) for way in ways)

        if family.ways and not any(way <= given for way in family.ways):
            raise LawError(f"prior {self}: {self.name} needs {in_words(family.ways)}.")
        if len(used := [way & given for way in family.ways if way & given]) > 1:
            raise LawError(f"prior {self}: give {in_words(used)}, not both.")
        if self.name == "Uniform" and not self.support[0] < self.support[1]:
            raise LawError(f"prior {self}: lower must be below upper.")
        mu = self.kwargs.get("mu", 0.5)
        sigma = self.kwargs.get("sigma", 0.0)
        if self.name == "Beta" and not sigma**2 < mu * (1 - mu):
            raise LawError(
                f"prior {self}: mu must lie below 1, and sigma^2 below mu (1 - mu)."
            )

    @classmethod
    def parse(cls, given: "PriorLike") -> "Prior":
        """A prior from its text, ``"Name(argument=number, ...)"``, or a PreliZ distribution."""
        if isinstance(given, Prior):
            return given
        if isinstance(given, Distribution) and type(given).__module__.startswith(
            "preliz."
        ):
            return cls(type(given).__name__, **given.params_dict)
        try:
            call = ast.parse(str(given).strip(), mode="eval").body
        except SyntaxError:
            call = None
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and not call.args
        ):
            names = [str(keyword.arg) for keyword in call.keywords]
            if twice := [name for name in names if names.count(name) > 1]:
                raise LawError(f"prior {given}: {twice[0]} is there twice; keep one.")
            with suppress(ValueError, TypeError):
                numbers = [
                    float(ast.literal_eval(keyword.value)) for keyword in call.keywords
                ]
                return cls(call.func.id, **dict(zip(names, numbers, strict=True)))
        raise LawError(
            f"cannot read the prior {given!r}; write it as 'LogNormal(median=0.28, sigma=0.45)'."
        )

    def __repr__(self) -> str:
        return f"Prior({', '.join([repr(self.name), *(f'{k}={v!r}' for k, v in self.arguments)])})"

    def __str__(self) -> str:
        short = [
            (k, f"{v:g}" if float(f"{v:g}") == v else repr(v))
            for k, v in self.arguments
        ]
        return f"{self.name}({', '.join(f'{k}={v}' for k, v in short)})"

    @property
    def kwargs(self) -> dict[str, float]:
        """Arguments as PyMC takes them."""
        kwargs = dict(self.arguments)
        if "median" in kwargs:
            kwargs["mu"] = math.log(kwargs.pop("median"))
        return kwargs

    @property
    def support(self) -> tuple[float, float]:
        """Bounds of the support."""
        if self.name == "Uniform":
            return self.kwargs.get("lower", 0.0), self.kwargs.get("upper", 1.0)
        return _FAMILIES[self.name].support

    @property
    def proper(self) -> bool:
        """Whether it integrates to one, so that it can be drawn from."""
        return self.name not in ("Flat", "HalfFlat")

    def log_density(self, x: Array, xp: Namespace = np) -> Array:
        """Log density at `x` within the support, up to a constant, by functions of `xp`."""
        return _FAMILIES[self.name].log_density(
            x, _standard(self.name, self.kwargs), xp
        )

    def sample(self, rng: np.random.Generator, size: tuple[int, ...]) -> Floats:
        """Draws of a proper prior, of the given shape."""
        return _FAMILIES[self.name].sample(rng, _standard(self.name, self.kwargs), size)

    def dist(self) -> Untyped:
        """Unnamed PyMC distribution."""
        import pymc as pm

        return getattr(pm, self.name).dist(**self.kwargs)

    def rv(self, name: str) -> Untyped:
        """Random variable `name` of the PyMC model in context."""
        import pymc as pm

        return getattr(pm, self.name)(name, **self.kwargs)


@runtime_checkable
class Distribution(Protocol):
    """The attribute of PreliZ distributions that we read."""

    params_dict: Mapping[str, float]


type PriorLike = str | Prior | Distribution
"""A prior, its text, or a PreliZ distribution."""

FLOOR = "floor"
"""Name of the prior of the floor's share of the loss at the reference point."""
FLOORS = ("E", FLOOR)
"""Names of priors of which a law states one."""
GROUP_SD = Prior.parse("LogNormal(median=0.002, sigma=0.6)")
"""Prior of the standard deviation of a random effect on log loss, where no other is stated."""
NOISE = {
    "sigma": Prior.parse("LogNormal(median=0.004, sigma=0.7)"),
    "dof": Prior.parse("Gamma(alpha=2, beta=0.1)"),
    "tau_run": GROUP_SD,
    "tau_base": GROUP_SD,
    "tau_size": Prior.parse("LogNormal(median=0.003, sigma=0.25)"),
}
"""Priors beside the law's: scale of the noise on log loss, degrees of freedom of a Student-t above
2, and standard deviations of the random effects of run, base and size. The latter are narrow:
random effects of 2 % would explain variation that the law explains."""


def flat(bounds: tuple[float, float]) -> Prior:
    if math.isinf(bounds[1]):
        return Prior("HalfFlat") if bounds[0] == 0 else Prior("Flat")
    return Prior("Uniform", lower=bounds[0], upper=bounds[1])


def override(
    defaults: Mapping[str, Prior],
    given: "str | Path | Mapping[str, PriorLike]",
    bounds: Mapping[str, tuple[float, float]],
    *,
    proper: Collection[str] = NOISE,
    slopes: Mapping[str, str] | None = None,
) -> dict[str, Prior]:
    """Priors to use: `defaults` with those of `given` put in their place.

    `given` is "default", "flat", a mapping, or the path of a TOML file; no prior must reach outside
    the range of its parameter in `bounds`. Those of `proper` keep their defaults under "flat".
    `slopes` are the parameters that have a prior in place of a coefficient, for messages.
    """
    if isinstance(given, str) and given == "default":
        return dict(defaults)
    if isinstance(given, str) and given == "flat":
        fixed = {name: prior for name, prior in defaults.items() if name in proper}
        of_law = [
            "E" if name == FLOOR else name for name in defaults if name not in proper
        ]
        return {name: flat(bounds[name]) for name in of_law} | fixed
    where = f"{given}: " if isinstance(given, str | Path) else ""
    chosen = parse_priors(
        read_priors(given) if isinstance(given, str | Path) else given, where
    )
    stated = one_floor(chosen, where)
    valid = {*defaults, *FLOORS}
    for name in chosen:
        if slopes and name in slopes and name not in valid:
            raise LawError(
                f"{where}{name!r} has no prior of its own: the data know the slope of its term at "
                f"the reference point, in nats per e-fold; give {slopes[name]!r} a prior, which "
                f"with that of the exponent makes {name}."
            )
        if name not in valid:
            raise LawError(where + unknown("prior", name, valid))
    check_supports(chosen, bounds, where)
    kept = {n: prior for n, prior in defaults.items() if not (stated and n in FLOORS)}
    return {**kept, **chosen}


def one_floor(priors: Collection[str], where: str = "") -> str | None:
    """Which of `FLOORS` has a prior, if one of them has; `where` begins the message if both do."""
    if {*FLOORS} <= {*priors}:
        raise LawError(
            f"{where}priors of both E, the floor in nats, and {FLOOR}, its share of the loss "
            "at the reference point; keep one."
        )
    return next((name for name in FLOORS if name in priors), None)


def floor_with(floor: Prior, sizes: Sequence[tuple[Prior, Prior]]) -> tuple[str, Prior]:
    """Prior of a floor that terms became a part of, from theirs of slope and exponent; its name.

    Its median is the sum of theirs where all are log-normal; else it is of the floor's share.
    """
    if {prior.name for prior in (floor, *sum(sizes, ()))} != {"LogNormal"}:
        return FLOOR, Prior.parse("Beta(alpha=2, beta=2)")

    def centre(prior: Prior) -> float:
        return math.exp(prior.kwargs.get("mu", 0.0))

    median = centre(floor) + sum(
        centre(slope) / centre(exponent) for slope, exponent in sizes
    )
    return "E", Prior("LogNormal", median=median, sigma=floor.kwargs.get("sigma", 1.0))


def parse_priors(given: Mapping[str, PriorLike], where: str = "") -> dict[str, Prior]:
    priors = {}
    for name, text in given.items():
        try:
            priors[name] = Prior.parse(text)
        except LawError as error:
            raise LawError(f"{where}{name}: {error}") from error
    return priors


def check_supports(
    priors: Mapping[str, Prior],
    bounds: Mapping[str, tuple[float, float]],
    where: str = "",
    stated: Collection[str] = (),
) -> None:
    """Refuse priors beyond the bounds of their parameters; those `stated` have them in a file."""
    for name, prior in priors.items():
        (low, high), (least, most) = bounds[name], prior.support
        if least < low or most > high:
            parameter = name.removesuffix("_ref")
            way = "give one within"
            if parameter in stated:
                ends = f"[{min(low, least):g}, {max(high, most):g}]"
                way += f", or write {parameter} = {ends} below [bounds]"
            reach = f"{prior} reaches outside [{low:g}, {high:g}]; {way}."
            raise LawError(f"{where}prior of {name!r}: {reach}")


def read_priors(path: str | Path) -> dict[str, PriorLike]:
    file = named_file(path)
    if file is None:
        names = ("default", "flat")
        raise LawError(
            unknown("priors", str(path), names) + " Or give the path of a TOML file."
        )
    try:
        text = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LawError(f"{path}: not valid TOML: {error}") from error
    priors = text.get("priors", text)
    if not isinstance(priors, dict):
        raise LawError(
            f"{path}: priors = {priors!r} is not a table; write [priors] above them."
        )
    if not priors:
        raise LawError(f"{path}: has no priors.")
    return priors
