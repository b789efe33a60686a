"""Studies: buy anchors by several designs at equal FLOPs, refit, forecast and score.

A study is a set of *cells*, one per case, seed and design. The record of each finished cell is
written at once to a JSON file, so that an interrupted study resumes with the missing cells.
"""

import hashlib
import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Unpack

import numpy as np
import pandas as pd

from bayeslaw import __version__
from bayeslaw.common.errors import BayeslawError, FileError, unknown
from bayeslaw.common.files import Call, atomic_write, results
from bayeslaw.common.formatting import digits, percent
from bayeslaw.common.shown import Block, Format, Shown, Table
from bayeslaw.design.anchors import choose_anchors, predicted_sd
from bayeslaw.design.search import GAINS, SLACK, Costs, costs
from bayeslaw.evaluate import scores
from bayeslaw.inference.fitting import joined, refit
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.sampling import RefitSettings
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.simulation.worlds import World, paper_world, simulate
from bayeslaw.tables.table import LossTable, write_frame

DESIGNS = ("none", "cheapest", "grid", *(gain for gain in GAINS if gain != "plan"))
MOST = 40
"""Most runs of a design by gain; the others are limited by the budget alone."""
VERSION = 2
"""Version of the records of cells. Raise it when they change, so that old files are not reused."""

type Record = dict[str, str | float | bool | None]
"""Record of a cell, by column of the results."""


@dataclass(frozen=True)
class Options:
    """Arguments of `study` that all its cells have in common."""

    budget: float | None
    cost: str


@dataclass(frozen=True, kw_only=True)
class Case:
    """One problem of a study, for one seed.

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
    """

    name: str
    seed: int
    law: Law
    train: LossTable
    pool: LossTable
    targets: LossTable
    exact: bool = False
    grid: str = ""


def world_cases(
    seeds: Iterable[int] = range(10),
    *,
    world: World | None = None,
    train: str = "ptpp <= 31",
    pool: str = "ptpp == 279 and params < 8e9",
    targets: str = "ptpp == 279 and params > 8e9",
) -> list[Case]:
    """Simulated cases of a world's target domain, one per seed.

    Parameters
    ----------
    seeds : iterable of int
    world : World, optional
        By default `paper_world`.
    train, pool, targets : str
        Queries on the grid of the world.

    Returns
    -------
    list of Case

    Examples
    --------
    >>> (case,) = world_cases([0])
    >>> len(case.train), len(case.pool), len(case.targets)
    (168, 63, 21)
    """
    here = world or paper_world()
    domain, design, cases = here.target, here.design(), []
    aims = LossTable(design, design.iloc[:0], "targets").query(targets).frame
    exact = simulate(here.laws[domain], here.truth[domain], aims.assign(domain=domain))
    for seed in seeds:
        table = here.table(domain, seed=seed)
        case = Case(
            name="world",
            seed=seed,
            law=here.laws[domain],
            train=table.training(train),
            pool=table.query(pool),
            targets=exact,
            exact=True,
            grid=here.anchors,
        )
        cases.append(case)
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
    fitted, bought, aims = parts
    one = Case(
        name=name or table.name,
        seed=0,
        law=law,
        train=fitted,
        pool=bought,
        targets=aims,
        grid=grid,
    )
    return [replace(one, seed=seed) for seed in seeds]


def study(
    cases: Sequence[Case],
    designs: Sequence[str] = ("none", "random", "cheapest", "grid", "doptimal", "variance"),
    *,
    out: str | Path,
    budget: float | None = None,
    cost: str = "adaptation",
    jobs: int = 2,
    progress: bool | None = None,
    **settings: Unpack[RefitSettings],
) -> pd.DataFrame:
    """Compare designs for the same cases, seeds and FLOPs.

    Parameters
    ----------
    cases : sequence of Case
        From `world_cases` and `pool_cases`.
    designs : sequence of str
        Names among ``none, random, cheapest, grid, doptimal, variance, entropy``.
    out : str or Path
        File of the results (``.parquet`` or ``.csv``). Records of finished cells are stored in the
        folder ``OUT.cells``. A second run with the same arguments computes only missing cells.
    budget : float, optional
        FLOPs of every design; by default the cost of the design ``grid`` in each case.
    cost : "flops", "adaptation", or a column of the pool
        See `bayeslaw.choose_anchors`.
    jobs : int
        Number of processes on this machine; within ``joblib.parallel_config(backend="dask")`` the
        cells run on the Dask cluster that a client of yours is connected to.
    progress : bool, optional
        As for `bayeslaw.fit`.
    **settings
        Arguments of `bayeslaw.inference.fitting.refit`. By default sampler runs are short and the
        model has no discrepancy.

    Returns
    -------
    DataFrame
        One row per cell: `case`, `seed`, `design`; `budget`, `flops`, `runs`, `rows`; the scores of
        `bayeslaw.score` at the targets; `sd`, the posterior standard deviation of log loss at the
        targets after the refit (median), and `sd_predicted`, its Bayes-linear prediction; `rhat`,
        `ess`, `divergences`; `seconds`.

    Raises
    ------
    BayeslawError
        If a design or the cost is unknown.
    FileError
        If the folder of the cells cannot be written.
    """
    for design in designs:
        if design not in DESIGNS:
            raise BayeslawError(unknown("design", design, DESIGNS))
    if budget is not None and not 0 < budget < math.inf:
        raise BayeslawError(f"budget={budget:g}: give positive FLOPs.")
    for case in cases:  # raises for a cost that no row has, before anything is fitted
        costs(case.pool.frame, case.law.columns, cost=cost, fitted=case.train)
    out, options = Path(out), Options(budget, cost)
    folder = out.with_name(out.name + ".cells")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise FileError(f"{folder}: cannot write: {error.strerror or error}.") from error
    cells = {
        folder / f"{_key(case, settings, options, design)}.json": (case, design)
        for case in cases
        for design in designs
    }
    missing = {path: cell for path, cell in cells.items() if not path.is_file()}
    # Designs of one case share its first fits.
    fitted = {_key(case, settings): case for case, _ in missing.values()}
    fit = partial(refit, **settings)
    calls: list[Call[Posterior]] = [(fit, (c.law, c.train, c.seed)) for c in fitted.values()]
    first = dict(zip(fitted, results(calls, jobs, "first fits", progress), strict=True))
    work: list[Call[tuple[Path, Record]]] = []
    for path, (case, design) in missing.items():
        arguments = path, case, design, first[_key(case, settings)], options, settings
        work.append((_cell, arguments))
    # As they finish, whatever their order, so that a study that is killed keeps what it has.
    for path, record in results(work, jobs, "cells", progress, ordered=False):
        atomic_write(path, json.dumps(record))
    records = pd.DataFrame([json.loads(path.read_text()) for path in cells])
    write_frame(records, out)
    return records


def summary(results: pd.DataFrame, against: str = "random") -> pd.DataFrame:
    """Summary of a study over seeds, with a paired comparison to the design `against`.

    One row per case and design: `cells`, their number; medians over seeds; mean `coverage_90`;
    `better`, fraction of seeds with a smaller CRPS than `against`; `ratio`, median of the CRPS over
    that of `against`; `predicted`, median of predicted over realised posterior standard deviation.
    """
    rows = []
    for (case, design), part in results.groupby(["case", "design"], sort=False):
        cells = part.set_index("seed")
        other = results[(results["case"] == case) & (results["design"] == against)]
        ratio = (cells["crps"] / other.set_index("seed")["crps"]).dropna()
        medians = ("flops", "runs", "rmse_log", "width_90", "crps", "winkler_90")
        row = {
            "case": case,
            "design": design,
            "cells": len(cells),
            **{name: cells[name].median() for name in medians},
            "coverage_90": cells["coverage_90"].mean(),
            "better": (ratio < 1).mean() if design != against else np.nan,
            "ratio": ratio.median(),
            "predicted": (cells["sd_predicted"] / cells["sd"]).median(),
        }
        rows.append(row)
    return pd.DataFrame(rows)


def shown_study(results: pd.DataFrame, against: str) -> Shown:
    rows, rhat = summary(results, against), float(results["rhat"].median())
    names = {"flops": "FLOPs", "runs": "runs", "rmse_log": "RMSE", "width_90": "width"}
    names |= {"crps": "CRPS", "winkler_90": "Winkler", "coverage_90": "coverage"}
    names |= {"better": "better", "ratio": "ratio"}
    formats: dict[str, Format] = dict.fromkeys(names.values(), digits)
    formats |= dict.fromkeys(("coverage", "better"), percent)
    formats |= {"FLOPs": ".2g", "runs": ".3g"}
    blocks: list[Block] = []
    for case, designs in rows.groupby("case", sort=False):
        seeds = int(designs["cells"].max())
        frame = designs.set_index("design").rename(columns=names)[list(names.values())]
        title = f"{case}: {seeds} seed{'s' * (seeds != 1)} per design"
        blocks.append(Table(frame, title, formats, ("Winkler", "width")))
    blocks.append(
        "Medians over seeds, on log loss; width, Winkler: of the 90 % band; coverage: of the 90 % "
        f"band, mean; better, ratio: fraction of seeds with a smaller CRPS than {against}, and "
        "median ratio of the two."
    )
    bad = float((results["rhat"] > 1.05).mean())
    blocks.append(f"R-hat of the short refits: median {rhat:.3f}, {percent(bad)} above 1.05.")
    document = {"against": against, "designs": rows.to_dict("records")}
    return Shown("Study of designs", blocks, document | {"cells": len(results), "rhat": rhat})


def buy(
    design: str,
    case: Case,
    price: Costs,
    budget: float,
    fit: Posterior | None,
    *,
    cost: str = "adaptation",
    seed: int = 0,
) -> list[int]:
    """Positions in a case's pool of the rows that a design measures, free checkpoints included.

    `price` has the costs of the pool's rows; `fit`, the case's posterior, is for designs by gain,
    and `seed` for the design ``"random"``.
    """
    frame = case.pool.frame.drop(columns="loss")
    if design == "none":
        return []
    if design in GAINS and design != "random":
        assert fit is not None
        anchors = choose_anchors(
            fit,
            frame.assign(row=frame.index),
            case.targets.frame,
            k=MOST,
            budget=budget,
            cost=cost,
            gain=design,
            allow_unconverged=True,
        )
        return sorted(anchors.frame["row"])
    if design == "random":
        order = np.array(price.shuffled([case.seed, seed]))
    elif design == "cheapest":
        order = np.argsort(price.further([]), kind="stable")
    else:  # the paper's points, or the smallest N
        rows = frame.query(case.grid or "params == params.min()").index.to_numpy()
        order = rows[np.argsort(price.own[rows], kind="stable")]
    picks: list[int] = []
    for row in map(int, order):
        if price.total([*picks, row]) <= budget * SLACK:
            picks.append(row)
    return price.measured(picks)


def _cell(
    path: Path,
    case: Case,
    design: str,
    fit: Posterior,
    options: Options,
    settings: RefitSettings,
) -> tuple[Path, Record]:
    start = time.perf_counter()
    price = costs(case.pool.frame, case.law.columns, cost=options.cost, fitted=case.train)
    budget = options.budget
    if budget is None:
        budget = price.total(buy("grid", case, price, math.inf, None))
    rows = buy(design, case, price, budget, fit, cost=options.cost)
    bought, after = case.pool.frame.loc[rows], fit
    if rows:
        table = joined(case.train, replace(case.pool, frame=bought))
        after = refit(case.law, table, case.seed, **settings)
    kind = "latent" if case.exact else "predictive"
    forecast = after.forecast(
        case.targets, kind=kind, seed=case.seed, allow_unconverged=True, beyond_evidence=True
    )
    checked = after.convergence
    nothing = case.pool.frame.iloc[:0]
    # Bands of refits that did not converge are scored as well: leaving them out would favour the
    # designs whose posteriors are hard to sample.
    record: Record = {
        "case": case.name,
        "seed": case.seed,
        "design": design,
        "budget": budget,
        "flops": price.total(rows),
        "runs": len(np.unique(price.run[rows])),
        "rows": len(rows),
        **{str(n): v for n, v in scores.score(forecast, case.targets).items()},
        "sd": float(np.median(predicted_sd(after, nothing, case.targets))),
        "sd_predicted": float(np.median(predicted_sd(fit, bought, case.targets))),
        "rhat": checked.rhat,
        "ess": min(checked.ess_bulk, checked.ess_tail),
        "divergences": checked.divergences,
    }
    return path, record | {"seconds": time.perf_counter() - start}


def _key(
    case: Case, settings: RefitSettings, options: Options | None = None, design: str = ""
) -> str:
    """Name of a cell, or of the first fit of a case: a hash of all inputs of its numbers."""
    what: list[object] = [VERSION, __version__, design, sorted(settings.items())]
    what.append(vars(options) if options else None)
    tables = [case.train, *([case.pool, case.targets] if options else [])]
    what += [case.seed, case.law.identity, [table.sha256 for table in tables]]
    what += [case.name, case.exact, case.grid] if options else []
    return hashlib.sha256(json.dumps(what, default=str).encode()).hexdigest()[:16]
