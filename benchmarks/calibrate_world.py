"""Calibrate the synthetic world of ``models/worlds/paper.toml`` to the paper's reported numbers.

    python benchmarks/calibrate_world.py

The paper reports a few errors on its tables and one optimum. Slopes and exponents at the training
rows' reference point are set to values typical of published fits. The parameters that the reported
numbers determine are then solved for:

- French ``slope_F`` and ``lambda_``: RMSE_log of D-CPT transfer and of Form 1 with 241M anchors;
- English/Arabic ``slope_F``: RMSE_log of D-CPT transfer;
- French ``E``: the target loss is met with equality at the optimum;
- English/Arabic ``E`` and ``slope_C``: the stated baseline, and the forgetting limit met with
  equality at the optimum. With more replay the French limit needs more tokens and the
  English/Arabic limit fewer, so the smallest budget is where both limits bind;
- ``sigma``: in-sample RMSE_log of the D-CPT oracle at the evaluation stage, mean over 40 seeds.

Prints the two ``[domains.*]`` tables; takes about a minute. With ``--smoke`` sigma is from one
seed.
"""

import argparse
import warnings

import numpy as np
from scipy.optimize import brentq, root
from tables import arguments

from bayeslaw import FitWarning, Law, LossTable, fit_huber, grid, paper_world, simulate
from bayeslaw.simulation.worlds import World

ATPP, REPLAY = 8.9, 0.34  # the paper's optimum
BASELINE = 2.05  # chosen: loss of the un-adapted 8.1B model, nats per token
TRANSFER = {"french": 3.47e-2, "english_arabic": 4.08e-2}  # D-CPT transfer, RMSE_log
FORM1_ANCHORED = 1.02e-2  # French, RMSE_log
ORACLE = {"french": 2.03e-3, "english_arabic": 5.77e-3}  # D-CPT oracle, RMSE_log
CHOSEN = {
    "french": {"slope_N": 0.1, "alpha": 0.3, "slope_D": 0.045, "beta_ref": 0.23, "nu": 0.4}
    | {"zeta": -0.3, "slope_C": 0.022, "gamma": 0.3, "eta": 0.33},
    "english_arabic": {"slope_N": 0.11, "alpha": 0.3, "slope_D": 0.02, "beta": 0.3, "nu": 0.1}
    | {"gamma": 0.3, "eta": 0.33},
}
type Truth = dict[str, float]


def rmse_log(law: str, train: LossTable, test: LossTable) -> float:
    """RMSE_log on `test` of a Huber fit on `train`."""
    residuals = np.log(fit_huber(law, train).predict(test)) - np.log(test.loss)
    return float(np.sqrt(np.mean(residuals**2)))


def transfer(world: World, law: Law, truth: Truth, fitted: str, anchors: str | None) -> float:
    """RMSE_log at the evaluation stage of a fit on the earlier ones, without noise."""
    table = simulate(law, truth, world.design())
    return rmse_log(fitted, *table.split("ptpp <= 31", "ptpp == 279", anchors))


def truth(world: World, domain: str, **solved: float) -> Truth:
    """Paper coordinates from the chosen and the solved reference coordinates, E by equality."""
    law, limits = world.laws[domain], world.limits
    at = law.reference_point(world.design().query("ptpp <= 31"))
    p = law.to_paper({"L_ref": 2.0} | CHOSEN[domain] | solved, at)
    goal, where = limits["max_loss"], {"replay": REPLAY, "tokens": ATPP * limits["params"]}
    if domain == world.source:
        goal, where = BASELINE, {"replay": 1.0, "tokens": limits["ptpp"] * limits["params"]}
    row = grid(params=limits["params"], ptpp=limits["ptpp"], **where)
    p["E"] += goal - law.loss(p, law.covariates(row))[0]
    return {name: float(f"{value:.6g}") for name, value in p.items()}


def french(world: World) -> Truth:
    """Solve for the pre-training floor and the gate."""
    law = world.laws["french"]

    def miss(free: np.ndarray) -> list[float]:
        p = truth(world, "french", slope_F=free[0], lambda_=free[1])
        return [
            transfer(world, law, p, "dcpt", None) / TRANSFER["french"] - 1,
            transfer(world, law, p, "form1", world.anchors) / FORM1_ANCHORED - 1,
        ]

    slope_F, lambda_ = root(miss, [0.025, 0.2], options={"eps": 1e-4, "xtol": 1e-4}).x
    return truth(world, "french", slope_F=round(slope_F, 4), lambda_=round(lambda_, 3))


def english_arabic(world: World) -> Truth:
    """Solve for the pre-training floor, then for the replay barrier."""
    domain, limits = "english_arabic", world.limits
    law = world.laws[domain]
    where = {"replay": REPLAY, "tokens": ATPP * limits["params"]}
    row = grid(params=limits["params"], ptpp=limits["ptpp"], **where)

    def barrier(slope_F: float) -> Truth:
        def over(slope_C: float) -> float:
            p = truth(world, domain, slope_F=slope_F, slope_C=slope_C)
            loss = law.loss(p, law.covariates(row))[0]
            return float(loss / BASELINE - 1 - limits["max_forgetting"])

        return truth(world, domain, slope_F=slope_F, slope_C=brentq(over, 1e-4, 0.5))

    def miss(slope_F: float) -> float:
        error = transfer(world, law, barrier(slope_F), "dcpt", None)
        return error / TRANSFER[domain] - 1

    return barrier(round(brentq(miss, 0.02, 0.1, xtol=1e-5), 4))


def sigma(world: World, domain: str, p: Truth, seeds: int = 40) -> float:
    """Noise at which the D-CPT oracle has the paper's error; the error is linear in the noise."""
    law, design, guess = world.laws[domain], world.design().query("ptpp == 279"), ORACLE[domain]
    tables = [simulate(law, p, design, sigma=guess, seed=seed) for seed in range(seeds)]
    errors = [rmse_log("dcpt", table, table) for table in tables]
    return float(f"{guess**2 / np.mean(errors):.3g}")


def parser() -> argparse.ArgumentParser:
    """Options."""
    return arguments(__doc__)


def main() -> None:
    """Print both tables."""
    smoke = parser().parse_args().smoke
    warnings.simplefilter("ignore", FitWarning)
    world = paper_world()
    for domain, solve in (("french", french), ("english_arabic", english_arabic)):
        p = solve(world)
        inline = ", ".join(f"{name} = {value!r}" for name, value in p.items())
        print(f"[domains.{domain}]\nlaw = {world.laws[domain].name!r}")
        spread = sigma(world, domain, p, 1 if smoke else 40)
        print(f"sigma = {spread}\ntruth = {{ {inline} }}\n", flush=True)


if __name__ == "__main__":
    main()
