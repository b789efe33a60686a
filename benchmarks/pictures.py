"""Pictures of the pages."""

from argparse import Namespace
from functools import cache, partial
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import bayeslaw as bl
from bayeslaw.design.design import Design
from bayeslaw.inference.pools import POOLS
from bayeslaw.laws.departure import Departure
from bayeslaw.plots.style import COLOURS, INK, style
from benchmarks.held_out import by_distance
from benchmarks.measured import DESIGNS
from benchmarks.runner import FOLDER, Jobs, experiment
from benchmarks.splits import DATA

SIZE, STAGE, REPLAY = 147816, 279, 0.25
"""The run that is drawn of the law `transfer`: N, PTPP and r."""
LAWS = (
    "dcpt",
    "form1",
    "form2",
    "form3",
    "form1n",
    "forgetting",
    "transfer",
    "adaptation",
)
ACCEPTED = frozenset({"unconverged", "beyond-evidence"})
LIMITS = {"params": SIZE, "ptpp": STAGE, "max_loss": 1.6, "max_forgetting": 0.15}


def overview(
    where: dict[str, Any], train: str, test: str, settings: dict[str, Any]
) -> Figure:
    """Forecasts that hold, or that miss, on one table."""
    rows = bl.read_table(**where).split(train, test)
    fit = bl.fit("chinchilla", rows[0], **settings)
    if settings:  # a short fit, to see that the code runs
        fit = fit.accepted("unconverged")
    return bl.plots.overview(fit, rows[1])


def transfer(settings: dict[str, Any]) -> Figure:
    """Start loss, core and losses of one run."""
    folder = DATA / "tinycpt"
    where = {"where": "annealed and replay < 1", "source": folder / "english.csv"}
    train, test = bl.read_table(folder / "french.csv", **where).split(f"ptpp < {STAGE}")
    rows = test.query(
        f"params == {SIZE} and ptpp == {STAGE} and replay == {REPLAY}"
    ).frame
    fit = bl.fit_huber("transfer", train, starts=64 if settings else None)
    law, p = fit.law, fit.parameters
    tokens = np.geomspace(rows["tokens"].min() / 300, rows["tokens"].max(), 200)
    frame = pd.DataFrame({**rows.iloc[0].to_dict(), "tokens": tokens})
    x = Design(law, frame).x
    loss, start = law.loss(p, x), frame["start_loss"].iloc[0]
    gap = law.step(Departure).remaining(p, x, np)
    core = (loss - start * gap) / (1 - gap)
    with style():
        figure, ax = plt.subplots(figsize=(6.6, 3.8), layout="constrained")
        ax.axhline(
            start,
            color=INK,
            lw=1,
            ls=":",
            label="start loss: the base, before adaptation",
        )
        ax.plot(
            tokens,
            core,
            color=COLOURS[1],
            ls="--",
            label="core: where adaptation leads",
        )
        ax.plot(
            tokens, loss, color=COLOURS[0], label="loss = core (1 - g) + start loss × g"
        )
        ax.plot(
            rows["tokens"],
            rows["loss"],
            "o",
            color=INK,
            ms=4,
            label="measured, not fitted",
        )
        here = int(np.searchsorted(tokens, rows["tokens"].min() / 8))
        ends = {"xy": (tokens[here], loss[here]), "xytext": (tokens[here], core[here])}
        ax.annotate("", **ends, arrowprops={"arrowstyle": "<->", "lw": 0.8})
        middle = tokens[here] * 1.1, 0.3 * loss[here] + 0.7 * core[here]
        ax.text(*middle, f"g = {gap[here]:.2f} of the way", va="center", fontsize=8)
        ax.set(
            xscale="log",
            xlabel="adaptation tokens D (bytes)",
            ylabel="loss, nats per token",
        )
        figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return figure


def distance(settings: dict[str, Any]) -> Figure:
    """Error of each row of distance.csv against its distance, and coverage by bin."""
    rows = pd.read_csv(FOLDER / "distance.csv")
    with style():
        figure, (left, right) = plt.subplots(
            1, 2, figsize=(9, 3.2), layout="constrained"
        )
        for i, (source, own) in enumerate(rows.groupby("source")):
            error = 100 * own["error"].abs().clip(lower=1e-4)
            look = {
                "ms": 3,
                "alpha": 0.5,
                "color": COLOURS[i % len(COLOURS)],
                "label": source,
            }
            left.plot(own["decades"], error, "o", **look)
        left.set(yscale="log", xlabel="decades of N and D beyond the fitted rows")
        left.set_ylabel("error of the median (%)")
        left.legend(fontsize=7, markerscale=2)
        (found,) = by_distance(rows).values()
        place = np.arange(len(found))
        for level, colour in zip((50, 80, 90), COLOURS, strict=False):
            right.plot(
                place, found[f"inside_{level}"], "o-", color=colour, label=f"{level} %"
            )
            right.axhline(level / 100, color=colour, lw=0.8, ls=":")
        labels = zip(found.index, found["rows"], strict=True)
        right.set_xticks(place, [f"{name}\n{count}" for name, count in labels])
        about = "decades beyond the fitted rows, and losses"
        right.set(ylim=(0, 1.02), xlabel=about, ylabel="inside")
        right.legend(title="band", fontsize=7, loc="lower left")
        right.tick_params(colors=INK)
    return figure


def anchors(settings: dict[str, Any]) -> Figure:
    """Width, CRPS and coverage of each domain of measured_plans.csv by what is bought at 279."""
    rows = pd.read_csv(FOLDER / "measured_plans.csv").query("kind == 'forecast'")
    designs = [name for name in DESIGNS if name in set(rows["design"])]
    short = {
        "two budgets": "none",
        "two sizes": "all of\n2 sizes",
        "four budgets": "4 bud-\ngets",
    }
    names = [
        short.get(d, d.removesuffix(" anchors").replace(" ", "\n")) for d in designs
    ]
    with style():
        figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.6), layout="constrained")
        titles = {
            "width_90": "mean width of the 90 % band, log loss",
            "crps": "CRPS of log loss",
        }
        titles["coverage_90"] = "share inside the 90 % band"
        for ax, (score, title) in zip(axes, titles.items(), strict=True):
            for i, (domain, own) in enumerate(rows.groupby(["table", "domain"])):
                values = own.set_index("design")[score].reindex(designs)
                ax.plot(
                    names,
                    values,
                    "o-",
                    ms=3,
                    lw=0.8,
                    color=COLOURS[i],
                    label=" ".join(domain),
                )
            means = rows.groupby("design")[score].mean().reindex(designs)
            ax.plot(names, means, "k-", lw=2, label="mean")
            ax.set_title(title, fontsize=9)
            ax.tick_params(axis="x", labelsize=7)
        axes[-1].axhline(0.9, color=INK, lw=0.8, ls=":")
        for ax in axes[:2]:
            ax.set_ylim(bottom=0)
        axes[-1].set_ylim(0, 1.02)
        axes[1].set_xlabel("runs bought at PTPP 279, beside budgets 15 and 31")
        handles = axes[0].get_legend_handles_labels()
        figure.legend(
            *handles, loc="outside lower center", ncols=6, fontsize=8, frameon=False
        )
    return figure


def plans(settings: dict[str, Any]) -> Figure:
    """P(both) over replay and budget of one problem of tinycpt, one panel per law."""
    rows = "(annealed or tokens == 0) and seed == 0 and atpp in [0, 1, 4, 16]"
    rows += " and (replay < 1 or atpp == 0)"
    source, tables = DATA / "tinycpt/english.csv", {}
    for domain in ("french", "english"):
        table = bl.read_table(DATA / f"tinycpt/{domain}.csv", where=rows, source=source)
        tables[domain] = table.split(f"ptpp < {STAGE}")[0]
    atpp, replay = np.geomspace(1, 100, 41), np.linspace(0.05, 0.95, 31)

    @cache  # a pool's laws have panels of their own
    def fitted(law: str, domain: str) -> bl.Posterior | bl.Pool:
        if law in POOLS:
            fits = {member: fitted(member, domain) for member in POOLS[law]}
            return bl.Pool(fits).accepted(ACCEPTED)
        return bl.fit(law, tables[domain], **settings).accepted(ACCEPTED)

    with style():
        size = {
            "figsize": (9.6, 4.8),
            "sharex": True,
            "sharey": True,
            "layout": "constrained",
        }
        figure, axes = plt.subplots(2, 4, **size)
        for ax, law in zip(axes.flat, LAWS[4:5] if settings else LAWS, strict=False):
            laws = {"french": "form1n" if law == "forgetting" else law, "english": law}
            target, source = (fitted(laws[domain], domain) for domain in tables)
            plan = bl.plan(target=target, source=source, **LIMITS)
            chance = plan.surface(atpp, replay).to_numpy()
            levels = np.linspace(0, 1, 11)
            filled = ax.contourf(100 * replay, atpp, chance, levels, cmap="Blues")
            ax.contour(100 * replay, atpp, chance, [plan.confidence], colors=COLOURS[1])
            best = "" if plan.best is None else f", at most {plan.chosen.p_both:.2f}"
            if (shown := plan.chosen) is not None:
                ax.plot(
                    100 * shown.replay,
                    shown.atpp,
                    "*",
                    ms=11,
                    mfc="#F0E442",
                    mec="black",
                )
            ax.set(yscale="log", title=f"{law}{best}", xlim=(5, 95), ylim=(1, 100))
        figure.supxlabel("replay (%)", fontsize=9)
        figure.supylabel("budget, ATPP", fontsize=9)
        figure.colorbar(filled, ax=axes, label="P(both), latent losses", shrink=0.8)
    return figure


@experiment(keep=False, folder=None)
def pictures(options: Namespace) -> Jobs:
    """The pictures of README and the pages, saved to --folder."""
    ice = {"path": DATA / "olmo/ladder.csv", "where": "domain == 'ice'"}
    delphi = {"path": DATA / "delphi/example.csv"}
    made = {
        "forecast": partial(overview, delphi, "scale <= 3e20", "scale >= 1e21"),
        "missed": partial(overview, ice, "ptpp < 50", "ptpp > 90"),
        "transfer": transfer,
        "distance": distance,
        "anchors": anchors,
        "plans": plans,
    }
    for name, draw in made.items():

        def job(name: str = name, draw: Any = draw) -> dict[str, str]:
            path = (options.folder or FOLDER) / f"{name}.png"
            draw(options.settings).savefig(path, dpi=130)
            return {"path": str(path)}

        yield {"picture": name}, job
