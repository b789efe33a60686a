"""The forgetting law against the paper's on the measured source losses of data/tinycpt.

Annealed English rows; point fits by the paper's Huber objective, then posteriors of each law as
written ("none") and with curvature ("curvature"). Bands are for a new measured loss,
widths, CRPS and Winkler scores on log loss; rows are taken as independent (no run or base
effects). A posterior that fails its gate is scored all the same. "largest curvature": of the
discrepancy's, the one farthest from its prior, in prior sds, and what `check` says of it.
"rho = 1" is the forgetting law in which an adaptation token counts as one of pre-training.

    python benchmarks/forgetting.py [--points] [--only TEXT] [--effects auto] [--draws 1000]
"""

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from tables import SMOKE, arguments

import bayeslaw as bl
from bayeslaw import Law
from bayeslaw.checks.findings import judge_curvature
from bayeslaw.laws.lawfiles import models_dir, parse_law

ENGLISH = Path(__file__).parent.parent / "data/tinycpt/english.csv"
SPLITS = {
    "stage 279 from four": ("ptpp <= 124", "ptpp == 279"),
    "largest size": ("params < 1e5", "params > 1e5"),
    "stage 279 from two": ("ptpp <= 31", "ptpp == 279"),
}
SCORES = ("rmse_log", "coverage_50", "coverage_90", "width_90", "crps", "winkler_90")


def laws() -> list[str | Law]:
    """The laws compared."""
    text = (models_dir() / "forgetting.toml").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("rho")]
    equal = parse_law("\n".join(lines).replace("rho*", ""), "rho = 1")
    return ["forgetting", equal, "form1", "form2", "form3", "dcpt"]


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("--points", action="store_true", help="point fits only")
    found.add_argument("--only", default="", help="part of 'split law discrepancy'; no points")
    found.add_argument("--effects", default="none")
    found.add_argument("--draws", type=int, default=1000)
    return found


def main() -> None:
    """Print both tables as Markdown."""
    args = parser().parse_args()
    warnings.simplefilter("ignore", bl.FitWarning)
    settings = {"draws": args.draws, "tune": 1000, "target_accept": 0.95, "retry": False}
    if args.smoke:
        points(laws()[:1])
        posteriors("279 from four forgetting none", args.effects, SMOKE)
        return
    if not args.only:
        points(laws())
    if not args.points:
        posteriors(args.only, args.effects, settings)


def points(compared: list[str | Law]) -> None:
    """Huber fits: RMSE of log loss in percent, and mean signed error (positive: too high)."""
    row("rows", "law", "parameters", "in sample", *SPLITS, "at D = 0")
    row(*["---"] * (5 + len(SPLITS)))
    for rows, query in (("replay < 1", "annealed and replay < 1"), ("all", "annealed")):
        table = bl.read_table(ENGLISH, where=f"{query} or tokens == 0")
        for law in compared:
            fitted = bl.fit_huber(law, table)
            cells = [errors(fitted, table.frame)]
            for train, test in SPLITS.values():
                seen, held = table.split(train, test)
                cells.append(errors(bl.fit_huber(law, seen), held.frame))
            start = table.baselines.assign(tokens=1e-9)
            cells.append(errors(fitted, start) if "G" in fitted.parameters else "none")
            row(rows, fitted.law.name, len(fitted.parameters), *cells)


def errors(fitted: bl.PointFit, frame) -> str:
    """RMSE and mean error of log loss, in percent."""
    miss = 100 * (np.log(fitted.predict(frame)) - np.log(frame["loss"]))
    return f"{np.sqrt(np.mean(miss**2)):.2f} ({miss.mean():+.2f})"


def posteriors(only: str, effects: str, settings: dict[str, Any]) -> None:
    """Bands of NUTS posteriors, rows with replay < 1."""
    print()
    row("held out", "law", "discrepancy", *SCORES, "gate", "largest curvature")
    row(*["---"] * (5 + len(SCORES)))
    table = bl.read_table(ENGLISH, where="annealed and replay < 1")
    for split in list(SPLITS)[:2]:
        train, test = table.split(*SPLITS[split])
        for law in laws():
            name = law if isinstance(law, str) else law.name
            for discrepancy in ("none", "curvature"):
                if only not in f"{split} {name} {discrepancy}":
                    continue
                asked = {"effects": effects, "discrepancy": discrepancy} | settings
                fit = bl.fit(law, train, **asked)
                scores = bl.score(fit, test, allow_unconverged=True)
                cells = (f"{scores[column]:.4f}" for column in SCORES)
                gate = "; ".join(fit.convergence.failures) or "passed"
                row(split, name, discrepancy, *cells, gate, farthest(fit, test))


def farthest(fit: bl.Posterior, test: bl.LossTable) -> str:
    """The curvature farthest from its prior, and the level of the check's part `curvature`."""
    part = judge_curvature(fit, test.frame)
    if part is None:
        return "none"
    name = part.frame["off"].abs().idxmax()
    return f"{name} {part.frame['off'][name]:+.1f}, {part.level}"


def row(*cells: object) -> None:
    """One line of a Markdown table."""
    print("|", " | ".join(map(str, cells)), "|", flush=True)


if __name__ == "__main__":
    main()
