"""Mixtures of two discrepancies of laws in N and D, walking exponents and curvature, by split.

A weight w takes that share of the draws from the posterior with walking exponents. It is the same
for all tables, or that of a table: the quarter of its training rows with the largest N D is left
out, both are fitted to the rest in short runs, and ``w / (1 - w)`` is the ratio of their CRPS there
to a power. Weight and power are chosen on five sources and reported on the sixth.

    OMP_NUM_THREADS=1 python benchmarks/mixed.py --draws FOLDER [--bench FOLDER] [--splits 4]
    python benchmarks/mixed.py

The first command fits what is missing, keeps 500 draws of log loss of each forecast under FOLDER,
and writes the scores of all weights to mixed.csv beside this file; the second prints them. Of each
source the first ``--splits`` splits are taken.
"""

import argparse
import warnings
from collections import Counter
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pandas as pd
from tables import SMOKE, arguments, benched, splits

import bayeslaw as bl
from bayeslaw.evaluate.scores import crps

LAW = "chinchilla"
KINDS = ("walk", "curvature")
WEIGHTS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
POWERS = (1, 2, 4)
SHORT = {"draws": 500, "retry": False}
"""Settings of the fits that weights of tables come from."""
DRAWS = 500


def drawn(train: bl.LossTable, test: bl.LossTable, kind: str, settings: dict) -> np.ndarray:
    """Draws of log loss, shape (draws, rows)."""
    fit = bl.fit(LAW, train, discrepancy=kind, **settings)
    logs = np.log(fit.forecast(test, allow_unconverged=True).samples)
    return logs[np.linspace(0, len(logs) - 1, DRAWS).astype(int)]


def measured(train: bl.LossTable, test: bl.LossTable, settings: dict) -> dict[str, np.ndarray]:
    """Draws of both posteriors by kind, and their mean CRPS on rows left out of the training."""
    compute = train.frame["params"] * train.frame["tokens"]
    last = compute.rank(method="first").to_numpy() > 0.75 * len(compute)
    parts = [
        bl.LossTable(train.frame[rows].reset_index(drop=True), train.baselines)
        for rows in (~last, last)
    ]
    found = {kind: drawn(train, test, kind, settings) for kind in KINDS}
    for kind in KINDS:
        logs = drawn(*parts, kind, {**SHORT, **settings})
        found[f"{kind} fold"] = np.asarray(crps(logs, np.log(parts[1].loss)).mean())
    return found


def mixtures(name: str, source: str, test: bl.LossTable, saved: dict) -> list[dict]:
    """Scores of each weight on one split."""
    truth, rows = np.log(test.loss), []
    ratio = float(saved["curvature fold"] / saved["walk fold"])
    rules = {f"{w:g}": w for w in WEIGHTS}
    rules |= {f"fold^{p}": ratio**p / (1 + ratio**p) for p in POWERS}
    for rule, weight in rules.items():
        counts = round(weight * DRAWS), DRAWS - round(weight * DRAWS)
        logs = np.vstack(
            [
                saved[kind][np.linspace(0, DRAWS - 1, n).astype(int)]
                for kind, n in zip(KINDS, counts, strict=True)
                if n
            ]
        )
        low, high = np.quantile(logs, [0.05, 0.95], axis=0)
        inside = ((low <= truth) & (truth <= high)).mean()
        row = {"table": name, "source": source, "rule": rule, "weight": weight, "rows": len(truth)}
        row |= {"inside_90": inside, "width_90": (high - low).mean()}
        rows.append(row | {"crps": crps(logs, truth).mean()})
    return rows


def chosen(scores: pd.DataFrame) -> pd.DataFrame:
    """By source: the rule chosen on the other sources, and CRPS of all over the best single kind's.

    The rule chosen is that of the least maximum of these ratios on the other sources.
    """
    logs = scores.assign(crps=np.log(scores["crps"]))
    means = logs.groupby(["source", "rule"])[["crps", "inside_90"]].mean()
    crpss = means["crps"].unstack()
    ratios = np.exp(crpss.sub(crpss[["0", "1"]].min(axis=1), axis=0))
    least = scores.groupby(["source", "rule"])["inside_90"].min().unstack()
    inside = means["inside_90"].unstack()
    rows = {}
    for source in ratios.index:
        rule = ratios.drop(source).max().idxmin()
        rows[source] = {
            "chosen": rule,
            "in 90 %": inside.loc[source, rule],
            "least": least.loc[source, rule],
            "CRPS": ratios.loc[source, rule],
            **ratios.loc[source],
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__, __file__)
    found.add_argument("--bench", type=Path, help="folder of splits.json")
    found.add_argument("--draws", type=Path, metavar="FOLDER", help="fit, and keep draws here")
    found.add_argument("--splits", type=int, default=4, help="most splits of a source")
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
        taken: Counter[str] = Counter()
        for name, source, train, test, laws in islice(every, 1 if args.smoke else None):
            taken[source] += 1
            if LAW not in laws or taken[source] > args.splits:
                continue
            path = folder / f"{name.replace(' ', '_')}.npz"
            if not path.is_file():
                found = measured(train, test, SMOKE if args.smoke else {})
                np.savez_compressed(path, **found)
            rows += mixtures(name, source, test, dict(np.load(path)))
            print(name, flush=True)
            if not args.smoke:
                scores = pd.DataFrame(rows)
                scores.to_csv(args.out, index=False, float_format="%.5g")
    elif not args.out.is_file():
        parser().error(f"{args.out} is not there: give --draws FOLDER to measure")
    if not args.smoke:
        print(chosen(pd.read_csv(args.out)).round(3).to_markdown())


if __name__ == "__main__":
    main()
