"""Cases of a study: what was measured, what could be bought, and where the forecast is scored."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from bayeslaw.common.errors import BayeslawError
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.simulation.worlds import World, paper_world, simulate
from bayeslaw.tables.table import LossTable

OPTIMUM = {"atpp": 8.9, "replay": 0.34}
"""The paper's plan: in a varied world the limits are those that its truth meets there."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One problem of a study with one seed.

    Parameters
    ----------
    name : str
    seed : int
        Of the losses, where they are simulated, of random designs, and of the sampler.
    law : Law
    train, pool, targets : LossTable
        Rows to fit first, rows that can be bought, and rows to forecast, all with losses.
    exact : bool
        Whether the targets' losses have no noise, so that latent bands are scored.
    grid : str
        Query for the pool's rows that the design ``"grid"`` buys; without it, the smallest N.
    source : Case, optional
        The same runs in the domain that may be forgotten; needed to plan.
    world : World, optional
        The simulated world, to judge plans by.
    """

    name: str
    seed: int
    law: Law
    train: LossTable
    pool: LossTable
    targets: LossTable
    exact: bool = False
    grid: str = ""
    source: "Case | None" = None
    world: World | None = None


def world_cases(
    seeds: Iterable[int] = range(10),
    *,
    world: World | None = None,
    train: str = "ptpp <= 31",
    pool: str = "ptpp == 279 and params < 8e9",
    targets: str = "ptpp == 279 and params > 8e9",
    vary: float = 0.0,
) -> list[Case]:
    """Simulated cases, one per seed.

    Parameters
    ----------
    seeds : iterable of int
    world : World, optional
        By default the world of the paper's grid and use case.
    train, pool, targets : str
        Queries on the world's grid.
    vary : float
        Standard deviation, in logs, by which each seed's truth departs from the world's in every
        slope and exponent; 0 for the same truth in all.
    """
    base, cases = world or paper_world(), []
    for seed in seeds:
        here = varied(base, vary, seed) if vary else base
        each: Case | None = None
        for domain in (here.source, here.target):
            table, law = here.table(domain, seed=seed), here.laws[domain]
            aim = here.design().query(targets).reset_index(drop=True)
            each = Case(
                name="world" if not vary else f"world varied by {vary:g}",
                seed=seed,
                law=law,
                train=table.query(train),
                pool=table.query(pool),
                targets=simulate(law, here.truth[domain], aim.assign(domain=domain)),
                exact=True,
                grid=here.anchors,
                source=each,
                world=here,
            )
        assert each is not None
        cases.append(each)
    return cases


def pool_cases(
    table: LossTable,
    law: str | Law,
    *,
    train: str,
    pool: str,
    targets: str,
    seeds: Iterable[int] = range(10),
    grid: str = "",
    name: str = "",
) -> list[Case]:
    """Cases of a measured pool, where a purchase is looked up; seeds differ in chance alone.

    Raises
    ------
    TableError
        If a query keeps no row.
    BayeslawError
        If queries share rows.
    """
    parts = [table.query(query) for query in (train, pool, targets)]
    pairs = combinations((train, pool, targets), 2)
    if sum(len(table.query(f"({a}) or ({b})")) for a, b in pairs) != 2 * sum(map(len, parts)):
        raise BayeslawError("train, pool and targets share rows; make the queries exclusive.")
    law = load_law(law)
    law.check_fits(parts[0].frame, table.name)
    one = Case(
        name=name or table.name,
        seed=0,
        law=law,
        train=parts[0],
        pool=parts[1],
        targets=parts[2],
        grid=grid,
    )
    return [replace(one, seed=seed) for seed in seeds]


def varied(world: World, by: float, seed: int) -> World:
    """A world whose true slopes and exponents differ, each by a factor of about 1 +- `by`.

    The floors stay. The limits of the use case become those that the new truth just meets at the
    paper's plan, 8.9 ATPP at 34 % replay.
    """
    truth = {}
    for i, (domain, law) in enumerate(world.laws.items()):
        rng = np.random.default_rng([seed, i])
        at = law.reference_point(world.design())
        q = dict(law.to_reference(world.truth[domain], at))
        floor = q["L_ref"] - _above(law, q, at)
        for name in q.keys() - {"L_ref"}:
            q[name] = q[name] * np.exp(by * rng.standard_normal())
        q["L_ref"] = floor + _above(law, q, at)
        truth[domain] = {n: float(v) for n, v in law.to_paper(q, at).items()}
    new = replace(world, truth=truth)
    n, ptpp = world.limits["params"], world.limits["ptpp"]
    plan = new.design().iloc[:1].assign(params=n, ptpp=ptpp, replay=OPTIMUM["replay"])
    plan["tokens"] = OPTIMUM["atpp"] * n
    most, after = (float(new.loss(d, plan)[0]) for d in (new.target, new.source))
    limits = {"max_loss": most, "max_forgetting": after / new.baseline() - 1}
    return replace(new, limits={**world.limits, **limits})


def _above(law: Law, q: dict[str, float], at: dict[str, float]) -> float:
    """Loss over the floor at the reference point, nats per token."""
    p = law.sizes(q, at)
    return sum(float(p[name]) for name in law.coefficients)
