"""Form 3 at PTPP {15, 31}: sampling in bayeslaw's coordinates and in the paper's coordinates.

The comparison is with the same law in raw coordinates (log A, log B, ... on raw N and D), with the
same likelihood and priors as wide, under the default sampler and settings of ``pm.sample`` (nutpie,
1000 + 1000, target acceptance .8). bayeslaw runs under its own defaults, without discrepancy. Both
run in this process on the same 168 synthetic rows, four chains on the same cores, and compilation
is not counted. The result is the smallest bulk ESS per second, over the sampled and the paper's
parameters.

    python benchmarks/sampling.py [--seeds 5] [--cores 1]
"""

import argparse
import time

import arviz_stats as azs
import numpy as np
import nutpie
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from tables import arguments

import bayeslaw as bl
from bayeslaw.inference.sampling import sample
from bayeslaw.model.building import data
from bayeslaw.model.spec import make_spec


def raw_model(table: bl.LossTable) -> pm.Model:
    """Form 3 in the paper's own parameters."""
    frame, law = table.frame, bl.load_law("form3")
    n, d, r, p = (frame[c].to_numpy() for c in ("params", "tokens", "replay", "ptpp"))
    with pm.Model() as model:
        e = pm.LogNormal("E", np.log(1.3), 0.4)
        a, b = (pm.Deterministic(s, pt.exp(pm.Normal(f"log_{s}", 5, 3))) for s in "AB")
        alpha = pm.LogNormal("alpha", np.log(0.28), 0.45)
        beta = pm.LogNormal("beta", np.log(0.3), 0.5)
        nu, gamma = pm.HalfNormal("nu", 0.5), pm.HalfNormal("gamma", 0.6)
        lam, zeta = pm.Beta("lambda_", 1.5, 3), pm.Normal("zeta", 0, 0.5)
        c, f = pm.LogNormal("C", np.log(0.1), 1), pm.LogNormal("F", np.log(0.5), 1)
        eta = pm.LogNormal("eta", np.log(0.33), 0.35)
        gate = beta * (1 - lam * pt.sigmoid(zeta * np.log(p)))
        loss = e + a / n**alpha + b * r**nu / d**gate + c / (r + law.epsilon) ** gamma + f / p**eta
        sigma = pm.LogNormal("sigma", np.log(0.004), 0.7)
        dof = pm.Gamma("dof", 2, 0.1)
        pm.StudentT("y", nu=2 + dof, mu=pt.log(loss), sigma=sigma, observed=np.log(table.loss))
    return model


def figures(draws: xr.Dataset, stats: xr.Dataset, seconds: float) -> dict[str, float]:
    """Smallest bulk ESS, R-hat, divergences, steps per draw and seconds."""
    ess = min(float(v) for v in azs.ess(draws, method="bulk").data_vars.values())
    rhat = max(float(v) for v in azs.rhat(draws).data_vars.values())
    return {
        "ess": ess,
        "rhat": rhat,
        "divergences": int(stats["diverging"].sum()),
        "steps": float(stats["n_steps"].mean()),
        "seconds": seconds,
        "ess_per_s": ess / seconds,
    }


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("--seeds", type=int, default=5)
    found.add_argument("--cores", type=int, default=1)
    return found


def main() -> None:
    """Run both on every seed and print the worst."""
    args = parser().parse_args()
    run, ours, raw = {"chains": 4, "cores": args.cores}, {}, {"draws": 1000, "tune": 1000}
    if args.smoke:
        args.seeds, ours, raw = 1, {"draws": 20, "tune": 20}, {"draws": 20, "tune": 20}
    table = bl.paper_world().table("french", seed=0).query("ptpp <= 31")
    spec = make_spec("form3")
    values, at = data(spec, table), spec.law.reference_point(table)
    compiled = nutpie.compile_pymc_model(raw_model(table))  # the default of pm.sample
    sample(spec, values, seed=0, chains=1, draws=10, tune=10, progress=False)
    rows: dict[str, list[dict[str, float]]] = {"raw": [], "bayeslaw": []}
    for seed in range(args.seeds):
        start = time.perf_counter()
        found = sample(spec, values, seed=seed, progress=False, **run, **ours)
        seconds = time.perf_counter() - start
        draws, stats = found.draws, found.stats
        law = spec.law
        paper = law.to_paper({n: draws[n].values for n in law.coordinates}, at)
        both = draws.assign({n: (("chain", "draw"), v) for n, v in paper.items()})
        rows["bayeslaw"].append(figures(both, stats, seconds))
        gate = found.convergence.failures
        start = time.perf_counter()
        tree = nutpie.sample(
            compiled, seed=seed, progress_bar=False, save_warmup=False, **raw, **run
        )
        seconds = time.perf_counter() - start
        rows["raw"].append(
            figures(tree["posterior"].dataset, tree["sample_stats"].dataset, seconds)
        )
        for name, every in rows.items():
            print(f"seed {seed} {name:9s}", {k: round(v, 3) for k, v in every[-1].items()})
        print(f"seed {seed} gate", gate or "passed", flush=True)
    worst = {name: min(found["ess_per_s"] for found in rows[name]) for name in rows}
    print(f"worst seed of each: {worst}, ratio {worst['bayeslaw'] / worst['raw']:.0f}")
    ratios = [
        mine["ess_per_s"] / theirs["ess_per_s"]
        for mine, theirs in zip(rows["bayeslaw"], rows["raw"], strict=True)
    ]
    print(f"ESS per second, bayeslaw over raw: worst seed {min(ratios):.0f}, ", end="")
    print(f"median {np.median(ratios):.0f}; {table.name}, {len(table)} rows")


if __name__ == "__main__":
    main()
