"""What a check found: single findings with their levels and numbers, and the verdict on all."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import pandas as pd

from bayeslaw.common.shown import Block, Note, Severity, Showing, Shown
from bayeslaw.tables.verdict import SEVERITIES

VERDICT = {
    "ok": "OK: no finding against the use of this fit",
    "caution": "CAUTION: usable with reservations; read the findings under",
    "no evidence": "NO EVIDENCE: bands were never tested so far out; read the findings under",
    "refuse": "REFUSE: do not forecast from this fit; read the findings under",
}
# Significance level of each test: the false alarm rate for a fit of the true law.
RARE = 0.01


@dataclass(frozen=True)
class Finding:
    """What one of the checks found: a level of `SEVERITIES`, and the numbers behind its words."""

    name: str
    level: str
    words: tuple[str, ...]  # one or two sentences each
    frame: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    facts: Mapping[str, object] = field(default_factory=dict, repr=False)

    def to_dict(self) -> dict[str, object]:
        """The finding as a JSON document, without its name."""
        return {
            "level": self.level,
            "words": list(self.words),
            **self.facts,
            "table": self.frame.reset_index().to_dict("records"),
        }


@dataclass(frozen=True)
class Check(Showing):
    """The findings of a check and its verdict; ``print`` shows them.

    Parameters
    ----------
    parts : tuple of Finding
    law, table : str
        Names of the fitted law and of its table.
    rows : int
        Number of rows to forecast; 0 if there are none.
    """

    parts: tuple[Finding, ...]
    law: str
    table: str
    rows: int

    @property
    def level(self) -> str:
        """The worst level of the findings, one of `SEVERITIES`."""
        levels = [finding.level for finding in self.parts]
        return max(levels, key=SEVERITIES.index)

    @property
    def ok(self) -> bool:
        """Whether no finding says refuse."""
        return self.level != "refuse"

    @property
    def verdict(self) -> str:
        """The verdict in one sentence."""
        held_out = self.parts[0]
        # Bands that failed on the user's own held-out losses say more than any other finding.
        if held_out.level == "refuse" and not held_out.facts["own"]:
            return f"REFUSE: {held_out.words[0]}"
        sentence = VERDICT[self.level]
        if self.level == "ok":
            return f"{sentence}."
        names = [finding.name for finding in self.parts if finding.level == self.level]
        return f"{sentence} {', '.join(names)}."

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
            "parts": {finding.name: finding.to_dict() for finding in self.parts},
        }

    def shown(self) -> Shown:
        """The verdict, and each finding with its level."""
        blocks: list[Block] = [Note(self.verdict, cast("Severity", self.level))]
        for finding in self.parts:
            level = cast("Severity", finding.level)
            blocks.append("")
            blocks.append(Note(f"{finding.name} ({level})", level))
            blocks.append(list(finding.words))
        return Shown("", blocks, self.to_dict())
