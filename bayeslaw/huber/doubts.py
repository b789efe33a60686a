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
from bayeslaw.huber.descent import minimum
from bayeslaw.huber.objective import LEAST_COUPLED, Objective
from bayeslaw.laws.law import Law
from bayeslaw.tables.comparison import runs_of
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
    """The log losses of a point, shape (rows,)."""
    residuals = objective.residuals(point[None])[0]
    return np.asarray(np.log(table.loss) + residuals)


def too_few(law: Law, table: LossTable, least: str) -> str:
    """Message for a table with fewer rows than `least`, a number and its reason."""
    rows = len(table)
    noun = "row" if rows == 1 else "rows"
    return f"{table.name}: {rows} {noun}; {law.name} needs at least {least}."


def doubt(
    objective: Objective, point: Floats, table: LossTable, *, skewed: bool = False
) -> None:
    """Refuse accuracies, and warn of rows far out and of units, given the optimum of a fit."""
    law = objective.law
    columns = law.columns
    doubts = _of_columns(law, table, skewed)
    amounts = point[1 : objective.linear]
    if (amounts <= LEAST_COUPLED).all():
        flat = f"no term of {law.name} has a part in the loss"
        if table.loss.max() <= 1:
            errors = argument("columns", {"loss": "1 - loss"})
            raise TableError(
                f"{table.name}: {flat}, which does not fall as {' or '.join(columns)} grow and is "
                f"at most 1: are these accuracies? Fit losses, or error rates: {errors}."
            )
        doubts.append(
            f"{flat}: check the columns of losses and of {', '.join(columns)}."
        )
    if not skewed and len(table) > 2 * len(point):
        residuals = -objective.residuals(point[None])[0]
        distances = np.abs(_standardised(residuals, len(point)))
        far = distances > FARTHEST
        if far.any():
            far, residuals = _far_out(law, table, far)
            doubts.append(_described(far, residuals, table, law.name))
    _warn(doubts, table)


def _warn(doubts: Iterable[str], table: LossTable) -> None:
    for words in doubts:
        warnings.warn(f"{table.name}: {words}", TableWarning, stacklevel=5)


def _of_columns(law: Law, table: LossTable, skewed: bool) -> list[str]:
    """What the columns of a table make doubtful without a fit."""
    doubts = doubtful_scale(table.frame) + _unmarked_checkpoints(table)
    if not skewed:
        doubts += _several_rates(law, table)
    return doubts


def _few_runs(table: LossTable) -> list[str]:
    """What a fit to few runs is worth, in words: what was measured for docs/howto/runs.md."""
    runs = runs_of(table.frame).nunique()
    if runs >= FEWEST_RUNS:
        return []
    few = f"{runs} runs are few" if runs > 1 else f"{runs} run is few"
    fewer = "" if runs >= FEWEST_TESTED else ", and fewer were not tested"
    return [
        f"{few}: from the {FEWEST_TESTED} smallest of a table, 90 % bands held 92 % of the losses "
        "up to half a decade beyond, 62 % on the worst of six "
        f"sources{fewer}. Priors decide more than these data: compare a forecast with a run "
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
    tokens = frame["tokens"].groupby(runs_of(frame))
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
    alike = [name for name in (*law.columns, *SETTING) if name in frame]
    settings = [frame[name] for name in alike]
    rates = frame[RATE].groupby(settings, dropna=False)
    counts = rates.nunique(dropna=False)
    several = int((counts > 1).sum())
    if not several:
        return []
    best = f"frame.loc[frame.groupby({alike})['loss'].idxmin()]"
    return [
        f"rows that agree in {', '.join(alike)} differ in {RATE!r} ({several} settings); "
        f"{law.name} does not read it, so they are fitted as repeats of one run. Keep the best "
        f"run of each setting, in pandas {best}, or give {argument('likelihood', 'skewed')}."
    ]


def _standardised(
    residuals: Floats, parameters: int, kept: Bools | None = None
) -> Floats:
    """Residuals in robust standard deviations of those that are `kept`."""
    used = residuals if kept is None else residuals[kept]
    middle = np.median(used)
    # The parameters take up part of the residuals, which matters in a small table.
    free = max(len(used) - parameters, 1)
    share = free / len(used)
    deviation = np.median(np.abs(used - middle))
    spread = 1.4826 * deviation / share**0.5
    spread = max(spread, LEAST_SPREAD)
    return np.asarray((residuals - middle) / spread)


def _far_out(law: Law, table: LossTable, far: Bools) -> tuple[Bools, Floats]:
    """Rows far from a fit to the others, and residuals from it.

    Rows that are very far out draw the fit towards them, which hides others.
    """
    x = Design(law, table).x
    for _ in range(ROUNDS):
        objective = Objective(law, subset(table, ~far), DELTA)
        parameters = objective.paper(minimum(objective))
        log_loss = np.log(law.loss(parameters, x))
        residuals = np.asarray(np.log(table.loss) - log_loss)
        fitted_count = len(objective.names)
        distances = np.abs(_standardised(residuals, fitted_count, ~far))
        far_now = distances > FAR
        same = (far_now == far).all()
        if same or far_now.mean() > MOST_FAR:
            break
        far = far_now
    return far, residuals


def _described(far: Bools, residuals: Floats, table: LossTable, law: str) -> str:
    """The rows far out in words, the query that leaves them out, and the likelihood for them."""
    percents = 100 * np.expm1(residuals[far])
    queries, groups = _left_out_by(far, table.frame)
    rows = _farthest_rows(table.frame[far], percents)
    if groups:
        rows += f"; {' and '.join(groups)}"
    query = argument("where", " and ".join(queries))
    badly_tuned = ""
    if (percents > 0).all():
        skewed = argument("likelihood", "skewed")
        badly_tuned = f", or give {skewed} if these runs are badly tuned"
    return (
        f"{far.sum()} of {len(far)} rows lie far from a Huber fit of {law}: losses {rows}. With "
        f"them a posterior may not converge: leave them out by {query}{badly_tuned}."
    )


def _farthest_rows(rows: pd.DataFrame, percents: Floats) -> str:
    """The farthest of some rows, in words, with their distances from a fit."""
    described = []
    farthest_first = np.argsort(-np.abs(percents))
    for i in farthest_first[:NAMED]:
        row = rows.iloc[i]
        size = count(row["params"])
        tokens = count(row["tokens"])
        loss = f"{row['loss']:.4g}"
        percent = f"{percents[i]:+.0f} %"
        described.append(f"{loss} at N {size}, D {tokens} ({percent})")
    words = ", ".join(described)
    if len(rows) > NAMED:
        words += f" and {len(rows) - NAMED} more"
    return words


def _left_out_by(far: Bools, frame: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Parts of a query that leaves rows out, and in words the sizes and runs that go whole."""
    queries = []
    groups = []
    remaining = pd.Series(far, frame.index)
    for column, noun in (("params", "size"), ("run", "run")):
        if column not in frame:
            continue
        labels = frame[column]
        if column == "run":
            labels = label_texts(labels)
        of_group = remaining.groupby(labels)
        all_far = of_group.transform("all")
        # A group of one row is a row.
        several = of_group.transform("size") > 1
        whole = labels[all_far & several].unique()
        if not 0 < len(whole) < labels.nunique():
            continue
        write = count if noun == "size" else str
        names = ", ".join(map(write, whole))
        groups.append(f"all rows of {noun} {names}")
        in_whole = labels.isin(whole)
        values = frame.loc[in_whole, column].unique().tolist()
        queries.append(f"{column} not in {values}")
        remaining &= ~in_whole
    if remaining.any():
        losses = frame.loc[remaining, "loss"].tolist()
        queries.append(f"loss not in {losses}")
    return queries, groups
