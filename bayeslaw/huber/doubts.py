"""What the Huber fit of a law makes doubtful in its table, before anything is sampled."""

import warnings
from collections.abc import Iterable

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Bools, Floats
from bayeslaw.common.defaults import DELTA
from bayeslaw.common.errors import FitError, TableError, TableWarning, argument
from bayeslaw.common.formatting import count
from bayeslaw.design.design import Design
from bayeslaw.huber.descent import LEAST_COUPLED, Objective, minimum
from bayeslaw.laws.law import Law
from bayeslaw.tables.table import LossTable, is_synthetic, subset
from bayeslaw.tables.units import doubtful_scale
from bayeslaw.tables.validation import OF_DOMAIN, label_texts

FARTHEST = 20.0
FAR = 8.0
"""Robust standard deviations from the law. A row beyond the first makes a table doubtful; then all
beyond the second are named. In fits to the shipped tables the farthest row is at 16 (Gadre), in the
published Chinchilla table at 34."""
LEAST_SPREAD = 0.0025
"""Least standard deviation of log loss: losses without noise would have rows at any distance."""
MOST_FAR = 0.1
ROUNDS = 5
"""Largest share of rows that are outliers and not a law that fails, and most fits without them."""
FEWEST_RUNS = 6
FEWEST_TESTED = 4
"""Runs below which a fit says what so few are worth, and the fewest of which bands were tested."""
RATE = "rate"
"""Column of a table: the learning rate, which no law of the package reads."""
SETTING = ("unique_tokens", "annealed", "base", *OF_DOMAIN)
"""Columns beside a law's covariates in which rows of one setting agree."""
NAMED = 5
"""Rows that a message describes."""


def examine(law: Law, table: LossTable, *, skewed: bool = False) -> Floats | None:
    """Refuse or doubt a table before a posterior is sampled, by a short Huber fit.

    `law` is that of `for_table`. A `skewed` likelihood expects rows far above the law. Returns the
    log losses of the Huber fit, shape (rows,); None from fewer rows than the law has parameters.
    """
    columns = len(law.columns)
    if len(table) <= columns:
        least = f"{columns + 1}, for a level and a slope along each of {', '.join(law.columns)}"
        raise FitError(too_few(law, table, least))
    _warn(_few_runs(table), table)
    if len(table) < len(law.parameters):
        _warn(_of_columns(law, table, skewed), table)
        return None
    objective = Objective(law, table, DELTA)
    point = minimum(objective)
    doubt(objective, point, table, skewed=skewed)
    return _log_losses(objective, point, table)


def huber_losses(law: Law, table: LossTable) -> Floats | None:
    """The log losses that `examine` returns, without a doubt."""
    if len(table) < len(law.parameters):
        return None
    objective = Objective(law, table, DELTA)
    return _log_losses(objective, minimum(objective), table)


def _log_losses(objective: Objective, point: Floats, table: LossTable) -> Floats:
    return np.asarray(np.log(table.loss) + objective.residuals(point[None])[0])


def too_few(law: Law, table: LossTable, least: str) -> str:
    """Message for a table with fewer rows than `least`, a number and its reason."""
    rows = f"{len(table)} row" + "s" * (len(table) != 1)
    return f"{table.name}: {rows}; {law.name} needs at least {least}."


def doubt(
    objective: Objective, point: Floats, table: LossTable, *, skewed: bool = False
) -> None:
    """Refuse accuracies, and warn of rows far out and of units, given the optimum of a fit."""
    law = objective.law
    said = _of_columns(law, table, skewed)
    if (point[1 : objective.linear] <= LEAST_COUPLED).all():
        flat = f"no term of {law.name} has a part in the loss"
        if table.loss.max() <= 1:
            errors = argument("columns", {"loss": "1 - loss"})
            raise TableError(
                f"{table.name}: {flat}, which does not fall as {' or '.join(law.columns)} grow and "
                f"is at most 1: are these accuracies? Fit losses, or error rates: {errors}."
            )
        said.append(
            f"{flat}: check the columns of losses and of {', '.join(law.columns)}."
        )
    residuals = -objective.residuals(point[None])[0]
    if not skewed and len(table) > 2 * len(point):
        far = np.abs(_standardised(residuals, len(point))) > FARTHEST
        if far.any():
            said.append(_described(*_far_out(law, table, far), table, law.name))
    _warn(said, table)


def _warn(said: Iterable[str], table: LossTable) -> None:
    for words in said:
        warnings.warn(f"{table.name}: {words}", TableWarning, stacklevel=5)


def _of_columns(law: Law, table: LossTable, skewed: bool) -> list[str]:
    """What the columns of a table make doubtful without a fit."""
    said = doubtful_scale(table.frame) + _unmarked_checkpoints(table)
    if not skewed:
        said += _several_rates(law, table)
    return said


def _few_runs(table: LossTable) -> list[str]:
    """What a fit to few runs is worth, in words: what was measured for docs/howto/runs.md."""
    runs = _runs(table.frame).nunique()
    if runs >= FEWEST_RUNS:
        return []
    fewer = "" if runs >= FEWEST_TESTED else ", and fewer were not tested"
    return [
        f"{runs} run{'s are' if runs > 1 else ' is'} few: from the {FEWEST_TESTED} smallest of a "
        "table, 90 % bands held 92 % of the losses up to half a decade beyond, 62 % on the worst "
        f"of six sources{fewer}. Priors decide more than these data: compare a forecast with a run "
        "that is not fitted, and train more (docs/howto/runs.md)."
    ]


def _unmarked_checkpoints(table: LossTable) -> list[str]:
    """Whether rows of a run at several tokens are all taken for annealed ones, in words.

    Simulated losses are annealed. A column `annealed` says which are, also if all of them are.
    """
    frame = table.frame
    lacking = not {"run", "tokens"} <= {*frame}
    if lacking or "annealed" in frame or is_synthetic(table):
        return []
    tokens = frame["tokens"].groupby(_runs(frame))
    several = tokens.nunique()
    runs = int((several > 1).sum())
    if not runs:
        return []
    ends = "frame.loc[frame.groupby('run')['tokens'].idxmax()]"
    return [
        f"{runs} of {len(several)} runs have rows at several tokens, and no column 'annealed' says "
        "which of them are checkpoints before the learning rate had fallen; all are taken for "
        "annealed. On four tables such forecasts were 2 to 3 % too high, and 90 % bands held 26 to "
        "66 % of the losses. Mark the rows (annealed: 0 or 1), or keep the ends of runs alone, in "
        f"pandas {ends}; if every row is annealed, give {argument('columns', {'annealed': '1'})}."
    ]


def _several_rates(law: Law, table: LossTable) -> list[str]:
    """Whether rows that the law cannot tell apart have several values of `rate`, in words.

    Other columns that a law does not read pass without a word. This one once made the law that
    of runs at their best rate, and a table made for it must not turn into one of noisy repeats.
    """
    frame = table.frame
    if RATE not in frame or RATE in law.columns:
        return []
    alike = [c for c in (*law.columns, *SETTING) if c in frame]
    rates = frame[RATE].groupby([frame[c] for c in alike], dropna=False)
    several = int((rates.nunique(dropna=False) > 1).sum())
    if not several:
        return []
    best = f"frame.loc[frame.groupby({alike})['loss'].idxmin()]"
    return [
        f"rows that agree in {', '.join(alike)} differ in {RATE!r} ({several} settings); "
        f"{law.name} does not read it, so they are fitted as repeats of one run. Keep the best "
        f"run of each setting, in pandas {best}, or give {argument('likelihood', 'skewed')}."
    ]


def _runs(frame: pd.DataFrame) -> pd.Series:
    """Which run each row is of, as a number; a label of runs of several models is several runs."""
    if "run" not in frame:
        return pd.Series(np.arange(len(frame)), frame.index)
    labels = label_texts(frame["run"])
    alone = pd.Series(np.where(labels.isna(), np.arange(len(frame)), -1), frame.index)
    columns = [
        c for c in ("params", "ptpp", "replay", "unique_tokens", "base") if c in frame
    ]
    keys = [labels.fillna(""), alone, *(frame[c] for c in columns)]
    return frame.groupby(keys, dropna=False, sort=False).ngroup()


def _standardised(
    residuals: Floats, parameters: int, kept: Bools | None = None
) -> Floats:
    """Residuals in robust standard deviations of those that are `kept`."""
    used = residuals if kept is None else residuals[kept]
    middle = np.median(used)
    # The parameters take up part of the residuals, which matters in a small table.
    share = max(len(used) - parameters, 1) / len(used)
    spread = 1.4826 * np.median(np.abs(used - middle)) / share**0.5
    return np.asarray((residuals - middle) / max(spread, LEAST_SPREAD))


def _far_out(law: Law, table: LossTable, far: Bools) -> tuple[Bools, Floats]:
    """Rows far from a fit to the others, and residuals from it.

    Rows that are very far out draw the fit towards them, which hides others.
    """
    for _ in range(ROUNDS):
        others = Objective(law, subset(table, ~far), DELTA)
        loss = law.loss(others.paper(minimum(others)), Design(law, table).x)
        residuals = np.asarray(np.log(table.loss) - np.log(loss))
        now = np.abs(_standardised(residuals, len(others.names), ~far)) > FAR
        if (now == far).all() or now.mean() > MOST_FAR:
            break
        far = now
    return far, residuals


def _described(far: Bools, residuals: Floats, table: LossTable, law: str) -> str:
    """The rows far out in words, the query that leaves them out, and the likelihood for them."""
    frame = table.frame[far]
    rows = []
    off = 100 * np.expm1(residuals[far])
    order = np.argsort(-np.abs(off))
    for i in order[:NAMED]:
        row = frame.iloc[i]
        rows.append(
            f"{row['loss']:.4g} at N {count(row['params'])}, D {count(row['tokens'])}"
        )
        rows[-1] += f" ({off[i]:+.0f} %)"
    more = f" and {far.sum() - NAMED} more" if far.sum() > NAMED else ""
    parts = []
    groups = []
    rest = pd.Series(far, table.frame.index)
    for column, what in (("params", "size"), ("run", "run")):
        if column not in table.frame:
            continue
        labels = (
            table.frame[column]
            if column == "params"
            else label_texts(table.frame[column])
        )
        # A group of one row is a row.
        of_group = rest.groupby(labels)
        whole = labels[
            of_group.transform("all") & (of_group.transform("size") > 1)
        ].unique()
        if 0 < len(whole) < labels.nunique():
            names = [count(n) if column == "params" else str(n) for n in whole]
            groups.append(f"all rows of {what} {', '.join(names)}")
            values = table.frame.loc[labels.isin(whole), column].unique().tolist()
            parts.append(f"{column} not in {values}")
            rest &= ~labels.isin(whole)
    if rest.any():
        parts.append(f"loss not in {table.frame.loc[rest, 'loss'].tolist()}")
    query = " and ".join(parts)
    said = f"; {' and '.join(groups)}" if groups else ""
    skewed = argument("likelihood", "skewed")
    other = (
        f", or give {skewed} if these runs are badly tuned" if (off > 0).all() else ""
    )
    return (
        f"{far.sum()} of {len(far)} rows lie far from a Huber fit of {law}: losses "
        f"{', '.join(rows)}{more}{said}. With them a posterior may not converge: leave them out "
        f"by {argument('where', query)}{other}."
    )
