"""``check``: what a user must know about a fit before its forecasts are used."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from bayeslaw.checks import fit_checks as parts_fit
from bayeslaw.checks import forecast_checks as parts_rows
from bayeslaw.checks.part import LEVELS, Part, target
from bayeslaw.inference.posterior import Posterior
from bayeslaw.tables.table import LossTable

VERDICT = {
    "ok": "OK: nothing found that speaks against using this fit",
    "caution": "CAUTION: usable, with what is said under",
    "refuse": "REFUSE: do not forecast from this fit, for what is said under",
}


@dataclass(frozen=True)
class Check:
    """The parts of a check, and its verdict; prints in plain words.

    Parameters
    ----------
    parts : tuple of Part
    law, table : str
        What was checked.
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

    def to_dict(self) -> dict[str, Any]:
        """The whole check as JSON fields."""
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


def check(fit: Posterior, rows: LossTable | pd.DataFrame | None = None, *, seed: int = 0) -> Check:
    """Check a fit, and what it can say about the rows to forecast.

    Parameters
    ----------
    fit : Posterior
        Converged or not.
    rows : LossTable or DataFrame, optional
        Rows to forecast, with the law's covariates; a loss is not needed and not used. Without
        them nothing is said about forecasts.
    seed : int
        Of the predictive noise.

    Returns
    -------
    Check
        ``print(check)`` says it in words, ``check["directions"].frame`` has the numbers of a part.

    Raises
    ------
    TableError
        If `rows` lack a covariate of the law.

    Examples
    --------
    >>> table = bl.paper_world().table("french", seed=0)  # doctest: +SKIP
    >>> fit = bl.fit("form1", table.query("ptpp <= 31"))  # doctest: +SKIP
    >>> print(bl.check(fit, table.query("ptpp == 279")))  # doctest: +SKIP
    """
    to = None if rows is None else target(fit, rows)
    parts = [parts_fit.convergence(fit), parts_rows.directions(fit, to)]
    if to is not None:
        parts += parts_rows.distance(fit, to), parts_rows.prior_sensitivity(fit, to)
    parts += [p for p in (parts_rows.bends(fit, to), parts_rows.bounds(fit, to)) if p]
    parts += parts_fit.learning(fit), parts_fit.cell_means(fit, seed), parts_fit.left_out(fit, seed)
    return Check(tuple(parts), fit.law.name, fit.table.name, 0 if to is None else len(to.frame))
