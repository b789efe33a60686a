"""Laws: a floor plus terms.

A law is written in two coordinate systems that convert exactly both ways.

- *Paper coordinates*: ``E, A, alpha, B, ...`` as published.
- *Reference coordinates*, in which priors are stated and the sampler works: ``L_ref``, the loss at
  a reference point (the training data's geometric mean), and for each term its local slope there,
  in nats per e-fold, with its exponent.

Between them are the *amounts*: the floor and each term at the reference point, in nats, with the
paper's exponents. The formula takes these, or the paper's coefficients.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, reduce
from typing import Literal

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Namespace
from bayeslaw.common.errors import LawError, TableError, argument
from bayeslaw.common.files import digest
from bayeslaw.common.formatting import count
from bayeslaw.common.shown import SYNTHETIC, Block, Note, Shown
from bayeslaw.laws.adjustments import (
    BEST,
    COST,
    MIXED,
    OFFSET,
    OFFSET_ALONG,
    OFFSET_PRIORS,
    RATE_PRIORS,
    REPEATS,
    REPEATS_PRIORS,
    TYPICAL_REPEATS,
    UNIQUE,
    WORTH_LATEX,
    Bases,
    Departure,
    Offset,
    Tuning,
    rates,
    unannealed,
    until_repeated,
    worth,
)
from bayeslaw.laws.deviations import START, WHOLE, Deviation, Knots, Walk
from bayeslaw.laws.priors import FLOOR, NOISE, Prior, floor_with
from bayeslaw.laws.terms import COLUMN, ORIGIN, SYMBOLS, Array, Term, Values
from bayeslaw.tables.covariates import TABLE
from bayeslaw.tables.table import LossTable, is_synthetic
from bayeslaw.tables.validation import COVARIATES, canonical

CLIP = 1e-9
"""The paper clips r to [CLIP, 1 - CLIP]."""
KAPPA = "kappa"
"""Parameter of a coupling of terms."""
SAME_BASE = 1e-9
"""Largest difference, in log loss, of bases' deviations that are the same."""
STEP = 1e-30
"""Imaginary step of complex-step derivatives: too small to change the real part."""


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
    role : {"", "target", "source"}
        Whether the losses are of the domain adapted to or of the one pre-trained on, which says
        what the share s of the domain's own text is: 1 - r or r. Empty if the law does not read it.
    coupled : tuple of str
        Coefficients of terms T that enter as ``(sum of T^(1 / kappa))^kappa`` and not as their sum;
        the law then has the parameter kappa, whose value 1 is the sum.
    paper_bounds : mapping
        Ranges as published, of the parameters for which they differ from `bounds`.
    typical : mapping
        Typical sizes of the parameters for which 1 is far from it.
    departure : Departure, optional
        How the loss departs from that of the pre-trained model; without it, floor and terms are
        the loss.
    bases : Bases, optional
        Losses of the pre-trained models of the table that the law is fitted to.
    deviations : tuple of Deviation
        Of the log loss, by a discrepancy.
    coupling_added : bool
        Whether the coupling is a discrepancy's and not the law's own.
    repetition : bool
        Whether repeated tokens are worth less than new ones.
    offset : Offset, optional
        Factor of the loss for checkpoints that are not annealed.
    tuning : Tuning, optional
        Factor of the loss for runs that are not at their best rate.
    held : mapping of str to float
        Columns that were the same in all fitted rows, and their values: the law is for these alone.
    left_out : tuple of str
        Paper symbols of the parameters that the law has where `held` columns vary.
    """

    name: str
    title: str
    reference: str
    terms: tuple[Term, ...]
    priors: Mapping[str, Prior]
    bounds: Mapping[str, tuple[float, float]]
    token_unit: float = 1.0
    role: Literal["", "target", "source"] = ""
    coupled: tuple[str, ...] = ()
    paper_bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    typical: Mapping[str, float] = field(default_factory=dict)
    departure: Departure | None = None
    bases: Bases | None = field(default=None, repr=False)
    deviations: tuple[Deviation, ...] = ()
    coupling_added: bool = False
    repetition: bool = False
    offset: Offset | None = None
    tuning: Tuning | None = None
    held: Mapping[str, float] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    # -- names --------------------------------------------------------------------------------

    @cached_property
    def coefficients(self) -> tuple[str, ...]:
        """Paper symbols of the terms' coefficients."""
        return tuple(term.coefficient for term in self.terms)

    @cached_property
    def _added(self) -> dict[str, str]:
        """Parameters beside those of the terms, with their names in reference coordinates."""
        departure = self.departure
        names = dict(zip(departure.parameters, departure.local, strict=True)) if departure else {}
        names |= {KAPPA: KAPPA} if self.coupled else {}
        for factor in self.factors:
            names |= dict(zip(factor.parameters, factor.local, strict=True))
        names |= {REPEATS: REPEATS} if self.repetition else {}
        return names | {n: n for deviation in self.deviations for n in deviation.parameters}

    @cached_property
    def exponents(self) -> tuple[str, ...]:
        """Paper symbols of every parameter that enters non-linearly."""
        names = [name for term in self.terms for name in term.exponents]
        return tuple(dict.fromkeys([*names, *self._added]))

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Paper symbols in the order of the formula."""
        names = [name for term in self.terms for name in (term.coefficient, *term.exponents)]
        return ("E", *dict.fromkeys([*names, *self._added]))

    @cached_property
    def coordinates(self) -> tuple[str, ...]:
        """Names of the reference coordinates."""
        names = [n for t in self.terms for n in (t.slope, t.local, *t.exponents[1:])]
        return ("L_ref", *dict.fromkeys([*names, *self._added.values()]))

    @cached_property
    def discrepancy_parameters(self) -> tuple[str, ...]:
        """Names of the parameters that the discrepancy adds to the law."""
        stated = self.without_discrepancy.exponents
        return tuple(name for name in self.exponents if name not in stated)

    @cached_property
    def _along(self) -> dict[str, tuple[str, ...]]:
        """Covariates that each parameter or reference coordinate acts along."""
        along: dict[str, tuple[str, ...]] = {}
        for term in self.terms:
            along |= term.covariates_of
            along |= dict.fromkeys((term.local, term.slope), term.covariates[:1])
        coupled = [t.covariates for t in self.terms if t.coefficient in self.coupled]
        parts = [self.departure.covariates_of if self.departure else {}]
        parts += [{KAPPA: tuple(dict.fromkeys(sum(coupled, ())))}] if coupled else []
        parts += [factor.covariates_of for factor in self.factors]
        parts += [{REPEATS: ("tokens", "unique")}] if self.repetition else []
        parts += [deviation.covariates_of for deviation in self.deviations]
        for part in parts:
            for name, covariates in part.items():
                along[name] = tuple(dict.fromkeys([*along.get(name, ()), *covariates]))
        return along

    @cached_property
    def covariates_of(self) -> dict[str, tuple[str, ...]]:
        """Columns of a table along which each reference coordinate acts."""
        columns = {
            name: tuple(dict.fromkeys(COLUMN[c] for c in along if COLUMN[c] in self.columns))
            for name, along in self._along.items()
        }
        return {name: columns[name] for name in self.coordinates if columns.get(name)}

    @cached_property
    def covariate_names(self) -> tuple[str, ...]:
        """Covariates that the formula uses."""
        used = {c for term in self.terms for c in term.covariates}
        used |= {c for name, along in self._along.items() if name in self._added for c in along}
        used |= {"start"} if self.departure else set()
        return tuple(c for c in COLUMN if c in used)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Covariates of a table that this law needs; losses of bases are known from `bases`."""
        used = {COLUMN[c] for c in self.covariate_names} - self.held.keys()
        return tuple(c for c in COVARIATES if c in used)

    @property
    def needs(self) -> dict[str, str]:
        """What needs each of the `columns`, for messages."""
        needs = {}
        for c in self.columns:
            terms = [t.coefficient for t in self.terms if c in {COLUMN[x] for x in t.covariates}]
            needs[c] = f"for {', '.join(terms)} of {self.name}" if terms else f"for {self.name}"
        return needs

    @cached_property
    def identity(self) -> str:
        """Hash of what the loss and its priors depend on, which name and title are not part of."""
        other = ["name", "title", "reference", "paper_bounds", "bases", "typical", "left_out"]
        other += [] if self.held else ["held"]
        return digest({name: part for name, part in asdict(self).items() if name not in other})

    @cached_property
    def reads_own(self) -> bool:
        """Whether the loss depends on the share of the domain's own text, beside a discrepancy."""
        departs = self.departure is not None and bool(self.departure.share)
        return departs or any("own" in term.covariates for term in self.terms)

    @property
    def epsilon(self) -> float:
        """The number in ``log(r + epsilon)``."""
        return next((t.epsilon for t in self.terms if t.epsilon is not None), 1e-5)

    @cached_property
    def prior_bounds(self) -> dict[str, tuple[float, float]]:
        """Range of each quantity that has a prior."""
        bounds = {"E": self.bounds["E"], FLOOR: (0.0, 1.0)}
        bounds |= dict.fromkeys((*self.coordinates[1:], *NOISE), (0.0, math.inf))
        bounds |= {term.local: self.bounds[term.leading] for term in self.terms}
        bounds |= {name: self.bounds[name] for name in self.exponents if name in self.coordinates}
        moved = {local for name, local in self._added.items() if local != name}
        return bounds | dict.fromkeys(moved, (-math.inf, math.inf))

    @cached_property
    def factors(self) -> tuple[Offset | Tuning, ...]:
        """Factors of the loss of rows that are not as the law's: annealed, at their best rate."""
        return tuple(factor for factor in (self.offset, self.tuning) if factor)

    # -- other forms of the law ---------------------------------------------------------------

    @cached_property
    def walks(self) -> tuple[Walk, ...]:
        """Random walks among the deviations.

        The steps of each are a vector parameter of the law, named `Walk.steps`. A walk whose steps
        are not given is zero.
        """
        return tuple(each for each in self.deviations if isinstance(each, Walk))

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

    def over(self, x: Values, at: Values) -> "Law":
        """The law with knots of its random walks that cover some rows."""
        return self.with_knots(self.knots(x, at))

    @property
    def without_discrepancy(self) -> "Law":
        """The law as it is stated in its file, with what the columns of a table call for."""
        coupled = () if self.coupling_added else self.coupled
        law = replace(self, deviations=(), coupled=coupled, coupling_added=False)
        added = {*self.exponents} - {*law.exponents}
        priors = {name: prior for name, prior in self.priors.items() if name not in added}
        bounds = {name: bound for name, bound in self.bounds.items() if name not in added}
        return replace(law, priors=priors, bounds=bounds)

    @property
    def published(self) -> "Law":
        """The law with `bounds` as published."""
        return replace(self, bounds={**self.bounds, **self.paper_bounds})

    def repeating(self) -> "Law":
        """The law with a worth of repeated tokens."""
        if self.repetition:
            return self
        law, bounds = replace(self, repetition=True), {REPEATS: (0.0, math.inf)}
        return law._stating(REPEATS_PRIORS, bounds, {REPEATS: TYPICAL_REPEATS})

    def annealing(self) -> "Law":
        """The law with an offset for checkpoints that are not annealed."""
        if self.offset:
            return self
        columns = self.columns
        along = {n: (OFFSET, c) for c, n in OFFSET_ALONG.items() if COLUMN[c] in columns}
        offset = Offset(WHOLE, {OFFSET: (OFFSET,), **along})
        free = dict.fromkeys(offset.parameters, (-math.inf, math.inf))
        priors = {name: OFFSET_PRIORS[name] for name in offset.local}
        typical = dict.fromkeys(offset.parameters, 0.02)
        return replace(self, offset=offset)._stating(priors, free, typical)

    def tuned(self) -> "Law":
        """The law with a factor for runs that are not at their best rate."""
        if self.tuning:
            return self
        along = [c for c in ("params", "tokens") if c in self.columns]
        tuning = Tuning({c: f"{BEST}_{SYMBOLS[c]}" for c in along})
        free = dict.fromkeys(tuning.parameters, (-math.inf, math.inf)) | {COST: (0.0, math.inf)}
        priors = {name: RATE_PRIORS[name] for name in tuning.local}
        return replace(self, tuning=tuning)._stating(priors, free, {COST: 0.02})

    def _stating(
        self,
        priors: Mapping[str, Prior],
        bounds: Mapping[str, tuple[float, float]],
        typical: Mapping[str, float],
    ) -> "Law":
        """The law with priors, bounds and typical sizes of further parameters."""
        return replace(
            self,
            priors={**self.priors, **priors},
            bounds={**self.bounds, **bounds},
            typical={**self.typical, **typical},
        )

    def for_rows(self, frame: pd.DataFrame, name: str = "table") -> "Law":
        """The law for rows in which some of its columns do not vary: these are `held`.

        Parameters that change nothing in such rows are left out: what they add is part of the floor
        or of a coefficient. So is a term all of whose covariates are led by others, where its own
        leading exponent changes nothing. A prior of E becomes that of E and these terms.
        """
        same = [c for c in self.columns if c in frame and (frame[c] == frame[c].iloc[0]).all()]
        if not same:
            return self
        held = {**self.held, **{c: float(frame[c].iloc[0]) for c in same}}
        kept = [t for t in self.terms if any(COLUMN[c] not in held for c in t.covariates)]
        x = self._logs(frame)
        at = {covariate: values[:1] for covariate, values in x.items()}
        rng, names = np.random.default_rng(0), [n for t in kept for n in (t.local, *t.exponents)]
        q = {name: rng.uniform(0.1, 0.9, (8, 1)) for name in names}

        def acts(term: Term, name: str) -> bool:
            points = q, {**q, name: 1.1 * q[name]}
            with np.errstate(all="ignore"):
                logs = [term.log_ratio(term.from_local(p, at, np), x, at, np) for p in points]
            return not np.allclose(logs[0], logs[1], rtol=0, atol=1e-9)

        def led(term: Term) -> bool:
            return {COLUMN[c] for c in term.covariates} - held.keys() <= leads

        def reduced(term: Term, names: Collection[str]) -> Term:
            with suppress(ArithmeticError, LawError), np.errstate(all="ignore"):
                fewer = term.without(names)
                if np.isfinite(fewer.log_ratio(fewer.from_local(q, at, np), x, ORIGIN, np)).all():
                    return fewer
            return term  # its formula has no value at zero of these

        leads = {COLUMN[t.covariates[0]] for t in kept} - held.keys()
        kept = [t for t in kept if acts(t, t.local) or not led(t)]
        if not kept:
            raise TableError(
                f"{name}: the {len(frame)} rows are the same in {', '.join(same)}, so no term of "
                f"the law {self.name} varies; add rows that differ, or choose another law."
            )
        acting = {n for t in kept for n in t.exponents if n == t.leading or acts(t, n)}
        terms = [reduced(t, {*t.exponents} - acting) for t in kept]
        departure = self.departure and self.departure.without(held)
        return replace(self, held=held)._with_parts(terms, departure)

    def for_bases(self, rows: LossTable) -> "Law":
        """The law without the base's deviation, where that is the same in all rows."""
        if self.departure is None or np.ptp(self.covariates(rows)["deviation"]) > SAME_BASE:
            return self
        return self._with_parts(self.terms, self.departure.without(["base_loss"]))

    def _with_parts(self, terms: Sequence[Term], departure: Departure | None) -> "Law":
        """The law with some of its terms and of its departure, without priors of the others."""
        coupled = tuple(t.coefficient for t in terms if t.coefficient in self.coupled)
        coupled = coupled if len(coupled) > 1 else ()
        law = replace(self, terms=tuple(terms), departure=departure, coupled=coupled)
        fewer = {*self.coordinates} - {*law.coordinates}
        priors = {name: prior for name, prior in self.priors.items() if name not in fewer}
        gone = [t for t in self.terms if t.coefficient not in law.coefficients]
        if gone and "E" in priors:
            sizes = [(self.priors[t.slope], self.priors[t.local]) for t in gone]
            priors |= floor_with(priors.pop("E"), sizes)
        return replace(
            law,
            priors=priors,
            bounds={n: ends for n, ends in self.bounds.items() if n in law.parameters},
            paper_bounds={n: e for n, e in self.paper_bounds.items() if n in law.parameters},
            typical={n: size for n, size in self.typical.items() if n in law.parameters},
            left_out=(*self.left_out, *(n for n in self.parameters if n not in law.parameters)),
        )

    @property
    def note(self) -> str:
        """What is held, and what was left out for it, in words; empty if nothing is."""
        if not self.held:
            return ""
        values = ", ".join(f"{c} {v:g}" for c, v in self.held.items())
        words = f"all rows at {values}: other values are refused"
        if self.left_out:
            words += f"; without {', '.join(self.left_out)}, part of the floor or of coefficients"
        return f"{words}."

    def described(self, table: LossTable | None, at: Mapping[str, float]) -> Shown:
        """What a fit of the law says first: the law, the table and its selection."""
        synthetic = is_synthetic(table)
        blocks: list[Block] = [Note(SYNTHETIC, "synthetic")] if synthetic else []
        blocks += [] if table is None else [f"fitted to {table}"]
        blocks += [Note(self.note, "caution")] if self.note else []
        document: dict[str, object] = {
            "law": self.name,
            "title": self.title,
            "table": table.name if table else None,
            "train": table.selection or None if table else None,
            "rows_train": len(table) if table else None,
            "synthetic": synthetic,
            "token_unit": self.token_unit,
            "reference_point": self.point(at),
        }
        if self.held:
            document |= {"held": dict(self.held), "left_out": list(self.left_out)}
        return Shown(f"{self.name}: {self.title}", blocks, document)

    def units(self, at: Mapping[str, float]) -> str:
        """The unit of tokens and the reference point of a fit, in words."""
        unit = "1 token" if self.token_unit == 1 else f"{self.token_unit:g} tokens"
        point = ", ".join(f"{n} {count(v)}" for n, v in self.point(at).items())
        own = {"target": "1 - replay", "source": "replay"}.get(self.role)
        share = f"; share of the domain's own text s = {own}" if own else ""
        return f"D in units of {unit}; reference point {point}{share}"

    @property
    def settled(self) -> "Law":
        """The law of annealed checkpoints of runs at their best rate."""
        return replace(self, offset=None, tuning=None)

    # -- covariates ---------------------------------------------------------------------------

    def covariates(self, rows: LossTable | pd.DataFrame, name: str = "table") -> dict[str, Array]:
        """Logarithms of the covariates, and the replay ratio itself, each of shape (rows,).

        Raises
        ------
        TableError
            If a column the law needs is missing, or a row has tokens = 0.
        """
        frame = self.at_held(self._valid(rows, name), name)
        if (frame["tokens"] == 0).any():
            raise TableError(f"{name}: the law {self.name} has no value at tokens = 0.")
        x = self._logs(frame)
        if self.departure:
            if self.bases is None:
                raise TableError(f"{name}: {self.name} knows no bases; fit it to a table first.")
            x["start"], x["deviation"] = self.bases.logs(frame)
        if self.offset:
            x[OFFSET] = unannealed(frame)
        if self.tuning:
            x |= rates(frame)
        if self.repetition and UNIQUE in frame:
            replay = frame["replay"].to_numpy(float) if "replay" in frame else np.zeros(len(frame))
            unique = frame[UNIQUE].to_numpy(float) / self.token_unit
            x["unique"] = until_repeated(unique, replay)
        elif self.repetition:
            x["unique"] = np.full(len(frame), math.inf)
        return x

    def _logs(self, frame: pd.DataFrame) -> dict[str, Array]:
        """Covariates that are functions of the columns of `COVARIATES`."""
        known = {*self.columns, *self.held} - {"tokens"}
        logged = [c for c, row in TABLE.items() if row.logged and c in known]
        x: dict[str, Array] = {c: np.log(frame[c].to_numpy()) for c in logged}
        x["tokens"] = np.log(frame["tokens"].to_numpy() / self.token_unit)
        if "replay" in self.columns or "replay" in self.held:
            x |= self.shares(frame["replay"].to_numpy())
        return x

    def at_held(self, frame: pd.DataFrame, name: str = "rows") -> pd.DataFrame:
        """The rows, with the `held` columns where they lack them.

        Raises
        ------
        TableError
            If a row has another value of a held column.
        """
        for column, value in self.held.items():
            given = frame[column] if column in frame else pd.Series([value])
            other = given[~np.isclose(given, value, rtol=1e-6, atol=0)]
            if len(other):
                raise TableError(
                    f"{name}: {column} {other.iloc[0]:g}, but {self.name} was fitted to rows of "
                    f"{column} {value:g} alone; choose such rows, or fit a table with several."
                )
        return frame.assign(**{c: v for c, v in self.held.items() if c not in frame})

    def reference_point(self, rows: LossTable | pd.DataFrame) -> dict[str, float]:
        """Logarithms of the covariates at the reference point of a training table.

        Geometric means, except r, which may be 0: its arithmetic mean. No data repeat there, and
        it is annealed.
        """
        frame, x = self._valid(rows), self.covariates(rows)
        if self.repetition:
            x = self.of_deviations(x)
            x["unique"] = x["tokens"]
        at = {name: float(values.mean()) for name, values in x.items()}
        at |= {OFFSET: 0.0} if self.offset else {}
        if "replay" in self.columns:
            mean = np.array([frame["replay"].mean()])
            at |= {name: float(values[0]) for name, values in self.shares(mean).items()}
        return at

    def point(self, at: Mapping[str, float]) -> dict[str, float]:
        """Covariates at the reference point `at`, in the units of a table."""
        point = {c: math.exp(at[c]) for c in self.columns if c in at}
        if "tokens" in point:
            point["tokens"] *= self.token_unit
        point = {**point, **self.held}
        return {c: point[c] for c in COVARIATES if c in point}

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
        if not isinstance(rows, LossTable):
            return canonical(rows, name, self.needs)
        if len(rows) and set(self.columns) <= set(rows.frame.columns):
            return rows.frame  # it was validated when it was made
        return canonical(rows.frame, rows.name, self.needs)

    def shares(self, replay: Array) -> dict[str, Array]:
        """Covariates of replay ratios."""
        share = np.clip(replay, CLIP, 1 - CLIP)
        own = 1 - share if self.role == "target" else share
        return {
            "replay": np.log(share),
            "barrier": np.log(share + self.epsilon),
            "share": share,
            "fresh": np.log1p(-share),
            "own": np.log(own),
            "mixed": np.log(own + MIXED),
            "rest": np.log(1 - own + MIXED),
        }

    def effective(self, p: Values, x: Values, xp: Namespace = np) -> Values:
        """The covariates, with tokens of one epoch that are worth the tokens of each row."""
        return worth(p[REPEATS], x, xp) if self.repetition and "unique" in x else x

    def of_deviations(self, x: Values, xp: Namespace = np) -> dict[str, Array]:
        """The covariates of deviations, whose columns no parameter changes.

        Tokens are those of one epoch that are worth the tokens of each row at a typical R.
        """
        return {**self.effective({REPEATS: TYPICAL_REPEATS}, x, xp)}

    # -- the formula --------------------------------------------------------------------------

    def loss(self, p: Values, x: Values, at: Values = ORIGIN, xp: Namespace = np) -> Array:
        """Loss in nats per token.

        Parameters
        ----------
        p : mapping
            Floor, exponents, and under each coefficient's name the amount of its term at `at`, in
            nats. With the default `at`, it is the published coefficient. Arrays of draws carry a
            trailing axis of length 1.
        x : mapping
            Logarithms of the covariates, from `covariates`.
        at : mapping
            Point where the amounts are stated.
        xp : namespace
            NumPy, ``pytensor.tensor``, or the functions of a tape.

        Returns
        -------
        array, shape (..., rows)
        """
        return self._deviating(p, self._ratios(p, x, at, xp), x, at, xp)

    def log(
        self, p: Values, x: Values, at: Values, xp: Namespace
    ) -> tuple[Array, dict[str, Array]]:
        """Log of the loss without deviations, and the share of the loss of each part that deviates.

        Arguments are those of `loss`. The share of the whole loss is 1.
        """
        loss, share = self._stated(p, self._ratios(p, x, at, xp), x, at, xp)
        return xp.log(loss), {d.of: share(d.of) for d in self.deviations}

    def _ratios(self, p: Values, x: Values, at: Values, xp: Namespace) -> dict[str, Array]:
        """Each term over its amount at `at`, by its coefficient."""
        x = self.effective(p, x, xp)
        return {t.coefficient: xp.exp(t.log_ratio(p, x, at, xp)) for t in self.terms}

    def _deviating(self, p: Values, ratios: Values, x: Values, at: Values, xp: Namespace) -> Array:
        loss, share = self._stated(p, ratios, x, at, xp)
        if not self.deviations:
            return loss
        x = self.of_deviations(x, xp)
        return loss * xp.exp(sum(share(d.of) * d.value(p, x, at, xp) for d in self.deviations))

    def _stated(
        self, p: Values, ratios: Values, x: Values, at: Values, xp: Namespace
    ) -> tuple[Array, Callable[[str], Array]]:
        """The loss without deviations, and the derivative of its log by that of each part."""
        x = self.effective(p, x, xp)
        terms = {name: p[name] * ratio for name, ratio in ratios.items()}
        core = p["E"] + sum(term for name, term in terms.items() if name not in self.coupled)
        joined: Array = 0.0
        roots: Mapping[str, Array] = {}
        if self.coupled:
            joined, roots = couple({name: terms[name] for name in self.coupled}, p[KAPPA], xp)
            core = core + joined
        loss, factor, gap = core, 1.0, 0.0
        if self.departure:
            left, factor = self.departure.remaining(p, x, xp), self.departure.factor(p, x, xp)
            start = xp.exp(x["start"])
            gap = left * (start - factor * core)
            factor = factor * (1 - left)
            loss = core * factor + start * left
        if self.factors:
            later = self._factor(p, x, at, xp)
            loss, factor, gap = loss * later, factor * later, gap * later

        def share(of: str) -> Array:
            if of == WHOLE:
                return 1.0
            if of == START and self.departure:
                return gap / loss
            return (joined * roots[of] if of in roots else terms[of]) * factor / loss

        return loss, share

    def _factor(self, p: Values, x: Values, at: Values, xp: Namespace) -> Array:
        x = {**x, "tokens": x.get("seen", x["tokens"])}
        return xp.exp(sum(factor.value(p, x, at, xp) for factor in self.factors))

    def floor(self, p: Values, x: Values, at: Values = ORIGIN) -> Array:
        """Limit of `loss` as all terms vanish and adaptation never ends."""
        x, floor = self.effective(p, x), p["E"]
        floor = floor * self.departure.factor(p, x, np) if self.departure else floor
        return floor * self._factor(p, x, at, np) if self.factors else floor

    def gradient(
        self, p: Values, x: Values, at: Values = ORIGIN, names: Collection[str] | None = None
    ) -> dict[str, Array]:
        """Derivative of `loss` by each parameter, or by those of some names.

        By complex steps, and by each exponent of a term through the term's amount: the loss depends
        on both through their product alone.
        """
        ratios = self._ratios(p, x, at, np)
        names = self.parameters if names is None else names

        def by_step(name: str) -> Array:
            moved = {**p, name: p[name] + 1j * STEP}
            if name == REPEATS:
                return self.loss(moved, x, at).imag / STEP
            return self._deviating(moved, ratios, x, at, np).imag / STEP

        beside = (self.coupled, self.deviations, self.departure, self.factors, self.repetition)
        if not any(beside):  # the loss is the floor plus the terms
            by = {"E": 1.0, **ratios}
        else:
            nonlinear = [name for name in self._added if name in names]
            by = {name: by_step(name) for name in ("E", *self.coefficients, *nonlinear)}
        if not {*names} & {*self.exponents}:
            return by
        seen = self.effective(p, x)
        for term in self.terms:
            nats = p[term.coefficient] * by[term.coefficient]
            for name, slope in term.slopes(p, seen, at).items():
                by[name] = by.get(name, 0.0) + nats * slope
        return by

    # -- coordinates --------------------------------------------------------------------------

    def amounts(self, q: Values, at: Values, xp: Namespace = np) -> dict[str, Array]:
        """Floor and terms at the reference point `at` in nats, and the paper's exponents."""
        p: dict[str, Array] = {walk.steps: q[walk.steps] for walk in self.walks if walk.steps in q}
        for term in self.terms:
            p |= term.from_local(q, at, xp)
            p[term.coefficient] = q[term.slope] / term.local_exponent(p, at, xp)
        # Coefficients of deviations may be missing: the sampler has them as weights.
        p |= {name: q[local] for name, local in self._added.items() if local in q}
        if self.departure:
            p[self.departure.onset] = p[self.departure.onset] - self.departure.shift(q, at)
        floor = q["L_ref"] - sum(p[c] for c in self.coefficients)
        if self.coupled:
            # This keeps the sum at the reference point and the local slopes there unchanged.
            total = sum(p[name] for name in self.coupled)
            p |= {name: total * (p[name] / total) ** p[KAPPA] for name in self.coupled}
        return {"E": floor, **p}

    def rescale(self, p: Values, at: Values, xp: Namespace = np) -> dict[str, Array]:
        """Paper coordinates from amounts at `at`."""
        p = dict(p)
        for term in self.terms:
            p[term.coefficient] = p[term.coefficient] * xp.exp(-term.log_ratio(p, at, ORIGIN, xp))
        for factor in self.factors:
            p[factor.leading] = p[factor.leading] - factor.shift(p, at)
        return {name: p[name] for name in self.parameters}

    def to_paper(self, q: Values, at: Values, xp: Namespace = np) -> dict[str, Array]:
        """Paper coordinates from reference coordinates at `at`."""
        return self.rescale(self.amounts(q, at, xp), at, xp)

    def to_reference(self, p: Values, at: Values, xp: Namespace = np) -> dict[str, Array]:
        """Reference coordinates at `at` from paper coordinates."""
        q: dict[str, Array] = {local: p[name] for name, local in self._added.items()}
        if self.departure:
            onset = self.departure.onset
            q[self._added[onset]] = p[onset] + self.departure.shift(p, at)
        for factor in self.factors:
            q[self._added[factor.leading]] = p[factor.leading] + factor.shift(p, at)
        nats = {
            t.coefficient: p[t.coefficient] * xp.exp(t.log_ratio(p, at, ORIGIN, xp))
            for t in self.terms
        }
        if self.coupled:
            roots = {name: nats[name] ** (1 / p[KAPPA]) for name in self.coupled}
            total = sum(roots.values())
            nats |= {name: total ** (p[KAPPA] - 1) * root for name, root in roots.items()}
        q["L_ref"] = p["E"] + sum(nats.values())
        for term in self.terms:
            q[term.slope] = nats[term.coefficient] * term.local_exponent(p, at, xp)
            q |= term.to_local(p, at, xp)
        return {name: q[name] for name in self.coordinates}

    def latex(self) -> str:
        """The law as LaTeX."""
        texts = {term.coefficient: term.latex() for term in self.terms}
        roots = [rf"\left({texts.pop(name)}\right)^{{1/\kappa}}" for name in self.coupled]
        joined = [rf"\left[{' + '.join(roots)}\right]^{{\kappa}}"] if roots else []
        core = " + ".join(["E", *joined, *texts.values()])
        loss = r"\hat L = " + (self.departure.latex(core) if self.departure else core)
        return rf"{loss},\quad {WORTH_LATEX}" if self.repetition else loss


def couple(
    terms: Mapping[str, Array], kappa: Array, xp: Namespace
) -> tuple[Array, dict[str, Array]]:
    """The terms joined as ``(sum of T^(1 / kappa))^kappa``, and the derivative of its log by each.

    Derivatives are by the log of each term.
    """
    logs = {name: xp.log(term) / kappa for name, term in terms.items()}
    top = reduce(xp.maximum, logs.values())
    roots = {name: xp.exp(log - top) for name, log in logs.items()}
    total = sum(roots.values())
    joined = xp.exp(kappa * (top + xp.log(total)))
    return joined, {name: root / total for name, root in roots.items()}
