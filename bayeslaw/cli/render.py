"""Render fits, and what is made of one alone: simulated tables, coefficients, checks, reports."""

import shlex
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.padding import Padding

import bayeslaw as bl
from bayeslaw.cli.options import Sampling
from bayeslaw.cli.steps import Fitted
from bayeslaw.cli.terminal import Block, Document, Rendered, labelled, tables
from bayeslaw.common.formatting import count, digits
from bayeslaw.inference.convergence import Convergence
from bayeslaw.inference.residuals import too_few_sizes
from bayeslaw.laws.priors import NOISE
from bayeslaw.model.spec import make_spec
from bayeslaw.tables.table import is_synthetic

if TYPE_CHECKING:
    from bayeslaw.simulation.worlds import World

BOUNDS = {"paper": "paper", "prior": "priors"}
WIDE = 0.01
"""Relative width from which the range of a point fit's parameter is shown."""
OPTIMUM = ["objective", "delta", "bounds", "starts", "polished"]
OPTIMUM += ["agreeing", "interior", "at_bounds"]
"""What a document says of a point fit."""
COLORS = {"ok": "green", "caution": "yellow", "no evidence": "red", "refuse": "bold red"}


def fit(fitted: Fitted, train: str | None, how: str = "") -> Rendered:
    """Render the parameters in both coordinates, below the heading of the fit.

    `how` names the method of a point fit, which a `PointFit` does not record.
    """
    document = describe(fitted, train)
    if isinstance(fitted, bl.Pool):
        members = {name: fit(member, train) for name, member in fitted.members.items()}
        document["members"] = {name: each.document for name, each in members.items()}
        blocks = [block for each in members.values() for block in ("", *each.blocks)]
        return Rendered(document, [*heading(fitted, train)[:2], *blocks])
    head = heading(fitted, train, how)
    if isinstance(fitted, bl.PointFit):
        reference, summary = fitted.reference(), fitted.summary()
        document |= {"parameters": dict(fitted.parameters), "reference": reference}
        document |= {end: summary[end].to_dict() for end in ("lowest", "highest")}
        pairs = (
            [(n, digits(v, 4)) for n, v in side.items()] for side in (fitted.parameters, reference)
        )
        rows = [(*paper, *own) for paper, own in zip_longest(*pairs, fillvalue=("", ""))]
        ranges = [
            f"{name} {digits(low)} to {digits(high)}"
            for name, (_, low, high) in summary.iterrows()
            if high - low > WIDE * max(abs(low), abs(high))
        ]
        parts: list[Block] = [
            *head,
            "",
            tables(("", "formula", "", "reference"), rows),
        ]
        if ranges:
            parts += ["", f"[bold red]Not unique[/]: starts that agree have {', '.join(ranges)}."]
        return labelled(document, parts)
    summary, law = fitted.summary(), fitted.law
    document["parameters"] = summary.rename_axis("name").reset_index().to_dict("records")
    document["priors"] = {name: str(prior) for name, prior in fitted.spec.priors.items()}
    lines: list[list[str]] = []
    known = {*law.parameters, *law.coordinates}
    rest = "noise and random effects" if fitted.spec.effects else "noise on log loss"
    added = law.discrepancy_parameters
    for title, names in {
        "parameters of the formula": [n for n in law.parameters if n not in added],
        "discrepancy": [n for n in law.parameters if n in added],
        "at the reference point": [n for n in law.coordinates if n not in law.parameters],
        rest: [n for n in summary.index if n not in known],
    }.items():
        lines += [[f"[dim]{title}[/]"]] if names else []
        for name, row in summary.loc[list(names)].iterrows():
            numbers = [digits(row[c], 4) for c in ("median", "q05", "q95")]
            ess = min(row["ess_bulk"], row["ess_tail"])
            lines.append([f"  {name}", *numbers, f"{row['rhat']:.3f}", f"{ess:.0f}"])
        lines += [[]] if names else []
    table = tables(("", "median", "5 %", "95 %", "R-hat", "ESS"), lines)
    given = {n: p for n, p in fitted.spec.priors.items() if p != law.priors.get(n, p)}
    words = "".join(f"{n} ~ {p}, " for n, p in given.items())
    words = f"Priors: {words}others by default." if given else "Default priors; --json lists them."
    return labelled(document, [*head, "", table, "", words])


def next_commands(fitted: bl.Posterior | bl.Pool, out: Path | None) -> list[str]:
    """What to do with a fit that converged, as commands that run as they are, in lines."""
    if not fitted.convergence.ok:
        return []
    frame = fitted.table.frame
    ahead = {c: frame[c].max() * (2 if c in ("params", "tokens") else 1) for c in fitted.columns}
    grid = " ".join(f"{column}={value:.3g}" for column, value in ahead.items())
    saved = [] if out else ["save the fit with --out fit.nc to use it:"]
    command = f'{shlex.quote(str(out or "fit.nc"))} --grid "{grid}"'
    return [*saved, f"next: bayeslaw check {command}", f"then: bayeslaw forecast {command}"]


def simulate(world: "World", table: bl.LossTable, noise: bool, seed: int, out: Path) -> Rendered:
    """Render what was written, and the true parameters of each domain."""
    domains = {
        name: {
            "law": world.laws[name].name,
            "truth": dict(world.truth[name]),
            "sigma": world.sigma[name] if noise else 0.0,
        }
        for name in table.frame["domain"].unique()
    }
    document: Document = {
        "out": out,
        "rows": len(table) + len(table.baselines),
        "baselines": len(table.baselines),
        "synthetic": True,
        "seed": seed,
        "limits": dict(world.limits),
        "domains": domains,
    }
    parts: list[Block] = [
        f"{len(table)} losses and {len(table.baselines)} baselines (tokens = 0), seed {seed}; "
        "the column `synthetic` is True in every row."
    ]
    for name, each in domains.items():
        truth = ", ".join(f"{n} {v:g}" for n, v in world.truth[name].items())
        parts += ["", f"{name}: {each['law']}, noise {each['sigma']:g} on log loss", f"  {truth}"]
    return labelled(document, parts)


def coefficients(exported: "bl.Coefficients", fitted: bl.Posterior) -> Rendered:
    """Render the paper's parameters with their intervals, below the heading of the fit."""
    frame = exported.parameters
    document = describe(fitted, None) | {
        "draws_exported": exported.draws,
        "sha256": exported.document["training"]["sha256"],
        "parameters": frame.rename_axis("name").reset_index().to_dict("records"),
    }
    columns = ["point", "median", "q05", "q25", "q75", "q95"]
    rows = [
        [escape(str(name)), *(digits(value, 4) for value in row)]
        for name, row in frame[columns].iterrows()
    ]
    table = tables(("", "point", "median", "5 %", "25 %", "75 %", "95 %"), rows)
    draws = f"{exported.draws} draws" if exported.draws else "no draws: point forecasts only"
    return labelled(document, [*heading(fitted, None), "", table, "", f"{draws}."])


def check(
    fitted: bl.Posterior | bl.Pool,
    rows: bl.LossTable | None,
    found: "bl.Check",
    train: str | None,
    test: str | None,
) -> Rendered:
    """Render the verdict and the findings of each part; their numbers are in the document."""
    document = describe(fitted, train) | {"test": test} | found.to_dict()
    blocks: list[Block] = [*heading(fitted, train)]
    if rows is not None:
        where = f" ({test})" if test else ""
        blocks.append(escape(f"to forecast {len(rows)} row{'s' * (len(rows) != 1)}{where}"))
    blocks += ["", f"[{COLORS[found.level]}]{escape(found.verdict)}[/]"]
    for part in found.parts:
        blocks += ["", f"[bold]{part.name}[/]  [{COLORS[part.level]}]{part.level}[/]"]
        blocks += [Padding(escape(words), (0, 0, 0, 2)) for words in part.words]
    return labelled(document, blocks)


def report(
    page: "bl.Report", fitted: bl.Posterior | bl.Pool, train: str | None, plan: "bl.Plan | None"
) -> Rendered:
    """Render the warnings and the summary of a page, which is written to a file."""
    summary = [
        item
        for block in page.sections["summary"].blocks
        if isinstance(block, list)
        for item in block
    ]
    document: Document = describe(fitted, train) | {
        "title": page.title,
        "question": page.lead,
        "warnings": list(page.warnings),
        "summary": summary,
        "sections": [*page.sections],
        "plan": None if plan is None else plan.to_dict(),
    }
    blocks: list[Block] = [*heading(fitted, train), ""]
    blocks += [f"[bold red]{escape(text)}[/]" for text in page.warnings]
    return Rendered(document, [*blocks, *(f"- {escape(text)}" for text in summary)])


# -- description of a fit --------------------------------------------------------------------------


def describe(fitted: Fitted, train: str | None, rows: bl.LossTable | None = None) -> Document:
    """Describe a fit in the JSON fields of all commands; synthetic if it or `rows` are."""
    if isinstance(fitted, bl.Pool):
        first = describe(fitted.first, train, rows)
        kept = ("table", "train", "rows_train", "synthetic", "seed", "versions")
        members = {name: describe(member, train) for name, member in fitted.members.items()}
        failures = [f"{n}: {f}" for n, m in fitted.members.items() for f in m.convergence.failures]
        return {
            "law": fitted.name,
            "title": _pool_title(fitted),
            **{key: first[key] for key in kept if key in first},
            "weights": dict(fitted.weights),
            "members": members,
            "converged": not failures,
            "failures": failures,
        }
    law, table = fitted.law, fitted.table
    document: Document = {
        "law": law.name,
        "title": law.title,
        "table": table.name if table else None,
        "train": train or (table.selection if table else "") or None,
        "rows_train": len(table) if table else None,
        "synthetic": is_synthetic(table) or is_synthetic(rows),
        "token_unit": law.token_unit,
        "reference_point": law.point(fitted.at),
    }
    if isinstance(fitted, bl.PointFit):
        return document | {name: getattr(fitted, name) for name in OPTIMUM}
    diagnostics = fitted.convergence
    return document | {
        "likelihood": fitted.spec.likelihood.kind,
        "discrepancy": fitted.spec.discrepancy.kind,
        "effects": list(fitted.spec.effects),
        "errors": fitted.spec.errors,
        "prior": _prior(fitted),
        **{k: v for k, v in fitted.settings.items() if k != "versions"},
        "converged": diagnostics.ok,
        "failures": list(diagnostics.failures),
        "convergence": {n: getattr(diagnostics, n) for n in Convergence.__dataclass_fields__},
    }


def _pool_title(pool: bl.Pool) -> str:
    shares = [f"{100 * weight:.0f} % {name}" for name, weight in pool.weights.items()]
    return f"Pool of {' and '.join(shares)}"


def heading(fitted: Fitted, train: str | None, how: str = "") -> list[str]:
    """Describe a fit in a few lines: law, data, model, sampler, units and convergence."""
    if isinstance(fitted, bl.Pool):
        lines = [f"[bold]{escape(fitted.name)}[/]  [dim]{escape(_pool_title(fitted))}[/]"]
        lines.append(f"fitted to {escape(chosen(fitted.table, train))}")
        for name, member in fitted.members.items():
            own = heading(member, train)
            lines += [f"{escape(name)}: {own[2]}; {own[3]}; {own[-1]}"]
        return lines
    law, table = fitted.law, fitted.table
    lines = [f"[bold]{escape(law.name)}[/]  [dim]{escape(law.title)}[/]"]
    if table is not None:
        lines.append(f"fitted to {escape(chosen(table, train))}")
    unit = "1 token" if law.token_unit == 1 else f"{law.token_unit:g} tokens"
    point = ", ".join(f"{n} {count(v)}" for n, v in law.point(fitted.at).items())
    units = f"D in units of {unit}; reference point {point}"
    if isinstance(fitted, bl.PointFit):
        agreeing = round(fitted.agreeing * fitted.polished)
        how += f", bounds of the {BOUNDS[fitted.bounds]}" if law.paper_bounds else ""
        lines += [
            f"{how}; mean Huber loss {fitted.objective:.6g} (delta {fitted.delta:g}); "
            f"{agreeing} of {fitted.polished} starts agree",
            units,
        ]
        if fitted.at_bounds:
            hit = ", ".join(f"{n} = {v:g}" for n, v in fitted.at_bounds.items())
            lines.append(f"[bold red]On a bound[/]: {hit}; the optimum is not interior.")
        return lines
    run, spec = fitted.settings, fitted.spec
    discrepancy = spec.discrepancy.words if law.discrepancy_parameters else "no"
    model = {
        f"{spec.likelihood.kind} likelihood": True,
        f"{_prior(fitted)} priors": True,
        f"{discrepancy} discrepancy": True,
        f"random effects of {' and '.join(spec.effects)}": spec.effects,
        "size effects propagated to new sizes": too_few_sizes(fitted),
        "worth of repeated tokens": law.repetition,
        "offset of un-annealed checkpoints": law.offset,
        "errors correlated within runs": spec.errors == "run",
    }
    lines += [
        ", ".join(words for words, applies in model.items() if applies),
        f"{run.get('chains')} chains of {run.get('draws')} draws (nutpie, seed {run.get('seed')})",
    ]
    return [*lines, units, _converged(fitted.convergence)]


def method(name: str, sampling: Sampling) -> tuple[str, dict[str, str]]:
    """Describe how a fit is made: a phrase, and JSON fields."""
    if name == "huber":
        return "Huber fit", {"method": name}
    likelihood, priors = sampling.likelihood, sampling.priors
    phrase = f"posterior mode, {likelihood} likelihood, {priors} priors"
    return phrase, {"method": name, "likelihood": likelihood, "prior": priors}


def _converged(diagnostics: Convergence) -> str:
    word, style = ("converged", "green") if diagnostics.ok else ("NOT CONVERGED", "bold red")
    words = str(diagnostics).replace("tuning and draws", "--tune and --draws")
    return escape(words).replace(word, f"[{style}]{word}[/]", 1)


def _prior(fitted: bl.Posterior) -> str:
    spec = fitted.spec
    defaults = make_spec(
        spec.law,
        likelihood=spec.likelihood,
        discrepancy=spec.discrepancy,
        effects=spec.effects,
        errors=spec.errors,
    ).priors
    if spec.priors == defaults:
        return "default"
    shapes = {spec.priors[n].name for n in spec.law.priors if n not in NOISE}
    improper = shapes <= {"Flat", "HalfFlat", "Uniform"}
    return "flat" if improper else "own"


def chosen(rows: bl.LossTable, query: str | None, known: bl.LossTable | None = None) -> str:
    """Describe rows: their number, their table unless it is the `known` one, and the query."""
    words = str(replace(rows, selection=rows.selection or query or ""))
    return words.replace(f" of {rows.name}", "", 1) if known and known.name == rows.name else words
