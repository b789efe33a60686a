"""Noise of log loss: its density, and its correlation within a run.

A likelihood is a location-scale family: the location is the log of the modelled loss, the scale is
``sigma``, the same for all rows. Its other parameters are its own.

Within a run, sorted by tokens, errors e may be a first-order autoregression along log D:
``e_t = rho_t e_(t-1) + innovation``, with ``rho_t = exp(-(log D_t - log D_(t-1)) / ell)``. The
innovation has the likelihood's density, of scale ``sigma sqrt(1 - rho_t^2 + NUGGET)``, so the scale
of every row alone is sigma.
"""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import pandas as pd
from numpy.random import Generator
from scipy.special import expit, ndtr, ndtri

from bayeslaw.common.arrays import Array, Floats, Ints, Namespace, Strings
from bayeslaw.common.defaults import AUTO, DELTA
from bayeslaw.common.errors import FitError, TableError, TableWarning, argument, unknown
from bayeslaw.common.formatting import kind_of
from bayeslaw.engine.tape import FUNCTIONS as F
from bayeslaw.engine.whitening import innovation_scale
from bayeslaw.laws.priors import Prior
from bayeslaw.laws.symbols import Values
from bayeslaw.model.effects import labels
from bayeslaw.tables.table import unannealed

type Shape = tuple[int, ...]
type Draws = Mapping[str, Floats]

DOF_FLOOR = 2.0
"""Least degrees of freedom: below about .4 a Student-t on few rows is unbounded as sigma -> 0."""
OBSERVED = "log_loss"
"""Name of the observed variable of a PyMC model."""


class Likelihood(ABC):
    """A density of measured log loss; subclasses are frozen dataclasses."""

    kind: ClassVar[str] = ""  #: Its name.
    words: ClassVar[str] = ""  #: What it is, for reports.
    #: Sampled variables beside ``sigma``, each with the name of its prior in `Spec.priors`.
    parameters: ClassVar[Mapping[str, str]] = {}
    priors: ClassVar[
        Mapping[str, Prior]
    ] = {}  #: Default priors that no law file states.

    @abstractmethod
    def log_density[A: Array](
        self, residual: A, sigma: Array, q: Values, xp: Namespace = F
    ) -> A:
        """Log density of residuals of log loss; arguments broadcast, (draws, rows).

        `q` has the variables of `parameters`. They are arrays or nodes of a
        `bayeslaw.engine.tape.Tape`, with `FUNCTIONS` as `xp`, or PyTensor's.
        """

    @abstractmethod
    def sample(self, rng: Generator, shape: Shape, sigma: Floats, q: Draws) -> Floats:
        """Residuals of log loss, of the given shape; `sigma` and `q` broadcast to it."""

    def information_variance[A: Array](self, sigma: A, q: Values) -> A:
        """Inverse of the Fisher information of one measurement about its location.

        By default ``sigma^2``, which is exact for normal noise.
        """
        return sigma**2

    def even[A: Array](self, residual: A, q: Values, xp: Namespace = F) -> A:
        """Residuals over what skews their scale: far ones are equally likely on both sides."""
        return residual

    def observe(
        self,
        mu: Array,
        sigma: Array,
        q: Values,
        observed: Array,
        dims: str | None = None,
    ) -> None:
        """Add the observed log losses to the PyMC model in context, as the variable `OBSERVED`."""
        import pymc as pm
        import pytensor.tensor as pt

        def logp(value: Array, mu: Array, sigma: Array, *others: Array) -> Array:
            return self.log_density(
                value - mu, sigma, dict(zip(q, others, strict=True)), pt
            )

        def random(
            mu: Floats,
            sigma: Floats,
            *others: Floats,
            rng: Generator | None = None,
            size: tuple[int, ...] | None = None,
        ) -> Floats:
            shape = tuple(size) if size is not None else np.broadcast(mu, sigma).shape
            own = dict(zip(q, others, strict=True))
            return np.asarray(
                mu + self.sample(rng or np.random.default_rng(), shape, sigma, own)
            )

        # One density for PyMC and for the sampler's tape, so that a new likelihood writes it once.
        arguments = mu, sigma, *q.values()
        pm.CustomDist(
            OBSERVED, *arguments, logp=logp, random=random, observed=observed, dims=dims
        )


@dataclass(frozen=True)
class StudentT(Likelihood):
    """Student-t noise with estimated degrees of freedom above `DOF_FLOOR`."""

    kind: ClassVar[str] = "studentt"
    words: ClassVar[str] = "Student-t"
    parameters: ClassVar[Mapping[str, str]] = {"dof_above_floor": "dof"}

    def observe(
        self,
        mu: Array,
        sigma: Array,
        q: Values,
        observed: Array,
        dims: str | None = None,
    ) -> None:
        import pymc as pm

        dof = pm.Deterministic("dof", DOF_FLOOR + q["dof_above_floor"])
        pm.StudentT(OBSERVED, nu=dof, mu=mu, sigma=sigma, observed=observed, dims=dims)

    def log_density[A: Array](
        self, residual: A, sigma: Array, q: Values, xp: Namespace = F
    ) -> A:
        dof = q["dof_above_floor"] + DOF_FLOOR
        u = residual / sigma
        one = (
            xp.gammaln(0.5 * dof + 0.5)
            - xp.gammaln(0.5 * dof)
            - 0.5 * xp.log(dof * math.pi)
        )
        # log1p keeps the digits where the square is tiny over many degrees of freedom.
        log: A = one - xp.log(sigma) - (0.5 * dof + 0.5) * xp.log1p(u * u / dof)
        return log

    def sample(self, rng: Generator, shape: Shape, sigma: Floats, q: Draws) -> Floats:
        dof = np.broadcast_to(q["dof_above_floor"] + DOF_FLOOR, shape)
        return np.asarray(sigma * rng.standard_t(dof))

    def information_variance[A: Array](self, sigma: A, q: Values) -> A:
        """``sigma^2 (dof + 3) / (dof + 1)``; the variance is larger and may be infinite.

        Lange, Little and Taylor, Journal of the American Statistical Association 84 (1989).
        """
        dof = q["dof_above_floor"] + DOF_FLOOR
        return sigma**2 * (dof + 3) / (dof + 1)


@dataclass(frozen=True)
class Normal(Likelihood):
    """Normal noise."""

    kind: ClassVar[str] = "normal"
    words: ClassVar[str] = "Normal"

    def observe(
        self,
        mu: Array,
        sigma: Array,
        q: Values,
        observed: Array,
        dims: str | None = None,
    ) -> None:
        import pymc as pm

        pm.Normal(OBSERVED, mu=mu, sigma=sigma, observed=observed, dims=dims)

    def log_density[A: Array](
        self, residual: A, sigma: Array, q: Values, xp: Namespace = F
    ) -> A:
        u = residual / sigma
        log: A = -0.5 * u * u - xp.log(sigma) - 0.5 * math.log(2 * math.pi)
        return log

    def sample(self, rng: Generator, shape: Shape, sigma: Floats, q: Draws) -> Floats:
        return np.asarray(sigma * rng.standard_normal(shape))


@dataclass(frozen=True)
class Huber(Likelihood):
    """The density ``exp(-Huber_delta(r) / s^2) / (s Z(delta/s))`` of a residual r.

    ``Z(k) = sqrt(2 pi) (2 Phi(k) - 1) + (2/k) exp(-k^2/2)``. The threshold `delta` is fixed in log
    loss, so for every s the mode over the location is the Huber minimiser.
    """

    delta: float = DELTA
    kind: ClassVar[str] = "huber"
    words: ClassVar[str] = "Huber"

    def __post_init__(self) -> None:
        if not self.delta > 0:
            raise FitError(f"delta must be positive, not {self.delta!r}.")

    def log_density[A: Array](
        self, residual: A, sigma: Array, q: Values, xp: Namespace = F
    ) -> A:
        r = xp.maximum(residual, -residual)
        k = self.delta / sigma
        # Quadratic up to delta and linear beyond, without a branch: a tape has none.
        near = xp.minimum(r, self.delta)
        loss = 0.5 * near**2 + self.delta * (r - near)
        inside = math.sqrt(2 * math.pi) * xp.erf(k / math.sqrt(2))
        scale = xp.log(inside + 2 / k * xp.exp(-0.5 * k**2))
        log: A = -loss / sigma**2 - xp.log(sigma) - scale
        return log

    def sample(self, rng: Generator, shape: Shape, sigma: Floats, q: Draws) -> Floats:
        """Residuals of log loss: a truncated normal inside, exponential tails outside."""
        k = np.broadcast_to(self.delta / np.asarray(sigma, float), shape)
        inside = math.sqrt(2 * math.pi) * (2 * ndtr(k) - 1)
        # Areas of the normal centre and of both tails, as in Z.
        tail = 2 / k * np.exp(-0.5 * k**2)
        u = rng.random(shape)
        sign = np.where(rng.random(shape) < 0.5, -1.0, 1.0)
        core = ndtri(0.5 + u * (ndtr(k) - 0.5))
        # Beyond the threshold the density falls as exp(-k u): an exponential of rate k.
        far = k + rng.exponential(size=shape) / k
        return np.asarray(
            sigma
            * sign
            * np.where(rng.random(shape) * (inside + tail) < inside, core, far)
        )

    def information_variance[A: Array](self, sigma: A, q: Values) -> A:
        """``sigma^2`` over the probability of a residual within the threshold.

        The score is ``r / sigma^2`` there and constant beyond, so its derivative, whose mean is
        the information, is that probability over ``sigma^2``.
        """
        k = self.delta / sigma
        inside = math.sqrt(2 * math.pi) * F.erf(k / math.sqrt(2))
        variance: A = sigma**2 * (1 + 2 / k * F.exp(-0.5 * k**2) / inside)
        return variance


@dataclass(frozen=True)
class Skewed(StudentT):
    """A two-piece Student-t for runs of which some are badly tuned, so worse than they need be.

    Its scale is ``sigma exp(skew)`` above the location and ``sigma exp(-skew)`` below, with
    ``skew > 0``. The location is the mode, so the law is that of well-tuned runs. Its information
    about the location is that of the Student-t, whatever the skew.

    Fernandez and Steel, Journal of the American Statistical Association 93 (1998).
    """

    kind: ClassVar[str] = "skewed"
    words: ClassVar[str] = "Student-t skewed to higher losses"
    parameters: ClassVar[Mapping[str, str]] = {"dof_above_floor": "dof", "skew": "skew"}
    priors: ClassVar[Mapping[str, Prior]] = {"skew": Prior("HalfNormal", sigma=0.5)}

    def observe(
        self,
        mu: Array,
        sigma: Array,
        q: Values,
        observed: Array,
        dims: str | None = None,
    ) -> None:
        # Not `StudentT.observe`: PyMC has no two-piece Student-t.
        Likelihood.observe(self, mu, sigma, q, observed, dims)

    def log_density[A: Array](
        self, residual: A, sigma: Array, q: Values, xp: Namespace = F
    ) -> A:
        # The halves above and below have areas exp(skew) / 2 and exp(-skew) / 2.
        both = xp.exp(q["skew"]) + xp.exp(-q["skew"])
        even = super().log_density(self.even(residual, q, xp), sigma, q, xp)
        log: A = even - xp.log(0.5 * both)
        return log

    def even[A: Array](self, residual: A, q: Values, xp: Namespace = F) -> A:
        above = xp.maximum(residual, 0.0)
        below = xp.minimum(residual, 0.0)
        even: A = above * xp.exp(-q["skew"]) + below * xp.exp(q["skew"])
        return even

    def sample(self, rng: Generator, shape: Shape, sigma: Floats, q: Draws) -> Floats:
        size = np.abs(super().sample(rng, shape, sigma, q))
        # The share of the area above is exp(skew) / (exp(skew) + exp(-skew)).
        above = rng.random(shape) < expit(2 * q["skew"])
        return np.asarray(
            size * np.where(above, np.exp(q["skew"]), -np.exp(-q["skew"]))
        )


LIKELIHOODS: dict[str, type[Likelihood]] = {
    kind.kind: kind for kind in (StudentT, Normal, Huber, Skewed)
}


def make_likelihood(likelihood: str | Likelihood, delta: float = DELTA) -> Likelihood:
    """A likelihood by its kind, or the one given; `delta` is the threshold of ``huber``."""
    if not delta > 0:
        raise FitError(f"delta must be positive, not {delta!r}.")
    if likelihood == Huber.kind:
        return Huber(delta)
    if isinstance(likelihood, str):
        return kind_of(Likelihood, LIKELIHOODS, likelihood)()
    return likelihood


ERRORS = ("run", "independent")
"""Kinds of errors: correlated within a run, and independent."""
LENGTH = "ell"
"""Name of the correlation length, in e-folds of D."""
LENGTH_PRIOR = Prior.parse("LogNormal(median=1, sigma=0.4)")
"""Prior of the correlation length."""
FAR_GAP = 1e4
"""Distance, in e-folds, of the first row of a run from the row before it: no correlation."""


class Order(NamedTuple):
    """Index of the row before each in its run, or its own; and the distance in log tokens."""

    before: Ints
    gap: Floats


def runs(frame: pd.DataFrame) -> Strings:
    """Run of each row, shape (rows,); a run's rows that are not annealed count as another run."""
    run = labels(frame, "run").astype(str)
    return np.where(unannealed(frame) == 1, np.char.add(run, " unannealed"), run)


def order(frame: pd.DataFrame) -> Order:
    """The row before each row in its run; rows without a label are runs of their own."""
    run = runs(frame)
    log = np.log(frame["tokens"].to_numpy(float))
    sequence = np.lexsort([log, run])
    # The first row of a run stands before itself, so far off that its correlation is zero.
    before = np.arange(len(frame))
    gap = np.full(len(frame), FAR_GAP)
    one = sequence[:-1]
    two = sequence[1:]
    same = run[one] == run[two]
    before[two[same]] = one[same]
    gap[two[same]] = (log[two] - log[one])[same]
    return Order(before, gap)


def choose_errors(
    errors: str, frame: pd.DataFrame, name: str, *, own: str | None = None
) -> str:
    """Kind of errors; `own` is a covariate of which each run has a value of its own.

    It is given if the law is taken as exact: errors of whole runs can then explain whatever the
    law's term in that covariate should explain.
    """
    if errors not in (AUTO, *ERRORS):
        raise FitError(unknown("errors", errors, (AUTO, *ERRORS)))
    if errors == "independent":
        return errors
    ordered = {"run", "tokens"} <= {*frame}
    repeated = ordered and frame["run"].dropna().duplicated().any()
    gaps = order(frame).gap if repeated else np.ones(0)
    if errors == AUTO:
        return "run" if repeated and (gaps > 0).all() and own is None else "independent"
    if not repeated:
        raise TableError(
            f"{name}: {argument('errors', 'run')} needs a column 'run' with several rows of a run, "
            "and 'tokens'."
        )
    # At equal tokens two errors would have correlation 1, whatever the two losses are.
    if (gaps == 0).any():
        twice = runs(frame)[np.argmin(gaps)]
        raise TableError(
            f"{name}: run {str(twice)!r} has two rows of equal tokens; give them runs of their own."
        )
    if own is not None:
        warnings.warn(
            f"{name}: each run has a value of {own!r} of its own, so errors that are correlated "
            "in runs can take the place of the law's term in it, and forecasts be far off; give "
            f"{argument('errors', 'independent')}, or a discrepancy.",
            TableWarning,
            stacklevel=4,
        )
    return errors


def innovations[A: Array](
    error: A, sigma: A, ell: A, rows: Order, xp: Namespace
) -> tuple[A, A]:
    """Innovation of each row given the error before it, and its scale."""
    rho = decay(rows.gap, ell, xp)
    return error - rho * xp.take(error, rows.before, axis=-1), innovation_scale(
        sigma, rho, xp
    )


def draw_paths(
    likelihood: Likelihood,
    rng: Generator,
    sigma: Floats,
    q: Mapping[str, Floats],
    rows: Order,
    fixed: tuple[Ints, Floats] | None = None,
) -> Floats:
    """Draws of the errors of some rows, shape (draws, rows): the inverse of `innovations`."""
    rho = decay(rows.gap, q[LENGTH])
    scale = innovation_scale(sigma, rho)
    error = likelihood.sample(rng, scale.shape, scale, q)
    done = rows.before == np.arange(len(rows.before))
    if fixed is not None:
        error[:, fixed[0]] = fixed[1]
        done[fixed[0]] = True
    # A step takes one row of every run, so there are as many as the longest run has rows.
    while not done.all():
        ready = np.flatnonzero(~done & done[rows.before])
        error[:, ready] += rho[:, ready] * error[:, rows.before[ready]]
        done[ready] = True
    return error


def correlation(run: Strings | Ints, tokens: Floats, ell: float) -> Floats:
    """Correlation of errors between rows, shape (rows, rows)."""
    log = np.log(tokens)
    return np.where(run[:, None] == run, decay(np.abs(log[:, None] - log), ell), 0.0)


def decay[A: Array](apart: Array, ell: A, xp: Namespace = np) -> A:
    """Correlation of two errors of one run at a distance in log tokens."""
    correlation: A = xp.exp(-apart / ell)
    return correlation
