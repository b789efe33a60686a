"""Render a fit and a simulated table: text for a terminal and a JSON document."""

from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape

from bayeslaw.cli.terminal import Block, Document, Rendered, ruled
from bayeslaw.common.formatting import count, digits
from bayeslaw.evaluate.residuals import too_few_sizes
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.convergence import Convergence
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.priors import NOISE
from bayeslaw.model.noise import make_noise
from bayeslaw.simulation.worlds import World
from bayeslaw.tables.reading import is_synthetic
from bayeslaw.tables.table import LossTable

BOUNDS = {"paper": "paper", "prior": "priors"}
WIDE = 0.01
"""Relative width from which the range of a point fit's parameter is shown."""
SYNTHETIC = "[bold magenta]Synthetic data[/]: losses simulated from a stated law, not measured."


def fit(fitted: Posterior | Pool | PointFit, train: str | None, how: str = "") -> Rendered:
    """Render the parameters in both coordinates, below the heading of the fit.

    `how` names the method of a point fit, which a `PointFit` does not record.
    """
    document = describe(fitted, train)
    if isinstance(fitted, Pool):
        members = {name: fit(member, train) for name, member in fitted.members.items()}
        document["members"] = {name: each.document for name, each in members.items()}
        blocks = [block for each in members.values() for block in ("", *each.blocks)]
        return Rendered(document, [*heading(fitted, train)[:2], *blocks])
    if isinstance(fitted, PointFit):
        reference, summary = fitted.reference(), fitted.summary()
        document |= {"parameters": dict(fitted.parameters), "reference": reference}
        document |= {end: summary[end].to_dict() for end in ("lowest", "highest")}
        table = ruled("", "paper", "", "reference")
        left, right = list(fitted.parameters.items()), list(reference.items())
        for i in range(max(len(left), len(right))):
            cells = [c for side in (left, right) for c in (side[i] if i < len(side) else ("", ""))]
            table.add_row(*(c if isinstance(c, str) else digits(c, 4) for c in cells))
        ranges = [
            f"{name} {digits(low)} to {digits(high)}"
            for name, (_, low, high) in summary.iterrows()
            if high - low > WIDE * max(abs(low), abs(high))
        ]
        parts: list[Block] = [*heading(fitted, train, how), "", [table]]
        if ranges:
            parts += ["", f"[bold red]Not unique[/]: starts that agree have {', '.join(ranges)}."]
        return Rendered(document, labelled(document, parts))
    summary = fitted.summary()
    document["parameters"] = summary.rename_axis("name").reset_index().to_dict("records")
    document["priors"] = {name: str(prior) for name, prior in fitted.spec.priors.items()}
    table = ruled("", "mean", "sd", "5 %", "95 %", "R-hat", "ESS")
    law = fitted.law
    noise = [n for n in summary.index if n not in law.parameters and n not in law.coordinates]
    local = [n for n in law.coordinates if n not in law.parameters]
    for title, names in {
        "paper coordinates": law.parameters,
        "reference point": local,
        "noise and random effects" if fitted.spec.effects else "noise on log loss": noise,
    }.items():
        table.add_row(f"[dim]{title}[/]")
        for name in names:
            row = summary.loc[name]
            numbers = [digits(row[c], 4) for c in ("mean", "sd", "q05", "q95")]
            ess = min(row["ess_bulk"], row["ess_tail"])
            table.add_row(f"  {name}", *numbers, f"{row['rhat']:.3f}", f"{ess:.0f}")
        table.add_section()
    order = [n for n in ("E", *fitted.spec.sampled) if n in fitted.spec.priors]
    priors = ", ".join(f"{n} ~ {fitted.spec.priors[n]}" for n in order)
    parts = [*heading(fitted, train), "", [table], "", f"Priors: {priors}."]
    return Rendered(document, labelled(document, parts))


def simulate(world: World, table: LossTable, noise: bool, seed: int, out: Path) -> Rendered:
    """Render what was written, and the true parameters of each domain."""
    domains = list(table.frame["domain"].unique())
    document: Document = {
        "out": str(out),
        "rows": len(table) + len(table.baselines),
        "baselines": len(table.baselines),
        "synthetic": True,
        "seed": seed,
        "limits": dict(world.limits),
        "domains": {
            name: {
                "law": world.laws[name].name,
                "truth": dict(world.truth[name]),
                "sigma": world.sigma[name] if noise else 0.0,
            }
            for name in domains
        },
    }
    parts: list[Block] = [
        f"{len(table)} losses and {len(table.baselines)} baselines (tokens = 0), seed {seed}; "
        "the column `synthetic` is True in every row."
    ]
    for name in domains:
        truth = ", ".join(f"{n} {v:g}" for n, v in world.truth[name].items())
        sigma = world.sigma[name] if noise else 0.0
        parts += ["", f"{name}: {world.laws[name].name}, noise {sigma:g} on log loss", f"  {truth}"]
    return Rendered(document, labelled(document, parts))


# -- description of a fit --------------------------------------------------------------------------


def describe(fitted: Posterior | Pool | PointFit, train: str | None) -> Document:
    """Describe a fit in the JSON fields that the documents of all commands contain."""
    if isinstance(fitted, Pool):
        first = describe(fitted.first, train)
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
        "train": train,
        "rows_train": len(table) if table else None,
        "synthetic": is_synthetic(table),
        "token_unit": law.token_unit,
        "reference_point": fitted.law.point(fitted.at),
    }
    if isinstance(fitted, PointFit):
        return document | {
            "objective": fitted.objective,
            "delta": fitted.delta,
            "bounds": fitted.bounds,
            "starts": fitted.starts,
            "polished": fitted.polished,
            "agreeing": fitted.agreeing,
            "interior": fitted.interior,
            "at_bounds": dict(fitted.at_bounds),
        }
    diagnostics = fitted.convergence
    return document | {
        "likelihood": fitted.spec.likelihood.kind,
        "discrepancy": fitted.spec.discrepancy.kind,
        "noise": fitted.spec.noise,
        "effects": list(fitted.spec.effects),
        "errors": fitted.spec.errors,
        "prior": _prior(fitted),
        **{k: v for k, v in fitted.settings.items() if k != "versions"},
        "converged": diagnostics.ok,
        "failures": list(diagnostics.failures),
        "convergence": {n: getattr(diagnostics, n) for n in Convergence.__dataclass_fields__},
    }


def _pool_title(pool: Pool) -> str:
    shares = [f"{100 * weight:.0f} % {name}" for name, weight in pool.weights.items()]
    return f"Pool of {' and '.join(shares)}"


def heading(fitted: Posterior | Pool | PointFit, train: str | None, how: str = "") -> list[str]:
    """Describe a fit in a few lines: law, data, model, sampler, units and convergence."""
    if isinstance(fitted, Pool):
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
    point = ", ".join(f"{n} {count(v)}" for n, v in fitted.law.point(fitted.at).items())
    units = f"D in units of {unit}; reference point {point}"
    if isinstance(fitted, PointFit):
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
    run = fitted.settings
    words = fitted.spec.discrepancy.words
    discrepancy = f"{words} discrepancy" if fitted.law.discrepancy_parameters else "no discrepancy"
    model = [f"{fitted.spec.likelihood.kind} likelihood", f"{_prior(fitted)} priors", discrepancy]
    model += (
        [f"random effects of {' and '.join(fitted.spec.effects)}"] if fitted.spec.effects else []
    )
    model += ["size effects propagated to new sizes"] if too_few_sizes(fitted) else []
    scale = make_noise(fitted.spec.noise).words
    model += [f"noise {scale}"] if scale else []
    model += ["worth of repeated tokens"] if fitted.law.repetition else []
    model += ["offset of un-annealed checkpoints"] if fitted.law.offset else []
    model += ["errors correlated within runs"] if fitted.spec.errors == "run" else []
    lines += [
        ", ".join(model),
        f"{run.get('chains')} chains of {run.get('draws')} draws "
        f"({run.get('sampler')}, seed {run.get('seed')})",
    ]
    return [*lines, units, _converged(fitted.convergence)]


def method(name: str, likelihood: str, priors: str) -> tuple[str, dict[str, str]]:
    """Describe how a fit is made: a phrase, and JSON fields."""
    if name == "huber":
        return "Huber fit", {"method": name}
    phrase = f"posterior mode, {likelihood} likelihood, {priors} priors"
    return phrase, {"method": name, "likelihood": likelihood, "prior": priors}


def _converged(diagnostics: Convergence) -> str:
    if diagnostics.ok:
        ess = min(diagnostics.ess_bulk, diagnostics.ess_tail)
        return f"[green]converged[/]: R-hat {diagnostics.rhat:.3f}, ESS {ess:.0f}, no divergences"
    return (
        f"[bold red]NOT CONVERGED[/]: {'; '.join(diagnostics.failures)}. "
        "Do not trust these numbers: fit again with more --tune and --draws."
    )


def _prior(fitted: Posterior) -> str:
    given, own = fitted.spec.priors, fitted.law.priors
    if all(given[n] == own[n] for n in own):
        return "default"
    shapes = {given[n].name for n in own if n not in NOISE}
    improper = shapes <= {"Flat", "HalfFlat", "Uniform"}
    return "flat" if improper else "own"


def labelled(document: Document, blocks: Sequence[Block]) -> list[Block]:
    """Put a label before the blocks if the data are synthetic."""
    return [*([SYNTHETIC] if document["synthetic"] else []), *blocks]


def chosen(rows: LossTable, query: str | None, known: LossTable | None = None) -> str:
    """Describe rows: their number, their table unless it is the `known` one, and the query."""
    number = f"{len(rows)} row" + "s" * (len(rows) != 1)
    source = "" if known is not None and known.name == rows.name else f" of {rows.name}"
    return number + source + (f" ({query})" if query else "")
