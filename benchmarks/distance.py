"""Error and coverage of forecasts by how far the rows lie beyond the fitted ones.

The default of laws of N and D on the splits of `truth.py`, row by row. The distance of a row is
that of `bl.locate` to the nearest point between fitted rows in (log10 N, log10 D): 1 is ten times
larger at the same tokens, or five times larger with five times the tokens.

    OMP_NUM_THREADS=1 python benchmarks/distance.py [--bench FOLDER]
    python benchmarks/distance.py --show docs/pictures/distance.png

FOLDER holds tables that may not be shipped, and their splits in splits.json. Rows are kept in
distance.csv beside this file; an interrupted run continues when it is started again. --positions
writes their distances again, without fits.
"""

import argparse
import warnings
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pandas as pd
from tables import SMOKE, arguments, benched, earlier, splits

import bayeslaw as bl
from bayeslaw.evaluate.scores import crps

LAW = "chinchilla"
PLACE = ["position", "decades", "beyond_params", "beyond_tokens"]
EDGES = (0.0, 0.1, 0.25, 0.5, 0.75, np.inf)
NAMES = ("to .1", ".1 to .25", ".25 to .5", ".5 to .75", "above .75")
"""Bins of the distance, in decades."""


def measured(
    name: str, source: str, train: bl.LossTable, test: bl.LossTable, settings: dict
) -> pd.DataFrame:
    """One row per held-out loss of a split."""
    fit = bl.fit(LAW, train, **settings)
    found = fit.forecast(test, allow_unconverged=True)
    logs, truth = np.log(found.samples), np.log(test.loss)
    middle = np.median(logs, axis=0)
    rows = found.positions[PLACE].reset_index(drop=True)
    rows = rows.assign(table=name, source=source, error=middle - truth, crps=crps(logs, truth))
    for level in (50, 80, 90):
        low, high = np.quantile(logs, [0.5 - level / 200, 0.5 + level / 200], axis=0)
        rows[f"inside_{level}"] = ((low <= truth) & (truth <= high)).astype(int)
    gate = "; ".join(fit.convergence.failures) or "passed"
    return rows.assign(width_90=high - low, gate=gate)


def binned(rows: pd.DataFrame) -> pd.DataFrame:
    """Scores by distance, over rows and, for coverage, over sources."""
    place = pd.cut(rows["decades"], EDGES, labels=NAMES, include_lowest=True)
    place = place.rename("far")
    groups = rows.groupby(place, observed=True)
    found = pd.DataFrame(
        {
            "rows": groups.size(),
            "sources": groups["source"].nunique(),
            "median error": groups["error"].agg(lambda e: e.abs().median()),
            "90 % of errors": groups["error"].agg(lambda e: e.abs().quantile(0.9)),
            "bias": groups["error"].mean(),
            "width": groups["width_90"].mean(),
        }
    )
    for level in (50, 80, 90):
        found[f"in {level} %"] = groups[f"inside_{level}"].mean()
    each = rows.groupby([place, "source"], observed=True)["inside_90"].mean()
    return found.assign(least=each.groupby(level=0, observed=True).min())


def draw(rows: pd.DataFrame, path: Path) -> None:
    """Error of each row against its distance, and coverage by bin."""
    import matplotlib.pyplot as plt

    from bayeslaw.plots.style import COLOURS, INK, style

    with style():
        figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
        for i, (source, own) in enumerate(rows.groupby("source")):
            far = own["decades"]
            error = 100 * own["error"].abs().clip(lower=1e-4)
            left.plot(
                far, error, "o", ms=3, alpha=0.5, color=COLOURS[i % len(COLOURS)], label=source
            )
        left.set(yscale="log", xlabel="decades of N and D beyond the fitted rows")
        left.set_ylabel("error of the median (%)")
        left.legend(fontsize=7, markerscale=2)
        found = binned(rows)
        place = np.arange(len(found))
        for level, colour in zip((50, 80, 90), COLOURS, strict=False):
            right.plot(place, found[f"in {level} %"], "o-", color=colour, label=f"{level} %")
            right.axhline(level / 100, color=colour, lw=0.8, ls=":")
        right.set_xticks(
            place, [f"{n}\n{k}" for n, k in zip(found.index, found["rows"], strict=True)]
        )
        right.set(
            ylim=(0, 1.02), xlabel="decades beyond the fitted rows, and losses", ylabel="inside"
        )
        right.legend(title="band", fontsize=7, loc="lower left")
        right.tick_params(colors=INK)
        figure.savefig(path, dpi=150)


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__, __file__)
    found.add_argument("--bench", type=Path, help="folder of splits.json")
    found.add_argument("--positions", action="store_true", help="only write the distances again")
    found.add_argument("--show", type=Path, metavar="PICTURE", help="draw the rows of --out")
    return found


def main() -> None:
    """Run what is missing, then print the scores by distance."""
    args = parser().parse_args()
    warnings.simplefilter("ignore")
    every = chain(splits(), benched(args.bench) if args.bench else ())
    todo = islice(every, 0 if args.show else 1 if args.smoke else None)
    rows = earlier(args)
    if args.positions:
        for name, _, train, test, laws in todo:
            if LAW in laws and name in set(rows["table"]):
                found = bl.locate(train, test, ("params", "tokens"))
                rows.loc[rows["table"] == name, PLACE] = found[PLACE].to_numpy()
        kept = [*PLACE, *(c for c in rows if c not in PLACE)]
        rows[kept].to_csv(args.out, index=False, float_format="%.5g")
        todo = islice(every, 0)
    for name, source, train, test, laws in todo:
        if LAW in laws and (not len(rows) or name not in set(rows["table"])):
            new = measured(name, source, train, test, SMOKE if args.smoke else {})
            rows = pd.concat([rows, new], ignore_index=True)
            print(name, len(new), new["inside_90"].sum(), new["gate"][0], flush=True)
            if not args.smoke:
                rows.to_csv(args.out, index=False, float_format="%.5g")
    print(binned(rows).round(4).to_markdown())
    if args.show:
        draw(rows, args.show)


if __name__ == "__main__":
    main()
