"""Whether plans keep their promise: in synthetic worlds, and in runs that were trained later."""

import math
import time
from argparse import Namespace
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import bayeslaw as bl
from bayeslaw import Posterior
from bayeslaw.laws.departure import Departure
from bayeslaw.tables.bases import starting
from benchmarks.runner import FOLDER, SMOKE, Jobs, Tables, experiment
from benchmarks.splits import DATA
from benchmarks.worlds import FAMILIES, PILOTS, TRAIN, N, P, flops, purchase, world

# -- synthetic worlds --------------------------------------------------------------------------

CONFIDENCES = (0.8, 0.9)
WORLD_KEY = ["family", "number", "pilot", "law", "ratios"]


def planned(
    family: str,
    number: int,
    pilot: str,
    law: str,
    ratios: str,
    settings: dict[str, Any],
) -> pd.DataFrame:
    """Plans of one world at each confidence, for measured and for latent losses, and their risk.

    They are made by fits of a law, or of a pool of laws, to both domains, and search the fitted
    replay ratios or all.

    The risk is the share of 20,000 simulated new runs of the planned base that violate a limit;
    `oracle` is the least budget of one who knows the world.
    """
    truth, seeds = world(family, number), [13, FAMILIES.index(family), number]
    before = np.stack([table.loss for table in truth.tables([TRAIN], seeds)])
    limits, bought = truth.limits(TRAIN, before), purchase(PILOTS[pilot])
    tables, start = truth.tables([TRAIN, bought], seeds), time.process_time()
    how = {"cores": 1} | settings
    fit = bl.fit_pool if law == "adaptation" else bl.fit
    fits = [fit(law, t, seed=2 * number + i, **how) for i, t in enumerate(tables)]
    fits = [fit.accepted({"unconverged", "beyond-evidence"}) for fit in fits]
    fitted = time.process_time()
    failed = [
        f"{member.law.name} {domain}: {', '.join(member.convergence.failures)}"
        for domain, fit in zip(("target", "source"), fits, strict=True)
        for member in fit.members.values()
        if member.convergence.failures
    ]
    rows = []
    found = bl.plan(
        target=fits[0],
        source=fits[1],
        params=N,
        ptpp=P,
        **limits,
        base=f"{N:.3g}-{P:g}",
        confidence=CONFIDENCES[-1],
        losses="predictive",
        replay=None if ratios == "fitted" else np.linspace(0.02, 0.98, 25),
    )
    for noise in ("predictive", "latent"):
        for each in found.frontier(CONFIDENCES, losses=noise).to_dict("records"):
            row = {"gate": "; ".join(failed) or "passed", "noise": noise}
            row |= {"confidence": each["confidence"], "stated": each["p_both"]}
            row |= {"oracle": truth.oracle(limits, each["confidence"])}
            row |= {"atpp": each["atpp"], "replay": each["replay"]}
            row |= {"best": found.best.p_both if found.best else math.nan}
            if math.isfinite(each["atpp"]):
                row |= truth.outcome(limits, each["atpp"], each["replay"])
                row |= {"spent": flops(bought) / each["flops"]}
            for name, part in zip(
                ("target", "source"), found.spread.to_dict("records"), strict=False
            ):
                row |= {f"{name}_{part}": value for part, value in part.items()}
            rows.append(row)
    seconds = {"fit_s": fitted - start, "plan_s": time.process_time() - fitted}
    about = " ".join(f"{k}={v:.4g}" for k, v in truth.about.items() if k != "number")
    return pd.DataFrame(rows).assign(**seconds, **limits, world=about)


def by_family(rows: pd.DataFrame) -> Tables:
    """Plans of each confidence by pilot, law, kind of losses and family, and over all families."""
    tables = {}
    for confidence in CONFIDENCES:
        own, found = rows[np.isclose(rows["confidence"], confidence)], []
        kinds = ["pilot", "law", "ratios", "noise"]
        for (pilot, law, ratios, noise), part in own.groupby(kinds, sort=False):
            families = {**dict(list(part.groupby("family", sort=False))), "all": part}
            for family, each in families.items():
                about = {"pilot": pilot, "law": law, "ratios": ratios}
                about |= {"losses": noise, "family": family}
                found.append(about | summary(each))
        tables[f"planned at {confidence:.0%}"] = pd.DataFrame(found)
    return tables


def summary(rows: pd.DataFrame) -> dict[str, str]:
    """Feasible plans, how often they fail, ATPP over the least, and what their bands are made of.

    Bands: the largest part of the variance of log loss, and its share, median over worlds.
    """
    made = rows[np.isfinite(rows["atpp"])]
    found = {"worlds": f"{len(rows)}", "plans": f"{len(made)}"}
    if len(made):
        found["fail"] = f"{made['risk'].mean():.2f}"
        found["target"] = f"{made['risk_target'].mean():.2f}"
        found["forgetting"] = f"{made['risk_forgetting'].mean():.2f}"
        both = made[np.isfinite(made["oracle"])]
        low, middle, high = (both["atpp"] / both["oracle"]).quantile([0, 0.5, 1])
        found["over the least"] = f"{middle:.2f} ({low:.2f} to {high:.2f})"
    for domain in ("target", "source"):
        shares = rows.filter(regex=f"^{domain}_(?!sd)").median()
        sd = rows[f"{domain}_sd"].median()
        found[f"{domain} sd"] = f"{100 * sd:.1f} %, {shares.max():.2f}"
        found[f"{domain} sd"] += f" {shares.idxmax().partition('_')[2]}"
    return found | {"failed fits": f"{(rows['gate'] != 'passed').mean():.0%}"}


@experiment(by_family, worlds=40, pilot="short", law="transfer", ratios="fitted")
def violations(options: Namespace) -> Jobs:
    """Plans in synthetic worlds of eight families, and how often new runs violate their limits."""
    for number, family in product(range(options.worlds), FAMILIES):
        kind = options.pilot, options.law, options.ratios
        key = dict(zip(WORLD_KEY, (family, number, *kind), strict=True))
        yield key, partial(planned, *key.values(), options.settings)


# -- runs that were trained afterwards ---------------------------------------------------------

TABLES = {"french": DATA / "tinycpt", "python": DATA / "tinycode"}
COMPUTE = 81_796**2 * 279
"""Of the cheapest planned base, but for a constant."""
ASKED = ((0.8, 4, 0.25), (0.9, 4, 0.4))
"""Confidence, and ATPP and replay of the reference point whose medians are the limits."""
FITTED = "annealed and replay < 1 and seed == 0 and ptpp > 15 and atpp in (1, 4, 8, 16)"
"""Runs that are fitted, besides their base's cost: a part of the tables, since fits take long."""
SHARES = (85, 70, 50)
"""Smaller budgets that were run too, in percent of a plan's."""


@cache
def pools(target: str, folder: Path | None, smoke: bool) -> dict[str, bl.Pool]:
    """Pools of both domains, fitted to runs from bases that are cheaper than all planned ones."""
    found, frames = {}, {}
    for name in ("english", target):
        frame = pd.read_csv(TABLES[target] / f"{name}.csv")
        cheap = f"params ** 2 * ptpp < {COMPUTE} and (tokens == 0 or {FITTED})"
        cheap += " and ptpp > 100 and atpp < 5" if smoke else ""
        frames[name] = bl.from_frame(frame.query(cheap), f"{target}, {name}")
    for name in (target, "english"):
        path = folder / f"{target}-{name}.nc" if folder else None
        if path and path.exists():
            found[name] = bl.load(path)
            continue
        table = starting(frames[name], frames["english"])
        found[name] = bl.fit_pool(
            "adaptation", table, **({"seed": 0} | SMOKE if smoke else {"seed": 0})
        )
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            found[name].save(path)
    return found


def told(pool: bl.Pool, base: Any, domain: str) -> bl.Pool:
    """The pool, told the losses of a base that was made after the fit."""
    own = {"start_loss": getattr(base, domain), "base_loss": base.english}
    label = {"base": base.base, "params": base.params, "ptpp": base.ptpp}
    row = pd.DataFrame(
        [label | own | {"loss": own["start_loss"], "tokens": 0, "replay": 1.0}]
    )

    def one(fit: Posterior) -> Posterior:
        rows, law = pd.concat([fit.table.baselines, row], ignore_index=True), fit.law
        if departure := law.step(Departure):
            known = {base.base: (base.params, base.ptpp, *own.values())}
            bases = replace(departure.bases, known={**departure.bases.known, **known})
            law = law.with_steps(replace(departure, bases=bases))
        table, spec = replace(fit.table, baselines=rows), replace(fit.spec, law=law)
        return replace(fit, table=table, spec=spec)

    return replace(pool, members={name: one(fit) for name, fit in pool.members.items()})


def plan_of(
    target: str, base: Any, asked: Any, folder: Path | None, smoke: bool
) -> dict[str, Any]:
    """The plan for a base, and its limits: medians of the forecasts at the reference point."""
    confidence, atpp, replay = asked
    accepts = {"beyond-evidence"}
    if smoke:
        accepts.add("unconverged")
    own = {
        domain: told(pool, base, domain).accepted(accepts)
        for domain, pool in pools(target, folder, smoke).items()
    }
    row = bl.grid(
        params=base.params, ptpp=base.ptpp, tokens=atpp * base.params, replay=replay
    )
    losses = [
        np.median(own[d].latent(row.assign(base=base.base)))
        for d in (target, "english")
    ]
    limits = {
        "max_loss": round(float(losses[0]), 4),
        "max_forgetting": round(float(losses[1]) / base.english - 1, 4),
    }
    plan = bl.plan(
        target=own[target],
        source=own["english"],
        params=base.params,
        ptpp=base.ptpp,
        base=base.base,
        confidence=confidence,
        losses="predictive",  # as they were registered
        replay=np.linspace(0.1, 0.5, 17),
        **limits,
    )
    choice = plan.best or plan  # without a plan, the likeliest
    found = {
        "params": base.params,
        "ptpp": base.ptpp,
        "baseline": base.english,
        **limits,
    }
    names = ("atpp", "replay", "p_target", "p_forgetting", "p_both")
    found |= {"status": plan.status} | {name: getattr(choice, name) for name in names}
    return found | {"loss": choice.loss, "rise": choice.forgetting}


def outcomes(plans: pd.DataFrame) -> Tables:
    """Plans with what was measured: at the plan, and the least budget that met both limits."""
    found, runs = [], pd.read_csv(FOLDER / "closed_loop_runs.csv")
    plan: Any
    for plan in plans.itertuples():
        own = runs[(runs["target"] == plan.target) & (runs["base"] == plan.base)]
        own = own.assign(rise=own["english"] / plan.baseline - 1)
        own["met"] = (own["loss"] <= plan.max_loss) & (
            own["rise"] <= plan.max_forgetting
        )
        at = own[
            np.isclose(own[["atpp", "replay"]], [plan.atpp, plan.replay]).all(axis=1)
        ]
        points = own.groupby(["atpp", "replay"])[["loss", "rise"]].mean().reset_index()
        good = points[
            (points["loss"] <= plan.max_loss) & (points["rise"] <= plan.max_forgetting)
        ]
        row = {"runs": len(at), "target_met": (at["loss"] <= plan.max_loss).sum()}
        row |= {"forgetting_met": (at["rise"] <= plan.max_forgetting).sum()}
        row |= {"both_met": at["met"].sum(), "least_atpp": good["atpp"].min()}
        row |= {"measured_loss": at["loss"].mean(), "measured_rise": at["rise"].mean()}
        for share in SHARES:
            near = np.isclose(own["atpp"], share / 100 * plan.atpp, rtol=1e-3)
            row[f"held_{share}"] = own.loc[
                near & np.isclose(own["replay"], plan.replay), "met"
            ].sum()
        found.append(row)
    both = pd.concat([plans, pd.DataFrame(found)], axis=1).query("runs > 0")
    sums = both[["runs", "target_met", "forgetting_met", "both_met"]].sum()
    sums["plans registered"] = len(plans)
    sums["of these infeasible"] = (plans["status"] == "infeasible").sum()
    sums["plans kept in all runs"] = (both["both_met"] == both["runs"]).sum()
    for share in SHARES:
        sums[f"both at {share} %"] = both[f"held_{share}"].sum()
    for name in ("target", "forgetting", "both"):
        sums[f"stated {name}"] = (both[f"p_{name}"] * both["runs"]).sum() / both[
            "runs"
        ].sum()
    sums["ATPP over the least measured"] = (both["atpp"] / both["least_atpp"]).median()
    return {"plans": both, "all": sums.to_frame("of all")}


@experiment(outcomes, fits=None)
def closed_loop_plans(options: Namespace) -> Jobs:
    """Plans written down before their runs were trained by data/tinycpt/loop.py, and scored."""
    bases = pd.read_csv(FOLDER / "closed_loop_bases.csv")
    for target, base, asked in product(TABLES, bases.itertuples(), ASKED):
        key = {"target": target, "base": base.base, "confidence": asked[0]}
        yield key, partial(plan_of, target, base, asked, options.fits, options.smoke)
