"""Does 90 % mean 90 %? Plans in synthetic worlds, and how often new runs violate their limits.

The worlds are of eight families (`adaptation_worlds.py`): laws as written, and seven ways in which
the world may differ from them. In each, 24 runs of PTPP 15 and 31 are measured on two domains, with
the bases' own losses. So are 20 anchors of small sizes at the planned stage, and a pilot, a short
run of the planned base. Then a run of the 8.1B base of PTPP 279 is planned with the pool of
``bl.fit("adaptation", table)``, two chains of 500 draws of each law, without a second attempt.
Limits are set from losses that were measured. A plan is judged by the measured losses of a new run
of that base: `risk` is the share of 20,000 simulated runs that violate a limit. `oracle` is the
least budget of one who knows the world. A world takes about 75 CPU seconds.

    OMP_NUM_THREADS=1 python benchmarks/violations.py [--worlds 40]
    python benchmarks/violations.py --show

Two remedies are measured beside it: plans for `latent` losses, from the same fits, and with
``--pilot long`` a pilot of four times the tokens.

Rows are kept in violations.csv beside this file, in the order of worlds: number 0 of every family
first. An interrupted run continues when it is started again. Plans are also made from fits that
fail their convergence check; the column `gate` says so.
"""

import argparse
import math
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from adaptation_worlds import FAMILIES, PILOTS, TRAIN, N, P, flops, purchase, world
from tables import SMOKE, arguments

import bayeslaw as bl

FIT: dict[str, Any] = {"chains": 2, "draws": 500, "cores": 1, "retry": False}
CONFIDENCES = (0.8, 0.9)
NOISE = ("predictive", "latent")
"""Losses that the limits are on when the plan is made; they are always judged on measured ones."""
RATIOS = np.linspace(0.02, 0.98, 25)
"""Replay ratios that are searched."""
KEYS = ["family", "number", "pilot"]


def measure(family: str, number: int, pilot: str, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of one world: each confidence, planned for measured and for latent losses."""
    warnings.simplefilter("ignore")
    truth, seeds = world(family, number), [13, FAMILIES.index(family), number]
    before = np.stack([table.loss for table in truth.tables([TRAIN], seeds)])
    limits, bought = truth.limits(TRAIN, before), purchase(PILOTS[pilot])
    tables, start = truth.tables([TRAIN, bought], seeds), time.process_time()
    fits = [
        bl.fit("adaptation", table, seed=2 * number + i, **settings)
        for i, table in enumerate(tables)
    ]
    fitted = time.process_time()
    failed = [
        f"{member.law.name} {domain}: {', '.join(member.convergence.failures)}"
        for domain, fit in zip(("target", "source"), fits, strict=True)
        for member in fit.members.values()
        if member.convergence.failures
    ]
    about = dict(zip(KEYS, (family, number, pilot), strict=True))
    about |= {"gate": "; ".join(failed) or "passed"}
    rows = []
    for noise in NOISE:
        found = bl.plan(
            target=fits[0],
            source=fits[1],
            params=N,
            ptpp=P,
            **limits,
            base=f"{N:.3g}-{P:g}",
            confidence=CONFIDENCES[-1],
            noise=noise,
            replay_grid=RATIOS,
            allow_unconverged=True,
            beyond_evidence=True,
        )
        for each in found.frontier(CONFIDENCES).to_dict("records"):
            row = about | {"noise": noise, "confidence": each["confidence"]}
            row |= {"oracle": truth.oracle(limits, each["confidence"]), "stated": each["p_both"]}
            row |= {"atpp": each["atpp"], "replay": each["replay"]}
            row |= {"best": found.best.p_both if found.best else math.nan}
            if math.isfinite(each["atpp"]):
                row |= truth.outcome(limits, each["atpp"], each["replay"])
                row |= {"spent": flops(bought) / each["flops"]}
            for name, part in zip(("target", "source"), found.spread.itertuples(), strict=False):
                shares = {part: value for part, value in part._asdict().items() if part[0] != "I"}
                row |= {f"{name}_{part}": value for part, value in shares.items()}
            rows.append(row)
    seconds = {"fit_s": fitted - start, "plan_s": time.process_time() - fitted}
    world_is = " ".join(f"{k}={v:.4g}" for k, v in truth.about.items() if k != "number")
    return [row | seconds | limits | {"world": world_is} for row in rows]


def table(rows: pd.DataFrame, confidence: float) -> pd.DataFrame:
    """Plans of one confidence by pilot, kind of losses and family, and over all families."""
    rows, found = rows[np.isclose(rows["confidence"], confidence)], []
    for (pilot, noise), own in rows.groupby(["pilot", "noise"], sort=False):
        for family in (*FAMILIES, "all"):
            part = own if family == "all" else own[own["family"] == family]
            if len(part):
                about = {"pilot": pilot, "losses": noise, "family": family}
                found.append(about | summary(part))
    return pd.DataFrame(found)


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


def show(rows: pd.DataFrame) -> None:
    """Print a table per confidence, and the seconds of a world."""
    for confidence in CONFIDENCES:
        print(f"\nplanned at {confidence:.0%}\n")
        print(table(rows, confidence).fillna("").to_markdown(index=False, stralign="right"))
    seconds = rows.drop_duplicates(KEYS)[["fit_s", "plan_s"]].mean()
    print(f"\nCPU seconds a world: {seconds['fit_s']:.0f} fits, {seconds['plan_s']:.0f} plans")


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("--worlds", type=int, default=40, help="of each family")
    found.add_argument("--pilot", choices=PILOTS, default="short")
    found.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".csv"))
    found.add_argument("--show", action="store_true", help="print the tables of --out")
    return found


def main() -> None:
    """Run what is missing, then print the tables."""
    args = parser().parse_args()
    if args.smoke:
        show(pd.DataFrame(measure("base", 0, "short", FIT | SMOKE)))
        return
    rows = pd.read_csv(args.out) if args.out.is_file() else pd.DataFrame(columns=KEYS)
    done = set(rows[KEYS].itertuples(index=False, name=None))
    asked = ((family, number, args.pilot) for number in range(args.worlds) for family in FAMILIES)
    for each in asked:
        if args.show or each in done:
            continue
        new = pd.DataFrame(measure(*each, FIT))
        rows = pd.concat([rows, new], ignore_index=True) if len(rows) else new
        rows.to_csv(args.out, index=False, float_format="%.5g")
        print(*new[[*KEYS, "noise", "confidence", "oracle", "atpp", "gate"]].iloc[1], flush=True)
    show(rows)


if __name__ == "__main__":
    main()
