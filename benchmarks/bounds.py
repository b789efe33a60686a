"""Forms 2 and 3 fitted with lambda > 0, as the paper prints them, and with lambda <= 1.

The second are the bounds of the priors. Prints a Markdown row for each table and law: six seeds of
the synthetic world, and tinycpt.

"at 1": fits with lambda <= 1 that end on this bound. "excess": of their objective over that of the
paper's bounds, relatively, the largest. "RMSE": of log loss at PTPP 279, in percent. "range": of
the forecasts of starts that agree there, in percent of the loss, the mean over rows. RMSE and
range are means over seeds.

    OMP_NUM_THREADS=1 python benchmarks/bounds.py
"""

import argparse
import warnings
from collections.abc import Iterator
from itertools import islice

import numpy as np
from tables import DATA, arguments

import bayeslaw as bl

BOUNDS = "paper", "prior"
SEEDS = 6


def cases(seeds: int) -> Iterator[tuple[str, str, list[bl.LossTable]]]:
    """Name, training query, and tables: one for each seed."""
    for domain in ("french", "english_arabic"):
        tables = [bl.paper_world().table(domain, seed=seed) for seed in range(seeds)]
        yield f"synthetic {domain}", "ptpp <= 31", tables
    for domain in ("french", "english"):
        table = bl.read_table(DATA / f"tinycpt/{domain}.csv", where="annealed and replay < 1")
        for train in ("ptpp <= 31", "ptpp <= 124"):
            yield f"tinycpt {domain}", train, [table]


def parser() -> argparse.ArgumentParser:
    """Options."""
    return arguments(__doc__)


def main() -> None:
    """Print the rows."""
    smoke = parser().parse_args().smoke
    warnings.simplefilter("ignore", bl.FitWarning)
    heads = ["table", "fitted", "law", "at 1", "excess", "lambda"]
    heads += [f"{what}, {bounds}" for what in ("RMSE", "range") for bounds in BOUNDS]
    print("|", " | ".join(heads), "|\n|", " | ".join("---" for _ in heads), "|")
    for name, train, tables in islice(cases(1 if smoke else SEEDS), 1 if smoke else None):
        for law in ("form2", "form3"):
            fits = [
                [bl.fit_huber(law, table.query(train), bounds=bounds) for bounds in BOUNDS]
                for table in tables
            ]
            tests = [table.query("ptpp == 279") for table in tables]
            excess = max(prior.objective / paper.objective - 1 for paper, prior in fits)
            lambdas = [paper.parameters["lambda_"] for paper, _ in fits]
            rmse, span = np.zeros((2, len(BOUNDS), len(fits)))
            for j, (pair, test) in enumerate(zip(fits, tests, strict=True)):
                for i, fit in enumerate(pair):
                    rmse[i, j] = bl.score(fit, test)["rmse_log"]
                    lowest, highest = fit.span(test)
                    span[i, j] = (highest / lowest - 1).mean()
            cells = [
                name,
                train,
                law,
                f"{sum('lambda_' in prior.at_bounds for _, prior in fits)} of {len(fits)}",
                f"{excess:.1e}",
                f"{min(lambdas):.2f} to {max(lambdas):.2f}"
                if len(fits) > 1
                else f"{lambdas[0]:.2f}",
                *(f"{100 * value:.2f}" for value in (*rmse.mean(1), *span.mean(1))),
            ]
            print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
