"""What repeated tokens are worth, on the 182 runs of data/datablations.

    OMP_NUM_THREADS=1 python benchmarks/repetition.py

R_D of Muennighoff et al. by three ways: by their own procedure, written here anew (the Huber loss
of log loss over R_D and R_N, with their one-epoch constants, and a like term for parameters in
excess of those optimal for the distinct tokens); by the Huber fit; and by the posterior of
Chinchilla's law with and without discrepancy. Then forecasts of runs of 16 to 100 epochs from those
of fewer, and of larger models from smaller ones, with and without the column `unique_tokens`.
"""

import argparse
import time
from itertools import islice, product

import numpy as np
import pandas as pd
from scipy.optimize import minimize
from scipy.special import huber
from tables import DATA, SMOKE, arguments

import bayeslaw as bl

PUBLISHED = {"R_D": 15.387756, "R_N": 5.309743}
ONE_EPOCH = {"E": 1.8692, "A": 521.2, "alpha": 0.3526, "B": 1488.0, "beta": 0.3526}
"""Their constants for C4."""
FEW, MANY = "tokens <= 16 * unique_tokens", "tokens <= 100 * unique_tokens"
SPLITS = {
    "more epochs": (FEW, f"not ({FEW}) and {MANY}"),
    "above 300M": (f"params < 3e8 and {MANY}", f"params > 3e8 and {MANY}"),
    "above 1B": (f"params < 1e9 and {MANY}", f"params > 1e9 and {MANY}"),
}
"""Training and held-out runs."""
SCORES = ["rmse_log", "coverage_50", "coverage_90", "width_90", "crps"]


def worth(seen: np.ndarray, unique: np.ndarray, rate: float) -> np.ndarray:
    """Their equation (5)."""
    return unique + unique * rate * (1 - np.exp(-(seen / unique - 1) / rate))


def as_published(frame: pd.DataFrame) -> dict[str, float]:
    """R_D and R_N by their procedure."""
    c, unique = ONE_EPOCH, frame["unique_tokens"].to_numpy()
    params = frame["params"].to_numpy()
    # Parameters at which both terms fall equally with FLOPs, for as many tokens as are distinct.
    optimal = (c["alpha"] * c["A"] / (c["beta"] * c["B"]) * unique ** c["beta"]) ** (1 / c["alpha"])
    optimal = np.minimum(optimal, params)

    def objective(log_rates: np.ndarray) -> float:
        rate, excess = np.exp(log_rates)
        tokens = worth(frame["tokens"].to_numpy(), unique, rate)
        size = worth(params, optimal, excess)
        loss = c["E"] + c["A"] / size ** c["alpha"] + c["B"] / tokens ** c["beta"]
        return float(huber(1e-3, np.log(loss) - np.log(frame["loss"])).sum())

    best = minimize(objective, np.log([10, 5]), method="Nelder-Mead").x
    return dict(zip(PUBLISHED, np.exp(best).tolist(), strict=True))


def all_free(frame: pd.DataFrame) -> dict[str, float]:
    """R_D and R_N with the constants of one epoch estimated as well."""
    params, unique = frame["params"].to_numpy(), frame["unique_tokens"].to_numpy()
    names = [*ONE_EPOCH, *PUBLISHED]

    def objective(logs: np.ndarray) -> float:
        c = dict(zip(names, np.exp(logs), strict=True))
        optimal = (c["alpha"] * c["A"] / (c["beta"] * c["B"]) * unique ** c["beta"]) ** (
            1 / c["alpha"]
        )
        tokens = worth(frame["tokens"].to_numpy(), unique, c["R_D"])
        size = worth(params, np.minimum(optimal, params), c["R_N"])
        loss = c["E"] + c["A"] / size ** c["alpha"] + c["B"] / tokens ** c["beta"]
        return 1e4 * float(huber(1e-3, np.log(loss) - np.log(frame["loss"])).sum())

    best = np.log([*ONE_EPOCH.values(), *PUBLISHED.values()])
    for _ in range(6):  # restarts, since the simplex shrinks too early
        options = {"maxiter": 20_000, "maxfev": 20_000}
        best = minimize(objective, best, method="Nelder-Mead", options=options).x
    return dict(zip(PUBLISHED, np.exp(best[-2:]).tolist(), strict=True))


def scores(train: bl.LossTable, test: bl.LossTable, settings: dict) -> dict[str, object]:
    """Scores of a forecast."""
    start = time.perf_counter()
    fit = bl.fit("chinchilla", train, **settings)
    found = bl.score(fit.forecast(test, allow_unconverged=True), test).to_dict()
    gate = "; ".join(fit.convergence.failures) or "passed"
    seconds = time.perf_counter() - start
    return {"rows": len(test), "seconds": seconds, "gate": gate, **{n: found[n] for n in SCORES}}


def parser() -> argparse.ArgumentParser:
    """Options."""
    return arguments(__doc__)


def main() -> None:
    """Print both tables."""
    args = parser().parse_args()
    settings = SMOKE if args.smoke else {}
    table = bl.read_table(DATA / "datablations/c4.csv")
    print("published        ", {k: round(v, 2) for k, v in PUBLISHED.items()})
    print("by their procedure", {k: round(v, 2) for k, v in as_published(table.frame).items()})
    print("the same, all free", {k: float(f"{v:.3g}") for k, v in all_free(table.frame).items()})
    print("Huber, all free  ", round(bl.fit_huber("chinchilla", table).parameters["R_D"], 2))
    discrepancies = ("none",) if args.smoke else ("none", "walk")
    for discrepancy in discrepancies:
        fit = bl.fit("chinchilla", table, discrepancy=discrepancy, **settings)
        own = fit.draws["R_D"].quantile([0.05, 0.5, 0.95]).to_numpy().round(1)
        print(f"posterior, {discrepancy}", own, "; ".join(fit.convergence.failures) or "passed")
    rows = {}
    for split, queries in islice(SPLITS.items(), 1 if args.smoke else None):
        cases = product(discrepancies, (("with", []), ("without", ["unique_tokens"])))
        for discrepancy, (name, drop) in cases:
            train, test = (
                bl.from_frame(part.frame.drop(columns=drop), part.name)
                for part in table.split(*queries)
            )
            own = settings | {"discrepancy": discrepancy}
            rows[split, discrepancy, name] = scores(train, test, own)
            print(split, discrepancy, name, rows[split, discrepancy, name], flush=True)
    print(pd.DataFrame.from_dict(rows, orient="index").round(4).to_markdown())


if __name__ == "__main__":
    main()
