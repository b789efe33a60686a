"""Priors, discrepancies and mixtures of them for laws in N and D, chosen on other sources.

Posteriors of each split: today's default ("walk"), curvature, and walks whose steps are correlated
("trend"). Draws of the first are weighted to other priors of the walks' scale and of kappa, given
or learned from the training rows of the shipped tables of other sources. Mixtures have equal
weights; with "fold" they are halfway from these to those of mixed.csv, which has 19 splits, by CRPS
of earlier posteriors on rows left out.

For each of six sources a variant is chosen on the five others: of those that hold at least 85 % in
the 90 % bands of each, that with the least geometric mean of CRPS. For sources of adapted models,
which came later (`tables.real`), it is chosen on all six. Fits have 500 draws in each chain;
"failures" counts what fails of the convergence check, "effective" the draws of 1,000 that weights
leave.

    OMP_NUM_THREADS=1 python benchmarks/sharper.py --draws FOLDER [--bench FOLDER]
    python benchmarks/sharper.py

The first command fits what is missing, keeps its draws under the first folder, and writes scores by
split and variant to sharper.csv; the second prints them. The second folder has tables that may not
be shipped.
"""

import argparse
import warnings
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import norm
from tables import CHINCHILLA, SMOKE, Split, arguments, benched, real, splits
from truth import scored

import bayeslaw as bl

FITS = "walk", "curvature", "trend"
SETTINGS = {"errors": "independent", "draws": 500, "retry": False, "cores": 1}
DRAWS = 1000
OLD = {"walk_scale": (np.log(0.7), 0.8), "kappa": (0.0, 0.5)}
"""Mean and standard deviation of the log of each scale a priori."""
NEW = {
    "scale .35": {"walk_scale": (np.log(0.35), 0.8)},
    "scale .3": {"walk_scale": (np.log(0.3), 0.8)},
    "scale .3 sd .5": {"walk_scale": (np.log(0.3), 0.5)},
    "kappa 1.3": {"kappa": (np.log(1.3), 0.5)},
    "kappa sd 1": {"kappa": (0.0, 1.0)},
}
MIXED = {
    "walk + curvature": ("walk", "curvature"),
    "scale .3 + curvature": ("scale .3", "curvature"),
}
SHIPPED = {"delphi": "compute", "gadre": "ptpp", "olmo": "ptpp"}
"""Sources whose tables are shipped, and what was held out of them."""
LATER = "delphi clean", "delphi contaminated", "multipowerlaw"
"""Sources of `tables.real` on which nothing is chosen."""
FOLDS = Path(__file__).with_name("mixed.csv")
SCORES = ["coverage_50", "coverage_90", "width_90", "bias_log", "crps"]


def drawn(kind: str, train: bl.LossTable, test: bl.LossTable, settings: dict) -> dict:
    """Draws of log loss, shape (draws, rows), and of the logs of the walks' scale and of kappa."""
    fit = bl.fit("chinchilla", train, discrepancy=kind, **(SETTINGS | settings))
    logs = np.log(fit.forecast(test, allow_unconverged=True).samples)
    kept = np.linspace(0, len(logs) - 1, DRAWS).astype(int)
    found = {"logs": logs[kept].astype(np.float32), "failures": len(fit.convergence.failures)}
    scales = OLD if kind == "walk" else ()
    return found | {each: np.log(fit.draws[each].values.ravel()[kept]) for each in scales}


def learned(tables: list[np.ndarray], old: tuple[float, float], own: np.ndarray) -> np.ndarray:
    """Log weights of a table's draws by a hierarchical prior given draws of other tables.

    The log of the scale is Normal over tables, with flat priors of its mean and standard deviation.
    """
    grid = np.meshgrid(old[0] + np.linspace(-2.5, 1.5, 41), np.linspace(0.1, 1.5, 29))
    mean, sd = (each.ravel()[:, None] for each in grid)
    ratios = [np.exp(norm.logpdf(x, mean, sd) - norm.logpdf(x, *old)).mean(1) for x in tables]
    evidence = np.sum(np.log(ratios), axis=0)
    chance = np.exp(evidence - evidence.max())
    return np.log(chance / chance.sum() @ norm.pdf(own, mean, sd)) - norm.logpdf(own, *old)


def variants(
    kept: dict[str, dict], others: list[dict], fold: float
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Draws of log loss of each variant on one split, and their effective number if weighted.

    `fold` is the weight of the walk in the mixture with curvature by their folds.
    """
    today, found = kept["walk"], {name: each["logs"] for name, each in kept.items()}
    effective = {}
    own = {key: norm.logpdf(today[key], *old) for key, old in OLD.items()}
    logs = {
        n: sum(norm.logpdf(today[k], *p) - own[k] for k, p in new.items()) for n, new in NEW.items()
    }
    for key, old in OLD.items():
        logs[f"{key} learned"] = learned([each[key] for each in others], old, today[key])
    for name, each in logs.items():
        weights = np.exp(each - np.logaddexp.reduce(each))
        effective[name] = 1 / (weights**2).sum()
        rows = np.searchsorted(weights.cumsum(), (np.arange(DRAWS) + 0.5) / DRAWS)
        found[name] = today["logs"][rows]
    rules = {name: (members, [1 / len(members)] * len(members)) for name, members in MIXED.items()}
    rules["walk + curvature, fold"] = ("walk", "curvature"), [0.25 + fold / 2, 0.75 - fold / 2]
    for name, (members, weights) in rules.items():
        counts = np.diff(np.rint(np.cumsum(weights) * DRAWS).astype(int), prepend=0)
        rows = [np.linspace(0, DRAWS - 1, count).astype(int) for count in counts]
        found[name] = np.vstack([found[n][r] for n, r in zip(members, rows, strict=True)])
    return found, effective


def measured(folder: Path, every: list[Split], settings: dict) -> pd.DataFrame:
    """Scores of each variant on each split; one file of draws for each split and posterior."""
    saved: dict[str, dict[str, dict]] = {name: {} for name, *_ in every}
    rows = []
    for piece, (name, _, train, test, _) in product(FITS, every):
        path = folder / f"{name.replace(' ', '_')}.{piece}.npz"
        if not path.is_file():
            np.savez_compressed(path, **drawn(piece, train, test, settings))
            print(piece, name, flush=True)
        saved[name][piece] = dict(np.load(path))
    folds = pd.read_csv(FOLDS).query("rule == 'fold^2'").set_index("table")["weight"]
    for name, source, _, test, _ in every:
        others = [saved[n]["walk"] for n, s, *_ in every if s in SHIPPED and s != source]
        kind = SHIPPED.get(source) or name.split(" " if source in LATER else "-")[1]
        row = {"table": name, "source": source, "kind": kind}
        draws, effective = variants(saved[name], others, folds.get(name, 0.5))
        for variant, logs in draws.items():
            row |= {"variant": variant, "rows": len(test), "effective": effective.get(variant)}
            row |= {"failures": saved[name].get(variant, {}).get("failures")}
            scores = scored(np.exp(logs.astype(float)), test)
            rows.append(row | {key: scores[key] for key in SCORES})
    return pd.DataFrame(rows)


def summarised(scores: pd.DataFrame, by: str) -> pd.DataFrame:
    """Means over splits by variant and source or kind; CRPS is relative to today's."""
    rows = scores.set_index(["table", "variant"])
    today = rows.xs("walk", level="variant")["crps"].reindex(rows.index, level="table")
    rows["crps"], rows["bias"] = np.log(rows["crps"] / today), rows["bias_log"] / rows["width_90"]
    means = rows.groupby(["variant", by])[["coverage_50", "coverage_90", "bias", "crps"]].mean()
    return means.assign(crps=np.exp(means["crps"]))


def chosen(means: pd.DataFrame) -> pd.DataFrame:
    """Scores on each source of the variant that is best on the other sources, without `LATER`."""
    wide, found = means.unstack(), {}
    for source in wide["crps"]:
        others = wide.drop(columns=[*{source, *LATER}], level=1, errors="ignore")
        held = others["coverage_90"].min(axis=1) >= 0.85
        best = np.log(others["crps"][held]).mean(axis=1).idxmin()
        found[source] = {"chosen": best} | means.loc[(best, source)].to_dict()
    return pd.DataFrame.from_dict(found, orient="index")


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("--bench", type=Path, help="folder of splits.json")
    found.add_argument("--draws", type=Path, metavar="FOLDER", help="fit, and keep draws here")
    return found


def main() -> None:
    """Fit what is missing, then print the scores by source."""
    args, out = parser().parse_args(), Path(__file__).with_suffix(".csv")
    warnings.simplefilter("ignore")
    if args.smoke:
        args.draws, out = Path("draws"), Path("sharper.csv")
    if args.draws:
        args.draws.mkdir(exist_ok=True)
        every = [each for each in splits() if each[1] in SHIPPED and each[-1] == CHINCHILLA]
        every += list(benched(args.bench) if args.bench else ())
        every += [each for each in real() if each[1] in LATER]
        every = every[:2] if args.smoke else every
        scores = measured(args.draws, every, SMOKE if args.smoke else {})
        scores.to_csv(out, index=False, float_format="%.5g")
    scores = pd.read_csv(out)
    means = summarised(scores, "source")
    for score, values in means.items():
        print(f"\n{score}\n{values.unstack().round(3).to_markdown()}")
    print(f"\nchosen without the source\n{chosen(means).round(3).to_markdown()}")
    print(f"\nby kind\n{summarised(scores, 'kind').round(3).to_markdown()}")


if __name__ == "__main__":
    main()
