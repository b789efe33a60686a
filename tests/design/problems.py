"""Random design problems, and posteriors around a known truth."""

import numpy as np
import xarray as xr

from bayeslaw import Posterior, grid, load_law, paper_world
from bayeslaw.design.bayes_linear import JointGaussian, centred, measurements_by_run
from bayeslaw.inference.convergence import Convergence
from bayeslaw.model.spec import make_spec

POOL = grid(params=[2e8, 2e9, 6e9], tokens=[2e9, 2e10, 2e11])
GOALS = grid(params=[3e10], tokens=[1e11, 1e12])
LAW = load_law("chinchilla")
GOOD = Convergence(rhat=1.0, ess_bulk=1e6, ess_tail=1e6, divergences=0, bfmi=1.0)


def problem(seed: int, runs: int = 4, rows: int = 9, targets: int = 3, effect: float = 0.3):
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((5, rows + targets))
    draws = rng.standard_normal((200, 5)) @ mixing
    run = np.sort(rng.integers(runs, size=rows))
    run = np.unique(run, return_inverse=True)[1]
    base = run % 2
    joint = JointGaussian(
        measured=centred(draws[:, :rows]),
        targets=centred(draws[:, rows:]),
        noise=rng.uniform(0.05, 0.5, rows),
        effects=[(run, effect), (base, 0.2)],
        by_run=measurements_by_run(run, np.arange(rows, dtype=float), np.arange(rows)),
        candidate=np.arange(rows),
    )
    return joint, draws, run, base, effect


def prefix(run, options):
    return [i for i in range(len(run)) if any(run[i] == run[o] and i <= o for o in options)]


def around(world, domain: str, curvature: float | None = None) -> Posterior:
    """Four hundred draws around the true parameters, with or without curvature, without a fit."""
    spec = make_spec(world.laws[domain], discrepancy="none" if curvature is None else "curvature")
    table = world.table(domain).query("ptpp <= 31")
    at, rng = spec.law.reference_point(table.frame), np.random.default_rng(len(domain))
    truth = world.truth[domain] | dict.fromkeys(spec.law.discrepancy_parameters, curvature)
    q = spec.law.to_reference(truth, at) | {"sigma": 0.003, "dof_above_floor": 5.0}
    values = {
        name: (["chain", "draw"], v * (1 + 0.01 * rng.standard_normal((4, 100))))
        for name, v in q.items()
    }
    return Posterior(spec, table, at, xr.Dataset(values), xr.Dataset(), GOOD)


LIMITS = {"params": 8.1e9, "ptpp": 279, "max_loss": 1.9, "max_forgetting": 0.05}
LIMITS |= {"baseline": paper_world().baseline(), "confidence": 0.8}
