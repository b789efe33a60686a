"""Pictures of the pages that need fits; those of CSV files alone are in `benchmarks.figures`."""

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


def tables_of_plans() -> dict[str, bl.LossTable]:
    """Rows of tinycpt before the last pre-training budget, by domain."""
    rows = "(annealed or tokens == 0) and seed == 0 and atpp in [0, 1, 4, 16]"
    rows += " and (replay < 1 or atpp == 0)"
    source = DATA / "tinycpt/english.csv"
    tables = {}
    for domain in ("french", "english"):
        table = bl.read_table(DATA / f"tinycpt/{domain}.csv", where=rows, source=source)
        tables[domain] = table.split(f"ptpp < {STAGE}")[0]
    return tables


def landscape(settings: dict[str, Any]) -> Figure:
    """The map of one plan by the law `transfer`, from measured losses of tinycpt."""
    fits = {}
    for domain, table in tables_of_plans().items():
        fits[domain] = bl.fit("transfer", table, **settings)
        if settings:  # a short fit, to see that the code runs
            fits[domain] = fits[domain].accepted(ACCEPTED)
    plan = bl.plan(target=fits["french"], source=fits["english"], **LIMITS)
    return bl.plots.plan_landscape(plan)


def plans(settings: dict[str, Any]) -> Figure:
    """P(both) over replay and budget of one problem of tinycpt, one panel per law."""
    tables = tables_of_plans()
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
    """The pictures of README and the pages that need fits, saved to --folder."""
    ice = {"path": DATA / "olmo/ladder.csv", "where": "domain == 'ice'"}
    delphi = {"path": DATA / "delphi/example.csv"}
    made = {
        "forecast": partial(overview, delphi, "scale <= 3e20", "scale >= 1e21"),
        "missed": partial(overview, ice, "ptpp < 50", "ptpp > 90"),
        "transfer": transfer,
        "landscape": landscape,
        "plans": plans,
    }
    for name, draw in made.items():

        def job(name: str = name, draw: Any = draw) -> dict[str, str]:
            path = (options.folder or FOLDER) / f"{name}.png"
            draw(options.settings).savefig(path, dpi=130)
            return {"path": str(path)}

        yield {"picture": name}, job
