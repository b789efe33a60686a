"""Frequency with which plans violate their limits in synthetic worlds, and their cost.

Each world draws a true target law (Form 3) and source law (Form 1) from priors centred at the
synthetic world of the paper's use case, with half the log standard deviation of the default priors
(`SPREAD`); data are simulated on the paper's training grid (PTPP 15 and 31, all sizes, and the 20
anchors at 279), Normal noise on log loss. Both laws are refitted with these same priors, so a
calibrated posterior is possible. `--kind misspecified` multiplies the true stage term by
(N / N_ref)^-phi, phi ~ Uniform(0, .33), which no fitted law has.

Limits are set from losses that a user would have measured, never from the true parameters. The
target limit is the measured loss of the 8.1B model at PTPP 31, ATPP 8, replay .25, times the ratio
that makes it 1.8 in the synthetic world; the baseline is set likewise from the source loss at ATPP
32, replay .5. With `measured` the baseline is instead the true loss of the un-adapted model, which
is not fitted. A plan is violated where a true loss at it exceeds its limit.

    OMP_NUM_THREADS=1 python benchmarks/violations.py --worlds 200 --out true.csv
    OMP_NUM_THREADS=1 python benchmarks/violations.py --kind misspecified --worlds 100 \
        --discrepancy curvature --out curved.csv

Rows are written as they are made, and an interrupted run continues when it is started again.
`--show FILE` prints the table of a file.
"""

import argparse
import csv
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tables import arguments

from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.sampling import sample
from bayeslaw.laws.law import Law
from bayeslaw.laws.priors import Prior
from bayeslaw.laws.terms import Power
from bayeslaw.model.building import data
from bayeslaw.model.spec import make_spec
from bayeslaw.planning.chance_constraints import Problem
from bayeslaw.planning.choices import Choice, cheapest, choice_at
from bayeslaw.planning.loss_curves import LossCurve
from bayeslaw.planning.planner import REPLAY_GRID, plan
from bayeslaw.simulation.worlds import paper_world, simulate
from bayeslaw.tables.table import LossTable, grid

WORLD = paper_world()
N, P = WORLD.limits["params"], WORLD.limits["ptpp"]
CONFIDENCES = (0.5, 0.8, 0.9, 0.95)
SPREAD = {"E": 0.2, "slope_N": 0.2, "alpha": 0.22, "slope_D": 0.45, "beta": 0.25, "beta_ref": 0.25}
SPREAD |= {"nu": 0.25, "slope_C": 0.4, "gamma": 0.25, "slope_F": 0.4, "eta": 0.18, "sigma": 0.35}
SHORT = {"chains": 2, "draws": 400, "tune": 500, "target_accept": 0.9, "cores": 1}


def cells() -> pd.DataFrame:
    """The training rows without losses."""
    design = WORLD.design()
    return design.query(f"ptpp <= 31 or ({WORLD.anchors})").reset_index(drop=True)


def priors(domain: str, at: dict[str, float]) -> dict[str, str]:
    """Priors centred at the synthetic world."""
    law, truth = WORLD.laws[domain], WORLD.truth[domain]
    centre = law.to_reference(truth, at) | {"E": truth["E"], "sigma": WORLD.sigma[domain]}
    text = {
        name: f"LogNormal(median={float(value)!r}, sigma={SPREAD[name]})"
        for name, value in centre.items()
        if name in SPREAD
    }
    if "zeta" in centre:
        text |= {"zeta": f"Normal(mu={truth['zeta']}, sigma=0.25)"}
        text |= {"lambda_": f"Beta(mu={truth['lambda_']}, sigma=0.1)"}
    return text


def draw(text: dict[str, str], rng: np.random.Generator) -> dict[str, float]:
    """One value of every prior."""
    q = {}
    for name, prior in ((n, Prior.parse(t)) for n, t in text.items()):
        mu, sigma = prior.kwargs["mu"], prior.kwargs["sigma"]
        if prior.name == "Beta":
            weight = mu * (1 - mu) / sigma**2 - 1
            q[name] = float(rng.beta(mu * weight, (1 - mu) * weight))
            continue
        value = mu + sigma * rng.standard_normal()
        q[name] = float(np.exp(value) if prior.name == "LogNormal" else value)
    return q


@dataclass(frozen=True)
class Truth:
    """A law, its term sizes at the reference point, and the noise."""

    law: Law
    p: dict[str, Any]
    at: dict[str, float]
    sigma: float

    def table(self, rng: np.random.Generator) -> LossTable:
        """Simulated training rows."""
        return simulate(
            self.law, self.law.rescale(self.p, self.at), cells(), sigma=self.sigma, seed=rng
        )

    def curve(self) -> LossCurve:
        """The law at the model and stage planned for."""
        p = {name: np.array([float(value)]) for name, value in self.p.items()}
        return LossCurve(self.law, p, self.at, N, P)


def truth(domain: str, kind: str, rng: np.random.Generator) -> Truth:
    """Draw a true law."""
    law = WORLD.laws[domain]
    at = law.reference_point(cells())
    q = draw(priors(domain, at), rng)
    phi = rng.uniform(0, 0.33)  # drawn in both kinds, so that their worlds are equal
    if kind == "misspecified":
        stage = Power("F", "slope_F", {"ptpp": "eta", "params": "phi"})
        terms = (*(t for t in law.terms if t.coefficient != "F"), stage)
        law, q = replace(law, terms=terms), q | {"phi": phi}
    p = law.sizes(q | {"L_ref": 0.0}, at)
    return Truth(law, p | {"E": q["E"]}, at, q["sigma"])


def refit(
    domain: str, table: LossTable, at: Any, discrepancy: str, seed: int, settings: dict[str, Any]
) -> Posterior:
    """Short chains of the law, compiled once."""
    spec = make_spec(
        WORLD.laws[domain], priors=priors(domain, at), likelihood="normal", discrepancy=discrepancy
    )
    found = sample(spec, data(spec, table), seed=seed, progress=False, **settings)
    return Posterior(spec, table, at, found.draws, found.stats, found.convergence)


def cell(table: LossTable, atpp: float, replay: float) -> float:
    """Measured loss of the largest model at PTPP 31."""
    rows = table.frame.query(f"params == {N} and ptpp == 31 and replay == {replay}")
    return float(rows.loc[np.isclose(rows["tokens"], atpp * N), "loss"].item())


def scaled(domain: str, table: LossTable, atpp: float, replay: float, wanted: float) -> float:
    """A measured loss, times the ratio that makes it `wanted` in the synthetic world."""
    row = grid(params=N, ptpp=31, replay=replay, tokens=atpp * N)
    return cell(table, atpp, replay) * wanted / float(WORLD.loss(domain, row)[0])


def outcome(truth: Problem, choice: Choice, oracle: Choice) -> dict[str, Any]:
    """Whether a choice meets the limits under the true laws."""
    if not math.isfinite(choice.atpp):
        return {"atpp": math.inf, "held": None, "oracle": oracle.atpp}
    real = choice_at(truth, math.log(choice.atpp), choice.replay, choice.tokens)
    return {
        "atpp": choice.atpp,
        "replay": choice.replay,
        "held": int(real.p_both),
        "held_target": int(real.p_target),
        "held_forgetting": int(real.p_forgetting),
        "stated": choice.p_both,
        "oracle": oracle.atpp,
    }


def world(
    number: int, kind: str, discrepancy: str, settings: dict[str, Any]
) -> list[dict[str, Any]]:
    """All plans of one world and whether they meet the limits."""
    rng = np.random.default_rng([7, number])
    names = (WORLD.target, WORLD.source)
    true = [truth(name, kind, rng) for name in names]
    tables = [each.table(rng) for each in true]
    fits = [
        refit(name, table, each.at, discrepancy, 2 * number + i, settings)
        for i, (name, table, each) in enumerate(zip(names, tables, true, strict=True))
    ]
    max_loss = scaled(names[0], tables[0], 8, 0.25, WORLD.limits["max_loss"])
    source = true[1].curve()
    baselines = {
        "given": scaled(names[1], tables[1], 32, 0.5, WORLD.baseline()),
        "measured": float(source.loss([1.0], math.log(P))[0, 0]),
    }
    rhat = max(fit.convergence.rhat for fit in fits)
    rows = []
    for baseline, value in baselines.items():
        found = plan(
            target=fits[0],
            source=fits[1],
            **{**WORLD.limits, "max_loss": max_loss},
            baseline=value,
            allow_unconverged=True,
        )
        real = replace(found.deterministic_problem, targets=(true[0].curve(),), source=source)
        oracle = cheapest(real, REPLAY_GRID)
        about = {"world": number, "baseline": baseline, "rhat": rhat}
        rows.append(about | {"plan": "deterministic"} | outcome(real, found.deterministic, oracle))
        for confidence in CONFIDENCES:
            choice = cheapest(replace(found.problem, confidence=confidence), found.replay_grid)
            rows.append(about | {"plan": f"{confidence:g}"} | outcome(real, choice, oracle))
    return rows


def show(path: Path) -> None:
    """Print violation frequencies with their standard error, and excess budgets."""
    rows = pd.read_csv(path)
    worlds = rows["world"].nunique()
    print(f"{path}: {worlds} worlds, largest R-hat above 1.05 in ", end="")
    print(f"{rows.drop_duplicates('world')['rhat'].gt(1.05).sum()}")
    for (baseline, name), group in rows.groupby(["baseline", "plan"], sort=False):
        made = group[np.isfinite(group["atpp"])]
        broken = 1 - made["held"].mean()
        error = math.sqrt(broken * (1 - broken) / max(len(made), 1))
        both = made[np.isfinite(made["oracle"])]
        excess = both["atpp"] / both["oracle"]
        print(
            f"{baseline:9s} {name:14s} plans {len(made):4d}  violated {100 * broken:5.1f} % "
            f"+- {100 * error:.1f}  stated {100 * (1 - made['stated'].mean()):5.1f} %  "
            f"target {100 * (1 - made['held_target'].mean()):5.1f} %  "
            f"forgetting {100 * (1 - made['held_forgetting'].mean()):5.1f} %  "
            f"ATPP over oracle {excess.median():.2f} "
            f"[{excess.quantile(0.1):.2f}, {excess.quantile(0.9):.2f}]"
        )


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("--worlds", type=int, default=200)
    found.add_argument("--kind", choices=("true", "misspecified"), default="true")
    found.add_argument("--discrepancy", choices=("none", "curvature"), default="none")
    found.add_argument("--out", type=Path)
    found.add_argument("--show", type=Path)
    return found


def main() -> None:
    """Simulate worlds, or show the table of a file."""
    args = parser().parse_args()
    settings = SHORT
    if args.smoke:
        args.worlds, settings = 1, SHORT | {"draws": 50, "tune": 50}
    if args.show:
        show(args.show)
        return
    out = args.out or Path(f"violations-{args.kind}-{args.discrepancy}.csv")
    fields = ["world", "baseline", "rhat", "plan", "atpp", "replay", "held", "held_target"]
    fields += ["held_forgetting", "stated", "oracle"]
    done = set(pd.read_csv(out)["world"]) if out.exists() else set()
    with out.open("a", newline="") as file:
        writer = csv.DictWriter(file, fields)
        if not done:
            writer.writeheader()
        for number in range(args.worlds):
            if number not in done:
                writer.writerows(world(number, args.kind, args.discrepancy, settings))
                file.flush()
    show(out)


if __name__ == "__main__":
    main()
