"""The result of a check, which has parts and a verdict, and the rows to forecast."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.inference.posterior import Posterior

LEVELS = ("ok", "caution", "no evidence", "refuse")
VERDICT = {
    "ok": "OK: no finding against the use of this fit",
    "caution": "CAUTION: usable with reservations; read the findings under",
    "no evidence": "NO EVIDENCE: bands were never tested so far out; read the findings under",
    "refuse": "REFUSE: do not forecast from this fit; read the findings under",
}
RARE = 0.01
"""Significance level of each part: the false alarm rate for a fit of the true law."""
NAMES = {"params": "params", "tokens": "tokens", "replay": "replay", "ptpp": "PTPP"}
"""Names of the covariates in findings."""


@dataclass(frozen=True)
class Part:
    """Result of one part of a check.

    Parameters
    ----------
    name : str
    level : {"ok", "caution", "no evidence", "refuse"}
    words : tuple of str
        The findings, one or two sentences each.
    frame : DataFrame
        The numbers behind the findings.
    facts : mapping
        Single numbers behind the findings.
    """

    name: str
    level: str
    words: tuple[str, ...]
    frame: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    facts: Mapping[str, object] = field(default_factory=dict, repr=False)


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
        """The worst level of the parts, one of `LEVELS`."""
        return max((part.level for part in self.parts), key=LEVELS.index)

    @property
    def ok(self) -> bool:
        """Whether no part says refuse."""
        return self.level != "refuse"

    @property
    def verdict(self) -> str:
        """The verdict in one sentence."""
        first = self.parts[0]
        if first.level == "refuse" and not first.facts["own"]:
            return f"REFUSE: {first.words[0]}"
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


@dataclass(frozen=True)
class Target:
    """The rows to forecast, in groups by PTPP, or by model size if the law has no PTPP.

    Parameters
    ----------
    frame : DataFrame
    groups : mapping of label to row numbers
    log_loss : array, shape (draws, groups)
        Mean latent log loss of each group.
    """

    frame: pd.DataFrame
    groups: Mapping[str, Ints]
    log_loss: Floats


def target(fit: Posterior, frame: pd.DataFrame) -> Target:
    """Rows to forecast, with the posterior of their latent losses."""
    by = "ptpp" if "ptpp" in fit.law.columns else "params"
    log_loss = np.log(fit.latent(frame))
    groups = {f"{NAMES[by]} {v:.3g}": np.array(i) for v, i in frame.groupby(by).indices.items()}
    means = np.stack([log_loss[:, index].mean(1) for index in groups.values()], 1)
    return Target(frame, groups, means)


def listed(names: Sequence[str]) -> str:
    """Names as a list in a sentence.

    Examples
    --------
    >>> listed(["alpha", "beta", "eta"])
    'alpha, beta and eta'
    """
    return " and ".join([", ".join(names[:-1])] * (len(names) > 1) + [names[-1]])
