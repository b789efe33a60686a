"""Train new bases, and what `python -m benchmarks closed_loop_plans` plans for them.

    python data/tinycpt/loop.py --work DIR bases     # writes benchmarks/closed_loop_bases.csv
    python data/tinycpt/loop.py --work DIR runs      # adds to benchmarks/closed_loop_runs.csv

Needs what tinycpt.py needs. `bases` trains bases that no table has (seed 7) and measures their
losses on all domains. `runs` trains every plan of benchmarks/closed_loop_plans.csv in several
orders of its text, and measures annealed losses at fractions of the plan's budget on the way;
`runs --beside` trains at replay ratios beside the plan's, in one order. Both may be interrupted
and started again.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import corpus
import pandas as pd
import torch
from lab import RECIPES, Lab, Unit
from train import losses

FOLDER = Path(__file__).parents[2] / "benchmarks"
PLANS, BASES, RUNS = (
    FOLDER / f"closed_loop_{name}.csv" for name in ("plans", "bases", "runs")
)
TARGETS = ("french", "python")
PLANNED = ("147k-p124-s7", "82k-p279-s7", "252k-p62-s7", "147k-p279-s7")
ORDERS = (1, 2, 3)
FRACTIONS = (0.5, 0.7, 0.85, 1.0)  # of a plan's budget
WIDER = (*FRACTIONS, 1.3)  # beside the plan's replay ratio
BESIDE = 0.08
COLUMNS = ["target", "base", "replay", "order", "atpp", "tokens", "english", "loss"]


def laboratories(work: Path, text: Path | None) -> dict[str, Lab]:
    """A lab for each target; they share the bases."""
    text = text or corpus.prepare(work, (corpus.SOURCE, *TARGETS))
    labs = {t: Lab(replace(RECIPES["loop"], target=t), work, text) for t in TARGETS}
    labs[TARGETS[0]].ledger.mend()
    return labs


def unit_of(base: str) -> Unit:
    """A base by its name."""
    size, ptpp, seed = base.split("-")
    return Unit(size, int(seed[1:]), int(ptpp[1:]))


def train_bases(labs: dict[str, Lab]) -> None:
    """Train the bases; write their own losses, in the columns of the tables."""
    lab, rows = labs[TARGETS[0]], []
    for name in PLANNED:
        unit = unit_of(name)
        for base in lab.bases(unit):
            lab.do(base)
        found: dict[str, float] = {}
        for each in labs.values():
            found |= losses(each.base(unit), each.windows)
        row = {
            "run": name,
            "base": name,
            "seed": unit.seed,
            "params": lab.recipe.params(unit.size),
        }
        row |= {
            "tokens": 0,
            "replay": 1.0,
            "ptpp": unit.ptpp,
            "atpp": 0,
            "annealed": True,
        }
        rows.append(row | {domain: round(loss, 5) for domain, loss in found.items()})
        print(*rows[-1].values(), flush=True)
        pd.DataFrame(rows).to_csv(BASES, index=False)


def train(lab: Lab, unit: Unit, atpps: list[float]) -> None:
    """Train one trajectory, unless that was done, and add its losses to the file."""
    done = pd.read_csv(RUNS) if RUNS.exists() else pd.DataFrame(columns=COLUMNS)
    key = [lab.recipe.target, unit.base, unit.replay, unit.order]
    if (done[COLUMNS[:5]] == [*key, max(atpps)]).all(axis=1).any():
        return
    rows = []
    for atpp, model in lab.annealed(unit, atpps):
        tokens = (
            lab.recipe.steps(unit.size, atpp) * lab.recipe.batch * lab.recipe.context
        )
        found = losses(model, lab.windows)
        rows.append(
            [*key, atpp, tokens, *(round(found[d], 5) for d in lab.recipe.domains)]
        )
    print(*key, *rows[-1][4:], flush=True)
    new = pd.DataFrame(rows, columns=COLUMNS)
    (pd.concat([done, new]) if len(done) else new).to_csv(RUNS, index=False)


def train_plans(labs: dict[str, Lab], beside: bool) -> None:
    """Train the plans that are feasible, the cheapest first."""
    plans = pd.read_csv(PLANS).query("status == 'feasible'")
    plans["cost"] = plans["atpp"] * plans["params"] ** 2
    for plan in plans.sort_values("cost").itertuples():
        for change in (-BESIDE, BESIDE) if beside else (0.0,):
            for order in ORDERS[:1] if beside else ORDERS:
                replay = round(plan.replay + change, 5)
                unit = replace(unit_of(plan.base), replay=replay, order=order)
                atpps = [
                    round(f * plan.atpp, 5) for f in (WIDER if beside else FRACTIONS)
                ]
                train(labs[plan.target], unit, atpps)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--work", type=Path, required=True, help="folder of text and weights"
    )
    parser.add_argument(
        "--corpus", type=Path, help="text made elsewhere; none is downloaded"
    )
    parser.add_argument("command", choices=("bases", "runs"))
    parser.add_argument(
        "--beside", action="store_true", help="replay ratios beside the plans'"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    labs = laboratories(options.work, options.corpus)
    if options.command == "bases":
        train_bases(labs)
    else:
        train_plans(labs, options.beside)


if __name__ == "__main__":
    main()
