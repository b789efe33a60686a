"""The covariates of loss tables and laws: one row each, from which all lists of names are made."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

FLOPS = "flops"
"""Column of the training compute of runs, which a law may declare as a covariate."""
COUNTS = "counts are expected, not millions or billions"


@dataclass(frozen=True)
class Covariate:
    """A column of loss tables that a law's formula may use.

    Parameters
    ----------
    name : str
        Name of the column.
    symbol : str
        One letter, by which formulas of law files and names of parameters call it.
    alias : str
        Another name of the column, and its label where there is little room.
    text, label : str
        What messages call it, and what the axes of figures do.
    unit : str
        Unit in saved draws.
    measured : float
        Farthest distance beyond the range of the fitted rows at which held-out losses were compared
        with bands: in decades, or of its own if it is not logged. 0 if none were compared, as of
        a covariate that a law file declares.
    positive : str
        What to give in place of a number that is not positive; empty if 0 has a meaning.
    expected : str
        What to say of a number that seems to be in another unit; empty if none can be.
    logged : bool
        Whether its distances are in decades. Not those of replay, which may be 0. Formulas have
        the value itself of a declared covariate that is not logged.
    """

    name: str
    symbol: str
    alias: str
    text: str
    label: str
    unit: str
    measured: float
    positive: str = ""
    expected: str = ""
    logged: bool = True


# Measured reaches are from `benchmarks/distance.csv`, and for replay and PTPP from the splits of
# `benchmarks/adaptation.csv`.
_ROWS = (
    Covariate(
        name="params",
        symbol="N",
        alias="N",
        text="params",
        label="model size N (parameters)",
        unit="parameters",
        measured=0.956,
        positive="the number of parameters",
        expected=COUNTS,
    ),
    Covariate(
        name="tokens",
        symbol="D",
        alias="D",
        text="tokens",
        label="tokens D",
        unit="tokens",
        measured=0.829,
        expected=COUNTS,
    ),
    Covariate(
        name="replay",
        symbol="r",
        alias="r",
        text="replay",
        label="replay ratio r",
        unit="fraction",
        measured=0.25,
        logged=False,
    ),
    Covariate(
        name="ptpp",
        symbol="P",
        alias="PTPP",
        text="PTPP",
        label="pre-training tokens per parameter",
        unit="tokens/param",
        measured=0.955,
        positive="pre-training tokens per parameter",
        expected="pre-training tokens per parameter are expected",
    ),
)

TABLE = {row.name: row for row in _ROWS}
"""Covariates by the names of their columns, in the order in which tables show them."""


def declared(
    name: str, *, label: str = "", unit: str = "1", log: bool = True
) -> Covariate:
    """The covariate that the table ``[covariates.<name>]`` of a law file declares."""
    words = name.replace("_", " ")
    return Covariate(
        name=name,
        symbol=name,
        alias=name,
        text=words,
        label=label or words,
        unit=unit,
        measured=0.0,
        positive=f"{words} has a logarithm; write log = false if 0 has a meaning" * log,
        logged=log,
    )


type Columns = Iterable[str] | Mapping[str, Covariate]
"""Names of columns, or what is known of each, as `bayeslaw.Law.about` has it."""


def about(columns: Columns) -> dict[str, Covariate]:
    """The covariates of some columns; names alone are those of `TABLE`, or say nothing more."""
    if isinstance(columns, Mapping):
        return dict(columns)
    return {name: TABLE[name] if name in TABLE else declared(name) for name in columns}
