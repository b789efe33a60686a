"""The sections of a report on its data and its provenance."""

import pandas as pd

from bayeslaw.common.formatting import count
from bayeslaw.common.shown import Shown, Table
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.model import effects
from bayeslaw.plots.style import axis_label
from bayeslaw.tables.compute import flops_of
from bayeslaw.tables.covariates import FLOPS
from bayeslaw.tables.table import LossTable
from bayeslaw.tables.validation import COVARIATES, label_texts

UNKNOWN = "unknown"
KINDS = {"run": "training run", "base": "pre-trained base", "domain": "domain"}
"""Columns with labels, and what a label stands for."""


def data(
    fit: Posterior | Pool, rows: pd.DataFrame, train: str | None, test: str | None
) -> Shown:
    """The training rows and the rows to forecast: how many, and their ranges."""
    frame = fit.table.frame
    sentences = [
        f"The law is fitted to {len(frame)} losses{in_brackets(train)}{_origins(frame)}.",
        f"The forecast is of {len(rows)} rows{in_brackets(test)}.",
        f"The training runs cost {cost(frame)}.",
    ]
    groups = [_groups(fit.first, rows, level) for level in fit.first.spec.effects]
    # With a space also where no random effect has a sentence.
    text = f"{' '.join(sentences)} {' '.join(groups)}"
    title = "Range, and number of distinct values in brackets"
    return Shown("Data", [text, Table(_ranges(fit, rows), title)])


def in_brackets(query: str | None) -> str:
    """A query behind the rows that it selects; empty if there is none."""
    return f" ({query})" if query else ""


def _origins(frame: pd.DataFrame) -> str:
    """How many runs, bases and domains the rows are from; empty if they have no labels."""
    counts = []
    for column, kind in KINDS.items():
        if column not in frame:
            continue
        number = label_texts(frame[column]).nunique()
        noun = f"{kind}s" if number > 1 else kind
        counts.append(f"{number} {noun}")
    return f", from {', '.join(counts)}" if counts else ""


def _ranges(fit: Posterior | Pool, rows: pd.DataFrame) -> pd.DataFrame:
    """Ranges of the covariates, the loss and the compute of training rows and other rows."""
    frame = fit.table.frame
    about = fit.first.law.declared
    ranges = {}
    for column in dict.fromkeys((*COVARIATES, *fit.columns, "loss")):
        if column not in frame:
            continue
        forecast = _range(rows[column]) if column in rows else UNKNOWN
        factor = "not in the law"
        if column in fit.columns:
            factor = beyond(frame[column], rows[column])
        elif column == "loss":
            factor = ""
        label = axis_label(column, about)
        ranges[label] = [_range(frame[column]), forecast, factor]
    if FLOPS not in fit.columns:
        fitted = flops_of(frame)
        new = flops_of(rows)
        spans = [f"{flops.min():.2g} – {flops.max():.2g}" for flops in (fitted, new)]
        ranges["compute of a row, 6 N D, FLOPs"] = [*spans, beyond(fitted, new)]
    heads = ["training rows", "rows to forecast", "beyond the range"]
    return pd.DataFrame.from_dict(ranges, orient="index", columns=heads)


def _groups(fit: Posterior, rows: pd.DataFrame, level: str) -> str:
    """Which runs, bases or sizes of the rows to forecast are among the training rows."""
    groups = effects.labels(rows, level, fit.draws[level].values)
    labelled = ~effects.unlabelled(groups)
    count = len({*groups[labelled]})
    if not count:
        return f"The rows to forecast name no {level}; each has the random effect of a new one."
    in_training = effects.is_fitted(fit.draws, level, rows)
    fitted = len({*groups[in_training]})
    if fitted == count:
        return f"All of the {count} {level}s to forecast are in the training rows."
    share = str(fitted) if fitted else "None"
    return (
        f"{share} of the {count} {level}s to forecast are in the training rows; the effect of a "
        f"new {level} is drawn from its distribution."
    )


def cost(frame: pd.DataFrame) -> str:
    """The sum of 6 N D over runs; checkpoints of one run cost its longest D."""
    flops = flops_of(frame)
    how = "6 N D" if "params" in frame else "as the table says"
    if "run" not in frame:
        return f"{flops.sum():.2g} FLOPs ({how}, every row counted as one run)"
    by_run = flops.groupby(effects.labels(frame, "run"))
    return f"{by_run.max().sum():.2g} FLOPs ({how})"


def beyond(training: pd.Series, new: pd.Series) -> str:
    """How far `new` extends beyond `training`, as a factor; half a per cent is rounding."""
    factors = []
    if new.max() > 1.005 * training.max():
        ratio = new.max() / training.max()
        factors.append(f"{ratio:.3g} × the largest")
    if new.min() < 0.995 * training.min():
        ratio = new.min() / training.min()
        factors.append(f"{ratio:.2g} × the smallest" if new.min() else "down to 0")
    return "; ".join(factors) or "inside"


def _range(values: pd.Series) -> str:
    """The least and the greatest value, and how many there are."""
    low = float(values.min())
    high = float(values.max())
    write = _four_digits if values.name == "loss" else count
    if low == high:
        return write(low)
    return f"{write(low)} – {write(high)} ({values.nunique()})"


def _four_digits(value: float) -> str:
    return f"{value:.4g}"


def provenance(
    fit: Posterior | Pool, rows: LossTable, command: str | None, seed: int
) -> Shown:
    """What is needed to reproduce a report, beside what the section on parameters says."""
    members = [*fit.members.values()]
    laws = []
    seeds = []
    for member in members:
        law = member.law
        laws.append(f"{law.name}: {law.title}. {law.reference}")
        seeds.append(str(member.settings.get("seed", UNKNOWN)))
    versions = members[0].settings.get("versions", {})
    packages = [f"{name} {version}" for name, version in versions.items()]
    facts = {
        "command": command or "bayeslaw.report, from Python",
        "data": fit.table.name,
        "training rows": f"{len(fit.table)}; SHA-256 {fit.table.sha256}",
        "rows to forecast": f"{len(rows)}; SHA-256 {rows.sha256}",
        "law": " ".join(laws),
        "seed": f"{', '.join(dict.fromkeys(seeds))} of the fit, {seed} of the forecast",
        "versions": ", ".join(packages) or UNKNOWN,
    }
    lead = "What reproduces this page, with the settings of the fit under parameters."
    table = Table(pd.DataFrame({"": facts}), lead, left=[""])
    return Shown("Provenance", [table])
