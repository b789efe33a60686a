"""The loop closed: plans of runs that nobody had trained, written down, trained, and scored.

    python data/tinycpt/loop.py --work DIR bases          # closed_loop_bases.csv; needs torch
    python benchmarks/closed_loop.py plan --fits FITS     # closed_loop_plans.csv
    python data/tinycpt/loop.py --work DIR runs           # closed_loop_runs.csv; needs torch
    python benchmarks/closed_loop.py score

Bases of the lab of data/tinycpt that no table has are adapted to French and to Python. The pool of
`form1n` and `transfer` is fitted to annealed runs of data/tinycpt or data/tinycode, from every base
that took less compute to pre-train, N^2 PTPP, than the cheapest planned one. Of a planned base it
is told the losses before adaptation.

The limits are medians of these forecasts at a reference point: of the target loss there, and of the
rise of the English loss over the base's. So no run of the planned base is needed for them, and
a run at the reference point itself would probably miss one of the two. They are limits of measured
losses (`noise="predictive"`). Replay is searched where it was fitted, .1 to .5.

`score` compares P(both) with how often both limits held in runs of three orders of the text,
and the plan's ATPP with the smallest that met both limits of all points trained from its base.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tables import DATA, SMOKE, arguments

import bayeslaw as bl
from bayeslaw import Posterior
from bayeslaw.tables.table import starting

FOLDER = Path(__file__).parent
PLANS, BASES, RUNS = (FOLDER / f"closed_loop_{name}.csv" for name in ("plans", "bases", "runs"))
TABLES = {"french": DATA / "tinycpt", "python": DATA / "tinycode"}
COMPUTE = 81_796**2 * 279
"""Of the cheapest planned base, but for a constant."""
ASKED = ((0.8, 4, 0.25), (0.9, 4, 0.4))
"""Confidence, and ATPP and replay of the reference point whose medians are the limits."""
FITTED = "annealed and replay < 1 and seed == 0 and ptpp > 15 and atpp in (1, 4, 8, 16)"
"""Runs that are fitted, besides their base's cost: a part of the tables, since fits take long."""
RATIOS = np.linspace(0.1, 0.5, 17)
SHARES = (85, 70, 50)
"""Smaller budgets that were run too, in percent of a plan's."""
HEADER = "| target | base | P | limits | ATPP | least | replay | P(both) | loss | rise | held |"


def training_rows(target: str, domain: str) -> bl.LossTable:
    """Annealed runs of a domain from bases that are cheaper than all planned ones."""
    found = {}
    for name in {"english", domain}:
        frame = pd.read_csv(TABLES[target] / f"{name}.csv")
        cheap = f"params ** 2 * ptpp < {COMPUTE} and (tokens == 0 or {FITTED})"
        found[name] = bl.from_frame(frame.query(cheap), f"{target}, {name}")
    return starting(found[domain], found["english"])


def fitted(table: bl.LossTable, path: Path | None, settings: dict[str, Any]) -> bl.Pool:
    """The pool's posteriors, saved to a file or loaded from it."""
    if path is not None and path.exists():
        loaded = bl.load(path)
        assert isinstance(loaded, bl.Pool)
        return loaded
    pool: bl.Pool = bl.fit("adaptation", table, **settings)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        pool.save(path)
    return pool


def told(pool: bl.Pool, base: Any, domain: str) -> bl.Pool:
    """The pool, told the losses of a base that was made after the fit."""
    own = {"start_loss": getattr(base, domain), "base_loss": base.english}
    label = {"base": base.base, "params": base.params, "ptpp": base.ptpp}
    row = pd.DataFrame([label | own | {"loss": own["start_loss"], "tokens": 0, "replay": 1.0}])

    def one(fit: Posterior) -> Posterior:
        rows, law = pd.concat([fit.table.baselines, row], ignore_index=True), fit.law
        if law.bases is not None:
            known = {base.base: (base.params, base.ptpp, *own.values())}
            law = replace(law, bases=replace(law.bases, known={**law.bases.known, **known}))
        return replace(
            fit, table=replace(fit.table, baselines=rows), spec=replace(fit.spec, law=law)
        )

    return replace(pool, members={name: one(fit) for name, fit in pool.members.items()})


def median(pool: bl.Pool, base: Any, atpp: float, replay: float) -> float:
    """Median of the latent loss of a run from a base."""
    row = bl.grid(params=base.params, ptpp=base.ptpp, tokens=atpp * base.params, replay=replay)
    return float(np.median(pool.latent(row.assign(base=base.base))))


def plan_of(pools: dict[str, bl.Pool], target: str, base: Any, asked: Any, **extra: Any) -> Any:
    """The plan for a base, and its limits, as one row."""
    confidence, atpp, replay = asked
    own = {domain: told(pool, base, domain) for domain, pool in pools.items()}
    loss, english = (median(own[domain], base, atpp, replay) for domain in (target, "english"))
    limits = {"max_loss": round(loss, 4), "max_forgetting": round(english / base.english - 1, 4)}
    plan = bl.plan(
        target=own[target],
        source=own["english"],
        params=base.params,
        ptpp=base.ptpp,
        base=base.base,
        confidence=confidence,
        noise="predictive",
        replay_grid=RATIOS,
        beyond_evidence=True,
        **limits,
        **extra,
    )
    choice = plan.best or plan  # without a plan, the likeliest
    row = {"target": target, "base": base.base, "params": base.params, "ptpp": base.ptpp}
    row |= {"confidence": confidence, "baseline": base.english, **limits, "status": plan.status}
    row |= {n: getattr(choice, n) for n in ("atpp", "replay", "p_target", "p_forgetting", "p_both")}
    row |= {"loss": choice.losses[0], "rise": choice.forgetting}
    print(row, *plan.outside, sep="\n  ", flush=True)
    return row


def make_plans(targets: list[str], folder: Path | None) -> None:
    """Plan the bases that are there, and add the plans to the file."""
    bases = pd.read_csv(BASES)
    plans = pd.read_csv(PLANS).to_dict("records") if PLANS.exists() else []
    done = {(p["target"], p["base"], p["confidence"]) for p in plans}
    for target in targets:
        pools = {
            domain: fitted(
                training_rows(target, domain),
                folder and folder / f"{target}-{domain}.nc",
                {"seed": 0},
            )
            for domain in (target, "english")
        }
        for base in bases.itertuples():
            for asked in ASKED:
                if (target, base.base, asked[0]) not in done:
                    plans.append(plan_of(pools, target, base, asked))
                    pd.DataFrame(plans).round(5).to_csv(PLANS, index=False)


def held(runs: pd.DataFrame, plan: Any, share: float) -> int:
    """Runs at a share of a plan's budget, at its replay ratio, that met both limits."""
    at = np.isclose(runs["replay"], plan.replay)
    at &= np.isclose(runs["atpp"], share * plan.atpp, rtol=1e-3)
    met = (runs["loss"] <= plan.max_loss) & (runs["rise"] <= plan.max_forgetting)
    return int((at & met).sum())


def outcomes(plans: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Plans with what was measured: at the plan, and the least budget that met both limits."""
    found = []
    plan: Any
    for plan in plans.itertuples():
        own = runs[(runs["target"] == plan.target) & (runs["base"] == plan.base)]
        own = own.assign(rise=own["english"] / plan.baseline - 1)
        at = own[np.isclose(own[["atpp", "replay"]], [plan.atpp, plan.replay]).all(axis=1)]
        target, forgetting = at["loss"] <= plan.max_loss, at["rise"] <= plan.max_forgetting
        points = own.groupby(["atpp", "replay"])[["loss", "rise"]].mean().reset_index()
        good = points[(points["loss"] <= plan.max_loss) & (points["rise"] <= plan.max_forgetting)]
        found.append(
            {"runs": len(at), "target_met": target.sum(), "forgetting_met": forgetting.sum()}
            | {"both_met": (target & forgetting).sum(), "least_atpp": good["atpp"].min()}
            | {"measured_loss": at["loss"].mean(), "measured_rise": at["rise"].mean()}
            | {f"held_{share}": held(own, plan, share / 100) for share in SHARES}
        )
    return pd.concat([plans, pd.DataFrame(found)], axis=1)


def score() -> None:
    """Print the outcome of every plan, and of all together."""
    found = outcomes(pd.read_csv(PLANS), pd.read_csv(RUNS))
    found = found[found["runs"] > 0]
    print(HEADER, "| --- |" + " --- |" * (HEADER.count("|") - 2), sep="\n")
    for r in found.itertuples():
        print(
            f"| {r.target} | {r.base} | {r.confidence:.0%} | {r.max_loss:.3f}, "
            f"{r.max_forgetting:.1%} | {r.atpp:.2f} | {r.least_atpp:.2f} | {r.replay:.2f} | "
            f"{r.p_both:.2f} | {r.measured_loss:.3f} ({r.loss:.3f}) | "
            f"{r.measured_rise:.1%} ({r.rise:.1%}) | {r.both_met} of {r.runs} |"
        )
    runs = found["runs"].sum()
    for name in ("both", "target", "forgetting"):
        stated = (found[f"p_{name}"] * found["runs"]).sum() / runs
        print(f"{name}: held in {found[f'{name}_met'].sum()} of {runs} runs, stated {stated:.2f}")
    for share in SHARES:
        print(f"both with {share}% of the budget: {found[f'held_{share}'].sum()} of {runs}")
    errors = {
        "loss": found["measured_loss"] / found["loss"] - 1,
        "rise": found["measured_rise"] - found["rise"],
    }
    for name, error in errors.items():
        print(f"{name} less expected: mean {error.mean():+.2%}, mean size {error.abs().mean():.2%}")
    print(f"ATPP over the least measured: {(found['atpp'] / found['least_atpp']).median():.2f}")


def smoke() -> None:
    """Make one plan of few rows and draws; write nothing."""
    base, pools = pd.read_csv(BASES).query("params < 1e5").iloc[-1], {}
    for domain in ("french", "english"):
        table = training_rows("french", domain).query("ptpp > 100 and atpp < 5")
        pools[domain] = fitted(table, None, SMOKE)
    plan_of(pools, "french", base, ASKED[0], allow_unconverged=True)


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("step", nargs="?", choices=("plan", "score"), default="score")
    found.add_argument("--target", choices=TABLES, help="one only")
    found.add_argument("--fits", type=Path, help="folder for the posteriors; reused if there")
    return found


def main() -> None:
    """Plan, or score."""
    args = parser().parse_args()
    if args.smoke:
        smoke()
    if args.step == "plan":
        make_plans([args.target] if args.target else list(TABLES), args.fits)
    else:
        score()


if __name__ == "__main__":
    main()
