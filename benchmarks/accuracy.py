"""Bands of accuracy from forecast losses, on the over-trained models of Gadre et al.

Three kinds of split, for two corpora and five tasks. tokens: law and pairs up to 40 tokens per
parameter, longer runs held out. size: law and pairs up to 154M parameters, 412M held out. corpus:
law up to 412M, 1.4B and 6.9B held out, pairs of the other corpus.

Ways: "band" is `bayeslaw.derive.accuracy`; "point" the same curve's median at the median loss;
"direct" the same curve of log FLOPs in place of the loss, without a law. Of refused rows "band" is
what would have been said; they are counted apart.

    OMP_NUM_THREADS=1 python benchmarks/accuracy.py

Rows are kept in accuracy.csv beside this file; an interrupted run continues when it is started
again.
"""

import argparse
import warnings

import numpy as np
import pandas as pd
from tables import DATA, SMOKE, arguments, earlier

import bayeslaw as bl
from bayeslaw.derive.downstream import accuracies, curves
from bayeslaw.evaluate.scores import crps

CORPORA = ("c4_original", "rpj")
SPLITS = {
    "tokens": ("ptpp <= 40", "ptpp > 40"),
    "size": ("params < 2e8", "2e8 < params < 1e9"),
    "corpus": ("params < 1e9", "params > 1e9"),
}
ENDS = [0.05, 0.25, 0.75, 0.95]


def scored(draws, truth):
    """Quantiles and CRPS of draws, a column a row."""
    low90, low50, high50, high90 = np.quantile(draws, ENDS, axis=0)
    ends = {"low90": low90, "low50": low50, "high50": high50, "high90": high90}
    return {**ends, "median": np.median(draws, axis=0), "crps": crps(draws, truth)}


def rows_of(corpus, split, settings):
    """The held-out accuracies of one split, by task and way."""
    train, test = SPLITS[split]
    own = f"domain == 'c4_val' and train_set == '{corpus}'"
    table = bl.read_table(DATA / "gadre" / "overtraining.csv", where=own)
    fitted, held_out = table.split(train, test)
    fit = bl.fit("chinchilla", fitted, seed=0, **settings)
    loss = fit.forecast(held_out, allow_unconverged=True).samples
    measured = pd.read_csv(DATA / "gadre" / "accuracy.csv")
    here = measured["train_set"] == corpus
    for task, all_pairs in measured.groupby("task", sort=False):
        truth = all_pairs.set_index("run")["accuracy"][held_out.frame["run"]].to_numpy()
        chosen = all_pairs[here].query(train)
        pairs = all_pairs[~here] if split == "corpus" else chosen
        x, y = pairs["loss"].to_numpy(), pairs["accuracy"].to_numpy()
        rng = np.random.default_rng(0)
        drawn = curves(x, y, len(loss), rng)
        median = np.median(loss, axis=0)
        mid, width, floor, ceiling, _ = drawn[..., None]
        point = floor + (ceiling - floor) / (1 + np.exp((median - mid) / width))
        flops = -np.log(chosen["params"] * chosen["tokens"]).to_numpy()
        asked = -np.log(held_out.frame["params"] * held_out.frame["tokens"]).to_numpy()
        asked = np.tile(asked, (len(loss), 1))
        ways = {
            "band": scored(accuracies(loss, x, y, rng), truth),
            "point": {"median": np.median(point, axis=0)},
            "direct": scored(accuracies(asked, flops, chosen["accuracy"].to_numpy(), rng), truth),
        }
        ways["point"]["crps"] = np.abs(ways["point"]["median"] - truth)
        about = {"corpus": corpus, "split": split, "task": task, "converged": fit.convergence.ok}
        about |= {
            "run": held_out.frame["run"].to_numpy(),
            "loss": held_out.loss,
            "forecast": median,
        }
        about["refused"] = (median < x.min()) | (median > x.max())
        about["outside"] = ((loss < x.min()) | (loss > x.max())).mean(0)
        for way, values in ways.items():
            yield pd.DataFrame({**about, "way": way, "accuracy": truth, **values})


def curve_alone():
    """Share in the 90 % band at measured losses, without a law, by split and whether refused."""
    rows = []
    everything = pd.read_csv(DATA / "gadre" / "accuracy.csv")
    for (corpus, task), own in everything.groupby(["train_set", "task"]):
        other = everything.query(f"train_set != '{corpus}' and task == '{task}'")
        for split, (train, test) in SPLITS.items():
            pairs, held_out = other if split == "corpus" else own.query(train), own.query(test)
            x, y = pairs["loss"].to_numpy(), pairs["accuracy"].to_numpy()
            loss = np.tile(held_out["loss"], (4000, 1))
            draws = accuracies(loss, x, y, np.random.default_rng(0))
            low, high = np.quantile(draws, [0.05, 0.95], axis=0)
            new = held_out.assign(split=split, in90=held_out["accuracy"].between(low, high))
            rows.append(new.assign(refused=~held_out["loss"].between(x.min(), x.max())))
    groups = pd.concat(rows).groupby(["split", "refused"])["in90"]
    print(groups.agg(["mean", "size"]).round(3).to_string(), "\n")


def shown(rows):
    """Coverage, width, CRPS and error by split and way."""
    for level in (50, 90):
        inside = rows["accuracy"].between(rows[f"low{level}"], rows[f"high{level}"])
        rows[f"in{level}"] = inside.where(rows[f"low{level}"].notna())
    rows["width90"] = rows["high90"] - rows["low90"]
    rows["error"] = (rows["median"] - rows["accuracy"]).abs()
    scores = ["in50", "in90", "width90", "crps", "error"]
    rows[scores] = rows[scores].astype(float)
    for by in (["split", "refused", "way"], ["split", "refused", "corpus", "task"]):
        chosen = rows if "way" in by else rows[rows["way"] == "band"]
        groups = chosen.groupby(by)
        print(groups[scores].mean().round(4).assign(rows=groups.size()).to_string(), "\n")


def parser() -> argparse.ArgumentParser:
    """Options."""
    return arguments(__doc__, __file__)


def main():
    """Run what is missing and print the scores."""
    args = parser().parse_args()
    warnings.simplefilter("ignore")
    curve_alone()
    rows = earlier(args)
    for split in SPLITS:
        for corpus in CORPORA:
            if len(rows) and ((rows["corpus"] == corpus) & (rows["split"] == split)).any():
                continue
            new = pd.concat(rows_of(corpus, split, SMOKE if args.smoke else {}))
            rows = pd.concat([rows, new], ignore_index=True)
            print(split, corpus, flush=True)
            if args.smoke:
                shown(rows)
                return
            rows.to_csv(args.out, index=False, float_format="%.6g")
    shown(rows)


if __name__ == "__main__":
    main()
