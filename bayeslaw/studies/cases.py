"""Cases of a study: rows to fit, rows that can be bought, and rows whose forecast is scored."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from bayeslaw.common.errors import BayeslawError
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.simulation.worlds import UseCase, World, paper_world, simulate
from bayeslaw.tables.table import LossTable

OPTIMUM = {"atpp": 8.9, "replay": 0.34}
"""The paper's plan. The limits of a varied world are the true losses there."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One planning problem of a study, for one seed.

    Parameters
    ----------
    name : str
    seed : int
        Seed of the losses, if they are simulated, of random designs and of the sampler.
    law : Law
    train, pool, targets : LossTable
        Rows of the first fit, rows that can be bought, and rows to forecast, all with losses.
    exact : bool
        Whether the losses of the targets have no noise. Bands of the latent loss are then scored.
    grid : str
        Query for the rows of the pool that the design ``"grid"`` buys; by default those of the
        smallest N.
    source : Case, optional
        The same runs in the domain that may be forgotten; needed to plan.
    world : World, optional
        The simulated world, in which plans are evaluated.
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
        By default `paper_world`.
    train, pool, targets : str
        Queries on the grid of the world.
    vary : float
        Standard deviation, in logs, of each slope and exponent about its value in the world, drawn
        anew for each seed; with 0 all seeds have the same true laws.

    Returns
    -------
    list of Case

    Examples
    --------
    >>> (case,) = world_cases([0])
    >>> len(case.train), len(case.pool), len(case.targets)
    (168, 63, 21)
    """
    if not 0 <= vary < math.inf:
        raise BayeslawError(f"vary={vary:g}: give a standard deviation, 0 or more.")
    base, cases = world or paper_world(), []
    for seed in seeds:
        here = varied(base, vary, seed) if vary else base
        each: Case | None = None
        for domain in (here.source, here.target):
            table, law = here.table(domain, seed=seed), here.laws[domain]
            design = here.design()
            aim = LossTable(design, design.iloc[:0], "targets").query(targets).frame
            each = Case(
                name="world" if not vary else f"world varied by {vary:g}",
                seed=seed,
                law=law,
                train=table.training(train),
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
    """Cases of a measured table: the losses of bought rows are looked up in it.

    Parameters
    ----------
    table : LossTable
    law : str, path or Law
    train, pool, targets : str
        Queries on the table; no row may satisfy two of them.
    seeds : iterable of int
        Seeds of random designs and of the sampler.
    grid : str
        Query for the rows of the pool that the design ``"grid"`` buys.
    name : str
        Name of the cases; by default that of the table.

    Returns
    -------
    list of Case

    Raises
    ------
    TableError
        If a query selects no row.
    BayeslawError
        If two queries select the same row.
    """
    parts = [table.query(query) for query in (train, pool, targets)]
    pairs = combinations((train, pool, targets), 2)
    if sum(len(table.query(f"({a}) or ({b})")) for a, b in pairs) != 2 * sum(map(len, parts)):
        raise BayeslawError(
            "train, pool and targets have rows in common; make the queries exclusive."
        )
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
    """Variant of a world with other true slopes and exponents, each by a factor of about 1 +- `by`.

    The floors are unchanged. The limits of the use case become the true losses at the paper's plan,
    8.9 ATPP at 34 % replay.
    """
    truth = {}
    for i, (domain, law) in enumerate(world.laws.items()):
        rng = np.random.default_rng([seed, i])
        at = law.reference_point(world.design())
        q = dict(law.to_reference(world.truth[domain], at))
        terms = law.amounts(q, at)
        floor = q["L_ref"] - sum(float(terms[name]) for name in law.coefficients)
        for name in law.coordinates[1:]:
            q[name] = q[name] * np.exp(by * rng.standard_normal())
        terms = law.amounts(q, at)
        q["L_ref"] = floor + sum(float(terms[name]) for name in law.coefficients)
        truth[domain] = {n: float(v) for n, v in law.to_paper(q, at).items()}
    new = replace(world, truth=truth)
    most, after = new.adapted(OPTIMUM["replay"], OPTIMUM["atpp"] * world.limits["params"])
    limits: UseCase = {
        **world.limits,
        "max_loss": most,
        "max_forgetting": after / new.baseline() - 1,
    }
    return replace(new, limits=limits)
