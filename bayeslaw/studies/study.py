"""Studies: buy anchors by several designs at equal FLOPs, refit, forecast, plan, and score.

A study is a set of *cells*, one per case, seed and design. Each finished cell is a small JSON file
written beside and then renamed, so a study that is killed goes on where it was; the results are one
Parquet file. Cells run through joblib, on the cores of this machine or on a Dask cluster.
"""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bayeslaw import __version__
from bayeslaw.common.errors import BayeslawError, FileError, unknown
from bayeslaw.common.files import atomic_write
from bayeslaw.common.progress import bar
from bayeslaw.design.anchors import predicted_sd
from bayeslaw.design.costs import costs
from bayeslaw.design.designs import DESIGNS, buy
from bayeslaw.evaluate import scores
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.refits import joined, refit
from bayeslaw.inference.storage import load
from bayeslaw.planning.planner import plan
from bayeslaw.planning.result import Plan
from bayeslaw.studies.backends import BACKENDS, Call, runner
from bayeslaw.studies.cases import Case
from bayeslaw.tables.reading import write_frame
from bayeslaw.tables.table import LossTable

VERSION = 1
"""Of the cells: raise it when what they hold changes, and old ones are not taken for new."""


@dataclass(frozen=True)
class Terms:
    """What is the same for all cells of a study; see `study`."""

    budget: float | None
    cost: str
    planning: bool
    confidence: float


def study(
    cases: Sequence[Case],
    designs: Sequence[str] = ("none", "random", "cheapest", "grid", "doptimal", "variance"),
    *,
    out: str | Path,
    budget: float | None = None,
    cost: str = "adaptation",
    planning: bool = False,
    confidence: float = 0.9,
    backend: str = "loky",
    jobs: int = 2,
    scheduler: str | None = None,
    progress: bool = False,
    **settings: Any,
) -> pd.DataFrame:
    """Compare designs on the same cases, seeds and FLOPs.

    Parameters
    ----------
    cases : sequence of Case
        From `world_cases` and `pool_cases`.
    designs : sequence of str
        Of ``none, random, cheapest, grid, doptimal, variance, entropy, plan``.
    out : str or Path
        Results (``.parquet`` or ``.csv``). Finished cells are kept in the folder ``OUT.cells``
        beside it: run again with the same arguments, and only what is missing is computed.
    budget : float, optional
        FLOPs of every design; by default what the design ``grid`` costs in each case.
    cost : "flops", "adaptation", or a column of the pool
        See `bayeslaw.choose_anchors`.
    planning : bool
        Whether to fit the source domain too and plan the world's use case; the design ``plan``
        needs it.
    confidence : float
        Of the plans.
    backend : {"loky", "dask", "threading", "sequential"}
        Of joblib; ``dask`` needs the extra ``bayeslaw[dask]``.
    jobs : int
        Processes on this machine.
    scheduler : str, optional
        Address of a Dask scheduler; without it `jobs` processes on this machine form a cluster.
    progress : bool
        Show a progress bar on stderr.
    **settings
        Of the refits, see `bayeslaw.inference.refits.refit`; by default short runs without discrepancy.

    Returns
    -------
    DataFrame
        One row per cell: `case`, `seed`, `design`; `budget`, `flops`, `runs`, `rows`; the scores of
        `bayeslaw.score` at the targets; `sd`, realised posterior standard deviation of log loss at
        the targets (median), and `sd_predicted`, the Bayes-linear one; `rhat`, `ess`,
        `divergences`; `seconds`. With plans: `atpp`, `replay`, `p_both`, and in a world whether the
        truth meets both limits there (`held`).

    Raises
    ------
    BayeslawError
        If a design or the backend is unknown, or a case lacks what a plan needs.
    """
    _check(cases, designs, backend, planning)
    out, terms = Path(out), Terms(budget, cost, planning, confidence)
    folder = out.with_name(out.name + ".cells")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise FileError(f"{folder}: cannot write: {error.strerror or error}.") from error
    cells = {
        folder / f"{_key(case, settings, terms, design)}.json": (case, design)
        for case in cases
        for design in designs
    }
    missing = {path: cell for path, cell in cells.items() if not path.is_file()}
    fits: dict[Path, Call] = {}
    for case, _ in missing.values():
        for each in _domains(case, planning):
            path = folder / f"{_key(each, settings)}.nc"
            fits |= {} if path.is_file() else {path: (_fit, (each, settings))}
    with (
        runner(backend, jobs, scheduler) as run,
        bar(progress, "fits and cells", len(cells) + len(fits), len(cells) - len(missing)) as tick,
    ):
        for path, fitted in run(fits):
            fitted.save(path)
            tick()
        first = {path: load(path) for path in folder.glob("*.nc")}
        work: dict[Path, Call] = {}
        for path, (case, design) in missing.items():
            own = [first[folder / f"{_key(e, settings)}.nc"] for e in _domains(case, planning)]
            work[path] = _cell, (case, design, own, terms, settings)
        for path, record in run(work):
            with atomic_write(path) as beside:
                beside.write_text(json.dumps(record), encoding="utf-8")
            tick()
    for path in folder.glob("*.nc"):
        path.unlink()
    results = pd.DataFrame([json.loads(path.read_text()) for path in cells])
    write_frame(results, out)
    return results


def summary(results: pd.DataFrame, against: str = "random") -> pd.DataFrame:
    """One row per case and design: medians over seeds, and how often it beats another design.

    Parameters
    ----------
    results : DataFrame
        From `study`.
    against : str
        Design to compare with, seed by seed.

    Returns
    -------
    DataFrame
        `cells`; `flops`, `runs`, `rmse_log`, `width_90`, `crps`, `winkler_90`, medians; mean
        `coverage_90`; `better`, share of seeds with a smaller CRPS than `against`, `ratio`, median
        of the CRPS over that of `against`; `predicted`, median of predicted over realised posterior
        sd; with plans `atpp`, the median (infeasible counts as infinite), and `held`, the share of
        feasible plans that the truth meets.
    """
    rows = []
    for (case, design), part in results.groupby(["case", "design"], sort=False):
        mine = part.set_index("seed")
        other = results[(results["case"] == case) & (results["design"] == against)]
        ratio = (mine["crps"] / other.set_index("seed")["crps"]).dropna()
        medians = ("flops", "runs", "rmse_log", "width_90", "crps", "winkler_90")
        row = {"case": case, "design": design, "cells": len(mine)}
        row |= {name: mine[name].median() for name in medians}
        row |= {"coverage_90": mine["coverage_90"].mean()}
        row |= {"better": (ratio < 1).mean() if design != against else np.nan}
        row |= {"ratio": ratio.median(), "predicted": (mine["sd_predicted"] / mine["sd"]).median()}
        if "atpp" in mine:
            budgets = mine["atpp"].astype(float).fillna(np.inf)
            held = mine["held"].dropna()
            row |= {"atpp": budgets.median(), "held": held.astype(float).mean()}
        rows.append(row)
    return pd.DataFrame(rows)


def _check(cases: Sequence[Case], designs: Sequence[str], backend: str, planning: bool) -> None:
    for design in designs:
        if design not in DESIGNS:
            raise BayeslawError(unknown("design", design, DESIGNS))
    if backend not in BACKENDS:
        raise BayeslawError(unknown("backend", backend, BACKENDS))
    if "plan" in designs and not planning:
        raise BayeslawError("the design 'plan' needs planning=True (--planning).")
    if planning and any(case.source is None or case.world is None for case in cases):
        raise BayeslawError("planning needs cases with a source domain, such as those of a world.")


# -- one cell -------------------------------------------------------------------------------------


def _fit(case: Case, settings: Mapping[str, Any]) -> Posterior:
    return refit(case.law, case.train, case.seed, **settings)


def _cell(
    case: Case, design: str, fits: Sequence[Posterior], terms: Terms, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Buy, refit, forecast, plan and score."""
    start, (posterior, *source) = time.perf_counter(), fits
    rng = np.random.default_rng([case.seed, 0])
    price = costs(case.pool.frame, case.law, cost=terms.cost, fitted=case.train.frame)
    first = _plan(case, fits, terms) if design == "plan" else None
    given: dict[str, Any] = {"grid": case.grid, "posterior": posterior, "targets": case.targets}
    given |= {"source": source[0] if source else None, "plan": first, "cost": terms.cost}
    budget = terms.budget
    if budget is None:
        budget = price.total(buy("grid", case.pool, price, np.inf, rng, **given))
    rows = buy(design, case.pool, price, budget, rng, **given)
    bought = case.pool.frame.loc[rows]
    after = list(fits)
    if rows:
        for i, each in enumerate(_domains(case, terms.planning)):
            new = LossTable(each.pool.frame.loc[rows], each.pool.baselines, each.pool.name)
            after[i] = refit(each.law, joined(each.train, new), case.seed, **settings)
    forecast = after[0].forecast(
        case.targets,
        kind="latent" if case.exact else "predictive",
        seed=case.seed,
        allow_unconverged=True,
    )
    gate = after[0].convergence
    realised = predicted_sd(after[0], case.pool.frame.iloc[:0], case.targets)
    record: dict[str, Any] = {
        "case": case.name,
        "seed": case.seed,
        "design": design,
        "budget": budget,
        "flops": price.total(rows),
        "runs": len(np.unique(price.run[rows])),
        "rows": len(rows),
        **{str(n): v for n, v in scores.score(forecast, case.targets).items()},
        "sd": float(np.median(realised)),
        "sd_predicted": float(np.median(predicted_sd(posterior, bought, case.targets))),
        "rhat": gate.rhat,
        "ess": min(gate.ess_bulk, gate.ess_tail),
        "divergences": gate.divergences,
    }
    if terms.planning:
        record |= _judged(case, _plan(case, after, terms))
    return record | {"seconds": time.perf_counter() - start}


def _plan(case: Case, fits: Sequence[Posterior], terms: Terms) -> Plan:
    assert case.world is not None
    target, source = fits
    limits: Any = case.world.limits
    return plan(
        target=target,
        source=source,
        **limits,
        baseline=case.world.baseline(),
        confidence=terms.confidence,
        seed=case.seed,
        allow_unconverged=True,
    )


def _judged(case: Case, chosen: Plan) -> dict[str, Any]:
    """The plan, and whether the true laws meet both limits there."""
    found = {"atpp": chosen.atpp, "replay": chosen.replay, "p_both": chosen.p_both}
    world = case.world
    if world is None or not np.isfinite(chosen.atpp):
        return found | {"held": None}
    limits = world.limits
    point = case.targets.frame.iloc[:1].assign(
        params=limits["params"], ptpp=limits["ptpp"], replay=chosen.replay, tokens=chosen.tokens
    )
    kept = (1 + limits["max_forgetting"]) * world.baseline()
    held = world.loss(world.target, point)[0] <= limits["max_loss"]
    return found | {"held": bool(held and world.loss(world.source, point)[0] <= kept)}


# -- parts ----------------------------------------------------------------------------------------


def _domains(case: Case, planning: bool) -> list[Case]:
    return [case, case.source] if planning and case.source is not None else [case]


def _key(
    case: Case, settings: Mapping[str, Any], terms: Terms | None = None, design: str = ""
) -> str:
    """Name of a cell, or of a case's first fit: a hash of all that its numbers depend on."""
    what: list[Any] = [
        VERSION,
        __version__,
        design,
        sorted(settings.items()),
        vars(terms) if terms else None,
    ]
    for each in _domains(case, terms is not None and terms.planning):
        tables = [each.train, *([each.pool, each.targets] if terms else [])]
        what += [each.seed, each.law.text, [table.sha256 for table in tables]]
    what += [case.name, case.exact, case.grid] if terms else []
    return hashlib.sha256(json.dumps(what, default=str).encode()).hexdigest()[:16]
