"""``check`` of a fit and its forecasts, and its parts about the training rows."""

from dataclasses import replace

import numpy as np
import pandas as pd
from scipy import stats

from bayeslaw.checks.extrapolation import curvature_part, extrapolation_part, stage_bounds_part
from bayeslaw.checks.held_out import held_out_part, own_held_out_part
from bayeslaw.checks.identifiability import directions_part
from bayeslaw.checks.outliers import outliers_part
from bayeslaw.checks.part import NAMES, RARE, Check, Part, target
from bayeslaw.evaluate.crossval import leave_out
from bayeslaw.evaluate.residuals import averaging, residual, residual_draws
from bayeslaw.inference.pools import Pool, with_draws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.tables.table import LossTable, subset
from bayeslaw.tables.validation import canonical, check_domain, check_units

CELL = ("params", "ptpp", "replay")
"""Covariates that are equal within a cell; the tokens differ."""


def check(
    fit: Posterior | Pool,
    rows: LossTable | pd.DataFrame | None = None,
    *,
    seed: int = 0,
    beyond_evidence: bool = False,
) -> Check:
    """Check a fit, and its forecasts of some rows.

    Parameters
    ----------
    fit : Posterior or Pool
        Converged or not. Of a pool, held-out rows and distances are judged as a whole, and the
        other parts are those of its members, under their labels.
    rows : LossTable or DataFrame, optional
        Rows to forecast, with the law's covariates. If they have a loss, the forecast is compared
        with it; otherwise the farthest part of the training rows is forecast from the rest, which
        takes a short refit. Without rows, the other parts about forecasts are left out.
    seed : int
        Seed of the predictive noise.
    beyond_evidence : bool
        Do not refuse rows for their distance: twice as far from the training rows as bands were
        ever compared with losses.

    Returns
    -------
    Check
        ``print(check)`` shows the findings; ``check["directions"].frame`` has the numbers of a
        part. The parts are

        - `held out`: whether the bands hold on rows that were not fitted;
        - `extrapolation`: distance of the rows beyond the training rows;
        - `convergence`: R-hat, effective sample sizes, divergences, E-BFMI;
        - `directions`: combinations of parameters that the data do not determine;
        - `curvature`: whether the discrepancy is consistent with its prior;
        - `bounds`: bounds on the loss at a later stage that hold for every eta;
        - `outliers`: runs, bases, sizes and rows far from the others, and the forecast without
          them, by a short refit;
        - `cells`: posterior predictive check by cell of one N, PTPP and r;
        - `left out`: calibration of leave-one-out predictions.

    Raises
    ------
    TableError
        If `rows` lack a covariate of the law, or are of a domain that was not fitted.
    """
    with_draws(fit, "check")
    table = None if rows is None else _table(rows, fit)
    whole = [_held_out(fit, table, seed)]
    if table is not None:
        whole.append(extrapolation_part(fit, table.frame, beyond_evidence=beyond_evidence))
    if isinstance(fit, Posterior):
        parts = [*member_parts(fit, table, seed), outliers_part(fit, table, seed)]
    else:
        parts = [
            replace(part, name=f"{name}: {part.name}")
            for name, member in fit.members.items()
            for part in [*member_parts(member, table, seed), outliers_part(member, table, seed)]
        ]
    name = fit.law.name if isinstance(fit, Posterior) else fit.name
    count = 0 if table is None else len(table)
    return Check((*whole, *parts), name, fit.table.name, count)


def _table(rows: LossTable | pd.DataFrame, fit: Posterior | Pool) -> LossTable:
    """Rows with the law's covariates."""
    given, name = (rows.frame, rows.name) if isinstance(rows, LossTable) else (rows, "rows")
    frame = canonical(given, name, fit.columns)
    check_units(frame, name, fit.table.frame)
    check_domain(frame, name, fit.table.frame)
    return LossTable(frame, frame.iloc[:0], name)


def _held_out(fit: Posterior | Pool, table: LossTable | None, seed: int) -> Part:
    """How bands did on those rows that have a loss and were not fitted, else on training rows."""
    if table is None or "loss" not in table.frame:
        return own_held_out_part(fit, None if table is None else table.frame, seed)
    columns = [*fit.columns, "loss"]
    fitted = set(fit.table.frame[columns].itertuples(index=False, name=None))
    new = [row not in fitted for row in table.frame[columns].itertuples(index=False, name=None)]
    if not any(new):
        return own_held_out_part(fit, table.frame, seed)
    return held_out_part(fit, subset(table, np.array(new)), seed)


def member_parts(fit: Posterior, table: LossTable | None, seed: int) -> list[Part]:
    """The parts about one posterior that need no other fit."""
    to = None if table is None else target(fit, table.frame)
    parts = [
        convergence_part(fit),
        directions_part(fit, to),
        curvature_part(fit, to),
        stage_bounds_part(fit, to),
        cells_part(fit, seed),
        left_out_part(fit, seed),
    ]
    return [part for part in parts if part]


def convergence_part(fit: Posterior) -> Part:
    """Rank-normalised R-hat and ESS of every coordinate, divergences, E-BFMI."""
    gate = fit.convergence
    frame = fit.summary()[["rhat", "ess_bulk", "ess_tail"]].rename_axis("name")
    facts = {"divergences": gate.divergences, "bfmi": gate.bfmi, "failures": list(gate.failures)}
    if gate.ok:
        words = (
            f"R-hat at most {gate.rhat:.3f}, ESS at least {min(gate.ess_bulk, gate.ess_tail):.0f}, "
            f"no divergences, E-BFMI {gate.bfmi:.2f}."
        )
        return Part("convergence", "ok", (words,), frame, facts)
    words = (
        f"The sampler has not converged ({'; '.join(gate.failures)}), so the other findings are "
        "not reliable: fit again with more tune and draws."
    )
    return Part("convergence", "refuse", (words,), frame, facts)


def cells(fit: Posterior, seed: int = 0) -> pd.DataFrame:
    """Posterior predictive check of the mean log loss of every cell of one N, PTPP and r.

    Per cell of the training table: `rows`; `miss`, mean measured minus predicted log loss; and `p`,
    the fraction of replicated cell means below the measured one. Replicates have new noise and the
    posterior random effects of their bases and runs.
    """
    frame, law = fit.table.frame, fit.law
    columns = [c for c in CELL if c in law.columns and frame[c].nunique() > 1] or ["params"]
    groups = frame.groupby(columns)
    average = averaging(np.asarray(groups.ngroup(), np.int64))
    measured = residual(fit, fit.table) @ average.T
    rng = np.random.default_rng(seed)
    replicated = residual_draws(fit, frame, rng, training=True) @ average.T
    found = groups.size().rename("rows").reset_index()
    return found.assign(
        miss=np.median(measured, 0), p=(replicated < measured).mean(0).clip(0.5 / len(measured))
    )


def cells_part(fit: Posterior, seed: int) -> Part:
    """Posterior predictive check by cell."""
    frame = cells(fit, seed)
    off = ~frame["p"].between(0.05, 0.95)
    rare = stats.binom.sf(off.sum() - 1, len(frame), 0.1) < RARE
    worst = frame.loc[(frame["p"] - 0.5).abs().sort_values().index[-1]]
    where = ", ".join(f"{NAMES[c]} {worst[c]:.4g}" for c in CELL if c in frame)
    words = (
        f"Of {len(frame)} cell means {off.sum()} lie outside their 90 % posterior predictive "
        f"intervals ({'more than' if rare else 'no more than'} chance explains); the most extreme, "
        f"at {where}, differs by {100 * worst['miss']:+.2f} % from its prediction."
    )
    return Part("cells", "caution" if rare else "ok", (words,), frame, {"outside": int(off.sum())})


def left_out_part(fit: Posterior, seed: int) -> Part:
    """PIT values and Pareto k of runs, or rows, left out by importance sampling."""
    found = leave_out(fit, seed)
    p, bad, count = found.uniformity(), found.unreliable, len(found.frame)
    uneven = p < RARE
    words = [
        f"The PIT values of {count} {found.unit}s, each predicted from the others, are "
        f"{'not ' if uneven else ''}compatible with calibrated bands (p = {p:.2g})."
    ]
    if bad:
        words.append(
            f"For {bad} of them the estimate is unreliable (Pareto k above {found.good_k:.2g}): "
            "this test is without them."
        )
    facts = {
        "unit": found.unit,
        "p": p,
        "elpd": float(found.frame["elpd"].sum()),
        "unreliable": bad,
    }
    return Part("left out", "caution" if uneven else "ok", tuple(words), found.frame, facts)
