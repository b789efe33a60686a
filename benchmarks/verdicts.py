"""Verdict of `check`, from training rows alone, against whether the band then held.

On the splits of `truth.py` (laws of N and D) and of `adaptation.csv` (the pool), `check` sees the
training rows and the covariates of the test rows. Coverage of the test rows is that stored in
truth.csv and adaptation.csv. Fits and refits are short here, two chains of 300 draws, which the
column `gate` says.

    OMP_NUM_THREADS=1 python benchmarks/verdicts.py [--bench FOLDER] [--only TEXT]
    python benchmarks/verdicts.py --show

FOLDER holds tables that may not be shipped, and their splits in splits.json. verdicts.csv beside
this file has a row per split with the level of each part, and verdicts_rows.csv the rows that
`check` held out itself, from which --show judges them again, so that the rule in
`bayeslaw/checks/_check.py` can be changed without fits. Splits in it are not run again.
"""

import argparse
import time
import warnings
from itertools import chain
from pathlib import Path

import pandas as pd
from tables import POOL, SMOKE, arguments, benched, splits

import bayeslaw as bl
from bayeslaw.checks._check import verdict
from bayeslaw.checks.findings import LEVELS
from bayeslaw.inference.fitting import refit
from bayeslaw.inference.pools import POOLS

HERE = Path(__file__).parent
WAYS = {
    ("chinchilla", "walk"): ("truth.csv", {"discrepancy": "walk", "errors": "independent"}),
    ("chinchilla", "plain"): ("truth.csv", {"discrepancy": "none", "errors": "independent"}),
    (POOL, "adaptation run"): ("adaptation.csv", {"discrepancy": "adaptation", "errors": "run"}),
    ("form1", "plain"): ("adaptation.csv", {"discrepancy": "none", "errors": "independent"}),
    ("form1", "curvature"): (
        "adaptation.csv",
        {"discrepancy": "curvature", "errors": "independent"},
    ),
}
"""Stored scores and settings of each law and way of `truth.py` that `check` judges."""
KEY = ["table", "law", "way"]
FEW = 0.8
"""Coverage below which a 90 % band did not hold."""


def measured(
    law: str, way: str, train: bl.LossTable, test: bl.LossTable, settings: dict
) -> tuple[dict, pd.DataFrame]:
    """Levels and numbers of `check` on one split, and the rows that it held out."""
    start = time.perf_counter()
    own = {"effects": "auto", **WAYS[law, way][1], **settings}
    fits = {name: refit(name, train, 0, **own) for name in POOLS.get(law, (law,))}
    fit = bl.Pool(fits) if law in POOLS else fits[law]
    found = bl.check(fit, test.frame.drop(columns="loss"))
    inner = found["held out"]
    row = {"gate": "; ".join(fit.convergence.failures) or "passed"}
    row |= {f"own {k}": v for k, v in inner.facts.items()}
    row |= {n: found["extrapolation"].frame[n].max() for n in ("decades",)}
    for part in found.parts:
        row[part.name] = part.level
    for name in fits:
        prefix = f"{name}: " if law in POOLS else ""
        facts = found[f"{prefix}directions"].facts
        row |= {f"{prefix}{k}": facts[k] for k in ("share", "share_own") if k in facts}
    return row | {"seconds": time.perf_counter() - start}, inner.frame


def shown(rows: pd.DataFrame, held: pd.DataFrame) -> pd.DataFrame:
    """Splits by verdict: how many hold at least .8, mean and least coverage."""
    rows = rows.assign(default=~rows["way"].isin(["plain"]))
    for key, own in held.groupby(KEY):
        level = verdict(own)[0]
        here = (rows[KEY] == list(key)).all(axis=1)
        rows.loc[here, "held out"] = "caution" if level == "refuse" else level
    # Short chains seldom pass the convergence check, which is left out here.
    parts = [c for c in rows if rows[c].isin(LEVELS).any() and "convergence" not in c]
    worst = rows[parts].map(lambda level: LEVELS.index(level) if level in LEVELS else 0).max(axis=1)
    rows["verdict"] = worst.map(lambda i: LEVELS[i])
    groups = rows.groupby(["default", "verdict"])
    sources = groups.apply(lambda g: ", ".join(g.loc[g["coverage_90"] < FEW, "source"].unique()))
    found = groups["coverage_90"].agg(
        splits="size", held=lambda c: int((c >= FEW).sum()), mean="mean", least="min"
    )
    return found.round(2).assign(failed_in=sources)


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("--bench", type=Path, help="folder of splits.json")
    found.add_argument("--only", default="", help="part of the name of a split")
    found.add_argument("--ways", default=",".join(way for _, way in WAYS))
    found.add_argument("--out", type=Path, default=HERE / "verdicts.csv")
    found.add_argument("--show", action="store_true", help="print the table, without fits")
    return found


def main() -> None:
    """Run what is missing, then print how often each verdict was right."""
    args = parser().parse_args()
    warnings.simplefilter("ignore")
    beside = args.out.with_name(args.out.stem + "_rows.csv")
    done, held = (
        pd.read_csv(p) if p.is_file() else pd.DataFrame(columns=KEY) for p in (args.out, beside)
    )
    if args.smoke:
        done, held = done[:0], held[:0]
    every = list(chain(splits(), benched(args.bench) if args.bench else ()))
    for (law, way), (file, _) in WAYS.items():
        scores = pd.read_csv(HERE / file)
        scores = scores[(scores["law"] == law) & (scores["way"] == way)].set_index("table")
        todo = [s for s in every if s[0] in scores.index and law in s[-1] and args.only in s[0]]
        todo = [s for s in todo if not (done[KEY] == [s[0], law, way]).all(axis=1).any()]
        if args.show or way not in args.ways.split(","):
            continue
        for name, source, train, test, _ in sorted(todo, key=lambda s: scores.loc[s[0], "seconds"]):
            row, inner = measured(law, way, train, test, SMOKE if args.smoke else {})
            key = dict(zip(KEY, (name, law, way), strict=True))
            row = key | {"source": source, "coverage_90": scores.loc[name, "coverage_90"]} | row
            done = pd.concat([done, pd.DataFrame([row])], ignore_index=True)
            held = pd.concat([held, inner.assign(**key)], ignore_index=True)
            print(row, flush=True)
            if args.smoke:
                break
            done.to_csv(args.out, index=False, float_format="%.4g")
            held.to_csv(beside, index=False, float_format="%.4g")
        if args.smoke:
            break
    print(shown(done, held).to_markdown())


if __name__ == "__main__":
    main()
