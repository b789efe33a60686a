"""``check``: the parts of a check of a fit and its forecasts, and the verdict."""

from dataclasses import dataclass, replace

import pandas as pd

from bayeslaw.checks.curvature import curvature_part
from bayeslaw.checks.directions import directions_part
from bayeslaw.checks.extrapolation import extrapolation_part
from bayeslaw.checks.fit_checks import (
    cells_part,
    convergence_part,
    learning_part,
    left_out_part,
    noise_part,
)
from bayeslaw.checks.part import LEVELS, Part, target
from bayeslaw.checks.sensitivity import sensitivity_part
from bayeslaw.checks.stage_bounds import stage_bounds_part
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.tables.table import LossTable

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
