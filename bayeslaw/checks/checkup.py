"""``check`` of a fit and its forecasts, and its parts about the training rows."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
from scipy import stats

from bayeslaw.checks.extrapolation import curvature_part, extrapolation_part, stage_bounds_part
from bayeslaw.checks.identifiability import directions_part
from bayeslaw.checks.part import NAMES, RARE, Check, Part, Target, listed, target
from bayeslaw.common.arrays import Floats
from bayeslaw.evaluate.crossval import leave_out
from bayeslaw.evaluate.datatree import log_prior
from bayeslaw.evaluate.residuals import (
    averaging,
    log_likelihood,
    residual,
    residual_draws,
)
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.tables.table import LossTable

SENSITIVE = 0.05
"""Threshold of the sensitivity, from its authors: the mean moves by about .3 sd."""
CELL = ("params", "ptpp", "replay")
"""Covariates that are equal within a cell; the tokens differ."""
UNRELIABLE = 0.1
"""Fraction of units with a large Pareto k beyond which the others do not represent the table."""


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
        Converged or not. The parts of a pool are those of its members, under their labels.
    rows : LossTable or DataFrame, optional
        Rows to forecast, with the law's covariates; a loss is not needed and not used. Without
        rows, the parts about forecasts are left out.
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

        - `convergence`: R-hat, effective sample sizes, divergences, E-BFMI;
        - `directions`: combinations of parameters that the data do not determine;
        - `extrapolation`: distance of the rows beyond the training rows;
        - `sensitivity`: power-scaling sensitivity of the forecast to the priors;
        - `curvature`: whether the discrepancy is consistent with its prior;
        - `bounds`: bounds on the loss at a later stage that hold for every eta;
        - `cells`: posterior predictive check by cell of one N, PTPP and r;
        - `left out`: calibration of leave-one-out predictions.

    Raises
    ------
    TableError
        If `rows` lack a covariate of the law.
    """
    if isinstance(fit, Pool):
        found = {
            name: check(member, rows, seed=seed, beyond_evidence=beyond_evidence)
            for name, member in fit.members.items()
        }
        named = [
            replace(part, name=f"{name}: {part.name}")
            for name, each in found.items()
            for part in each.parts
        ]
        return Check(tuple(named), fit.name, fit.table.name, next(iter(found.values())).rows)
    to = None if rows is None else target(fit, rows)
    parts = [
        convergence_part(fit),
        directions_part(fit, to),
        extrapolation_part(fit, to.frame, beyond_evidence=beyond_evidence) if to else None,
        sensitivity_part(fit, to) if to else None,
        curvature_part(fit, to),
        stage_bounds_part(fit, to),
        cells_part(fit, seed),
        left_out_part(fit, seed),
    ]
    there = tuple(part for part in parts if part)
    return Check(there, fit.law.name, fit.table.name, len(to.frame) if to else 0)


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


def sensitivity_part(fit: Posterior, to: Target) -> Part:
    """Power-scaling sensitivity of the forecast of each group of rows."""
    columns = dict(zip(to.groups, to.log_loss.T, strict=True))
    frame = power_scaling(fit, columns)
    driven = frame[(frame["prior"] >= SENSITIVE) & (frame["likelihood"] < SENSITIVE)]
    both = frame[(frame["prior"] >= SENSITIVE) & (frame["likelihood"] >= SENSITIVE)]
    words = []
    for part, text in (
        (driven, "to the priors and hardly to the data"),
        (both, "to the priors as well as to the data"),
    ):
        if len(part):
            words.append(
                f"The forecast at {listed([str(name) for name in part.index])} is sensitive {text} "
                f"(sensitivity to the prior up to {part['prior'].max():.2f}, to the likelihood up "
                f"to {part['likelihood'].max():.2f}; threshold {SENSITIVE:g})."
            )
    if not words:
        words = [f"No forecast is sensitive to the priors (at most {frame['prior'].max():.2f})."]
    level = "caution" if len(driven) + len(both) else "ok"
    return Part("sensitivity", level, tuple(words), frame)


def power_scaling(fit: Posterior, log_loss: Mapping[str, Floats]) -> pd.DataFrame:
    """Power-scaling sensitivity of forecasts, given by draws, to the prior and to the likelihood.

    Columns `prior` and `likelihood`: distance between the distribution of the forecast and its
    distribution with that component raised to a power near 1, per unit of log2 of the power. A
    mean that moves by .3 sd gives about .05.

    References
    ----------
    .. [1] Kallioinen, Paananen, Bürkner and Vehtari, Detecting and diagnosing prior and likelihood
       sensitivity with power-scaling. Statistics and Computing 34, 57 (2024).
    """
    import arviz as az

    sizes = fit.draws.sizes["chain"], fit.draws.sizes["draw"]
    tree = az.from_dict(
        {
            "posterior": {name: values.reshape(sizes) for name, values in log_loss.items()},
            "log_prior": {"prior": log_prior(fit).values},
            "log_likelihood": {"log_loss": log_likelihood(fit).reshape(*sizes, -1)},
        }
    )
    parts = {part: az.psense(tree, group=part) for part in ("prior", "likelihood")}
    return pd.DataFrame(
        {part: {name: float(found[name]) for name in log_loss} for part, found in parts.items()}
    ).rename_axis("forecast")


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
            "use bayeslaw.cross_validate, which refits without them."
        )
    facts = {
        "unit": found.unit,
        "p": p,
        "elpd": float(found.frame["elpd"].sum()),
        "unreliable": bad,
    }
    level = "caution" if uneven or bad > UNRELIABLE * count else "ok"
    return Part("left out", level, tuple(words), found.frame, facts)
