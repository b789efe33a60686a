"""``check``: the parts of a check of a fit and its forecasts, and the verdict."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pandas as pd

from bayeslaw.checks.extrapolation import curvature_part, extrapolation_part, stage_bounds_part
from bayeslaw.checks.identifiability import directions_part, learning_part
from bayeslaw.checks.part import LEVELS, Part, Target, listed, target
from bayeslaw.checks.predictive import cells_part, left_out_part, noise_part
from bayeslaw.common.arrays import Floats
from bayeslaw.evaluate.datatree import log_prior
from bayeslaw.evaluate.residuals import log_likelihood
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.tables.table import LossTable

SENSITIVE = 0.05
"""Threshold of the sensitivity, from its authors: the mean moves by about .3 sd."""
VERDICT = {
    "ok": "OK: no finding against the use of this fit",
    "caution": "CAUTION: usable with reservations; read the findings under",
    "refuse": "REFUSE: do not forecast from this fit; read the findings under",
}


@dataclass(frozen=True)
class Check:
    """The parts of a check and its verdict; ``print`` shows the findings.

    Parameters
    ----------
    parts : tuple of Part
    law, table : str
        Names of the fitted law and of its table.
    rows : int
        Number of rows to forecast; 0 if none were given.
    """

    parts: tuple[Part, ...]
    law: str
    table: str
    rows: int

    @property
    def level(self) -> str:
        """The worst level of the parts: ``"ok"``, ``"caution"`` or ``"refuse"``."""
        return max((part.level for part in self.parts), key=LEVELS.index)

    @property
    def ok(self) -> bool:
        """Whether no part says refuse."""
        return self.level != "refuse"

    @property
    def verdict(self) -> str:
        """The verdict in one sentence."""
        names = [part.name for part in self.parts if part.level == self.level]
        return VERDICT[self.level] + ("." if self.level == "ok" else f" {', '.join(names)}.")

    def __getitem__(self, name: str) -> Part:
        """The part of that name."""
        return {part.name: part for part in self.parts}[name]

    @property
    def frames(self) -> dict[str, pd.DataFrame]:
        """The numbers behind each part."""
        return {part.name: part.frame for part in self.parts}

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
                part.name: {
                    "level": part.level,
                    "words": list(part.words),
                    **part.facts,
                    "table": part.frame.reset_index().to_dict("records"),
                }
                for part in self.parts
            },
        }

    def __str__(self) -> str:
        lines = [self.verdict]
        for part in self.parts:
            lines += [f"{part.name} ({part.level})", *(f"  {words}" for words in part.words)]
        return "\n".join(lines)


def check(
    fit: Posterior | Pool, rows: LossTable | pd.DataFrame | None = None, *, seed: int = 0
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
        - `learning`: prior-to-posterior contraction of each coordinate;
        - `cells`: posterior predictive check by cell of one N, PTPP and r;
        - `noise`: whether the scale of the noise differs between groups;
        - `left out`: calibration of leave-one-out predictions.

    Raises
    ------
    TableError
        If `rows` lack a covariate of the law.
    """
    if isinstance(fit, Pool):
        found = {name: check(member, rows, seed=seed) for name, member in fit.members.items()}
        named = [
            replace(part, name=f"{name}: {part.name}")
            for name, each in found.items()
            for part in each.parts
        ]
        return Check(tuple(named), fit.name, fit.table.name, next(iter(found.values())).rows)
    to = None if rows is None else target(fit, rows)
    parts = [convergence_part(fit), directions_part(fit, to)]
    if to is not None:
        parts += extrapolation_part(fit, to), sensitivity_part(fit, to)
    parts += [p for p in (curvature_part(fit, to), stage_bounds_part(fit, to)) if p]
    parts += learning_part(fit), cells_part(fit, seed), noise_part(fit, seed)
    parts.append(left_out_part(fit, seed))
    return Check(tuple(parts), fit.law.name, fit.table.name, 0 if to is None else len(to.frame))


def convergence_part(fit: Posterior) -> Part:
    """Rank-normalised R-hat and ESS of every coordinate, divergences, E-BFMI."""
    gate = fit.convergence
    ess = min(gate.ess_bulk, gate.ess_tail)
    good = f"R-hat at most {gate.rhat:.3f}, ESS at least {ess:.0f}, no divergences, "
    good += f"E-BFMI {gate.bfmi:.2f}."
    bad = f"The sampler has not converged ({'; '.join(gate.failures)}), so the other findings are "
    bad += "not reliable: fit again with more tune and draws."
    frame = fit.summary()[["rhat", "ess_bulk", "ess_tail"]].rename_axis("name")
    facts = {"divergences": gate.divergences, "bfmi": gate.bfmi, "failures": list(gate.failures)}
    return Part(
        "convergence", "ok" if gate.ok else "refuse", (good if gate.ok else bad,), frame, facts
    )


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
    """Power-scaling sensitivity of forecasts to the prior and to the likelihood.

    Parameters
    ----------
    fit : Posterior
    log_loss : mapping of label to array of shape (draws,)
        Draws of the forecasts, chain by chain.

    Returns
    -------
    DataFrame
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
