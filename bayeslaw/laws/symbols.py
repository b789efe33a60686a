"""Covariates of formulas: their symbols, and the columns of a loss table behind them."""

from collections import defaultdict
from collections.abc import Mapping

from bayeslaw.common.arrays import Array
from bayeslaw.tables.covariates import TABLE

type Named[A] = Mapping[str, A]
type Values = Named[Array]

# Symbol in LaTeX, and column of a loss table. A covariate is the log of what the comment says,
# except `share` and `unannealed`, which are the value itself. A covariate that a law
# declares has the name of its column: its log, or the value itself if it is not logged.
_COVARIATES = {
    # N, D (in the law's token unit), P, and r (clipped to [1e-9, 1 - 1e-9]).
    **{name: (row.symbol, name) for name, row in TABLE.items()},
    # r + epsilon
    "barrier": (r"(r+\varepsilon)", "replay"),
    # r
    "share": ("r", "replay"),
    # s + 0.01, whose log stays bounded; r + 0.01 in a law that does not read s
    "mixed": ("r", "replay"),
    # 1 - r
    "fresh": ("(1-r)", "replay"),
    # s, the share of the domain's own text: 1 - r for the target of adaptation, r for its source
    "own": ("s", "replay"),
    # 1 - s + 0.01; 1 - r + 0.01 in a law that does not read s
    "rest": ("(1-s)", "replay"),
    # the loss of the base on the domain
    "start": (r"L_{\mathrm{start}}", "start_loss"),
    # the loss of the base on its pre-training domain, over that expected of its size and budget
    "deviation": (r"(b/\hat b)", "base_loss"),
    # tokens until new data repeat
    "unique": ("U", "unique_tokens"),
    # 1 for checkpoints that are not annealed, else 0
    "unannealed": ("h", "annealed"),
}
SYMBOLS = {name: symbol for name, (symbol, _) in _COVARIATES.items()}
COLUMN = {name: column for name, (_, column) in _COVARIATES.items()}
"""Column of a loss table behind each covariate but those that a law declares; see `column_of`."""
ORIGIN: Mapping[str, float] = defaultdict(float, dict.fromkeys(SYMBOLS, 0.0))
"""The point at which amounts are the paper's coefficients; most terms have this value there."""
LETTERS = {TABLE[c].symbol: c for c in sorted(TABLE, key=lambda c: not TABLE[c].logged)}
LETTERS["s"] = "own"
"""Covariates of a formula by their symbols, amounts before ratios."""


def column_of(covariate: str) -> str:
    """Column of a loss table behind a covariate; one that a law declares has its own name."""
    return COLUMN.get(covariate, covariate)


def symbol_of(covariate: str) -> str:
    """Symbol of a covariate in names of parameters and in LaTeX."""
    return SYMBOLS.get(covariate, covariate)
