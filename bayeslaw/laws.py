"""Laws: a floor plus terms.

A law is written in two coordinate systems that convert exactly both ways.

- *Paper coordinates*: ``E, A, alpha, B, ...`` as published.
- *Reference coordinates*, in which priors are stated and the sampler works: ``L_ref``, the loss at
  a reference point (the training data's geometric mean), and for each term its local slope there,
  in nats per e-fold, with its exponent. ``L = L_ref + sum_j s_j/k_j [exp(shape_j) - 1]``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw.errors import TableError
from bayeslaw.priors import NOISE, Prior
from bayeslaw.tables import LossTable, canonical
from bayeslaw.terms import (
    COLUMN,
    ORIGIN,
    SYMBOLS,
    Array,
    Curved,
    GatedPower,
    Term,
    Values,
)

CLIP = 1e-9
"""The paper clips r to [CLIP, 1 - CLIP]."""
CURVATURE = Prior.parse("Normal(mu=0, sigma=0.15)")
"""Prior of a discrepancy's curvature, per squared e-fold."""
STAGE = Prior.parse("Normal(mu=0, sigma=0.3)")
"""The same along the pre-training budget: tables have few stages, and forecasts go far beyond."""
CROSSED = {"tokens": ("params", "ptpp"), "ptpp": ("params",)}
"""Covariates that may change a term's local exponent, by the term's leading covariate."""
STEP = 1e-30
"""Complex step: too small to touch the real part, so derivatives are exact to rounding."""


@dataclass(frozen=True)
class Law:
    """A scaling law: ``L = E + sum of terms``, in nats per token.

    Parameters
    ----------
    name, title, reference : str
        Short name, what it is, and where it was published.
    terms : tuple of Term
    priors : mapping
        Prior of ``E``, of each slope and of each exponent in reference coordinates, and of the
        noise (``sigma``, ``dof``).
    bounds : mapping
        Range of every parameter in paper coordinates.
    token_unit : float
        Tokens per unit of D. It matters where an exponent of D varies from row to row.
    ratio : {"replay", "own"}
        Whether r is the replayed share or the modelled domain's own share.
    epsilon : float
        The paper's epsilon in ``C / (r + epsilon)^gamma``.
    text : str
        The TOML text the law was read from.
    """

    name: str
    title: str
    reference: str
    terms: tuple[Term, ...]
    priors: Mapping[str, Prior]
    bounds: Mapping[str, tuple[float, float]]
    token_unit: float = 1.0
    ratio: str = "replay"
    epsilon: float = 1e-5
    text: str = ""

    @cached_property
    def exponents(self) -> tuple[str, ...]:
        """Paper symbols of every parameter that enters non-linearly."""
        return tuple(dict.fromkeys(e for term in self.terms for e in term.exponents))

    @cached_property
    def coefficients(self) -> tuple[str, ...]:
        """Paper symbols of the terms' coefficients."""
        return tuple(term.coefficient for term in self.terms)

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Paper symbols in the order of the formula."""
        names = (n for term in self.terms for n in (term.coefficient, *term.exponents))
        return ("E", *dict.fromkeys(names))

    @cached_property
    def coordinates(self) -> tuple[str, ...]:
        """Names of the reference coordinates."""
        at = ORIGIN
        names = (
            n
            for term in self.terms
            for n in (term.slope, *term.to_local(dict.fromkeys(term.exponents, 0.0), at, np))
        )
        return ("L_ref", *dict.fromkeys(names))

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Columns a table needs for this law."""
        used = {COLUMN[c] for term in self.terms for c in term.covariates}
        return tuple(c for c in ("params", "tokens", "replay", "ptpp") if c in used)

    @cached_property
    def terms_gated(self) -> tuple[GatedPower, ...]:
        """Terms with a gated exponent."""
        return tuple(t.plain for t in self.terms if isinstance(t.plain, GatedPower))

    @cached_property
    def bends(self) -> tuple[tuple[str, str, bool], ...]:
        """Name of each curvature, the local exponent of its term, and whether it is along it."""
        return tuple(
            (name, term.plain.local, one == other)
            for term in self.terms
            if isinstance(term, Curved)
            for name, (one, other) in term.curves.items()
        )

    # -- covariates ---------------------------------------------------------------------------

    def covariates(self, rows: LossTable | pd.DataFrame, name: str = "table") -> dict[str, Array]:
        """Logarithms of the covariates, each of shape (rows,).

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
        return x

    def reference_point(self, rows: LossTable | pd.DataFrame) -> dict[str, float]:
        """Logarithms of the covariates at the reference point of a training table.

        Geometric means, except r, which may be 0: its arithmetic mean.
        """
        frame, x = self._valid(rows), self.covariates(rows)
        at = {name: float(values.mean()) for name, values in x.items()}
        if "replay" in self.columns:
            mean = np.array([frame["replay"].mean()])
            at |= {name: float(values[0]) for name, values in self.shares(mean).items()}
        return at

    def check_fits(self, rows: LossTable | pd.DataFrame, name: str = "table") -> None:
        """Raise `TableError` unless the rows are one domain in which every covariate varies."""
        frame = self._valid(rows, name)
        if "domain" in frame and frame["domain"].nunique() > 1:
            names = [str(domain) for domain in frame["domain"].unique()]
            raise TableError(
                f"{name}: several domains ({', '.join(names)}); fit one, such as "
                f"where=\"domain == '{names[0]}'\"."
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
            return canonical(rows.frame, rows.name, self.columns)
        return canonical(rows, name, self.columns)

    def shares(self, replay: Array) -> dict[str, Array]:
        """Logarithms of the share that the law counts, and of its barrier, for replay ratios."""
        share = np.clip(replay if self.ratio == "replay" else 1 - replay, CLIP, 1 - CLIP)
        return {"replay": np.log(share), "barrier": np.log(share + self.epsilon)}

    # -- the formula --------------------------------------------------------------------------

    def loss(self, p: Values, x: Values, at: Values = ORIGIN, xp: Any = np) -> Array:
        """Loss in nats per token.

        Parameters
        ----------
        p : mapping
            Floor, exponents, and under each coefficient's name the *size of its term at* `at`:
            with the default `at` these are the paper's coordinates. Arrays of draws carry a
            trailing axis of length 1.
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
        return p["E"] + sum(
            p[term.coefficient] * xp.exp(term.shape(p, x, at, xp)) for term in self.terms
        )

    def gradient(self, p: Values, x: Values, at: Values = ORIGIN) -> dict[str, Array]:
        """Derivative of `loss` by each parameter, from the terms' own shapes by complex step."""
        by: dict[str, Array] = {"E": 1.0}
        for term in self.terms:
            value = np.exp(term.shape(p, x, at, np))
            by[term.coefficient] = value
            for name in term.exponents:
                step = term.shape({**p, name: p[name] + 1j * STEP}, x, at, np)
                by[name] = by.get(name, 0.0) + p[term.coefficient] * value * step.imag / STEP
        return by

    # -- coordinates --------------------------------------------------------------------------

    def sizes(self, q: Values, at: Values, xp: Any = np) -> dict[str, Array]:
        """Floor, term sizes at the reference point `at`, and the paper's exponents."""
        p: dict[str, Array] = {}
        for term in self.terms:
            p |= term.from_local(q, at, xp)
            p[term.coefficient] = q[term.slope] / term.exponent(p, at, xp)
        return {"E": q["L_ref"] - sum(p[c] for c in self.coefficients), **p}

    def to_paper(self, q: Values, at: Values, xp: Any = np) -> dict[str, Array]:
        """Paper coordinates from reference coordinates at `at`."""
        return self.rescale(self.sizes(q, at, xp), at, xp)

    def rescale(self, p: Values, at: Values, xp: Any = np) -> dict[str, Array]:
        """Paper coordinates from term sizes at `at`."""
        p = dict(p)
        for term in self.terms:
            p[term.coefficient] = p[term.coefficient] * xp.exp(-term.plain.shape(p, at, ORIGIN, xp))
        return {name: p[name] for name in self.parameters}

    def to_reference(self, p: Values, at: Values, xp: Any = np) -> dict[str, Array]:
        """Reference coordinates at `at` from paper coordinates."""
        q: dict[str, Array] = {"L_ref": p["E"]}
        for term in self.terms:
            size = p[term.coefficient] * xp.exp(term.plain.shape(p, at, ORIGIN, xp))
            q["L_ref"] = q["L_ref"] + size
            q[term.slope] = size * term.exponent(p, at, xp)
            q |= term.to_local(p, at, xp)
        return {name: q[name] for name in self.coordinates}

    def curved(self) -> "Law":
        """The law with uncertain curvature in every power, along and across its covariates.

        Each curvature has a Normal(0, .15) prior: over a factor of ten in a covariate a local
        exponent of .3 may drift by about itself. Along the pre-training budget it is Normal(0, .3).
        """
        terms: list[Term] = []
        curves: dict[str, Prior] = {}
        for term in self.terms:
            if term.plain.stiff:
                terms.append(term)
                continue
            lead = term.covariates[0]
            bends = {f"curve_{term.coefficient}": (lead, lead)}
            crossed = [c for c in CROSSED.get(lead, ()) if c in self.columns]
            bends |= {f"cross_{term.coefficient}{SYMBOLS[c]}": (c, lead) for c in crossed}
            terms.append(Curved(term.plain, bends))
            own, *cross = bends
            curves |= {own: STAGE if lead == "ptpp" else CURVATURE} | dict.fromkeys(
                cross, CURVATURE
            )
        free = dict.fromkeys(curves, (-math.inf, math.inf))
        priors, bounds = {**self.priors, **curves}, {**self.bounds, **free}
        return replace(self, terms=tuple(terms), priors=priors, bounds=bounds)

    def latex(self) -> str:
        """The law as LaTeX."""
        return r"\hat L = E + " + " + ".join(term.latex() for term in self.terms)

    @cached_property
    def prior_bounds(self) -> dict[str, tuple[float, float]]:
        """Range of each quantity that has a prior."""
        plain = [term.plain for term in self.terms]
        local = {term.local: self.bounds[next(iter(term.down.values()))] for term in plain}
        free = dict.fromkeys((*self.coordinates[1:], *NOISE), (0.0, math.inf))
        free["noise_slope"] = (-math.inf, math.inf)
        own = {name: self.bounds[name] for name in self.exponents if name in self.coordinates}
        return {"E": self.bounds["E"]} | free | local | own
