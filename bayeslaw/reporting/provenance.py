"""Provenance of a fit: its data, their licence, its settings, and the reporting checklist.

Facts that the table does not contain are reported as unknown.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from bayeslaw.common.formatting import count
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.residuals import too_few_sizes
from bayeslaw.laws.law import Law
from bayeslaw.model.effects import labels
from bayeslaw.model.noise import Huber
from bayeslaw.reporting.pages import Section, Table
from bayeslaw.tables.hull import in_words, locate
from bayeslaw.tables.table import LossTable, is_synthetic
from bayeslaw.tables.validation import COVARIATES

UNKNOWN = "unknown"
NAMES = {
    "params": "N, parameters",
    "tokens": "D, tokens",
    "replay": "r, replay ratio",
    "ptpp": "PTPP, pre-training tokens per parameter",
    "loss": "loss, nats per token",
}
NAMED = ("params", "tokens", "replay", "ptpp", "loss", "run", "base", "domain", "synthetic")
_LICENCE = re.compile(r"\*\*Licen[cs]e\*\*:?\s*(.+?)(?=\n\s*\n|\n\s*[-*#|]|\Z)", re.I | re.S)
_HEADING = re.compile(r"^#+\s*Licen[cs]e\s*\n+(.+?)(?=\n\s*\n|\n#|\Z)", re.I | re.S | re.M)


def licence(table: LossTable) -> str:
    """Return the licence of a table, as stated in the README beside it, or ``"unknown"``."""
    readme = Path(table.name).parent / "README.md"
    if is_synthetic(table):
        return "none: the losses are simulated by this package"
    if not Path(table.name).is_file() or not readme.is_file():
        return UNKNOWN
    text = readme.read_text(encoding="utf-8", errors="replace")
    found = _LICENCE.search(text) or _HEADING.search(text)
    text = " ".join(found[1].split()) if found else UNKNOWN
    return re.sub(r"\[([^]]+)\]\([^)]*\)|[`*]", r"\1", text)


def cost(frame: pd.DataFrame) -> str:
    """Describe the sum of 6 N D over runs; checkpoints of one run cost its longest D."""
    each = 6 * frame["params"] * frame["tokens"]
    if "run" not in frame:
        return f"{each.sum():.2g} FLOPs (6 N D, every row counted as one run)"
    return f"{each.groupby(labels(frame, 'run')).max().sum():.2g} FLOPs (6 N D)"


def ranges(law: Law, fitted: pd.DataFrame, rows: pd.DataFrame) -> list[list[str]]:
    """Return rows of a table: ranges of each covariate, training and forecast, and how far beyond.

    How far beyond is stated for the law's own covariates only.
    """
    lines = []
    for column in (*COVARIATES, "loss"):
        if column in fitted:
            training, new = fitted[column], rows.get(column)
            cells = [NAMES[column], _range(training), UNKNOWN if new is None else _range(new)]
            if column in law.columns:
                reach = beyond(training, rows[column])
            else:
                reach = "" if column == "loss" else "not in the law"
            lines.append([*cells, reach])
    costs = [6 * f["params"] * f["tokens"] for f in (fitted, rows)]
    spans = [f"{c.min():.2g} – {c.max():.2g}" for c in costs]
    lines.append(["compute of a row, 6 N D, FLOPs", *spans, beyond(*costs)])
    return lines


def beyond(training: pd.Series, new: pd.Series) -> str:
    """Describe how far `new` extends beyond `training`, as a factor."""
    parts = []
    if new.max() > 1.005 * training.max():
        parts.append(f"{new.max() / training.max():.3g} × the largest")
    if new.min() < 0.995 * training.min():
        parts.append(
            f"{new.min() / training.min():.2g} × the smallest" if new.min() else "down to 0"
        )
    return "; ".join(parts) or "inside"


def provenance(fit: Posterior, rows: pd.DataFrame, seed: int, command: str | None) -> Section:
    """List what is needed to reproduce a report."""
    law, run, table = fit.law, fit.settings, fit.table
    versions = run.get("versions", {})
    columns = ["unique_tokens: repeated tokens are worth less"] if law.repetition else []
    columns += ["annealed: an offset where it is 0"] if law.offset else []
    discrepancy = "none: the law is assumed to be exactly true"
    if law.discrepancy_parameters:
        propagated = "; size effects propagated to new sizes" if too_few_sizes(fit) else ""
        discrepancy = f"{fit.spec.discrepancy.words} of the law's terms{propagated}"
    facts = [
        ["command", command or "bayeslaw.report, from Python"],
        ["data", table.name],
        ["licence of the data", licence(table)],
        ["training rows", f"{len(table)}; SHA-256 {table.sha256}"],
        ["rows to forecast", f"{len(rows)}; SHA-256 {LossTable(rows, rows.iloc[:0]).sha256}"],
        ["law", f"{law.name}: {law.title}. {law.reference}"],
        ["token unit", f"D in units of {law.token_unit:g} token{'s' * (law.token_unit != 1)}"],
        ["reference point", reference(fit)],
        ["compute", "6 N D FLOPs per run, D the tokens of this table; checkpoints counted once"],
        ["noise", _noise(fit)],
        *([["columns", "; ".join(columns)]] if columns else []),
        ["discrepancy", discrepancy],
        ["sampler", _sampler(run)],
        ["seed", f"{run.get('seed', UNKNOWN)} of the fit, {seed} of the forecast"],
        ["versions", ", ".join(f"{n} {v}" for n, v in versions.items()) or UNKNOWN],
    ]
    caption = "Everything needed to reproduce this page."
    return Section("provenance", "Provenance", [Table(caption, ["", ""], facts, words=True)])


def reference(fit: Posterior) -> str:
    """Describe the reference point by its covariates."""
    point = fit.law.point(fit.at)
    return ", ".join(f"{name} {count(value)}" for name, value in point.items())


def _noise(fit: Posterior) -> str:
    """Describe the likelihood and the random effects."""
    spec = fit.spec
    delta = f", delta {spec.delta:g}" if isinstance(spec.likelihood, Huber) else ""
    words = f"{spec.likelihood.words}{delta} on log loss"
    words += ", correlated within a run" if spec.errors == "run" else ""
    levels = " and ".join(spec.effects)
    return words + (f", with random effects of {levels}" if levels else ", no random effects")


def _sampler(run: Mapping[str, object]) -> str:
    if not run:
        return UNKNOWN
    return (
        f"NUTS (nutpie), {run['chains']} chains of {run['draws']} draws after "
        f"{run['tune']} tuning steps, target acceptance {run['target_accept']:g}"
    )


def checklist(
    fit: Posterior, rows: pd.DataFrame, point: PointFit, train: str | None, test: str | None
) -> Section:
    """Answer the reporting checklist for scaling laws from the fit.

    Its groups are the law, the training runs, the data, and the fit; a group is a row of one cell.

    References
    ----------
    Li, Kudugunta and Zettlemoyer (2025), "(Mis)Fitting: a survey of scaling laws".
    """
    law, frame, diagnostics = fit.law, fit.table.frame, fit.convergence

    def distinct(column: str) -> str:
        known = column in frame
        groups = {*labels(frame, column)}
        return str(len(groups)) if known else f"{UNKNOWN} (no column {column})"

    checkpoints = f"{UNKNOWN} (no column run)"
    if "run" in frame:
        repeated = bool(frame["run"].dropna().duplicated().any())
        checkpoints = "several rows of one run" if repeated else "one row per run"
    domains = frame["domain"].dropna().unique() if "domain" in frame else ()
    domain = ", ".join(map(str, domains)) or UNKNOWN
    others = ", ".join(map(str, [c for c in frame.columns if c not in NAMED]))
    known = f"not in the fit; further columns of the table: {others}" if others else UNKNOWN
    bounds = ", ".join(f"{n} = {v:g}" for n, v in point.at_bounds.items()) or "nothing"
    added = len(law.discrepancy_parameters)
    and_added = f" and {added} of the discrepancy" if added else ""
    plain = f"{len(law.terms)} terms, {len(law.parameters) - added} parameters{and_added}"
    sizes = sorted(frame["params"].unique())
    repeats = int(frame.duplicated([c for c in (*COVARIATES, "domain") if c in frame]).sum())
    reach = [f"{c} {far}" for c in law.columns if (far := beyond(frame[c], rows[c])) != "inside"]
    validation = "none: the rows forecast have no measured loss"
    validation = f"{len(rows)} held-out rows" if "loss" in rows else validation
    chains = fit.settings.get("chains", UNKNOWN)
    answers = [
        ["The law"],
        ["formula", f"{law.title}; {plain}"],
        ["response", f"validation loss, nats per token, domain {domain}"],
        ["variables", "; ".join(NAMES[c] for c in law.columns)],
        ["how N is counted", f"{UNKNOWN}: the table does not say whether embeddings count"],
        ["compute", "6 N D; attention and embeddings not counted separately"],
        ["The training runs"],
        ["runs", distinct("run")],
        ["pre-trained bases", distinct("base")],
        ["model sizes", f"{len(sizes)}, {count(sizes[0])} to {count(sizes[-1])}"],
        ["tokens", _range(frame["tokens"])],
        ["compute of the training runs", cost(frame)],
        ["architecture, optimiser, schedule", known],
        ["tokenizer and training text", UNKNOWN],
        ["seeds of the runs", known if "seed" in frame else UNKNOWN],
        ["The data"],
        ["training rows", f"{len(frame)}" + (f" ({train})" if train else "")],
        ["rows to forecast", f"{len(rows)}" + (f" ({test})" if test else "")],
        ["checkpoints", checkpoints],
        ["repeated settings", str(repeats)],
        ["outliers removed", "none by this package"],
        ["data and licence", f"{fit.table.name}; {licence(fit.table)}"],
        ["The fit"],
        ["objective", f"posterior; {_noise(fit)}"],
        ["priors", "in the table of parameters"],
        ["optimiser", _sampler(fit.settings)],
        ["starts", f"{chains} chains; largest R-hat {diagnostics.rhat:.3f}"],
        ["converged", "yes" if diagnostics.ok else f"NO: {'; '.join(diagnostics.failures)}"],
        ["on a bound", f"in the Huber fit: {bounds}; posterior draws are never on a bound"],
        ["uncertainty", "central bands of the posterior predictive"],
        ["validation", validation],
        ["extrapolation", "; ".join([*reach, in_words(locate(frame, rows, law.columns))])],
        ["code", "bayeslaw; command and versions under provenance"],
    ]
    caption = (
        "What scaling-law papers are asked to report (after Li, Kudugunta and Zettlemoyer, 2025)."
    )
    table = Table(caption, ["", ""], answers, words=True)
    return Section("checklist", "Reporting checklist", [table])


def _range(values: pd.Series) -> str:
    low, high = float(values.min()), float(values.max())
    show = (lambda v: f"{v:.4g}") if values.name == "loss" else count
    if low == high:
        return show(low)
    return f"{show(low)} – {show(high)} ({values.nunique()})"
