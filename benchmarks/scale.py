"""The prior scale of the curvatures: fixed scales compared, and one estimated across domains.

The Chinchilla law is fitted to the training rows of OLMo, Delphi and Gadre with Normal(0, .3)
curvatures. Weights Normal(0, tau) / Normal(0, .3) on those draws give the evidence for every tau on
a grid, and its forecast. *learned* is the hierarchical posterior: one tau for the domains of a
group, log-uniform on the grid, with a posterior from the training rows of all of them. (Domains
have runs in common but are treated as independent, so this posterior is too narrow.) Scores are of
held-out rows. The criterion is the mean of log CRPS over OLMo and Delphi. "effective" is the
smallest effective number of draws of a forecast.

    python benchmarks/scale.py
"""

import argparse
import warnings
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import logsumexp
from scipy.stats import norm
from tables import SMOKE, arguments, splits

import bayeslaw as bl
from bayeslaw.evaluate.scores import band_scores, point_scores
from bayeslaw.model.discrepancy import Curvature

WIDE, FIXED = 0.3, 0.1
SCALES = np.array([0.03, 0.05, 0.07, FIXED, 0.14, 0.2, WIDE])
SETTINGS = {"draws": 2500, "tune": 1000, "target_accept": 0.95, "retry": False}
COLUMNS = ["rmse_log", "coverage_50", "coverage_90", "width_90", "crps", "winkler_90"]
CHOOSING = ("olmo", "delphi")
GROUPS = {"olmo": "olmo", "gadre": "gadre", "all": ""}


def fitted(
    train: bl.LossTable, test: bl.LossTable, settings: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Log weight of every draw for every scale, (draws, scales), and the draws of the test rows."""
    names = Curvature().apply(bl.load_law("chinchilla")).discrepancy_parameters
    wide = dict.fromkeys(names, f"Normal(mu=0, sigma={WIDE})")
    fit = bl.fit("chinchilla", train, discrepancy="curvature", priors=wide, **settings)
    curvatures = np.stack([fit.draws[name].values.ravel() for name in names])[..., None]
    weights = (norm.logpdf(curvatures, scale=SCALES) - norm.logpdf(curvatures, scale=WIDE)).sum(0)
    return weights, fit.forecast(test, allow_unconverged=True).samples


def resampled(weights: np.ndarray, draws: np.ndarray) -> tuple[np.ndarray, float]:
    """Draws in proportion to their log weights, and their effective number."""
    w = np.exp(weights - logsumexp(weights))
    chosen = np.random.default_rng(0).choice(len(w), 5000, p=w)
    return draws[chosen], 1 / np.sum(w**2)


def pool(rows: pd.DataFrame) -> pd.DataFrame:
    """Means over the test rows of each source, and the least coverage of its tables."""
    pooled = {}
    for key, part in rows.groupby(["source", "way"]):
        means = {c: float(np.average(part[c], weights=part["test"])) for c in COLUMNS}
        pooled[key] = {"rows": part["test"].sum()} | means | {"least": part["coverage_90"].min()}
    return pd.DataFrame(pooled).T


def parser() -> argparse.ArgumentParser:
    """Options."""
    return arguments(__doc__)


def main() -> None:
    """Print the learned scales, then scores of every scale, pooled over each source."""
    smoke = parser().parse_args().smoke
    warnings.simplefilter("ignore")
    tables: dict[str, tuple[tuple[np.ndarray, np.ndarray], bl.LossTable]] = {}
    for name, source, train, test, laws in splits():
        seen = any(other.startswith(source) for other in tables)
        if laws == ("chinchilla",) and not (smoke and seen):
            tables[name] = fitted(train, test, SMOKE if smoke else SETTINGS), test
    evidence = {  # log evidence of each scale
        name: logsumexp(weights, axis=0) - np.log(len(weights))
        for name, ((weights, _), _) in tables.items()
    }
    rows, fewest = [], {}
    for group, prefix in GROUPS.items():
        members = [name for name in tables if name.startswith(prefix)]
        total = np.sum([evidence[name] for name in members], axis=0)
        chance = np.exp(total - logsumexp(total))
        cells = (f"{tau:g}: {p:.3f}" for tau, p in zip(SCALES, chance, strict=True))
        print(f"scale learned from {group} ({len(members)} tables): {', '.join(cells)}")
        for name in members:
            (weights, draws), test = tables[name]
            ways = {f"learned, {group}": logsumexp(weights + total - evidence[name], axis=1)}
            if group == "all":
                ways |= {f"{tau:g}": weights[:, i] for i, tau in enumerate(SCALES)}
            for way, each in ways.items():
                samples, effective = resampled(each, draws)
                scores = point_scores(np.median(samples, axis=0), test.loss)
                scores |= band_scores(np.log(samples), np.log(test.loss))
                row = {"source": name.split()[0], "way": way, "test": len(test)}
                rows.append(row | {c: scores[c] for c in COLUMNS})
                fewest[way] = min(effective, fewest.get(way, np.inf))
    pooled = pool(pd.DataFrame(rows))
    print(pooled.to_markdown(floatfmt=".4f"))
    for way in [*(f"{tau:g}" for tau in SCALES), "learned, all"]:
        criterion = np.log([pooled.loc[(source, way), "crps"] for source in CHOOSING]).mean()
        print(f"{way}: criterion {criterion:.3f}")
    print("effective:", {way: round(number) for way, number in fewest.items()})


if __name__ == "__main__":
    main()
