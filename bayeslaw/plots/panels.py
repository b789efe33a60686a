"""Panels of curves: which rows share a panel and a line, and what the titles say of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bayeslaw.common.formatting import count
from bayeslaw.inference.pools import Fit
from bayeslaw.laws.steps import ANNEALED, UNIQUE
from bayeslaw.tables.validation import COVARIATES

NEAR_SIZES = 1.05
"""Ratio of sizes up to which they share a panel."""
PANELS = 16
"""Most panels: of more model sizes some are left out, and the title says so."""
COLUMNS = 4
"""Panels beside each other where only the model size varies."""

type Cell = Mapping[str, float]
"""Values of covariates that select a panel or a line."""


@dataclass(frozen=True)
class Layout:
    """The panels in reading order, the lines of each, and what all rows have in common.

    Parameters
    ----------
    panels, lines : list of Cell
    columns : int
        Panels in a row.
    sizes : int
        Panels, if none were left out.
    fixed : list of str
        Covariates that do not vary.
    """

    panels: list[Cell]
    lines: list[Cell]
    columns: int
    sizes: int
    fixed: list[str]


def layout_of(
    frame: pd.DataFrame, columns: Sequence[str], across: Sequence[str]
) -> Layout:
    """A panel for each size; the columns `across`, if they vary, give rows of panels and lines."""
    declared = [name for name in columns if name not in COVARIATES]  # by the laws
    used = [name for name in (*across, *declared) if name in columns]
    vary = [name for name in used if frame[name].nunique() > 1]
    fixed = [name for name in used if name not in vary]
    lines: list[Cell] = [{}]
    if vary:
        by_line = vary[-1]
        values_of_lines = sorted(frame[by_line].unique())
        lines = [{by_line: value} for value in values_of_lines]
    by_panel = vary[:-1]
    if "params" in columns:
        by_panel.append("panel")
    panels: list[Cell] = [{}]
    if by_panel:
        distinct = frame[by_panel].drop_duplicates().sort_values(by_panel)
        panels = []
        for values in distinct.to_numpy():
            cell = dict(zip(by_panel, values, strict=True))
            panels.append(cell)
    sizes = len(panels)
    panels_in_row = COLUMNS
    if len(vary) > 1:
        sizes_only = by_panel[-1]
        panels_in_row = frame[sizes_only].nunique() if len(by_panel) > 1 else 1
    elif sizes > PANELS:
        kept = np.linspace(0, sizes - 1, PANELS).round().astype(int)
        panels = [panels[i] for i in kept]
    return Layout(panels, lines, panels_in_row, sizes, fixed)


def near_sizes(sizes: pd.Series) -> pd.Series:
    """The least of the sizes that share a panel, `NEAR_SIZES` apart at most, for each size."""
    least = 0.0
    panels = {}
    for size in np.unique(sizes):
        if size > NEAR_SIZES * least:
            least = size
        panels[size] = least
    return sizes.map(panels)


def select(frame: pd.DataFrame, cell: Cell) -> pd.DataFrame:
    """The rows of a panel or a line."""
    for column, value in cell.items():
        frame = frame[frame[column] == value]
    return frame


def adjusted_columns(fit: Fit, frame: pd.DataFrame) -> list[str]:
    """Columns beside the covariates on which the forecast of these rows depends."""
    called: set[str] = set()
    for law in fit.laws:
        called.update(step.called_by for step in law.steps)
    return [name for name in (UNIQUE, ANNEALED) if name in called and name in frame]


# -- titles ---------------------------------------------------------------------------------------


def figure_title(
    fit: Fit, frame: pd.DataFrame, layout: Layout, far: Mapping[str, str]
) -> str:
    """What all panels have in common, and how far the curves lie from the fitted rows."""
    common = []
    drawn = len(layout.panels)
    if drawn < layout.sizes:
        common.append(f"{drawn} of {layout.sizes} model sizes")
    for column in layout.fixed:
        value = frame[column].iloc[0]
        common.append(titled(fit, frame, column, value))
    for column in adjusted_columns(fit, frame):
        if frame[column].nunique() == 1:
            value = frame[column].iloc[0]
            common.append(f"{column} {count(value)}")
    lines = []
    if common:
        lines.append(", ".join(common))
    for position, words in far.items():
        lines.append(f"{position} up to {words}")
    return "\n".join(lines)


def panel_title(fit: Fit, frame: pd.DataFrame, panel: Cell) -> str:
    """The values of a panel, a line each: the last covariate first."""
    titles = []
    for column, value in panel.items():
        titles.append(titled(fit, frame, column, value))
    return "\n".join(reversed(titles))


def titled(fit: Fit, frame: pd.DataFrame, column: str, value: float) -> str:
    """A covariate's value, and its ratio to the largest training value if that is less."""
    if column == "panel":
        column = "params"
    fitted = frame if fit.table is None else fit.table.frame
    most = fitted[column].max()
    covariate = fit.about[column]
    text = f"{covariate.alias} {count(value)}"
    if covariate.logged and value > 1.005 * most:
        text += f" ({value / most:.2g} × largest fitted)"
    return text
