"""Laws: a floor plus terms.

A law is written in two coordinate systems that convert exactly both ways.

- *Paper coordinates*: ``E, A, alpha, B, ...`` as published.
- *Reference coordinates*, in which priors are stated and the sampler works: ``L_ref``, the loss at
  a reference point (the training data's geometric mean), and for each term its local slope there,
  in nats per e-fold, with its exponent. ``L = L_ref + sum_j s_j/k_j [exp(log_ratio_j) - 1]``.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Namespace
from bayeslaw.common.errors import TableError, argument
from bayeslaw.common.registry import identity
from bayeslaw.laws.adjustments import Offset, Repetition
from bayeslaw.laws.bases import Bases
from bayeslaw.laws.departure import MIXED, Departure
from bayeslaw.laws.deviations import START, WHOLE, Deviation, Walk
from bayeslaw.laws.knots import Knots
from bayeslaw.laws.parts import KAPPA, Coupling, Part, couple
from bayeslaw.laws.priors import FLOOR, NOISE, Prior
from bayeslaw.laws.terms import COLUMN, ORIGIN, STEP, Array, Term, Values
from bayeslaw.tables.table import LossTable
from bayeslaw.tables.validation import COVARIATES, canonical

CLIP = 1e-9
"""The paper clips r to [CLIP, 1 - CLIP]."""


@dataclass(frozen=True)
class Law:
    """A scaling law: ``L = E + sum of terms``, in nats per token.

    Parameters
    ----------
    name, title, reference : str
        Short name, what it is, and where it was published.
    terms : tuple of Term
    priors : mapping
        Prior of ``E``, or of ``floor``, its share of the loss at the reference point; of each slope
        and each exponent in reference coordinates; and those of noise and random effects
        (``sigma``, ``dof``, ``tau_run``, ...) that the law file states.
    bounds : mapping
        Range of every parameter in paper coordinates; priors lie inside.
    token_unit : float
        Tokens per unit of D. It matters where an exponent of D varies from row to row.
    ratio : {"replay", "own"}
        Whether r is the replayed share or the modelled domain's own share.
    epsilon : float
        The paper's epsilon in ``C / (r + epsilon)^gamma``.
    deviations : tuple of Deviation
        Of the log loss, by a discrepancy.
    coupled : tuple of str
        Coefficients of terms T that enter as ``(sum of T^(1 / kappa))^kappa`` and not as their sum;
        the law then has the parameter kappa, whose value 1 is the sum.
    coupling_added : bool
        Whether the coupling is a discrepancy's and not the law's own.
    paper_bounds : mapping
        Ranges as published, of the parameters for which they differ from `bounds`.
    departure : Departure, optional
        How the loss departs from that of the pre-trained model; without it, floor and terms are
        the loss.
    bases : Bases, optional
        Losses of the pre-trained models of the table that the law is fitted to.
    repetition : Repetition, optional
        What repeated tokens are worth; without it, as much as new ones.
    offset : Offset, optional
        Factor of the loss for checkpoints that are not annealed.
    """

    name: str
    title: str
    reference: str
    terms: tuple[Term, ...]
    priors: Mapping[str, Prior]
    bounds: Mapping[str, tuple[float, float]]
    token_unit: float = 1.0
    ratio: Literal["replay", "own"] = "replay"
    epsilon: float = 1e-5
    deviations: tuple[Deviation, ...] = ()
    coupled: tuple[str, ...] = ()
    coupling_added: bool = False
    paper_bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    departure: Departure | None = None
    bases: Bases | None = field(default=None, repr=False)
    repetition: Repetition | None = None
    offset: Offset | None = None

    @cached_property
    def exponents(self) -> tuple[str, ...]:
        """Paper symbols of every parameter that enters non-linearly."""
        own = [e for term in self.terms for e in term.exponents]
        added = [n for part in self._added for n in part.parameters]
        return tuple(dict.fromkeys([*own, *added]))

    @cached_property
    def coefficients(self) -> tuple[str, ...]:
        """Paper symbols of the terms' coefficients."""
        return tuple(term.coefficient for term in self.terms)

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Paper symbols in the order of the formula."""
        own = [n for term in self.terms for n in (term.coefficient, *term.exponents)]
        added = [n for part in self._added for n in part.parameters]
        return ("E", *dict.fromkeys([*own, *added]))

    @cached_property
    def coordinates(self) -> tuple[str, ...]:
        """Names of the reference coordinates."""
        at, none = ORIGIN, dict.fromkeys(self.exponents, 0.0)
        own = [n for term in self.terms for n in (term.slope, *term.to_local(none, at, np))]
        added = [n for part in self.parts for n in part.local]
        added += [n for deviation in self.deviations for n in deviation.parameters]
        return ("L_ref", *dict.fromkeys([*own, *added]))

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """What the law has beside floor and terms, in the order in which it acts on the loss."""
        every = (self.departure, self.coupling, self.offset, self.repetition)
        return tuple(part for part in every if part)

    @property
    def _added(self) -> tuple[Part | Deviation, ...]:
        """What has parameters beside those of the terms."""
        return (*self.parts, *self.deviations)

    @cached_property
    def coupling(self) -> Coupling | None:
        """The coupling of terms, if there is one."""
        terms = tuple(term for term in self.terms if term.coefficient in self.coupled)
        return Coupling(terms) if terms else None

    @cached_property
    def walks(self) -> tuple[Walk, ...]:
        """Random walks among the deviations.

        The steps of each are a vector parameter of the law, named `Walk.steps`. A walk whose steps
        are not given is zero.
        """
        return tuple(each for each in self.deviations if isinstance(each, Walk))

    def over(self, x: Values, at: Values) -> "Law":
        """The law with knots of its random walks that cover some rows."""
        return self.with_knots(self.knots(x, at))

    def knots(self, x: Values, at: Values) -> dict[str, Knots]:
        """Knots of the random walks that cover some rows, by the names of their steps."""
        x = self.of_deviations(x)
        return {walk.steps: walk.reach(x, at) for walk in self.walks}

    def with_knots(self, knots: Mapping[str, Knots]) -> "Law":
        """The law with knots of its random walks, by the names of their steps."""
        if not knots:
            return self
        deviations = [d.with_knots(knots) if isinstance(d, Walk) else d for d in self.deviations]
        return replace(self, deviations=tuple(deviations))

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Covariates of a table that this law needs; losses of bases are known from `bases`."""
        used = {COLUMN[c] for c in self.covariate_names}
        return tuple(c for c in COVARIATES if c in used)

    @property
    def needs(self) -> dict[str, str]:
        """What needs each of the `columns`, for messages."""
        used = {
            c: [t.coefficient for t in self.terms if c in {COLUMN[x] for x in t.covariates}]
            for c in self.columns
        }
        return {
            c: f"for {', '.join(terms)} of {self.name}" if terms else f"for {self.name}"
            for c, terms in used.items()
        }

    @cached_property
    def covariate_names(self) -> tuple[str, ...]:
        """Covariates that the terms and the other parts use."""
        used = {c for term in self.terms for c in term.covariates}
        used |= {c for part in self._added for c in part.covariates}
        return tuple(c for c in COLUMN if c in used)

    @cached_property
    def discrepancy_parameters(self) -> tuple[str, ...]:
        """Names of the parameters that the discrepancy adds to the law."""
        own = self.without_discrepancy.exponents
        return tuple(name for name in self.exponents if name not in own)

    @cached_property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        """Columns of a table along which each reference coordinate acts."""
        found: dict[str, tuple[str, ...]] = {}
        for term in self.terms:
            found |= term.covariates_of
            found |= dict.fromkeys((term.local, term.slope), term.covariates[:1])
        for part in self._added:
            for name, along in part.covariates_of.items():
                found[name] = tuple(dict.fromkeys([*found.get(name, ()), *along]))
        known = {c: column for c, column in COLUMN.items() if column in COVARIATES}
        columns = {
            n: tuple(dict.fromkeys(known[c] for c in along if c in known))
            for n, along in found.items()
        }
        return {name: columns[name] for name in self.coordinates if columns.get(name)}

    @property
    def additive(self) -> bool:
        """Whether the loss is the floor plus the terms, which may be coupled."""
        return not self.deviations and all(part.additive for part in self.parts)

    @cached_property
    def identity(self) -> str:
        """Hash of what the loss and its priors depend on, which name and title are not part of."""
        other = ("name", "title", "reference", "paper_bounds", "bases")
        names = [f.name for f in fields(self) if f.name not in other]
        names = [n for n in names if n not in ("repetition", "offset") or getattr(self, n)]
        parts = {name: getattr(self, name) for name in names}
        unordered = {name: dict(sorted(parts[name].items())) for name in ("priors", "bounds")}
        return identity(parts | unordered)

    # -- covariates ---------------------------------------------------------------------------

    def covariates(self, rows: LossTable | pd.DataFrame, name: str = "table") -> dict[str, Array]:
        """Logarithms of the covariates, and the replay ratio itself, each of shape (rows,).

        Raises
        ------
        TableError
            If a column the law needs is missing, or a row has tokens = 0.
        """
        frame = self._valid(rows, name)
        if (frame["tokens"] == 0).any():
            raise TableError(f"{name}: the law {self.name} has no value at tokens = 0.")
        logged = [c for c in ("params", "ptpp") if c in self.columns]
        x: dict[str, Array] = {c: np.log(frame[c].to_numpy()) for c in logged}
        x["tokens"] = np.log(frame["tokens"].to_numpy() / self.token_unit)
        if "replay" in self.columns:
            x |= self.shares(frame["replay"].to_numpy())
        for part in self.parts:
            x |= part.read(frame, self, name)
        return x

    def reference_point(self, rows: LossTable | pd.DataFrame) -> dict[str, float]:
        """Logarithms of the covariates at the reference point of a training table.

        Geometric means, except r, which may be 0: its arithmetic mean. No data repeat there, and
        it is annealed.
        """
        frame, x = self._valid(rows), self.covariates(rows)
        for part in self.parts:
            x = dict(part.neutral(x))
        at = {name: float(values.mean()) for name, values in x.items()}
        if "replay" in self.columns:
            mean = np.array([frame["replay"].mean()])
            at |= {name: float(values[0]) for name, values in self.shares(mean).items()}
        return at

    def point(self, at: Mapping[str, float]) -> dict[str, float]:
        """Covariates at the reference point `at`, in the units of a table."""
        point = {c: math.exp(at[c]) for c in self.columns if c in at}
        point["tokens"] *= self.token_unit
        if "replay" in point and self.ratio == "own":
            point["replay"] = 1 - point["replay"]
        return point

    def check_fits(self, rows: LossTable | pd.DataFrame, name: str = "table") -> None:
        """Raise `TableError` unless the rows are one domain in which every covariate varies."""
        frame = self._valid(rows, name)
        domains = frame["domain"].dropna().unique().tolist() if "domain" in frame else []
        if len(domains) > 1:
            raise TableError(
                f"{name}: several domains ({', '.join(map(str, domains))}); fit one, such as "
                f"{argument('where', f'domain == {domains[0]!r}')}."
            )
        for column in self.columns:
            values = frame[column].to_numpy()
            if (values == values[0]).all():
                raise TableError(
                    f"{name}: column {column!r} is {values[0]:g} in all {len(values)} rows, "
                    f"but the law {self.name} has a term in it; "
                    "choose a law without it or rows where it varies."
                )

    def _valid(self, rows: LossTable | pd.DataFrame, name: str = "table") -> pd.DataFrame:
        """The rows with the law's columns; a `LossTable` was validated when it was made."""
        if isinstance(rows, LossTable):
            if len(rows) and set(self.columns) <= set(rows.frame.columns):
                return rows.frame
            return canonical(rows.frame, rows.name, self.needs)
        return canonical(rows, name, self.needs)

    def shares(self, replay: Array) -> dict[str, Array]:
        """Covariates of replay ratios: the share that the law counts, its log, its barrier's log.

        The share is r, or 1 - r if `ratio` is "own".
        """
        share = np.clip(replay if self.ratio == "replay" else 1 - replay, CLIP, 1 - CLIP)
        return {
            "replay": np.log(share),
            "barrier": np.log(share + self.epsilon),
            "share": share,
            "mixed": np.log(share + MIXED),
            "fresh": np.log1p(-share),
        }

    # -- the formula --------------------------------------------------------------------------

    def loss(self, p: Values, x: Values, at: Values = ORIGIN, xp: Namespace = np) -> Array:
        """Loss in nats per token.

        Parameters
        ----------
        p : mapping
            Floor, exponents, and under each coefficient's name the size of its term at `at`, in
            nats. With the default `at`, where all covariates are 1, it is the published
            coefficient. Arrays of draws carry a trailing axis of length 1.
        x : mapping
            Logarithms of the covariates, from `covariates`.
        at : mapping
            Point where the sizes are stated.
        xp : module
            NumPy or ``pytensor.tensor``.

        Returns
        -------
        array, shape (..., rows)
        """
        base, shares = self._base(p, x, at, xp)
        if not self.deviations:
            return base
        x = self.of_deviations(x, xp)
        return base * xp.exp(sum(shares(d.of) * d.value(p, x, at, xp) for d in self.deviations))

    def log(
        self, p: Values, x: Values, at: Values, xp: Namespace
    ) -> tuple[Array, dict[str, Array]]:
        """Log of the loss without deviations, and the share of the loss of each part that deviates.

        Arguments are those of `loss`. The share of the whole loss is 1.
        """
        base, shares = self._base(p, x, at, xp)
        return xp.log(base), {d.of: shares(d.of) for d in self.deviations}

    def _base(
        self, p: Values, x: Values, at: Values, xp: Namespace
    ) -> tuple[Array, Callable[[str], Array]]:
        """The loss without deviations, and the derivative of its log by that of each part."""
        x = self.effective(p, x, xp)
        each = {name: p[name] * ratio for name, ratio in self.ratios(p, x, at, xp).items()}
        core = p["E"] + sum(term for name, term in each.items() if name not in self.coupled)
        joined: Array = 0.0
        if self.coupled:
            joined = couple([each[name] for name in self.coupled], p[KAPPA], xp)
            core = core + joined
        factor, added = (1.0, 0.0) if self._alone else self.outer(p, x, at, xp)
        base = core if self._alone else core * factor + added

        def share(of: str) -> Array:
            if of == WHOLE:
                return 1.0
            if of == START and self.departure:
                later = self.offset.outer(p, x, at, xp)[0] if self.offset else 1.0
                return self.departure.change(p, x, core, xp) * later / base
            if self.coupling and of in self.coupled:
                return joined * self.coupling.shares(each, p[KAPPA], xp)[of] * factor / base
            return each[of] * factor / base

        return base, share

    @property
    def _alone(self) -> bool:
        """Whether floor and terms are the loss before deviations."""
        return all(part.additive for part in self.parts)

    def effective(self, p: Values, x: Values, xp: Namespace = np) -> Values:
        """The covariates, with tokens of one epoch that are worth the tokens of each row."""
        for part in self.parts:
            x = part.effective(p, x, xp)
        return x

    def of_deviations(self, x: Values, xp: Namespace = np) -> Values:
        """The covariates of deviations, whose columns no parameter changes.

        Tokens are those of one epoch that are worth the tokens of each row at a typical R.
        """
        return self.effective(self.repetition.typical, x, xp) if self.repetition else x

    def given(self, p: Values, x: Values, at: Values = ORIGIN) -> Array:
        """The part of `loss` that neither the floor nor a term is part of; arguments as for it."""
        return self.outer(p, self.effective(p, x), at, np)[1]

    def floor(self, p: Values, x: Values, at: Values = ORIGIN) -> Array:
        """Limit of `loss` as all terms vanish and adaptation never ends."""
        x = self.effective(p, x)
        return p["E"] * math.prod(part.limit(p, x, at) for part in self.parts)

    def sensitivities(self, p: Values, x: Values, at: Values = ORIGIN) -> dict[str, Array]:
        """Derivative of `loss` by the floor and by each term's size; arguments as for `loss`.

        The loss is the sum of sizes times these, plus `given`, since it is linear in the sizes, and
        where terms are coupled homogeneous of degree 1 in them.
        """
        x = self.effective(p, x)
        ratios = self.ratios(p, x, at, np)
        by = {"E": 1.0, **ratios}
        by |= self.coupling.sensitivities(p, ratios) if self.coupling else {}
        if self._alone:
            return by
        factor, _ = self.outer(p, x, at, np)
        return {name: each * factor for name, each in by.items()}

    def ratios(self, p: Values, x: Values, at: Values, xp: Namespace) -> dict[str, Array]:
        """Each term over its size at `at`, by its coefficient."""
        return {t.coefficient: xp.exp(t.log_ratio(p, x, at, xp)) for t in self.terms}

    def outer(self, p: Values, x: Values, at: Values, xp: Namespace) -> tuple[Array, Array]:
        """Factor of floor and terms, and what is added to them, by all parts."""
        factor, added = 1.0, 0.0
        for part in self.parts:
            own, further = part.outer(p, x, at, xp)
            factor, added = factor * own, added * own + further
        return factor, added

    def gradient(self, p: Values, x: Values, at: Values = ORIGIN) -> dict[str, Array]:
        """Derivative of `loss` by each parameter."""
        if self.deviations:

            def loss(name: str) -> Array:
                return self.loss({**p, name: p[name] + 1j * STEP}, x, at).imag / STEP

            return {name: loss(name) for name in self.parameters}
        by = self.sensitivities(p, x, at)
        sizes = {name: p[name] * by[name] for name in self.coefficients}
        for term in self.terms:
            for name, slope in term.slopes(p, self.effective(p, x), at).items():
                by[name] = by.get(name, 0.0) + sizes[term.coefficient] * slope
        for part in self.parts:
            by |= part.gradient(self, p, x, at)
        return by

    # -- coordinates --------------------------------------------------------------------------

    def amounts(self, q: Values, at: Values, xp: Namespace = np) -> dict[str, Array]:
        """Floor, term sizes at the reference point `at`, and the paper's exponents."""
        p: dict[str, Array] = {walk.steps: q[walk.steps] for walk in self.walks if walk.steps in q}
        for term in self.terms:
            p |= term.from_local(q, at, xp)
            p[term.coefficient] = q[term.slope] / term.exponent(p, at, xp)
        for part in self.parts:
            p |= part.from_local(q, at)
        p |= {n: q[n] for deviation in self.deviations for n in deviation.parameters}
        floor = q["L_ref"] - sum(p[c] for c in self.coefficients)
        if self.coupling:
            # This keeps the sum at the reference point and the local slopes there unchanged.
            p |= self.coupling.joined(p, p[KAPPA])
        return {"E": floor, **p}

    def to_paper(self, q: Values, at: Values, xp: Namespace = np) -> dict[str, Array]:
        """Paper coordinates from reference coordinates at `at`."""
        return self.rescale(self.amounts(q, at, xp), at, xp)

    def rescale(self, p: Values, at: Values, xp: Namespace = np) -> dict[str, Array]:
        """Paper coordinates from term sizes at `at`."""
        p = dict(p)
        for term in self.terms:
            p[term.coefficient] = p[term.coefficient] * xp.exp(-term.log_ratio(p, at, ORIGIN, xp))
        for part in self.parts:
            p |= part.to_paper(p, at)
        return {name: p[name] for name in self.parameters}

    def to_reference(self, p: Values, at: Values, xp: Namespace = np) -> dict[str, Array]:
        """Reference coordinates at `at` from paper coordinates."""
        q: dict[str, Array] = {"L_ref": p["E"]}
        sizes = {
            t.coefficient: p[t.coefficient] * xp.exp(t.log_ratio(p, at, ORIGIN, xp))
            for t in self.terms
        }
        sizes |= self.coupling.summed(sizes, p[KAPPA]) if self.coupling else {}
        for term in self.terms:
            size = sizes[term.coefficient]
            q["L_ref"] = q["L_ref"] + size
            q[term.slope] = size * term.exponent(p, at, xp)
            q |= term.to_local(p, at, xp)
        for part in self.parts:
            q |= part.to_local(p, at)
        q |= {n: p[n] for deviation in self.deviations for n in deviation.parameters}
        return {name: q[name] for name in self.coordinates}

    @property
    def without_discrepancy(self) -> "Law":
        """The law without discrepancy."""
        law = replace(
            self,
            deviations=(),
            coupled=() if self.coupling_added else self.coupled,
            coupling_added=False,
        )
        added = {*self.exponents} - {*law.exponents}
        return replace(
            law,
            priors={name: prior for name, prior in self.priors.items() if name not in added},
            bounds={name: bound for name, bound in self.bounds.items() if name not in added},
        )

    @property
    def published(self) -> "Law":
        """The law with `bounds` as published."""
        return replace(self, bounds={**self.bounds, **self.paper_bounds})

    def latex(self) -> str:
        """The law as LaTeX."""
        alone = [term.latex() for term in self.terms if term.coefficient not in self.coupled]
        alone = [self.coupling.latex(), *alone] if self.coupling else alone
        core = "E + " + " + ".join(alone)
        loss = r"\hat L = " + (self.departure.latex(core) if self.departure else core)
        return rf"{loss},\quad {self.repetition.latex()}" if self.repetition else loss

    @property
    def typical(self) -> dict[str, float]:
        """Typical sizes of parameters for which 1 is far from it."""
        own = {name: size for term in self.terms for name, size in term.typical.items()}
        return own | {n: size for part in self.parts for n, size in part.typical.items()}

    @cached_property
    def prior_bounds(self) -> dict[str, tuple[float, float]]:
        """Range of each quantity that has a prior."""
        local = {term.local: self.bounds[term.leading] for term in self.terms}
        free = dict.fromkeys((*self.coordinates[1:], *NOISE), (0.0, math.inf))
        own = {name: self.bounds[name] for name in self.exponents if name in self.coordinates}
        moved = {n for part in self.parts for n in part.local} - {*self.exponents}
        own |= dict.fromkeys(moved, (-math.inf, math.inf))
        return {"E": self.bounds["E"], FLOOR: (0.0, 1.0)} | free | local | own
