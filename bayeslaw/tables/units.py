"""Units of losses and counts: losses in nats, and numbers that seem to be in another unit."""

import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from itertools import product

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import TableError, TableWarning, argument, unknown
from bayeslaw.tables.column_names import MOST_TOKENS, exponent, factor_of_name
from bayeslaw.tables.covariates import COUNTS, TABLE
from bayeslaw.tables.validation import (
    BASE_LOSSES,
    COVARIATES,
    check_positive,
    row_numbers,
)

LOSS_UNITS = ("nats", "bits", "perplexity", "bits-per-byte")
UNIT_WORDS = {"bpb": "bits-per-byte", "byte": "bits-per-byte", "bits": "bits"}
UNIT_WORDS |= dict.fromkeys(("ppl", "perplexity"), "perplexity")
"""Words in the name of a column, and the unit of its losses; the first that is there counts."""
LEAST_LOSS = 0.02
"""Median loss of a table, nats per token, that is not doubted."""
MOST_LOSS = 12.5  # nats per token: a uniform guess of one of 262,144 tokens costs 12.48
MOST_LEVEL = 1.6
"""Largest ratio of losses to `published_loss` that is not doubted; that of one domain of the
shipped tables is 1.54 at most (Gadre, Penn treebank), of bits it would be 1.44 times as large."""
LEAST_LEVEL = 0.5
LEAST_ADAPTED = 0.2
"""Least ratio of losses to `published_loss` that is not doubted: from scratch, where that of the
shipped tables is 0.63 or more (OLMo, code), and of adaptation, where it is 0.31 or more (Delphi,
mathematics). Bits per byte are about a third of nats per token."""
NO_LEVEL = 0.03
"""Ratio below which losses are no bits per byte either; `check_losses` warns of such small ones."""
TOY = 1e7
"""Parameters up to which models may have tokens of their own, such as characters."""
SAME_UNIT = 0.1
"""Log of the ratio up to which losses differ from forecasts by a change of unit alone."""
LEAST_COUNT = 1e4
"""Fewest parameters of a language model, and tokens it is trained on; less is in another unit."""
LEAST_PARAMS = 1e3
"""Fewest parameters of the smallest model of a table."""
LARGEST_COUNT = 1e15  # more parameters, or tokens, than any run has
MOST_PARAMS = 5e12
"""Parameters beyond those of any model that was trained."""
FEW_TOKENS = 0.5
SWAPPED = 1.3
"""Tokens per parameter, and ratio of the standard deviations of log losses about `published_loss`
to those with N and D swapped. Adaptation has few tokens, or is fitted better when swapped: of the
shipped tables none has both."""
FEWEST_ADAPTING = 1e-4
"""Tokens per parameter below which also those of an adaptation are doubted: they may be steps."""
# Factors above the fitted range from which a value may be, and surely is, in another unit. Below
# it the first is enough: nobody forecasts runs a thousand times smaller than the fitted ones.
OTHER_UNIT = 1e3
NO_OTHER = 1e6
UNITS = {
    **{c: row.expected for c, row in TABLE.items() if row.expected},
    "unique_tokens": COUNTS,
    "flops": "FLOPs are expected, 6 N D, not petaFLOPs",
}


def in_nats(
    frame: pd.DataFrame, name: str, unit: str | None, bytes_per_token: float | None
) -> pd.DataFrame:
    """The frame with its losses, those of bases included, in nats per token."""
    if unit not in (None, *LOSS_UNITS):
        raise TableError(f"{name}: {unknown('loss unit', unit, LOSS_UNITS)}")
    if (unit == "bits-per-byte") != (bytes_per_token is not None):
        raise TableError(
            f"{name}: {argument('loss_unit', 'bits-per-byte')} and "
            f"{argument('bytes_per_token', 4.5)}, the mean bytes of a token of the validation set, "
            "go together."
        )
    if bytes_per_token is not None and not 0 < bytes_per_token < math.inf:
        raise TableError(
            f"{name}: bytes_per_token={bytes_per_token:g}: give a positive number."
        )
    if unit in (None, "nats"):
        return frame
    columns = [c for c in ("loss", *BASE_LOSSES) if c in frame]
    losses = frame[columns].astype(float)
    if unit == "perplexity":
        for column in columns:
            check_positive(
                losses, column, name, "perplexities are at least 1; drop failed runs"
            )
        return frame.assign(**losses.apply(np.log))
    return frame.assign(**losses * (math.log(2) * (bytes_per_token or 1)))


def check_losses(rows: pd.DataFrame, name: str, unit: str | None) -> None:
    """Warn of losses too small for the default priors; refuse too large ones without a unit."""
    losses = rows["loss"]
    if (middle := float(losses.median())) <= LEAST_LOSS:
        warnings.warn(
            f"{name}: the median loss is {middle:.3g} nats per token; the default priors expect "
            f"larger ones; give priors of your own, {argument('priors', 'FILE.toml')}.",
            TableWarning,
            stacklevel=4,
        )
    if unit is None and (above := losses > MOST_LOSS).any():
        units = [argument("loss_unit", unit) for unit in ("perplexity", "nats")]
        raise TableError(
            f"{name}: losses are above {MOST_LOSS} nats per token, more than a uniform guess costs "
            f"({row_numbers(above)}: {losses.max():.3g}); drop failed runs, or state the "
            f"unit: {units[0]}, or {units[1]} if it is right."
        )


def check_counts(rows: pd.DataFrame, name: str, columns: Mapping[str, str]) -> None:
    """Refuse a table of losses whose counts are too small or large, such as tokens in billions.

    `columns` are the expressions that columns were read by, with which the message corrects them.
    """
    for column in rows.columns.intersection(
        [c for c, unit in UNITS.items() if unit == COUNTS]
    ):
        values = rows.loc[rows[column] > 0, column]
        least = float(values.min())
        most = float(values.max())
        is_most = f"{name}: the largest of column {column!r} is {most:g}"
        if most < LEAST_COUNT or (column == "params" and least < LEAST_PARAMS):
            is_low = (
                is_most if most < LEAST_COUNT else is_most + f", the least {least:g}"
            )
            factors = counts_of(rows) or {column: 1e9}
            meant = dict(columns)
            for count, factor in factors.items():
                read = columns.get(count, count)
                # The name of the file's column knows its unit better than the losses do.
                known = factor_of_name(read.strip("`"))
                meant[count] = f"{read} * {exponent(known if known > 1 else factor)}"
            raise TableError(f"{is_low}; {COUNTS}: {argument('columns', meant)}.")
        if most > LARGEST_COUNT and column in COVARIATES:
            raise TableError(f"{is_most}, more than any run has; check its unit.")


def counts_of(rows: pd.DataFrame) -> dict[str, float]:
    """Factors by which `params` and `tokens` become counts, as far as their losses tell.

    The unit is that at which the losses are nearest to `published_loss`, and tokens per parameter
    near 20: both columns are more likely in one unit, and no model has `MOST_PARAMS`.
    """
    columns = ["params", "tokens"]
    if not {*columns} <= {*rows}:
        return {}
    rows = rows[rows["tokens"] > 0]
    units: list[tuple[float, ...]] = [
        (1.0, 1e6, 1e9) if rows[column].max() < 1e6 else (1.0,) for column in columns
    ]
    chosen: tuple[float, ...] = (1.0, 1.0)
    least = np.inf
    for factors in product(*units):
        params, tokens = (
            rows[c].to_numpy() * f for c, f in zip(columns, factors, strict=True)
        )
        if min(params.max(), tokens.max()) < LEAST_COUNT or params.max() > MOST_PARAMS:
            continue
        level = abs(np.median(np.log(rows["loss"] / published_loss(params, tokens))))
        ratio = abs(np.log10(np.median(tokens / params) / 20))
        score = level + max(ratio - 2, 0) + (factors[0] != factors[1])
        if score < least:
            chosen = factors
            least = score
    pairs = zip(columns, chosen, strict=True)
    return {column: factor for column, factor in pairs if factor > 1}


def published_loss(params: Floats, tokens: Floats) -> Floats:
    """Loss of a model of web text, nats per token: Chinchilla's law with its published numbers.

    J. Hoffmann et al. (2022), Training compute-optimal large language models, equation 10.
    """
    return np.asarray(1.69 + 406.4 / params**0.34 + 410.7 / tokens**0.28)


def level_of_losses(rows: pd.DataFrame) -> float:
    """Median ratio of losses to `published_loss`."""
    params, tokens, losses = (
        rows[column].to_numpy(float) for column in ("params", "tokens", "loss")
    )
    return float(np.median(losses / published_loss(params, tokens)))


def unit_of_name(columns: Iterable[str], name: str) -> str | None:
    """Unit of the losses of some columns by their names; None if these say none.

    `TableError` for bits per byte, which need the bytes of a token.
    """
    units = set()
    for column in columns:
        in_name = re.split("[^a-z]+", column.lower())
        words = [word for word in UNIT_WORDS if word in in_name]
        units.add(UNIT_WORDS[words[0]] if words else None)
    if len(units) != 1:
        return None
    unit = units.pop()
    if unit == "bits-per-byte":
        raise TableError(
            f"{name}: losses are bits per byte by the name of their column; give "
            f"{argument('loss_unit', unit)} and {argument('bytes_per_token', 4.4)}, the mean bytes "
            "of a token of the validation set."
        )
    return unit


def doubtful_scale(rows: pd.DataFrame) -> list[str]:
    """What the level of losses, and how they fall, say against the columns of a table of losses."""
    if not {"params", "tokens"} <= {*rows}:
        return []
    params, tokens = (rows[column].to_numpy(float) for column in ("params", "tokens"))
    if params.max() > MOST_PARAMS:
        return [
            f"the largest model has {params.max():.3g} parameters; check the unit of 'params'."
        ]
    off, swapped = (
        np.log(rows["loss"].to_numpy() / published_loss(*pair))
        for pair in ((params, tokens), (tokens, params))
    )
    said = []
    level = float(np.exp(np.median(off)))
    adapted = not {"replay", "base"}.isdisjoint(rows)
    # Losses that are larger still were read with a stated unit.
    if level > MOST_LEVEL and rows["loss"].max() <= MOST_LOSS:
        units = " or ".join(
            argument("loss_unit", unit) for unit in ("bits", "perplexity")
        )
        said.append(
            f"losses are {level:.2g} times those of Chinchilla's law for web text, in nats per "
            f"token; if they are in another unit, give {units}."
        )
    ratio = float(np.median(tokens / params))
    if ratio < FEW_TOKENS and off.std() > SWAPPED * swapped.std():
        said.append(
            f"there are {ratio:.2g} tokens per parameter, and losses vary "
            "more as if params were tokens: check that these columns are not swapped."
        )
    elif ratio < (FEWEST_ADAPTING if adapted or "ptpp" in rows else FEW_TOKENS):
        largest = int(params.argmax())
        said.append(
            f"there are {ratio:.2g} tokens per parameter (median; {tokens[largest]:.3g} tokens for "
            f"the largest model, of {params[largest]:.3g} parameters). Divide params by 1000 if "
            "they were millions that were taken for billions, or multiply tokens by the tokens of "
            "a step if they are steps."
        )
    elif (
        NO_LEVEL < level < (LEAST_ADAPTED if adapted else LEAST_LEVEL)
        and params.max() > TOY
    ):
        per_byte = argument("loss_unit", "bits-per-byte")
        said.append(
            f"losses are {level:.2g} times those of Chinchilla's law for web text, in nats per "
            f"token: if they are bits per byte, give {per_byte} and "
            f"{argument('bytes_per_token', 4.4)}; if they are nats, of text that is as easy to "
            "predict or per byte, nothing is wrong."
        )
    if (
        "ptpp" in rows
        and (before := float((params * rows["ptpp"]).max())) > MOST_TOKENS
    ):
        said.append(
            f"a base was pre-trained on {before:.2g} tokens, params times ptpp, more than any "
            "model was: check the units of both (ptpp is pre-training tokens / params)."
        )
    return said


def bits_for_nats(losses: Floats, forecast: Floats) -> str:
    """Whether losses differ from their forecasts as bits do from nats, in words; or nothing."""
    ratios = np.log(losses / forecast)
    per_bit = -math.log(math.log(2))
    for sign, words in (
        (1, "bits per token are of nats"),
        (-1, "nats per token are of bits"),
    ):
        if len(ratios) and (np.abs(ratios - sign * per_bit) < SAME_UNIT).all():
            bits = argument("loss_unit", "bits")
            which = "these losses" if sign == 1 else "the losses that were fitted"
            times = "each" if len(ratios) == 1 else "all"
            return (
                f"The losses are {times} {np.exp(np.median(ratios)):.2f} times the forecast, as "
                f"{words}: if {which} are in bits, read them with {bits}."
            )
    return ""


def check_units(rows: pd.DataFrame, name: str, fitted: pd.DataFrame) -> None:
    """Refuse numbers in another unit than those of fitted rows, such as tokens in billions."""
    for text, sure in other_units(rows, fitted):
        if sure:
            raise TableError(f"{name}: {text}")
        warnings.warn(f"{name}: {text}", TableWarning, stacklevel=3)


def other_units(rows: pd.DataFrame, fitted: pd.DataFrame) -> Iterator[tuple[str, bool]]:
    """Numbers that may be in another unit than those of fitted rows; whether they surely are.

    They surely are `OTHER_UNIT` times below, or `NO_OTHER` times above the fitted rows.
    """
    for column in rows.columns.intersection(list(UNITS)).intersection(fitted.columns):
        values = rows.loc[rows[column] > 0, column]
        least = float(values.min())
        most = float(values.max())
        low = float(fitted[column].min())
        high = float(fitted[column].max())
        power = 2 if column == "flops" else 1  # a product of two counts
        below = least * OTHER_UNIT**power <= low
        if not (below or most >= high * OTHER_UNIT**power):
            continue
        value = least if below else most
        far = (
            f"{low / value:.2g} times below"
            if below
            else f"{value / high:.2g} times above"
        )
        powers = [
            f**sign for f in (1e9, 1e6, 1e3, 1e12, 1e15, 1e18) for sign in (1, -1)
        ]
        meant = [value * f for f in powers if low / 10 <= value * f <= high * 10]
        ask = f": {column} = {meant[0]:g}?" if meant else "."
        text = f"{column} = {value:g} is {far} the fitted rows; {UNITS[column]}{ask}"
        yield text, below or most >= high * NO_OTHER**power
