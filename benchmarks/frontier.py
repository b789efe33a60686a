"""Recipes with two losses at the next scale: the frontier, and the choice under a limit."""

from argparse import Namespace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

import bayeslaw as bl
from bayeslaw.common.arrays import Floats
from bayeslaw.derive._frontier import on_frontier
from benchmarks.runner import Jobs, Tables, experiment
from benchmarks.splits import DATA

DOMAINS = {"tinycpt": "french", "tinycode": "python"}
HELD = {"next size": "params > 140000", "next stage": "ptpp == 279"}
"""Runs of the next scale: the largest model, or the longest pre-training."""
ROWS = "(annealed or tokens == 0) and seed == 0 and (replay < 1 or tokens == 0)"
RISES = (0.06, 0.08, 0.10, 0.12, 0.15)
"""Limits: rises of the source loss over that of the base, which is known before any adaptation."""
WEIGHTS = (0.3, 1.0, 3.0)
CASE = ["table", "held", "params", "ptpp"]
SHORT = {"chains": 2, "draws": 300, "tune": 500, "retry": False}
ACCEPTED = frozenset({"unconverged", "beyond-evidence"})


def with_last_scale(rows: pd.DataFrame, held: str) -> pd.DataFrame:
    """Held-out rows with the losses of the same recipe at the last fitted scale."""
    column = "params" if held == "next size" else "ptpp"
    scales = np.sort(rows[column].unique())
    before = dict(zip(scales[1:], scales[:-1], strict=True))
    keys = ["params", "ptpp", "replay", "atpp"]
    losses = ["target", "source", "base_loss"]
    last = rows.set_index(keys)[losses].add_prefix("last_")
    wanted = rows.query(HELD[held])
    at_last = wanted.assign(**{column: wanted[column].map(before)})
    found = last.loc[pd.MultiIndex.from_frame(at_last[keys])]
    parts = [wanted.reset_index(drop=True), found.reset_index(drop=True)]
    return pd.concat(parts, axis=1)


def fits_of(
    table: str, held: str, settings: dict[str, Any]
) -> tuple[list[bl.LossTable], list[bl.Posterior]]:
    """Tables of both losses, target first, and their fits to the scales before the last."""
    tables = {}
    for name in (DOMAINS[table], "english"):
        file = DATA / table / f"{name}.csv"
        tables[name] = bl.read_table(
            file, where=ROWS, source=DATA / table / "english.csv"
        )
    fits = []
    for losses in tables.values():
        train = losses.split(f"not ({HELD[held]})")[0]
        fit = bl.fit("transfer", train, seed=0, **(SHORT | settings))
        fits.append(fit.accepted(ACCEPTED))
    return [*tables.values()], fits


def forecast_of(table: str, held: str, settings: dict[str, Any]) -> pd.DataFrame:
    """The frontier of the recipes of each held-out base, beside what was measured."""
    (target, source), fits = fits_of(table, held, settings)
    keys = ["run", "tokens"]
    both = target.frame.merge(
        source.frame[[*keys, "loss"]], on=keys, suffixes=("", "_source")
    )
    both = both.rename(columns={"loss_source": "source"})
    rows = with_last_scale(both.assign(target=both["loss"]), held)
    gates = [fit.convergence.failures for fit in fits]
    cases = []
    for _, case in rows.groupby(["params", "ptpp"]):
        case = case.reset_index(drop=True)
        recipes = case.drop(columns=["domain", "role", "target", "source", "loss"])
        found = bl.derive.frontier(*fits, recipes)
        frame = found.to_frame()[["p_frontier"]]
        for output, draws in (("target", found.target), ("source", found.source)):
            frame[f"mean_{output}"] = draws.mean(1)
            frame[f"lower_{output}"] = np.quantile(draws, 0.05, axis=1)
            frame[f"upper_{output}"] = np.quantile(draws, 0.95, axis=1)
        for rise in RISES:
            limit = (1 + rise) * case["base_loss"].iloc[0]
            limited = bl.derive.frontier(*fits, recipes, limit=limit).to_frame()
            frame[f"p_limit_{rise:g}"] = limited["p_limit"]
            frame[f"regret_{rise:g}"] = limited["regret"]
        columns = ["params", "ptpp", "replay", "atpp", "target", "source", "base_loss"]
        columns += ["last_target", "last_source", "last_base_loss"]
        cases.append(pd.concat([case[columns], frame], axis=1))
    gate = "; ".join(failure for failures in gates for failure in failures)
    return pd.concat(cases).assign(gate=gate or "passed")


def frontiers(rows: pd.DataFrame) -> pd.DataFrame:
    """Errors of what is said of the measured frontier, and of the last scale's in its place."""
    found = []
    for key, case in rows.groupby(CASE, sort=False):
        on = on_frontier(case["target"].to_numpy(), case["source"].to_numpy())
        last = on_frontier(
            case["last_target"].to_numpy(), case["last_source"].to_numpy()
        )
        stated = case["p_frontier"].to_numpy()
        row = dict(zip(CASE, key, strict=True))
        row |= {"recipes": len(case), "on": on.sum(), "expected": stated.sum()}
        row |= {"brier": ((stated - on) ** 2).mean(), "brier_last": (last != on).mean()}
        row |= {
            "right": ((stated >= 0.5) == on).mean(),
            "right_last": (last == on).mean(),
        }
        for output in ("target", "source"):
            inside = case[output].between(
                case[f"lower_{output}"], case[f"upper_{output}"]
            )
            row[f"inside_{output}"] = inside.mean()
        found.append(row)
    return pd.DataFrame(found)


def reliability(rows: pd.DataFrame) -> pd.DataFrame:
    """Share of recipes on the measured frontier, by the probability stated for them."""
    parts = []
    for _, case in rows.groupby(CASE, sort=False):
        on = on_frontier(case["target"].to_numpy(), case["source"].to_numpy())
        parts.append(case.assign(on=on))
    whole = pd.concat(parts)
    ends = [-0.001, 0.05, 0.5, 0.95, 1.0]
    stated = pd.cut(
        whole["p_frontier"], ends, labels=["to .05", "to .5", "to .95", "to 1"]
    )
    grouped = whole.groupby(stated, observed=True)
    return grouped.agg(
        recipes=("on", "size"), stated=("p_frontier", "mean"), measured=("on", "mean")
    )


def least(loss: Floats, allowed: Floats) -> int | None:
    """Number of the recipe with the least loss among those allowed."""
    if not allowed.any():
        return None
    return int(np.where(allowed, loss, np.inf).argmin())


def limits(rows: pd.DataFrame) -> pd.DataFrame:
    """Choices under limits by the forecast and by the last scale, where some recipe keeps them."""
    found = []
    for key, case in rows.groupby(CASE, sort=False):
        for rise in RISES:
            kept = (case["source"] <= (1 + rise) * case["base_loss"]).to_numpy()
            if not kept.any():
                continue
            target = case["target"].to_numpy()
            best = target[kept].min()
            last = case["last_source"] <= (1 + rise) * case["last_base_loss"]
            likely = (case[f"p_limit_{rise:g}"] >= 0.8).to_numpy()
            ways = {
                "forecast, P(limit) at least 0.8": least(
                    case["mean_target"].to_numpy(), likely
                ),
                "last scale": least(case["last_target"].to_numpy(), last.to_numpy()),
            }
            for way, chosen in ways.items():
                row = {"way": way, **dict(zip(CASE, key, strict=True)), "rise": rise}
                row |= {"made": chosen is not None}
                if chosen is not None:
                    row |= {"kept": kept[chosen], "regret": target[chosen] - best}
                    stated = case[f"regret_{rise:g}"].to_numpy()[chosen]
                    row["stated"] = stated if way.startswith("forecast") else np.nan
                found.append(row)
    return pd.DataFrame(found)


def by_way(choices: pd.DataFrame) -> pd.DataFrame:
    """Choices made, limits broken, and the mean regret of the choices that keep theirs."""
    found = []
    for (way, held), part in choices.groupby(["way", "held"], sort=False):
        made = part[part["made"]]
        kept = made[made["kept"].astype(bool)]
        row = {"way": way, "held": held, "limits": len(part), "made": len(made)}
        row |= {"broken": len(made) - len(kept), "regret": kept["regret"].mean()}
        row |= {"largest": kept["regret"].max(), "stated": kept["stated"].mean()}
        found.append(row)
    return pd.DataFrame(found)


def weights(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean measured regret of the least weighted loss, by forecast and by the last scale."""
    found = []
    for weight in WEIGHTS:
        for held, part in rows.groupby("held", sort=False):
            regrets: dict[str, list[float]] = {"mean": [], "last": []}
            for _, case in part.groupby(CASE, sort=False):
                score = (case["target"] + weight * case["source"]).to_numpy()
                for way, of_way in regrets.items():
                    guess = case[f"{way}_target"] + weight * case[f"{way}_source"]
                    of_way.append(score[guess.to_numpy().argmin()] - score.min())
            row = {"weight": weight, "held": held, "cases": len(regrets["mean"])}
            row |= {
                "forecast": np.mean(regrets["mean"]),
                "last": np.mean(regrets["last"]),
            }
            found.append(row)
    return pd.DataFrame(found)


def summaries(rows: pd.DataFrame) -> Tables:
    """The frontier by case, its reliability, and the choices."""
    of_cases = frontiers(rows)
    numbers = of_cases.drop(columns=["table", "params", "ptpp"])
    return {
        "frontier by base": of_cases,
        "frontier": numbers.groupby("held", sort=False).mean(),
        "probabilities": reliability(rows),
        "limits": by_way(limits(rows)),
        "weights": weights(rows),
    }


@experiment(summaries)
def frontier(options: Namespace) -> Jobs:
    """Which recipes are on the frontier at the next scale, and what choosing now costs."""
    for table in DOMAINS:
        for held in HELD:
            key = {"table": table, "held": held}
            yield key, partial(forecast_of, table, held, options.settings)
