"""The recommended size of a budget: by the law as stated, and where exponents drift.

On the points of Chinchilla it stands beside the best size by a published Huber fit of the law to
these points [1]_. Where budgets have several sizes each, fits of the smaller budgets are compared
with the sizes measured best at the larger ones.

References
----------
.. [1] T. Besiroglu, E. Erdil, M. Barnett and J. You (2024). Chinchilla scaling: a replication
   attempt. arXiv:2404.10102.
"""

from argparse import Namespace
from collections.abc import Iterator

import numpy as np
import pandas as pd

import bayeslaw as bl
from bayeslaw.derive.budgets import training_flops
from benchmarks.runner import Jobs, Tables, experiment
from benchmarks.splits import DATA

LAW = "chinchilla"
CHINCHILLA_FLOPS = 5.76e23
PUBLISHED = {"A": 482.01, "alpha": 0.3478, "B": 2085.43, "beta": 0.3658}
PORIAN = ("owt2_const", "owt2_cosine", "rw_const", "rw_cosine")
CUTS = (8, 64)
"""Factors by which the largest budget exceeds the largest one that is fitted."""
FEWEST_SIZES = 5
"""Sizes at a budget from which its best one is taken as measured."""

type Case = tuple[str, str, bl.LossTable, dict[float, float]]
"""Table, part, rows that are fitted, and budgets with the best N that is known, or NaN."""


def measured_best(frame: pd.DataFrame) -> float:
    """N of the least loss at one budget, by a parabola in log N through the five best sizes."""
    near = frame.sort_values("loss")[:FEWEST_SIZES]
    bend, slope, _ = np.polyfit(np.log(near["params"]), near["loss"], 2)
    best = float(np.exp(-slope / (2 * bend)))
    inside = near["params"].min() <= best <= near["params"].max()
    return best if bend > 0 and inside else float("nan")


def published_best(flops: float) -> float:
    """N where the published law has its least loss at a budget."""
    a, alpha, b, beta = PUBLISHED.values()
    return float((alpha * a / (beta * b) * (flops / 6) ** beta) ** (1 / (alpha + beta)))


def cases(options: Namespace) -> Iterator[Case]:
    ladder = bl.read_table(DATA / "olmo/ladder.csv", where="domain == 'c4_en'")
    yield "OLMo c4_en", "all rows", ladder, {1e20: np.nan, 1e22: np.nan}
    if options.bench is None:
        return
    chinchilla = bl.read_table(options.bench / "chinchilla.csv")
    yield (
        "Chinchilla points",
        "all rows",
        chinchilla,
        {CHINCHILLA_FLOPS: published_best(CHINCHILLA_FLOPS)},
    )
    for name in PORIAN:
        table = bl.read_table(options.bench / f"porian_{name}.csv")
        # Budgets of one sweep differ in their last digits.
        budgets = table.frame.groupby(
            table.frame["flops"].map("{:.2e}".format).astype(float)
        )
        best = {
            float(flops): measured_best(rows)
            for flops, rows in budgets
            if rows["params"].nunique() >= FEWEST_SIZES
        }
        for factor in CUTS:
            cut = 1.01 * max(best) / factor
            larger = {flops: size for flops, size in best.items() if flops > cut}
            yield (
                f"Porian {name}",
                f"1/{factor}",
                table.query(f"flops <= {cut}"),
                larger,
            )


def summary(rows: pd.DataFrame) -> Tables:
    """Every budget, and errors of the held-out ones in decades of N, by factor beyond the fit."""
    held = rows[rows["part"] != "all rows"].dropna(subset="known")
    beyond = (held["flops"] / held["most_flops"]).round()
    groups = {}
    for way, name in {"law as stated": "params", "with drift": "drift_params"}.items():
        error = np.log10(held[name] / held["known"])
        ends = (
            ("params_05", "params_95") if name == "params" else ("drift_05", "drift_95")
        )
        inside = held["known"].between(held[ends[0]], held[ends[1]])
        groups[f"mean absolute error, {way}"] = error.abs().groupby(beyond).mean()
        groups[f"mean error, {way}"] = error.groupby(beyond).mean()
        groups[f"inside, {way}"] = inside.groupby(beyond).sum()
    groups["budgets"] = beyond.groupby(beyond).count()
    errors = pd.DataFrame(groups).rename_axis("times the largest fitted budget").T
    sizes = [
        "params",
        "params_05",
        "params_95",
        "drift_params",
        "drift_05",
        "drift_95",
        "known",
    ]
    losses = ["loss", "loss_05", "loss_95", "forecast", "forecast_05", "forecast_95"]
    losses += ["inside", "least_05", "least_95"]
    key = ["table", "part", "flops"]
    return {
        "sizes": rows[[*key, *sizes, "tokens_per_param", "gate"]],
        "losses": rows[[*key, *losses]],
        "errors": errors,
    }


@experiment(summary, bench=None)
def optimum(options: Namespace) -> Jobs:
    """Recommended sizes by the law as stated and with drift, beside those that are known."""
    for name, part, table, known in cases(options):

        def job(
            part: str = part,
            table: bl.LossTable = table,
            known: dict[float, float] = known,
        ) -> pd.DataFrame:
            fit = bl.fit(LAW, table, **options.settings)
            fit = fit.accepted({"unconverged", "beyond-evidence"})
            budgets = [*known]
            found = bl.derive.compute_optimal(fit, budgets)
            frame = found.to_frame().set_index(["quantity", "flops"])
            params, loss = frame.loc["params"], frame.loc["loss"]
            own = bl.derive.compute_optimal(fit, budgets, drift=True).to_frame()
            least = own[own["quantity"] == "loss"]
            return pd.DataFrame(
                {
                    "rows": len(table),
                    "most_flops": float(training_flops(fit).max()),
                    "flops": budgets,
                    "known": [*known.values()],
                    "params": params["median"].to_numpy(),
                    "params_05": params["lower_90"].to_numpy(),
                    "params_95": params["upper_90"].to_numpy(),
                    "drift_params": params["drift_median"].to_numpy(),
                    "drift_05": params["drift_lower_90"].to_numpy(),
                    "drift_95": params["drift_upper_90"].to_numpy(),
                    "tokens_per_param": frame.loc["tokens_per_param"][
                        "median"
                    ].to_numpy(),
                    "params_exponent": frame.loc["params_exponent"][
                        "median"
                    ].to_numpy(),
                    "loss": loss["median"].to_numpy(),
                    "loss_05": loss["lower_90"].to_numpy(),
                    "loss_95": loss["upper_90"].to_numpy(),
                    "forecast": loss["drift_median"].to_numpy(),
                    "forecast_05": loss["drift_lower_90"].to_numpy(),
                    "forecast_95": loss["drift_upper_90"].to_numpy(),
                    "least_05": least["lower_90"].to_numpy(),
                    "least_95": least["upper_90"].to_numpy(),
                    "inside": loss["median"]
                    .between(loss["drift_lower_90"], loss["drift_upper_90"])
                    .to_numpy(),
                    "gate": "; ".join(found.failures) or "passed",
                }
            )

        yield {"table": name, "part": part}, job
