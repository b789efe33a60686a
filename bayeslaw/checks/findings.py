"""What a check found: findings with a level each, and the verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import pandas as pd

from bayeslaw.common.shown import Block, Level, Note, Showing, Shown

LEVELS = ("ok", "caution", "no evidence", "refuse")
VERDICT = {
    "ok": "OK: no finding against the use of this fit",
    "caution": "CAUTION: usable with reservations; read the findings under",
    "no evidence": "NO EVIDENCE: bands were never tested so far out; read the findings under",
    "refuse": "REFUSE: do not forecast from this fit; read the findings under",
}
RARE = 0.01  # significance level of each test: the false alarm rate for a fit of the true law
NAMES = {"params": "params", "tokens": "tokens", "replay": "replay", "ptpp": "PTPP"}


@dataclass(frozen=True)
class Finding:
    """What one of the checks found: a level of `LEVELS`, and the numbers behind its words."""

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
        """The worst level of the findings, one of `LEVELS`."""
        return max((finding.level for finding in self.parts), key=LEVELS.index)

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
        return VERDICT[self.level] + ("." if self.level == "ok" else f" {', '.join(names)}.")

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
        blocks: list[Block] = [Note(self.verdict, cast("Level", self.level))]
        for finding in self.parts:
            level = cast("Level", finding.level)
            blocks += ["", Note(f"{finding.name} ({level})", level), list(finding.words)]
        return Shown("", blocks, self.to_dict())


def listed(names: Sequence[str]) -> str:
    """Names as a list in a sentence: ``alpha, beta and eta``."""
    return " and ".join([", ".join(names[:-1])] * (len(names) > 1) + [names[-1]])
