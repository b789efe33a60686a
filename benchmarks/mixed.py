"""Mixtures of two discrepancies of laws in N and D, walking exponents and curvature, by split.

One weight for all tables, chosen on five sources and reported on the sixth, and fixed weights:
a weight w takes that share of the draws from the posterior with walking exponents.

    OMP_NUM_THREADS=1 python benchmarks/mixed.py --draws FOLDER [--bench FOLDER]
    python benchmarks/mixed.py

The first command fits what is missing, keeps 500 draws of log loss of each forecast under FOLDER,
and writes the scores of all weights to mixed.csv beside this file; the second prints them.
"""

import argparse
import warnings
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pandas as pd
from tables import SMOKE, arguments, benched, splits

import bayeslaw as bl
from bayeslaw.evaluate.scores import crps

LAW = "chinchilla"
KINDS = ("walk", "curvature")
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
DRAWS = 500


def drawn(train: bl.LossTable, test: bl.LossTable, kind: str, settings: dict) -> np.ndarray:
    """Draws of log loss, shape (draws, rows)."""
    fit = bl.fit(LAW, train, discrepancy=kind, **settings)
    logs = np.log(fit.forecast(test, allow_unconverged=True).samples)
    return logs[np.linspace(0, len(logs) - 1, DRAWS).astype(int)]


def mixtures(name: str, source: str, test: bl.LossTable, both: list[np.ndarray]) -> list[dict]:
    """Scores of each weight on one split."""
    truth, rows = np.log(test.loss), []
    for weight in WEIGHTS:
        counts = round(weight * DRAWS), DRAWS - round(weight * DRAWS)
        logs = np.vstack(
            [
                each[np.linspace(0, DRAWS - 1, n).astype(int)]
                for each, n in zip(both, counts, strict=True)
                if n
            ]
        )
        low, high = np.quantile(logs, [0.05, 0.95], axis=0)
        inside = ((low <= truth) & (truth <= high)).mean()
        row = {"table": name, "source": source, "weight": weight, "rows": len(truth)}
        row |= {"inside_90": inside, "width_90": (high - low).mean()}
        rows.append(row | {"crps": crps(logs, truth).mean()})
    return rows


def chosen(scores: pd.DataFrame) -> pd.DataFrame:
    """By source: the weight chosen on the other sources, and scores of it and of fixed weights."""
    logs = scores.assign(crps=np.log(scores["crps"]))
    means = logs.groupby(["source", "weight"])[["crps", "inside_90"]].mean()
    least = scores.groupby(["source", "weight"])["inside_90"].min()
    found = {}
    for source in scores["source"].unique():
        others = means["crps"].drop(source, level="source").groupby("weight").mean()
        weight = float(others.idxmin())
        best = means["crps"].loc[source][[0.0, 1.0]].min()
        found[source] = {
            "weight": weight,
            "in 90 %": means["inside_90"].loc[source, weight],
            "least": least.loc[source, weight],
            **{f"CRPS/best {w:g}": np.exp(means["crps"].loc[source, w] - best) for w in WEIGHTS},
        }
    return pd.DataFrame.from_dict(found, orient="index")


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("--bench", type=Path, help="folder of splits.json")
    found.add_argument("--draws", type=Path, metavar="FOLDER", help="fit, and keep draws here")
    found.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".csv"))
    return found


def main() -> None:
    """Fit what is missing, then print the scores by source."""
    args = parser().parse_args()
    warnings.simplefilter("ignore")
    folder = Path("draws") if args.smoke else args.draws
    if folder:
        folder.mkdir(exist_ok=True)
        every = chain(splits(), benched(args.bench) if args.bench else ())
        rows: list[dict] = []
        for name, source, train, test, laws in islice(every, 2 if args.smoke else None):
            if LAW not in laws:
                continue
            path = folder / f"{name.replace(' ', '_')}.npz"
            if not path.is_file():
                settings = SMOKE if args.smoke else {}
                each = {kind: drawn(train, test, kind, settings) for kind in KINDS}
                np.savez_compressed(path, **each)
            saved = np.load(path)
            rows += mixtures(name, source, test, [saved[kind] for kind in KINDS])
            print(name, flush=True)
        scores = pd.DataFrame(rows)
        if not args.smoke:
            scores.to_csv(args.out, index=False, float_format="%.5g")
    elif args.out.is_file():
        scores = pd.read_csv(args.out)
    else:
        parser().error(f"{args.out} is not there: give --draws FOLDER to measure")
    if scores["source"].nunique() > 1:
        print(chosen(scores).round(3).to_markdown())


if __name__ == "__main__":
    main()
