"""Tables, noise and plots from the ledger of `tinycpt`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from lab import Recipe

COLUMNS = [
    "run",
    "base",
    "seed",
    "domain",
    "params",
    "tokens",
    "replay",
    "ptpp",
    "loss",
]
COLUMNS += ["annealed", "atpp", "role"]
POINT = [
    "params",
    "ptpp",
    "replay",
    "atpp",
    "annealed",
]  # what two seeds have in common


def assemble(ledger: Path, out: Path, domains: tuple[str, ...]) -> None:
    """Write a CSV file a domain, in an order that a repeat reproduces."""
    rows = pd.read_csv(ledger).drop_duplicates(["run", "atpp", "annealed"])
    rows = rows.sort_values(
        ["params", "seed", "ptpp", "replay", "atpp", "annealed"],
        ascending=[True, True, True, True, True, False],
    )
    for domain in domains:
        role = "source" if domain == "english" else "target"
        table = rows.assign(domain=domain, loss=rows[domain], role=role)
        table[COLUMNS].to_csv(out / f"{domain}.csv", index=False)


def missing(ledger: Path, recipe: Recipe) -> pd.DataFrame:
    """Count the rows of a recipe that are not measured yet.

    Returns
    -------
    DataFrame
        By size, seed and stage, where rows are missing: ``missing`` and ``of``, rows a domain.
    """
    rows = pd.read_csv(ledger, dtype=str)
    there = set(zip(rows.run, rows.atpp, rows.annealed, strict=True))
    points = pd.DataFrame(
        [
            (unit.size, unit.seed, unit.ptpp, (unit.name, *point) not in there)
            for unit in recipe.units()
            for point in recipe.evaluations(unit)
        ],
        columns=["size", "seed", "ptpp", "missing"],
    )
    counts = points.groupby(["size", "seed", "ptpp"], sort=False).missing.agg(
        ["sum", "count"]
    )
    counts.columns = ["missing", "of"]
    return counts[counts.missing > 0]


def read(folder: Path, domains: tuple[str, ...]) -> pd.DataFrame:
    """All domains' tables as one."""
    tables = [pd.read_csv(folder / f"{domain}.csv") for domain in domains]
    return pd.concat(tables, ignore_index=True)


def noise(table: pd.DataFrame) -> pd.DataFrame:
    """Run-to-run noise in percent of the loss, from adaptation runs measured with two seeds.

    The control (replay 1) is left out: it sees no target text.

    Returns
    -------
    DataFrame
        By domain and size: ``one run``, the standard deviation of a single annealed loss; ``base``,
        the part that all runs from one pre-trained base share; ``run``, the part of one
        trajectory; ``point``, what differs from point to point along it.
    """
    adapted = table[table.annealed & (table.atpp > 0) & (table.replay < 1)]
    wide = np.log(
        adapted.pivot_table(index=["domain", *POINT], columns="seed", values="loss")
    )
    wide = wide.reindex(columns=[0, 1])
    gap = (
        100 * (wide[1] - wide[0]).dropna() / np.sqrt(2)
    )  # sd of one loss, not of a difference
    parts = {}
    for key, of_size in gap.groupby(["domain", "params"]):
        base = of_size.groupby("ptpp").transform("mean")
        run = of_size.groupby(["ptpp", "replay"]).transform("mean") - base
        found = {
            "one run": of_size,
            "base": base,
            "run": run,
            "point": of_size - base - run,
        }
        parts[key] = {name: np.sqrt((part**2).mean()) for name, part in found.items()}
    return pd.DataFrame(parts).T.rename_axis(["domain", "params"]).round(2)


def shapes(table: pd.DataFrame) -> pd.DataFrame:
    """Where annealed losses turn, by domain, stage and replay, means over sizes and seeds.

    Returns
    -------
    DataFrame
        ``first`` and ``last``: percent change from the base to the smallest and largest budget;
        ``peak``: the ATPP of the highest loss; ``slope``: minus the slope of log loss against
        log tokens from ATPP 2 on.
    """
    found = []
    start = table[table.atpp == 0].set_index(["domain", "base"]).loss
    for (domain, base, _), rows in table[table.annealed & (table.atpp > 0)].groupby(
        ["domain", "base", "run"]
    ):
        rows = rows.sort_values("atpp")
        change = 100 * (rows.loss / start[domain, base] - 1)
        late = rows[rows.atpp >= 2]
        slope = (
            -np.polyfit(np.log(late.tokens), np.log(late.loss), 1)[0]
            if len(late) > 1
            else None
        )
        found.append(
            {
                **{name: rows[name].iloc[0] for name in ("domain", "ptpp", "replay")},
                "first": change.iloc[0],
                "last": change.iloc[-1],
                "peak": rows.atpp.loc[rows.loss.idxmax()] if change.max() > 0 else 0.0,
                "slope": slope,
            }
        )
    return pd.DataFrame(found).groupby(["domain", "replay", "ptpp"]).mean().round(3)


def plot(table: pd.DataFrame, out: Path) -> None:
    """Draw annealed losses against ATPP, a picture a domain: sizes by replays, a line a stage.

    A dash at the left is the pre-trained base, ATPP 0, written out where it is far off; thin
    lines are the second seed.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from PIL import Image

    for domain, rows in table[table.annealed].groupby("domain"):
        sizes, stages = sorted(rows.params.unique()), sorted(rows.ptpp.unique())
        bases, rows = rows[rows.atpp == 0], rows[rows.atpp > 0]
        if rows.empty:
            continue
        replays = sorted(rows.replay.unique())
        colours = dict(
            zip(stages, plt.cm.viridis(np.linspace(0, 0.9, len(stages))), strict=True)
        )
        shape = {
            "figsize": (10, 2 * len(sizes) + 0.8),
            "squeeze": False,
            "layout": "constrained",
        }
        figure, axes = plt.subplots(len(sizes), len(replays), sharex=True, **shape)
        ticks = [tick for tick in (0.5, 1, 2, 4, 8, 20) if tick <= rows.atpp.max()]
        for (i, j), axis in np.ndenumerate(axes):
            control, here = bool(replays[j] == 1), rows[rows.params == sizes[i]]
            scale = here[(here.replay == 1) == control].loss  # the control has its own
            if scale.empty:  # not measured yet
                continue
            here, start = (
                here[here.replay == replays[j]],
                bases[bases.params == sizes[i]],
            )
            for (ptpp, seed), run in here.groupby(["ptpp", "seed"]):
                run = run.sort_values("atpp")
                style = {"color": colours[ptpp], "lw": 1.2 if seed == 0 else 0.5}
                axis.plot(
                    run.atpp, run.loss, marker="o" if seed == 0 else "", ms=2.5, **style
                )
            shown = scale
            if start.loss.max() > scale.max() + 0.3 * (scale.max() - scale.min()):
                text = f"ATPP 0: {start.loss.min():.2f} to {start.loss.max():.2f}"
                axis.text(
                    0.97,
                    0.95,
                    text,
                    transform=axis.transAxes,
                    ha="right",
                    va="top",
                    size=8,
                )
            else:
                shown = pd.concat([scale, start.loss])
                for base in start.itertuples():
                    style = {
                        "color": colours[base.ptpp],
                        "lw": 1.2 if base.seed == 0 else 0.5,
                    }
                    axis.plot([0.19, 0.26], [base.loss, base.loss], **style)
            margin = 0.06 * (shown.max() - shown.min())
            axis.set(ylim=(shown.min() - margin, shown.max() + margin))
            axis.set(
                xscale="log", xticks=[0.22, *ticks], xlim=(0.16, 1.2 * rows.atpp.max())
            )
            axis.set_xticklabels(["0", *(f"{tick:g}" for tick in ticks)])
            axis.tick_params("x", which="minor", length=0)
            axis.tick_params(labelsize=8, labelleft=j == 0 or control)
            axis.grid(alpha=0.25)
            if i == 0:
                axis.set_title(
                    f"replay {replays[j]:g}" + ", own scale" * control, fontsize=10
                )
            if j == 0:
                axis.set_ylabel(f"{sizes[i]:,} parameters", fontsize=9)
        lines = [
            plt.Line2D([], [], color=colours[ptpp], marker="o", ms=3) for ptpp in stages
        ]
        names = [f"PTPP {ptpp}" for ptpp in stages]
        figure.legend(
            lines, names, loc="outside upper center", ncols=len(stages), frameon=False
        )
        figure.supxlabel("adaptation bytes per parameter (ATPP)", fontsize=10)
        figure.supylabel(f"held-out {domain.title()} loss, nats per byte", fontsize=10)
        figure.savefig(path := out / f"{domain}.png", dpi=90)
        plt.close(figure)
        Image.open(path).quantize(64).save(path, optimize=True)  # a third of the bytes
