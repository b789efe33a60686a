"""Data of every figure, of the fits of tests/data, against its figures.json.

    python -m tests.plots.recorded

records them again. What is drawn must not change with the code: lines, areas, marks and texts, to
four digits. A long line is compared at some of its points.
"""

import functools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

import bayeslaw as bl

FILE = Path(__file__).parents[1] / "data" / "figures.json"
GOLDEN = Path(__file__).parents[1] / "data"
POINTS = 7


def some(values):
    """Numbers of an array at evenly spaced places, to four digits."""
    flat = np.ma.filled(np.ma.asarray(values, float), np.nan).ravel()
    places = np.unique(np.linspace(0, len(flat) - 1, POINTS).astype(int)) if len(flat) else []
    return [len(flat), *(f"{flat[i]:.4g}" for i in places)]


def paths_of(collection):
    offsets = collection.get_offsets()
    shapes = [offsets] if len(offsets) > 1 else [path.vertices for path in collection.get_paths()]
    points = [np.asarray(v, float) for v in shapes if len(v)]
    return np.concatenate(points) if points else np.empty((0, 2))


def data_of(figure):
    """What a figure shows, by panel: coordinates in data units, and texts."""
    figure.draw_without_rendering()
    panels = []
    for ax in figure.axes:
        drawn = [paths_of(collection) for collection in ax.collections]
        drawn += [np.transpose(line.get_data(orig=False)) for line in ax.lines]
        boxes = [patch.get_extents().transformed(ax.transData.inverted()) for patch in ax.patches]
        named = [ax.get_title(), ax.get_title(loc="left"), ax.get_xlabel(), ax.get_ylabel()]
        panels.append(
            {
                "x": [some(points[:, 0]) for points in drawn if len(points)],
                "y": [some(points[:, 1]) for points in drawn if len(points)],
                "patches": [some([*box.intervalx, *box.intervaly]) for box in boxes],
                "limits": some([*ax.get_xlim(), *ax.get_ylim()]),
                "texts": [text for text in named if text] + [t.get_text() for t in ax.texts],
            }
        )
    legends = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return {"panels": panels, "legend": legends, "title": figure.get_suptitle()}


@functools.cache
def saved(name):
    return bl.load(GOLDEN / f"{name}.nc")


@functools.cache
def plan(**limits):
    world = bl.paper_world()
    fits = {"target": saved("world_form3"), "source": saved("world_source_form1")}
    asked = {**world.limits, "baseline": world.baseline(), **limits}
    return bl.plan(**fits, allow_unconverged=True, beyond_evidence=True, **asked)


@functools.cache
def planned():
    """A plan whose choices are round numbers, whatever the planner finds."""
    found = plan()
    point = replace(found.deterministic, atpp=11.0, replay=0.45, p_both=0.2)
    return replace(
        found, atpp=35.0, replay=0.9, p_both=0.9, deterministic=point, status="feasible", best=None,
        error={"atpp_90": (32.0, 39.0)},
    )  # fmt: skip


def tested():
    train, test = bl.example_table().split(train="scale <= 3e20", test="scale >= 1e21")
    return train, test, saved("delphi_chinchilla").forecast(test, allow_unconverged=True)


def backtested():
    rows = tested()[2].to_frame((0.9,))
    rows = rows.assign(cut=1e20, error=np.log(rows["median"] / rows["loss"]), model="walk")
    rows["decades"] = np.log10(6 * rows["params"] * rows["tokens"] / 1e20)
    rows["inside_90"] = rows["loss"].between(rows["lower_90"], rows["upper_90"])
    other = rows.assign(model="none", lower_90=rows["median"] - 0.01, inside_90=False)
    models = ("walk", "none")
    return bl.Backtest(pd.concat([rows, other], ignore_index=True), "flops", models, "delphi")


def staged(**settings):
    return bl.grid(params=[2.41e8, 8.1e9], replay=[0.1, 0.5], tokens=[3e9, 3e10], **settings)


def point_fit():
    late = bl.paper_world().table("french", seed=0).query("ptpp == 279 and params > 1e9")
    rows = bl.paper_world().table("french", seed=0).query("ptpp <= 31")
    return bl.fit_huber("form2", rows), late


def scores():
    train, test, forecast = tested()
    fitted = bl.fit_huber("chinchilla", train)
    found = {"walk": bl.score(forecast, test), "Huber": bl.score(fitted, test)}
    return pd.DataFrame(found).T


FIGURES = {
    "forecast": lambda: bl.plots.forecast(
        saved("delphi_chinchilla"), tested()[1], allow_unconverged=True
    ),
    "forecast, stages": lambda: bl.plots.forecast(
        saved("world_form3"), staged(ptpp=[31, 279]), allow_unconverged=True
    ),
    "forecast, point fit": lambda: bl.plots.forecast(*point_fit()),
    "in_sample": lambda: bl.plots.in_sample(saved("world_form3"), allow_unconverged=True),
    "overview": lambda: bl.plots.overview(
        saved("delphi_chinchilla"), tested()[1], allow_unconverged=True
    ),
    "compute_optimal": lambda: bl.plots.compute_optimal(
        saved("delphi_chinchilla"), [1e20, 1e21], allow_unconverged=True
    ),
    "observed": lambda: bl.plots.observed(tested()[2]),
    "pit": lambda: bl.plots.pit(tested()[2]),
    "coverage": lambda: bl.plots.coverage(tested()[2]),
    "residuals": lambda: bl.plots.residuals(
        tested()[2], saved("delphi_chinchilla").forecast(tested()[0], allow_unconverged=True)
    ),
    "compare": lambda: bl.plots.compare(scores()),
    "backtest": lambda: bl.plots.backtest(backtested()),
    "prior_posterior": lambda: bl.plots.prior_posterior(saved("delphi_chinchilla")),
    "ranks": lambda: bl.plots.ranks(saved("tinycpt_form1")),
    "floor_sensitivity": lambda: bl.plots.floor_sensitivity(
        bl.derive.floor_sensitivity(
            saved("delphi_chinchilla"), tested()[2], slices=5, allow_unconverged=True
        )
    ),
    "plan_landscape": lambda: bl.plots.plan_landscape(planned(), points=15),
    "plan_frontier": lambda: bl.plots.plan_frontier(planned(), points=6),
}


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    found = {name: data_of(draw()) for name, draw in FIGURES.items()}
    FILE.write_text(json.dumps(found, indent=None, separators=(",", ":")) + "\n")
