"""``check``: every finding about a fit, and those about its training rows and held-out rows."""

from dataclasses import replace

import pandas as pd

from bayeslaw.checks.curvature import judge_curvature
from bayeslaw.checks.directions import judge_directions
from bayeslaw.checks.extrapolation import judge_extrapolation
from bayeslaw.checks.findings import Check, Finding
from bayeslaw.checks.held_out import judge_held_out
from bayeslaw.checks.left_out import judge_left_out
from bayeslaw.checks.outliers import judge_outliers
from bayeslaw.common.formatting import listed
from bayeslaw.common.progress import step
from bayeslaw.huber.doubts import huber_losses
from bayeslaw.inference.pools import Pool, with_draws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.residuals import overruled
from bayeslaw.tables.table import LossTable, Rows
from bayeslaw.tables.units import check_units


def check(
    fit: Posterior | Pool, rows: Rows | pd.DataFrame | None = None, *, seed: int = 0
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

    Returns
    -------
    Check
        ``print(check)`` shows the findings; ``check["directions"].frame`` has the numbers of a
        part. The parts are

        - `held out`: whether the bands hold on rows that were not fitted;
        - `extrapolation`: distance of the rows beyond the training rows, which is not refused if
          rows beyond the evidence are `accepted`;
        - `convergence`: R-hat, effective sample sizes, divergences, E-BFMI;
        - `effects`: whether random effects, or errors within runs, explain what the law should
          explain;
        - `directions`: combinations of parameters that the data do not determine;
        - `curvature`: whether the discrepancy is consistent with its prior;
        - `outliers`: runs, bases, sizes and rows far from the others, and the forecast without
          them, by a short refit;
        - `left out`: calibration of leave-one-out predictions.

    Raises
    ------
    TableError
        If `rows` lack a covariate of the law, or are of a domain or a kind that the fit
        does not know.
    """
    with_draws(fit, "check")
    table = None
    if rows is not None:
        name = rows.name if isinstance(rows, LossTable) else "rows"
        frame = fit.rows(rows, name).frame
        check_units(frame, name, fit.table.frame)
        table = LossTable(frame, name)
    # First, since the verdict cites it where bands failed on measured rows.
    findings = [judge_held_out(fit, table, seed)]
    if table is not None:
        verdict = fit.verdict(table).accepting(fit.accepts)
        findings.append(judge_extrapolation(fit, verdict))
    for label, member in fit.members.items():
        of_member = judge_alone(member, table, seed)
        of_member.append(judge_outliers(member, table, seed))
        for finding in of_member:
            name = f"{label}: {finding.name}" if label else finding.name
            findings.append(replace(finding, name=name))
    count = 0 if table is None else len(table)
    return Check(tuple(findings), fit.name, fit.table.name, count)


@step("checking parameters and predictions of left-out rows")
def judge_alone(fit: Posterior, table: LossTable | None, seed: int) -> list[Finding]:
    """The findings about one posterior that need no other fit."""
    rows = None if table is None else table.frame
    findings = (
        judge_convergence(fit),
        judge_effects(fit),
        judge_directions(fit.deviating, rows),
        judge_curvature(fit.deviating, rows),
        judge_left_out(fit, seed),
    )
    return [finding for finding in findings if finding]


def judge_convergence(fit: Posterior) -> Finding:
    """Whether the sampler has converged, and how many independent draws there are."""
    gate = fit.convergence
    summary = fit.summary().rename_axis("name")
    frame = summary[["rhat", "ess_bulk", "ess_tail"]]
    facts = {
        "divergences": gate.divergences,
        "bfmi": gate.bfmi,
        "failures": list(gate.failures),
    }
    if gate.ok:
        ess = min(gate.ess_bulk, gate.ess_tail)
        text = (
            f"R-hat at most {gate.rhat:.3f}, ESS at least {ess:.0f}, {gate.diverged}, "
            f"E-BFMI {gate.bfmi:.2f}."
        )
        if not gate.enough:
            text += f" {gate.cost}; more draws make that less."
    else:
        text = (
            f"The sampler has not converged ({'; '.join(gate.failures)}), so the other findings "
            "are not reliable: fit again with more tune and draws."
        )
    return Finding("convergence", gate.note.level, (text,), frame, facts)


def judge_effects(fit: Posterior) -> Finding | None:
    """Whether random effects, or errors within runs, explain what the law should explain."""
    levels = fit.spec.fitted_effects
    if not levels and fit.spec.errors == "independent":
        return None
    sds: dict[str, float] = {}
    named = []
    for level in levels:
        sds[level] = float(fit.draws[f"tau_{level}"].median())
        named.append(f"{100 * sds[level]:.2g} % ({level})")
    facts = {"sd": sds}
    without_effects = huber_losses(fit.law.without_discrepancy, fit.table)
    words = overruled(fit, without_effects)
    if words:
        return Finding("effects", "refuse", (words,), facts=facts)
    if not levels:
        return None
    text = f"Standard deviation of the random effects: {listed(named)}."
    return Finding("effects", "ok", (text,), facts=facts)
