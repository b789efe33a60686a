"""Width and coverage of bands by the number of runs: splits of `truth.py` with fewer rows to fit.

The Chinchilla law with its default, on Delphi, three domains of the OLMo ladder and two corpora of
Gadre. Of the training rows a few model sizes are kept, and of each a few runs; the held-out rows
stay. The smallest and the largest size are always among those kept, and of each size the shortest
and the longest run, so that fewer runs are not farther from the forecast. The others are drawn, for
each seed in one random order: the fewer are among the more.

    OMP_NUM_THREADS=1 python benchmarks/runs.py
    python benchmarks/runs.py --show

Fits have four chains of 500 draws and no second attempt, and are scored whether or not they pass
the convergence check. They are kept in runs.csv beside this file; an interrupted run continues when
it is started again. --show prints the tables from it.
"""

import argparse
import warnings
from itertools import product

import numpy as np
import pandas as pd
from tables import SMOKE, Split, arguments, earlier, splits

import bayeslaw as bl
from bayeslaw.evaluate.scores import crps
from bayeslaw.inference.fitting import refit

LAW = "chinchilla"
SPLITS = (
    "delphi", "olmo c4_en", "olmo dolma_books", "olmo dolma_wiki", "gadre c4_original", "gadre rpj",
)  # fmt: skip
SIZES = (2, 3, 4, 7)
"""Sizes kept. Where a table has fewer, all of them."""
PER_SIZE = (2, 3, 5)
"""Runs kept of each size. Where a size has fewer, all of them."""
SEEDS = range(5)
FITTED = {"discrepancy": "auto", "effects": "auto", "chains": 4, "draws": 500}
KEY = ["table", "sizes", "per_size", "seed"]


def thinned(train: bl.LossTable, sizes: int, per_size: int, seed: int) -> bl.LossTable:
    """The training rows of some sizes, and some of each, with the ends of both among them."""
    rng, frame = np.random.default_rng(seed), train.frame
    kept = []
    for size in ends_first(np.unique(frame["params"]), rng)[:sizes]:
        own = frame.index[frame["params"] == size]
        ordered = own[np.argsort(frame.loc[own, "tokens"], kind="stable")]
        order = np.random.default_rng([seed, int(size)])  # the same whichever sizes are kept
        kept += [*ends_first(ordered.to_numpy(), order)[:per_size]]
    return bl.LossTable(frame.loc[sorted(kept)].reset_index(drop=True), train.baselines)


def ends_first(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Last, first, then the others in random order."""
    return np.r_[values[-1:], values[:-1][:1], rng.permutation(values[1:-1].copy())]


def cases(train: bl.LossTable) -> list[tuple[int, int, int]]:
    """Sizes, runs of a size and seed of every thinning of a table, each set of rows once."""
    counts = train.frame.groupby("params").size()
    sizes = sorted({min(n, len(counts)) for n in SIZES})
    found: dict[tuple, tuple[int, int, int]] = {}
    for n, seed, k in product(sizes, SEEDS, sorted({min(k, counts.max()) for k in PER_SIZE})):
        frame = thinned(train, n, k, seed).frame
        rows = frozenset(zip(frame["params"], frame["tokens"], frame["loss"], strict=True))
        found.setdefault((n, k, rows), (n, int(k), seed))
    return sorted(found.values(), key=lambda case: (case[2], *case[:2]))


def measured(split: Split, case: tuple[int, int, int], settings: dict) -> pd.DataFrame:
    """Scores of one fit, one row for each held-out loss."""
    name, source, train, test, _ = split
    fewer = thinned(train, *case)
    fit = refit(LAW, fewer, 0, **settings)
    found = fit.forecast(test, allow_unconverged=True)
    logs, truth = np.log(found.samples), np.log(test.loss)
    rows = pd.DataFrame({"error": np.median(logs, axis=0) - truth, "crps": crps(logs, truth)})
    low, high = np.quantile(logs, [0.05, 0.95], axis=0)
    rows = rows.assign(
        width_90=high - low, inside_90=((low <= truth) & (truth <= high)).astype(int)
    )
    key = dict(zip(KEY, (name, *case), strict=True))
    gate = "; ".join(fit.convergence.failures) or "passed"
    return rows.assign(**key, source=source, rows=len(fewer), gate=gate)


def by_number(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Width, coverage, error and share of failed fits, by some columns."""
    rows = rows.assign(
        failed=rows["gate"] != "passed",
        error=rows["error"].abs(),
        log_width=np.log(rows["width_90"]),
        fit=rows[KEY].astype(str).agg(" ".join, axis=1),
    )
    groups = rows.groupby(keys)
    return pd.DataFrame(
        {
            "rows": groups["rows"].mean(),
            "fits": groups["fit"].nunique(),
            "losses": groups.size(),
            "width": np.exp(groups["log_width"].mean()),
            "in 90 %": groups["inside_90"].mean(),
            "median error": groups["error"].median(),
            "9 of 10 errors below": groups["error"].quantile(0.9),
            "failed": groups["failed"].mean(),
        }
    )


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Percent, a number for each source: width, coverage and error, for a few runs and for all."""
    labelled = {}
    for column, few in (("sizes", (2, 3, 4)), ("per_size", (2, 3))):
        most = rows[column] == rows.groupby("table")[column].transform("max")
        labels = rows[column].where(rows[column].isin(few)).astype("Int64").astype("string")
        labelled[column] = labels.where(~most, "all")
    rows = rows.assign(**labelled).dropna(subset=[*labelled])
    found = 100 * by_number(rows, [*labelled, "source"])[["width", "in 90 %", "median error"]]
    digits = {"width": 1, "in 90 %": 0, "median error": 1}
    texts = pd.DataFrame({c: found[c].map(f"{{:.{n}f}}".format) for c, n in digits.items()})
    return texts.groupby(level=[*labelled], sort=False).agg(", ".join)


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__, __file__)
    found.add_argument("--show", action="store_true", help="only print the tables from --out")
    return found


def main() -> None:
    """Run what is missing, a seed of every table before the next seed, then print the tables."""
    args = parser().parse_args()
    warnings.simplefilter("ignore")
    rows = earlier(args)
    done = set(rows[KEY].itertuples(index=False, name=None)) if len(rows) else set()
    chosen = [] if args.show else [split for split in splits() if split[0] in SPLITS]
    todo = [(split, case) for split in chosen for case in cases(split[2])]
    todo.sort(key=lambda pair: pair[1][2])
    settings = FITTED | {key: SMOKE[key] for key in ("chains", "draws", "tune") if args.smoke}
    for split, case in todo[: 2 if args.smoke else None]:
        if (split[0], *case) not in done:
            new = measured(split, case, settings)
            rows = pd.concat([rows, new], ignore_index=True)
            held = f"{new['inside_90'].sum()} of {len(new)}"
            print(
                split[0], *case, held, f"{new['width_90'].mean():.4f}", new["gate"][0], flush=True
            )
            if not args.smoke:
                rows.to_csv(args.out, index=False, float_format="%.5g")
    found = by_number(rows, ["source", "sizes", "per_size"])
    print(f"\n{found.reset_index().to_markdown(index=False, floatfmt='.4g')}")
    sources = ", ".join(sorted(set(rows["source"])))
    print(f"\nin percent: {sources}\n{summary(rows).reset_index().to_markdown(index=False)}")


if __name__ == "__main__":
    main()
