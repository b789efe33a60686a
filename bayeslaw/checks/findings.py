"""Findings: the numbers behind them, their levels, and the verdict.

A direction is a linear combination of the law's coordinates: a singular vector of the Jacobian of
the log losses. Its singular value measures the information of the data against that of the prior.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pandas as pd
from scipy.linalg import cholesky, qr, solve_triangular
from scipy.special import ndtri

from bayeslaw.common.arrays import Floats
from bayeslaw.common.formatting import listed
from bayeslaw.common.shown import Block, Note, Severity, Showing, Shown
from bayeslaw.inference.pools import Fit
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.residuals import covariance
from bayeslaw.laws.law import IMAGINARY_STEP, Law
from bayeslaw.laws.symbols import column_of
from bayeslaw.model.effects import SIZE
from bayeslaw.model.prior import draw_parameters
from bayeslaw.tables.covariates import FLOPS, TABLE
from bayeslaw.tables.hull import BEYOND_PREFIX, NEAR_DECADES, in_words
from bayeslaw.tables.verdict import SEVERITIES, Level, Verdict

VERDICT = {
    "ok": "OK: no finding against the use of this fit",
    "caution": "CAUTION: usable with reservations; read the findings under",
    "no evidence": "NO EVIDENCE: bands were never tested so far out; read the findings under",
    "refuse": "REFUSE: do not forecast from this fit; read the findings under",
}
RARE = 0.01  # significance level of each test: the false alarm rate for a fit of the true law


@dataclass(frozen=True)
class Finding:
    """What one of the checks found: a level of `SEVERITIES`, and the numbers behind its words."""

    name: str
    level: str
    words: tuple[str, ...]  # one or two sentences each
    frame: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    facts: Mapping[str, object] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Check(Showing):
    """The findings of a check and its verdict; ``print`` shows them.

    Parameters
    ----------
    parts : tuple of Finding
    law, table : str
        Names of the fitted law and of its table.
    rows : int
        Number of rows to forecast; 0 if none were given.
    """

    parts: tuple[Finding, ...]
    law: str
    table: str
    rows: int

    @property
    def level(self) -> str:
        """The worst level of the findings, one of `SEVERITIES`."""
        return max((finding.level for finding in self.parts), key=SEVERITIES.index)

    @property
    def ok(self) -> bool:
        """Whether no finding says refuse."""
        return self.level != "refuse"

    @property
    def verdict(self) -> str:
        """The verdict in one sentence."""
        first = self.parts[0]
        # Bands that failed on the user's own held-out losses say more than any other finding.
        if first.level == "refuse" and not first.facts["own"]:
            return f"REFUSE: {first.words[0]}"
        names = [finding.name for finding in self.parts if finding.level == self.level]
        return VERDICT[self.level] + (
            "." if self.level == "ok" else f" {', '.join(names)}."
        )

    def __getitem__(self, name: str) -> Finding:
        """The finding of that name."""
        return {finding.name: finding for finding in self.parts}[name]

    @property
    def frames(self) -> dict[str, pd.DataFrame]:
        """The numbers behind each finding."""
        return {finding.name: finding.frame for finding in self.parts}

    def to_dict(self) -> dict[str, object]:
        """The check as a JSON document."""
        return {
            "law": self.law,
            "table": self.table,
            "rows": self.rows,
            "level": self.level,
            "ok": self.ok,
            "verdict": self.verdict,
            "parts": {
                finding.name: {
                    "level": finding.level,
                    "words": list(finding.words),
                    **finding.facts,
                    "table": finding.frame.reset_index().to_dict("records"),
                }
                for finding in self.parts
            },
        }

    def shown(self) -> Shown:
        """The verdict, and each finding with its level."""
        blocks: list[Block] = [Note(self.verdict, cast("Severity", self.level))]
        for finding in self.parts:
            level = cast("Severity", finding.level)
            blocks += [
                "",
                Note(f"{finding.name} ({level})", level),
                list(finding.words),
            ]
        return Shown("", blocks, self.to_dict())


# -- distance from the training rows ---------------------------------------------------------------

FEWEST_VALUES = (
    3  # with fewer values of a covariate no curvature along it is identified
)
EXACT_LAW = (
    "The law is taken as exact (no discrepancy): beyond the training rows its bands ignore that "
    "measured losses deviate from the law. On 29 of 35 splits of public tables such bands held "
    "less than .8."
)


def judge_extrapolation(fit: Fit, verdict: Verdict) -> Finding:
    """The verdict on rows, and what the fit's law and training rows add to it."""
    assert fit.table is not None
    # Of a pool the member with the most weight says whether its laws are taken as exact.
    seen = fit.table.frame
    first = fit.first
    located = verdict.positions
    covariates = TABLE | fit.about
    values = {name: int(seen[name].nunique()) for name in covariates if name in seen}
    words: list[str] = []
    levels: list[Level] = ["ok"]
    for name, count in values.items():
        far = (
            float(located[BEYOND_PREFIX + name].max())
            if BEYOND_PREFIX + name in located
            else 0.0
        )
        if not far > NEAR_DECADES:
            continue
        unit = (
            "decades" if name in TABLE or covariates[name].logged else "times its range"
        )
        text = f"{covariates[name].text} lies up to {far:.2g} {unit} beyond the training rows"
        level: Level = "caution"
        if name not in fit.columns:
            if count > 1:  # it varies in the training rows, and the law does without it
                continue
            text = f"{covariates[name].text} differs from its only value in the training rows, and "
            text += "the law has no term in it."
        elif count == 1:
            level = "refuse"
            text += ", and one value says nothing on others: too far to forecast."
        elif name == "params" and count < SIZE.fewest:
            text += f", and {count} sizes are too few to estimate the effect of a size."
        elif count < FEWEST_VALUES:
            text += f", and {count} values cannot identify a curvature."
        else:
            continue
        words.append(text)
        levels.append(level)
    levels.append(verdict.level)
    if verdict.words:
        words.append(verdict.words)
    if located["decades"].max() > NEAR_DECADES and not first.law.discrepancy_parameters:
        levels.append("caution")
        words.append(EXACT_LAW)
    words.append(f"Rows to forecast: {in_words(located)}.")
    level = max(levels, key=SEVERITIES.index)
    return Finding("extrapolation", level, tuple(words), located, {"levels": values})


# -- what the data determine -----------------------------------------------------------------------

# Singular values below which the data are less informative about a direction than the prior, and
# below which they have less than a hundredth of its information (the square).
WEAK = 1.0
NONE = 0.1
PRIOR_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
# Fraction of a forecast's variance from undetermined coordinates above which it is refused, and
# from which it is reported: the band is then 5 % wider.
MOST_PRIOR = 0.5
SOME_PRIOR = 0.1


def singular_values(matrix: Floats) -> Floats:
    """Singular values, the largest first, one per column."""
    values = np.linalg.svd(matrix, compute_uv=False)
    # With fewer rows than coordinates, directions beyond the rows have no information at all.
    return np.asarray(np.append(values, np.zeros(matrix.shape[1] - len(values))))


def basis(
    names: Sequence[str], matrix: Floats, low: float, high: float
) -> list[dict[str, float]]:
    """Basis of the directions with singular values from `low` to below `high`, leaders first."""
    # Weights are in prior sds. A leader has weight 1 and occurs in no other direction; the others
    # follow by size, down to .2.
    values = singular_values(matrix)
    chosen = (values >= low) & (values < high)
    if not chosen.any():
        return []
    # Singular vectors of like values are any rotation of each other. Pivoted QR picks the
    # coordinates that stand best for their span, and solving makes each the leader of one.
    vectors = np.linalg.svd(matrix)[2][chosen]
    leaders = qr(vectors, mode="r", pivoting=True)[-1][: len(vectors)]
    weights = np.linalg.solve(vectors[:, leaders], vectors)
    bases = []
    for leader, row in zip(leaders, weights, strict=True):
        order = [leader, *(i for i in np.argsort(-np.abs(row)) if i != leader)]
        bases.append({names[i]: float(row[i]) for i in order if abs(row[i]) > 0.2})
    return bases


def prior_of(fit: Posterior) -> dict[str, Floats]:
    """Draws of the prior of every parameter, each of shape (draws, 1)."""
    return draw_parameters(fit.spec, fit.at, 4000, np.random.default_rng(0))


def directions(
    fit: Posterior, prior: dict[str, Floats] | None = None
) -> tuple[tuple[str, ...], Floats]:
    """Coordinates, and the Jacobian of the training log losses by them, (rows, coordinates)."""
    # Per prior sd of a coordinate, in units of noise and random effects, at the posterior median,
    # by complex steps: exact to rounding. Steps of walks are integrated out like random effects.
    # Their scale is left out: rows know it by the spread of the steps, not by a slope of the loss.
    prior = prior or prior_of(fit)
    law = fit.law_with_knots
    x = fit.fitted.x
    scales = {walk.scale for walk in law.walks}
    names = tuple(name for name in law.coordinates if name not in scales)
    q = {
        n: np.median(v).astype(complex)
        for n, v in fit.values().items()
        if n in law.coordinates
    }
    q |= {
        name: np.median(v, axis=(0, 1)).astype(complex)
        for name, v in fit.steps().items()
    }

    def derivatives(name: str) -> Floats:
        columns = []
        for unit in np.eye(q[name].size):
            moved = q | {
                name: q[name] + 1j * IMAGINARY_STEP * unit.reshape(q[name].shape)
            }
            log_loss = np.log(law.loss(law.amounts(moved, fit.at), x, fit.at))
            columns.append(log_loss.imag / IMAGINARY_STEP)
        return np.stack(columns, 1)

    total = covariance(fit)
    for walk in law.walks:
        by_steps = derivatives(walk.steps)
        total += by_steps @ by_steps.T  # steps have standard normal priors
    slopes = np.hstack([derivatives(name) for name in names])
    whitened = solve_triangular(cholesky(total, lower=True), slopes, lower=True)
    return names, whitened * [spread(prior[name]) for name in names]


def spread(values: Floats) -> float:
    """Half the width of the central 68 % interval: the sd of a normal, finite for heavy tails."""
    low, high = np.quantile(values, (0.16, 0.84))
    return float(high - low) / 2


def swing(
    fit: Posterior, name: str, prior: Floats, log_loss: Floats
) -> tuple[Floats, Floats]:
    """Quantiles of a coordinate's prior, and the median loss near each, (5, columns)."""
    # The posterior is conditioned without a refit, by the 5 % of draws nearest to each value.
    drawn = fit.values()[name][:, 0]
    count = max(1, int(0.05 * len(log_loss)))
    # As many draws at each: a window of fixed width would be empty far from the posterior.
    values = np.quantile(prior, PRIOR_QUANTILES)
    near = [
        np.argsort(np.abs(drawn - value), kind="stable")[:count] for value in values
    ]
    return values, np.stack([np.exp(np.median(log_loss[rows], 0)) for rows in near])


def explained(fit: Posterior, names: Sequence[str], log_loss: Floats) -> Floats:
    """Fraction of the variance of (draws, columns) that some coordinates explain, (columns,)."""
    # The adjusted R-squared of a quadratic regression: 0 on average if they do not matter.
    if not names:
        return np.zeros(log_loss.shape[1])
    q = np.column_stack([fit.values()[name][:, 0] for name in names])
    # Ranks are robust to heavy tails.
    rank = (q.argsort(0, kind="stable").argsort(0) + 0.5) / len(q) - 0.5
    crossed = (rank[:, [i]] * rank[:, i + 1 :] for i in range(rank.shape[1]))
    design = np.column_stack([np.ones(len(q)), rank, rank**2, *crossed])
    # As many columns as draws would explain anything: the last of them are left out.
    design = design[:, : len(q) // 2]
    rest = (log_loss - design @ np.linalg.lstsq(design, log_loss)[0]).var(0)
    rest *= (len(q) - 1) / max(len(q) - design.shape[1], 1)
    total = log_loss.var(0)
    left = np.divide(rest, total, out=np.ones_like(total), where=total > 0)
    return np.asarray(np.clip(1 - left, 0, 1))


def _grouping(law: Law) -> str:
    """The covariate by which rows are told apart: PTPP, else size, else FLOPs."""
    for column in ("ptpp", "params", FLOPS):
        if column in law.columns:
            return column
    return law.columns[0]


def judge_directions(fit: Posterior, rows: pd.DataFrame | None) -> Finding:
    """Directions that the data determine less than the prior, and the forecast along them."""
    prior = prior_of(fit)
    groups: dict[str, Floats] = {}
    if rows is not None:
        # Mean latent log loss of the rows of each PTPP, size or budget; (draws,).
        by = _grouping(fit.law)
        text = (TABLE | fit.law.declared)[by].text
        latent = np.log(fit.latent(rows))
        for value, members in rows.groupby(by).indices.items():
            groups[f"{text} {value:.3g}"] = latent[:, members].mean(1)
    log_loss = np.stack(list(groups.values()), 1) if groups else np.empty((0, 0))
    names, matrix = directions(fit, prior)
    undetermined, weak = (
        basis(names, matrix, *ends) for ends in ((0.0, NONE), (NONE, WEAK))
    )
    values = singular_values(matrix)
    count = len(names)
    rank = int((values >= NONE).sum())
    words = [
        f"The law has {count} coordinates; these {len(fit.table)} rows determine "
        + (f"{rank} combinations of them." if rank < count else "all of them.")
    ]
    records: list[dict[str, Any]] = []
    for kind, kinds in (("undetermined", undetermined), ("weak", weak)):
        for direction in kinds:
            leader, *others = direction
            record: dict[str, Any] = {
                "kind": kind,
                "leader": leader,
                "with": ", ".join(others),
            }
            if groups:
                places, loss = swing(fit, leader, prior[leader], log_loss)
                most = int(np.ptp(np.log(loss), axis=0).argmax())
                ends = sorted((loss[:, most].argmin(), loss[:, most].argmax()))
                record["rows"] = list(groups)[most]
                record["values"] = [float(places[i]) for i in ends]
                record["losses"] = [float(loss[i, most]) for i in ends]
            records.append(record)
            if kind == "undetermined":
                words.append(_undetermined(fit, leader, others, record))
    if weak:
        about = listed([" with ".join(list(direction)[:2]) for direction in weak])
        words.append(f"The rows are less informative than the prior about {about}.")
    level = "caution" if undetermined else "ok"
    facts: dict[str, object] = {"singular_values": values.tolist(), "rank": rank}
    facts["coordinates"] = list(names)
    if groups and records:
        level, text, shares = _effect_on_forecast(fit, records, groups)
        words.append(text)
        facts |= shares
    return Finding("directions", level, tuple(words), pd.DataFrame(records), facts)


def _undetermined(
    fit: Posterior, leader: str, others: Sequence[str], record: Mapping[str, Any]
) -> str:
    seen = fit.table.frame
    where = fit.law.covariates_of.get(leader, ())
    values = [f"{fit.about[c].text} takes {seen[c].nunique()} values" for c in where]
    lead = f"{' and '.join(values)}; " if values else ""
    along = f" separately from {listed(others)}" if others else ""
    text = f"{lead}{leader} is not determined by these data{along}"
    if "losses" not in record:
        return text + ": its posterior is close to its prior."
    (x, y), (low, high) = record["losses"], record["values"]
    return (
        f"{text}: the forecast at {record['rows']} moves from {x:.4g} nats ({leader} {low:.2g}) to "
        f"{y:.4g} ({leader} {high:.2g}) across its prior."
    )


def _effect_on_forecast(
    fit: Posterior, records: Sequence[Mapping[str, Any]], groups: Mapping[str, Floats]
) -> tuple[str, str, dict[str, float]]:
    """Severity, words and fractions of the forecast's variance from undetermined coordinates."""
    log_loss = np.stack(list(groups.values()), 1)
    curvatures = {*fit.law.discrepancy_parameters}
    names = [record["leader"] for record in records]
    of_law = [name for name in names if name not in curvatures]
    fractions = explained(fit, names, log_loss)
    most = int((log_loss.std(0) * np.sqrt(fractions)).argmax())
    sd = float(log_loss[:, most].std())
    share = float(fractions[most])
    share_own = float(explained(fit, of_law, log_loss)[most])
    shares = {"share": share, "share_own": share_own, "sd": sd}
    noise = float(np.median(fit.scale(fit.table.frame)))
    # What is small beside the noise, or beside the band, does not matter to a forecast.
    if sd * math.sqrt(share) < noise / 2 or share < SOME_PRIOR:
        return (
            "ok",
            f"The forecasts of these rows depend little on {listed(names)}.",
            shares,
        )
    only_weak = all(record["kind"] == "weak" for record in records)
    how = "determine weakly" if only_weak else "do not determine"
    text = (
        f"{100 * share:.0f} % of the variance of the forecast at {list(groups)[most]} comes "
        f"from {listed(names)}, which the data {how}"
    )
    # A discrepancy is there to widen bands; a law's own parameter that does so is not known.
    if share_own > MOST_PRIOR and not only_weak:
        advice = "the forecast is mostly prior. Add rows at more stages or sizes."
        return "refuse", f"{text}: {advice}", shares
    level = "ok" if only_weak else "caution"
    if {*names} & curvatures and share > MOST_PRIOR:
        return (
            level,
            f"{text}: the prior of the curvature sets the width of the band.",
            shares,
        )
    return level, f"{text}.", shares


def _walked(fit: Posterior, prior: Mapping[str, Floats]) -> dict[str, float]:
    """Largest deviation of a fitted row by each walk, in standard deviations of its prior."""
    law = fit.law_with_knots
    q = fit.values() | fit.steps()
    x = law.of_deviations(fit.fitted.x)
    far = {}
    for walk in law.walks:
        scale = float(np.sqrt((prior[walk.scale] ** 2).mean()))
        expected = scale * walk.sd * np.sqrt((walk.columns(x, fit.at) ** 2).sum(0))
        deviation = np.median(walk.value(q, x, fit.at, np), axis=0)
        away = expected > 0  # it is 0 at the reference point
        far[walk.steps] = float(
            np.abs(deviation[away] / expected[away]).max(initial=0.0)
        )
    return far


def judge_curvature(fit: Posterior, rows: pd.DataFrame | None) -> Finding | None:
    """Whether the data imply more curvature than the prior of the discrepancy expects."""
    if not fit.law.discrepancy_parameters:
        return None
    prior = prior_of(fit)
    drawn = fit.values()
    off = {
        name: float(np.median(drawn[name]) - np.median(prior[name]))
        / spread(prior[name])
        for name in fit.law.discrepancy_parameters
    }
    off |= _walked(fit, prior)
    frame = pd.DataFrame({"off": off}).rename_axis("name")
    far = frame["off"].abs().sort_values(ascending=False)
    strained = far[far > -ndtri(RARE / (2 * len(far)))]  # two sides, all parameters
    if strained.empty:
        text = (
            "The curvature of the discrepancy is consistent with its prior (posterior medians at "
            f"most {far.iloc[0]:.1f} prior sds from the prior median: {far.index[0]})."
        )
        return Finding("curvature", "ok", (text,), frame)
    distances = [f"{name} by {value:.1f}" for name, value in strained.items()]
    level = "caution"
    words = [
        "The data imply more curvature than the prior of the discrepancy expects, in prior sds: "
        f"{listed(distances)}."
    ]
    if rows is not None:
        located = fit.verdict(rows).positions
        along = fit.law.covariates_of
        along |= {
            w.steps: (*map(column_of, (w.along, w.over or w.along)),)
            for w in fit.law.walks
        }
        followed = {c for name in strained.index for c in along[str(name)]}
        away = {
            c: float(located[BEYOND_PREFIX + c].max())
            for c in fit.columns
            if c in followed
        }
        if beyond := [
            fit.about[c].text for c, distance in away.items() if distance > NEAR_DECADES
        ]:
            level = "refuse"
            words.append(
                f"A forecast beyond the {listed(beyond)} of the training rows extrapolates this "
                "curvature: choose another law."
            )
        if "replay" in followed and not {*rows["replay"]} <= {
            *fit.table.frame["replay"]
        }:
            words.append(
                "Between fitted replay ratios it may bend, too: leave one out, and see whether its "
                "band holds, before you forecast another."
            )
    return Finding("curvature", level, tuple(words), frame)
