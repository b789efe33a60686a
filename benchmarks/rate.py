"""What a column `rate` adds to forecasts of Delphi's larger bases, at four learning rates.

Fitted to bases of at most 3e20 FLOPs, in three tables: four rates of each base (decontaminated
losses, "swept"); of these only .5 for bases above 2e19 ("partly swept"); and runs of .5 at five
budgets with the four rates at another (contaminated losses, "both"). With the column ("rate"),
without it as if all rates were alike ("alike"), with the rows at .5 alone (".5"), and with the best
rate of each base and budget ("best"). Held out are the bases of 1e21 and 1e22: at all rates, and at
the best of the four, which "rate" is asked for by rows without a rate. For these, "rate" also has
the best rate as forecast (`median` and 90 % interval), the vertex of a parabola through the log
losses of the base, and what the parabola says that the median costs, and .83, the best rate of all
fitted bases.

    OMP_NUM_THREADS=1 python benchmarks/rate.py

Rows are kept in rate.csv beside this file; an interrupted run continues when it is started again.
"""

import argparse
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from tables import DATA, SMOKE, arguments, earlier, scored

import bayeslaw as bl

SCORES = ["coverage_50", "coverage_90", "width_90", "crps"]
COLUMNS = ["params", "tokens", "loss", "base", "scale", "rate"]


def tables() -> Iterator[tuple[str, pd.DataFrame, pd.DataFrame]]:
    """Name, fitted and held-out rows."""
    swept = pd.read_csv(DATA / "delphi/k020.csv").rename(columns={"lr_factor": "rate"})
    same = pd.read_csv(DATA / "delphi/isotoken.csv").rename(columns={"lr_factor": "rate"})
    clean, other = (swept[swept["domain"] == d][COLUMNS] for d in ("math_j050", "math_4plus"))
    small, large = (clean[near] for near in (clean["scale"] < 5e20, clean["scale"] > 5e20))
    yield "swept", small, large
    yield "partly swept", small[(small["scale"] < 3e19) | (small["rate"] == 0.5)], large
    both = pd.concat([same[COLUMNS], other])
    yield "both", both[both["scale"] < 5e20], other[other["scale"] > 5e20]


def best_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Of each base and budget, the row of least loss, without its rate."""
    frame = frame.reset_index(drop=True)
    least = frame.groupby(["scale", "tokens"])["loss"].idxmin()
    return frame.loc[least].drop(columns="rate").reset_index(drop=True)


def parabola(cell: pd.DataFrame) -> tuple[float, float]:
    """Log loss per squared e-fold from the rate of least loss, and the log of that rate."""
    square, line, _ = np.polyfit(np.log(cell["rate"]), np.log(cell["loss"]), 2)
    return float(square), float(-line / (2 * square))


def best_rate(fit: bl.Posterior, cell: pd.DataFrame) -> dict[str, Any]:
    """The best rate of one base: forecast, measured, and what others cost by the measured one."""
    found = bl.derive.best_rate(fit, best_rows(cell), allow_unconverged=True).to_frame([0.9])
    square, best = parabola(cell)
    ends = found.loc[0, ["median", "lower_90", "upper_90"]].to_dict()
    costs = {
        f"cost_{n}": square * (np.log(r) - best) ** 2
        for n, r in (("median", ends["median"]), (".83", 0.83))
    }
    return ends | {"vertex": float(np.exp(best))} | costs


def parser() -> argparse.ArgumentParser:
    """Options."""
    return arguments(__doc__, __file__)


def main() -> None:
    """Run what is missing and print the scores."""
    args = parser().parse_args()
    warnings.simplefilter("ignore")
    settings = SMOKE if args.smoke else {}
    rows = earlier(args)
    for name, small, large in tables():
        half = small[small["rate"] == 0.5].drop(columns="rate")
        ways = {"rate": small, "alike": small.drop(columns="rate"), ".5": half}
        ways["best"] = best_rows(small)
        for way, train in ways.items():
            if len(rows) and ((rows["table"] == name) & (rows["way"] == way)).any():
                continue
            fit = bl.fit("chinchilla", bl.from_frame(train.reset_index(drop=True)), **settings)
            own = large if way == "rate" else large.drop(columns="rate")
            for held, test in {"all": own, "best": best_rows(large)}.items():
                for scale, part in test.groupby("scale"):
                    table = bl.from_frame(part.reset_index(drop=True))
                    new = {"table": name, "way": way, "fitted": len(train), "held": held}
                    new |= {"scale": scale, "rows": len(part), **scored(fit, table, SCORES)}
                    if (way, held) == ("rate", "best"):
                        new |= best_rate(fit, large[large["scale"] == scale])
                    rows = pd.concat([rows, pd.DataFrame([new])], ignore_index=True)
            print(name, way, new["gate"], flush=True)
            if args.smoke:
                return
            rows.to_csv(args.out, index=False, float_format="%.5g")
    print(rows.round(4).to_markdown(index=False))


if __name__ == "__main__":
    main()
