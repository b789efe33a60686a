"""Ladders in FLOPs: the law of compute alone beside that of N and D, largest budget held out.

A ladder has runs of one recipe with the tokens of each in proportion to its size. Every law is
fitted to the same runs of the smaller budgets, the law of N and D also to all runs of at most
their compute. Fits are short (2 chains of 300 draws, no retry).
"""

from argparse import Namespace
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import bayeslaw as bl
from bayeslaw.derive.floors import QUANTILES
from benchmarks.methods import by_row
from benchmarks.runner import Jobs, Tables, experiment
from benchmarks.splits import DATA

SHORT: dict[str, Any] = {"chains": 2, "draws": 300, "retry": False}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "L(C)": ("ladder", {}),
    "L(C) curvature": ("ladder", {"discrepancy": "curvature"}),
    "L(C) none": ("ladder", {"discrepancy": "none"}),
    "N and D": ("chinchilla", {}),
    "N and D, all runs": ("chinchilla", {}),
}
"""Laws and their settings; the last is fitted to all runs."""
CLEAN = "math_clean_seen_1e22"
DELPHI_CUTS = (9e19, 3e20, 1e21)
SAME_BUDGET = 1.01
"""Factor within which runs are of one budget."""


class Ladder(NamedTuple):
    """Runs of a ladder and all runs of its recipe, with `flops`, and the largest budget fitted."""

    source: str
    name: str
    runs: pd.DataFrame
    every: pd.DataFrame
    cut: float


def with_flops(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(flops=6.0 * frame["params"] * frame["tokens"])


def largest_out(
    source: str, name: str, runs: pd.DataFrame, every: pd.DataFrame
) -> Ladder:
    """The ladder whose largest model is held out."""
    smaller = runs[runs["params"] < runs["params"].max() / SAME_BUDGET]
    return Ladder(source, name, runs, every, float(smaller["flops"].max()))


def ladders() -> Iterator[Ladder]:
    """Ladders of the shipped tables."""
    delphi = pd.read_csv(DATA / "delphi/clean.csv").assign(flops=lambda f: f["scale"])
    delphi = delphi[delphi["domain"] == CLEAN]
    for cut in DELPHI_CUTS:
        runs = delphi[delphi["ladder"] == "k020"]
        yield Ladder("Delphi", f"to {cut:.0e}", runs, delphi, cut)
    olmo = with_flops(pd.read_csv(DATA / "olmo/ladder.csv"))
    for domain, every in olmo.groupby("domain"):
        runs = every[every["chinchilla_multiple"] == 1]
        yield largest_out("OLMo", str(domain), runs, every)
    gadre = with_flops(pd.read_csv(DATA / "gadre/overtraining.csv"))
    for corpus, every in gadre[gadre["domain"] == "c4_val"].groupby("train_set"):
        yield largest_out("Gadre", str(corpus), every[every["ptpp"] == 20], every)
    optimizers = with_flops(pd.read_csv(DATA / "optimizers/losses.csv"))
    for name in ("adamw", "muon"):
        every = optimizers[optimizers["optimizer"] == name]
        for ratio in (20, 40, 80, 160):
            runs = every[every["ptpp"] == ratio]
            yield largest_out("optimizers", f"{name} {ratio}", runs, every)


def split_of(ladder: Ladder, way: str) -> tuple[bl.LossTable, bl.LossTable]:
    """Rows that a way is fitted to, and those held out."""
    columns = ["params", "tokens", "loss"]
    if WAYS[way][0] == "ladder":
        columns = ["flops", "loss"]
    cut = SAME_BUDGET * ladder.cut
    fitted = ladder.every if way.endswith("all runs") else ladder.runs
    train = fitted[fitted["flops"] <= cut][columns]
    test = ladder.runs[ladder.runs["flops"] > cut][columns]
    return bl.from_frame(train, ladder.name), bl.from_frame(test, ladder.name)


def summary(rows: pd.DataFrame) -> Tables:
    """Scores by source and way; how far forecasts move with the floor."""
    every = pd.concat([rows, rows.assign(source="all")])
    groups = every.groupby(["way", "source"], sort=False)
    found = groups.agg(
        ladders=("ladder", "nunique"),
        losses=("crps", "size"),
        inside_90=("inside_90", "sum"),
        inside_50=("inside_50", "sum"),
        width=("width_90", "mean"),
        crps=("crps", "mean"),
    )
    found["bias, %"] = 100 * groups["error"].mean()
    found["error, %"] = 100 * groups["error"].apply(lambda error: error.abs().mean())
    found["unconverged"] = groups.apply(
        lambda g: g.loc[g["gate"] != "passed", "ladder"].nunique()
    )
    of_floors = rows[rows["way"] == "L(C)"]
    measured = np.log(of_floors["loss"])
    low, high = (np.log(of_floors[f"huber_{q:g}"]) for q in (0.05, 0.95))
    floors = pd.DataFrame(
        {
            "source": of_floors["source"],
            "losses": 1,
            "decades beyond": of_floors["decades"],
            "median moves, %": 100
            * np.log(of_floors["held_0.95"] / of_floors["held_0.05"]),
            "Huber moves, %": 100 * (high - low),
            "between Huber points": ((low <= measured) & (measured <= high)).astype(
                int
            ),
            "error of free Huber, %": 100 * abs(np.log(of_floors["huber"]) - measured),
        }
    )
    sums = dict.fromkeys(floors.columns[1:], "mean")
    sums |= {"losses": "sum", "between Huber points": "sum"}
    return {"scores": found, "floors": floors.groupby("source", sort=False).agg(sums)}


@experiment(summary)
def ladder(options: Namespace) -> Jobs:
    """Laws of compute alone and of N and D on ladders, the largest budget held out."""
    for runs in ladders():
        for way, (law, settings) in WAYS.items():

            def job(
                runs: Ladder = runs,
                way: str = way,
                law: str = law,
                settings: dict[str, Any] = settings,
            ) -> pd.DataFrame:
                train, test = split_of(runs, way)
                fit = bl.fit(law, train, **SHORT | settings | options.settings)
                fit = fit.accepted({"unconverged", "beyond-evidence"})
                found = by_row(fit.forecast(test).samples, test, (90, 50))
                gate = "; ".join(fit.convergence.failures) or "passed"
                found = found.assign(train=len(train), loss=test.loss, gate=gate)
                if law == "ladder":
                    beyond = test.frame["flops"] / train.frame["flops"].max()
                    found["decades"] = np.log10(beyond)
                if way == "L(C)":
                    at = bl.derive.at_floors(fit, test).frame
                    by_floor = at.groupby(["flops", "floor"], dropna=False).first()
                    by_floor = by_floor.reset_index().groupby("flops")
                    asked = test.frame["flops"].to_numpy()
                    for place, q in enumerate(QUANTILES):
                        one = by_floor.nth(place).set_index("flops").loc[asked]
                        found[f"floor_{q:g}"] = one["floor"].to_numpy()
                        found[f"held_{q:g}"] = one["median"].to_numpy()
                        found[f"huber_{q:g}"] = one["huber"].to_numpy()
                    free = by_floor.nth(len(QUANTILES)).set_index("flops").loc[asked]
                    found["huber"] = free["huber"].to_numpy()
                return found

            yield {"source": runs.source, "ladder": runs.name, "way": way}, job
