"""Verdicts on cases beside the rows of each fit: the evidence, warnings and words."""

from collections.abc import Iterable, Mapping

import pandas as pd

from bayeslaw.common.shown import Block, Note
from bayeslaw.derive.intervals import number
from bayeslaw.inference.pools import of_one_law
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.steps import UNIQUE
from bayeslaw.tables.hull import in_words
from bayeslaw.tables.verdict import Verdict, worst

type Verdicts = Mapping[str, Verdict]
"""Where cases lie beside the rows of each fit, by its name; that of a single fit is empty."""


def checked(*fits: Posterior) -> tuple[str, ...]:
    """Failures of the convergence checks of fits, each the posterior of one law."""
    failures: list[str] = []
    posteriors = [of_one_law(fit, "derive") for fit in fits]
    for posterior in posteriors:
        failures += posterior.require_converged()
    return tuple(failures)


def read_columns(columns: Iterable[str], rows: pd.DataFrame) -> list[str]:
    """Covariates of a law, and the distinct tokens of rows that have them."""
    return [*columns, *rows.columns.intersection([UNIQUE])]


def verdict_on(fit: Posterior, rows: pd.DataFrame) -> Verdict:
    """The verdict on some cases, in the covariates of the law of a fit."""
    return fit.verdict(rows[read_columns(fit.columns, rows)])


def worst_of(verdicts: Verdicts) -> Verdict:
    """The verdict on the case that lies farthest beyond the evidence, with the name of its fit."""
    return worst(verdict.of(name) for name, verdict in verdicts.items())


def warn_beyond(verdicts: Verdicts, fits: Iterable[Posterior]) -> None:
    """Warn of cases that `bayeslaw forecast` would refuse as rows, unless all fits accept them."""
    accepts = frozenset.intersection(*(fit.accepts for fit in fits))
    worst_of(verdicts).accepting(accepts).warn(stacklevel=4)


def positions_of(verdicts: Verdicts) -> dict[str, pd.DataFrame]:
    """Where cases lie beside the rows of each fit, as `bayeslaw.locate` gives it."""
    return {name: verdict.positions for name, verdict in verdicts.items()}


def verdict_blocks(verdicts: Verdicts, cases: pd.DataFrame) -> list[Block]:
    """The evidence, and where each case lies."""
    blocks: list[Block] = []
    evidence = worst_of(verdicts).evidence
    if evidence:
        blocks.append(Note(evidence, "no evidence"))
    names_of_cases = []
    for case in cases.to_dict("records"):
        values = []
        for column, value in case.items():
            values.append(f"{column} {number(value)}")
        names_of_cases.append(", ".join(values))
    for name, verdict in verdicts.items():
        positions = verdict.positions
        words = []
        for i in positions.index:
            # Without the first word, which counts the rows.
            position = in_words(positions.loc[[i]])
            where = position.partition(" ")[2]
            words.append(f"{names_of_cases[i]} {where}")
        if words:
            whose = f" of {name}" if name else ""
            blocks.append(f"Beside the fitted rows{whose}: {'; '.join(words)}.")
    return blocks
