"""Forecasts of the best-tuned loss from tables some of whose runs are badly tuned.

Tables have several runs at the same sizes, or a run of which the tuning is known: Delphi's four
learning-rate factors (data/delphi), and with --bench the grids of Porian et al. under a cosine and
under a constant schedule. A table is fitted with all runs (`all`), or with one run drawn for each
size and tokens (`one`, several seeds); the least loss of each held-out cell is forecast. OLMo and
Gadre, tuned alike everywhere, have held-out losses: what the option costs there.

Methods: Student-t errors (`studentt`; also on the best run of each cell, `best`), errors skewed to
higher losses (`skewed`), the Huber fit (`huber`), and one that penalises predictions above a loss
ten times (`huber 10`). Of forecasts, ``latent`` is the law's loss and ``predictive`` a new measured
loss.

    OMP_NUM_THREADS=1 python benchmarks/undertuned.py [--bench FOLDER]

A row of undertuned.csv is a fit; an interrupted run continues when it is started again.
"""

import argparse
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
from tables import DATA, SMOKE, arguments, splits

import bayeslaw as bl
from bayeslaw.common.arrays import Floats
from bayeslaw.evaluate.scores import crps
from bayeslaw.huber import point_fit
from bayeslaw.huber.descent import Objective

CELL = ["params", "tokens", "replay"]
SEEDS = 3
"""Draws of one run for each cell."""
PENALTY = 10.0
TUNED = "olmo c4_en", "olmo pile", "gadre rpj"
"""Splits of tables that are tuned alike everywhere."""
METHODS = "studentt", "skewed", "huber", "huber 10"
SHORT = {"draws": 500, "retry": False}
"""Settings of a fit: 4 chains without a second attempt."""

type Case = tuple[str, str, pd.DataFrame, str, str]
"""Name, law, rows, and queries of training and test rows."""


class Penalised(Objective):
    """The Huber loss, times `PENALTY` where the prediction is above the measured loss."""

    def value(self, residuals: Floats) -> Floats:
        size = np.abs(residuals)
        near = np.minimum(size, self.delta)
        each = near * (size - near / 2) * np.where(residuals > 0, PENALTY, 1.0)
        total = each.sum(-1)
        return np.where(np.isfinite(total), total, np.inf)

    def weights(self, residuals: Floats) -> Floats:
        return super().weights(residuals) * np.where(residuals > 0, PENALTY, 1.0)


def cases(bench: Path | None) -> Iterator[Case]:
    """Tables whose best-tuned runs are known."""
    frame = pd.read_csv(DATA / "delphi/k020.csv")
    for domain in ("math_j050",):
        rows = frame[frame["domain"] == domain]
        yield f"delphi {domain}", "chinchilla", rows, "scale <= 3e20", "scale > 3e20"
    rows = pd.read_csv(DATA / "delphi/replay.csv")
    yield "delphi replay", "dcpt", rows, "scale < 4e19", "4e19 < scale < 1e21"
    for corpus in ("rw", "owt2") if bench else ():
        kinds = [
            pd.read_csv(bench / f"porian_{corpus}_{k}.csv").assign(schedule=k)
            for k in ("const", "cosine")
        ]
        # Of sizes and budgets with both schedules; tokens differ by rounding.
        rows = pd.concat(kinds)
        cells = rows.groupby(["params", "flops"])
        rows = rows[cells["loss"].transform("size") == 2]
        tokens = rows.groupby(["params", "flops"])["tokens"].transform("first")
        rows = rows.assign(tokens=tokens).drop(columns=["run", "domain"])
        yield f"porian {corpus}", "chinchilla", rows, "flops < 2e18", "flops > 6e18"
        late = rows[rows["schedule"] == "cosine"]
        yield f"porian {corpus} cosine", "chinchilla", late, "flops < 2e18", "flops > 6e18"


def best(rows: pd.DataFrame) -> pd.DataFrame:
    """The row of least loss in each cell."""
    keys = [c for c in CELL if c in rows]
    return rows.loc[rows.groupby(keys)["loss"].idxmin()]


def jobs(bench: Path | None) -> Iterator[tuple[str, str, str, str, bl.LossTable, pd.DataFrame]]:
    """Table, rows fitted, method, law, training table, and test rows."""
    for name, _, train, test, laws in splits():
        if name in TUNED:
            for method in METHODS:
                yield name, "tuned", method, laws[0], train, test.frame.reset_index(drop=True)
    for name, law, rows, train, test in cases(bench):
        rows = rows.reset_index(drop=True).drop(columns=["run", "base"], errors="ignore")
        inside, outside = rows.query(train), best(rows.query(test))
        keys = [c for c in CELL if c in rows]
        tables = {"all": inside, "best": best(inside)}
        if len(inside) > len(tables["best"]):
            for seed in range(SEEDS):
                drawn = inside.sample(frac=1, random_state=seed).drop_duplicates(keys)
                tables[f"one {seed}"] = drawn.sort_index()
        else:
            del tables["best"]
        for kind, table in tables.items():
            methods = ("studentt", "huber") if kind == "best" else METHODS
            made = bl.from_frame(table.reset_index(drop=True), name)
            for method in methods:
                yield name, kind, method, law, made, outside.reset_index(drop=True)


def scored(law: str, method: str, train: bl.LossTable, test: pd.DataFrame, **settings: Any) -> dict:
    """Scores of forecasts of log losses, the latent and the measured one."""
    truth = np.log(test["loss"].to_numpy())
    if method.startswith("huber"):
        objective = Penalised if method == "huber 10" else Objective
        with patch.object(point_fit, "Objective", objective):
            error = np.log(bl.fit_huber(law, train).predict(test)) - truth
        return {"bias_latent": error.mean(), "crps_latent": np.abs(error).mean()}
    fit = bl.fit(law, train, likelihood=method, **settings)
    found: dict[str, Any] = {"gate": "; ".join(fit.convergence.failures) or "passed"}
    for kind in ("latent", "predictive"):
        logs = np.log(fit.forecast(test, kind=kind, allow_unconverged=True).samples)
        found[f"bias_{kind}"] = (np.median(logs, 0) - truth).mean()
        found[f"crps_{kind}"] = crps(logs, truth).mean()
        for level in (50, 90):
            low, high = np.quantile(logs, [0.5 - level / 200, 0.5 + level / 200], axis=0)
            found[f"in_{level}_{kind}"] = ((low <= truth) & (truth <= high)).mean()
        found[f"width_{kind}"] = (high - low).mean()
    if "skew" in fit.draws:
        found["skew"] = float(fit.draws["skew"].median())
    return found


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__, __file__)
    found.add_argument("--bench", type=Path, help="folder of the tables of Porian et al.")
    return found


def main() -> None:
    """Run what is missing, then print the means by table, rows and method."""
    args = parser().parse_args()
    warnings.simplefilter("ignore")
    done = pd.read_csv(args.out) if args.out.exists() and not args.smoke else pd.DataFrame()
    rows = done.to_dict("records")
    known = {(r["table"], r["rows"], r["method"]) for r in rows}
    every = islice(jobs(args.bench), 5 if args.smoke else None)
    for name, kind, method, law, train, test in every:
        if (name, kind, method) in known:
            continue
        settings = {"seed": 0, **(SMOKE if args.smoke else SHORT)}
        found = scored(law, method, train, test, **settings)
        rows.append({"table": name, "rows": kind, "method": method, "tests": len(test), **found})
        print(
            name,
            kind,
            method,
            {k: v if isinstance(v, str) else round(v, 4) for k, v in found.items()},
            flush=True,
        )
        if not args.smoke:
            pd.DataFrame(rows).to_csv(args.out, index=False, float_format="%.6g")
    frame = pd.DataFrame(rows)
    frame = frame.assign(rows=frame["rows"].str.split().str[0])
    shown = frame.drop(columns=["gate"]).groupby(["table", "rows", "method"], sort=False)
    print(shown.mean(numeric_only=True).round(4).to_string())


if __name__ == "__main__":
    main()
