"""Studies: buy anchors by several designs at equal FLOPs, refit, forecast, plan, and score.

A study is a set of *cells*, one per case, seed and design. The record of each finished cell is
written at once to a JSON file, so an interrupted study resumes with the cells that are missing. The
results are one Parquet or CSV file. Cells run through joblib, on the cores of this machine or on a
Dask cluster.
"""

import hashlib
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

import numpy as np
import pandas as pd

from bayeslaw import __version__
from bayeslaw.common import parallel
from bayeslaw.common.errors import BayeslawError, FileError, unknown
from bayeslaw.common.files import atomic_write
from bayeslaw.common.parallel import BACKENDS, Call, bar, finished
from bayeslaw.design.compared_designs import DESIGNS, Purchase, predicted_sd
from bayeslaw.design.set_search import costs
from bayeslaw.evaluate import scores
from bayeslaw.inference.fitting import joined, refit
from bayeslaw.inference.pools import load
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.settings import RefitSettings
from bayeslaw.planning.planner import plan
from bayeslaw.planning.result import Plan
from bayeslaw.studies.cases import Case
from bayeslaw.tables.reading import write_frame

VERSION = 1
"""Version of the records of cells. Raise it when they change, so that old files are not reused."""

type Record = dict[str, str | float | bool | None]
"""Record of a cell, by column of the results."""


@dataclass(frozen=True)
class Options:
    """Arguments of `study` that all its cells have in common."""

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
    **settings: Unpack[RefitSettings],
) -> pd.DataFrame:
    """Compare designs for the same cases, seeds and FLOPs.

    Parameters
    ----------
    cases : sequence of Case
        From `world_cases` and `pool_cases`.
    designs : sequence of str
        Names among ``none, random, cheapest, grid, doptimal, variance, entropy, plan``.
    out : str or Path
        File of the results (``.parquet`` or ``.csv``). Records of finished cells are stored in the
        folder ``OUT.cells``. A second run with the same arguments computes only missing cells.
    budget : float, optional
        FLOPs of every design; by default the cost of the design ``grid`` in each case.
    cost : "flops", "adaptation", or a column of the pool
        See `bayeslaw.choose_anchors`.
    planning : bool
        Whether to fit the source domain as well and plan the use case of the world. The design
        ``plan`` needs it.
    confidence : float
        Probability with which the plans meet the limits.
    backend : {"loky", "dask", "threading", "sequential"}
        Backend of joblib; ``dask`` needs the extra ``bayeslaw[dask]``.
    jobs : int
        Number of processes on this machine.
    scheduler : str, optional
        Address of a Dask scheduler; without it `jobs` processes on this machine form a cluster.
    progress : bool
        Whether to show a progress bar on stderr.
    **settings
        Arguments of `bayeslaw.inference.fitting.refit`. By default sampler runs are short and the
        model has no discrepancy.

    Returns
    -------
    DataFrame
        One row per cell: `case`, `seed`, `design`; `budget`, `flops`, `runs`, `rows`; the scores of
        `bayeslaw.score` at the targets; `sd`, the posterior standard deviation of log loss at the
        targets after the refit (median), and `sd_predicted`, its Bayes-linear prediction; `rhat`,
        `ess`, `divergences`; `seconds`. With plans: `atpp`, `replay`, `p_both`, and in a world
        `held`, whether the true losses meet both limits there.

    Raises
    ------
    BayeslawError
        If a design or the backend is unknown, or a case has no source domain to plan with.
    FileError
        If the folder of the cells cannot be written.
    """
    _check(cases, designs, backend, planning)
    if budget is not None and not 0 < budget < math.inf:
        raise BayeslawError(f"budget={budget:g}: give positive FLOPs.")
    if not 0 < confidence < 1:
        raise BayeslawError(f"confidence={confidence:g} is not between 0 and 1; 0.9 is 90 %.")
    for case in cases:
        costs(case.pool.frame, case.law.columns, cost=cost, fitted=case.train)
    out, options = Path(out), Options(budget, cost, planning, confidence)
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
    fits: dict[Path, Call[Posterior]] = {}
    for case, _ in missing.values():
        for each in _domains(case, planning):
            path = folder / f"{_key(each, settings)}.nc"
            fits |= {} if path.is_file() else {path: (_fit, (each, settings))}
    with (
        parallel.backend(backend, jobs, scheduler),
        bar(progress, "fits and cells", len(cells) + len(fits), len(cells) - len(missing)) as tick,
    ):
        for path, fitted in finished(fits):
            fitted.save(path)
            tick()
        first = {path: load(path) for path in folder.glob("*.nc")}
        work: dict[Path, Call[Record]] = {}
        for path, (case, design) in missing.items():
            own = [first[folder / f"{_key(e, settings)}.nc"] for e in _domains(case, planning)]
            work[path] = _cell, (case, design, own, options, settings)
        for path, record in finished(work):
            with atomic_write(path) as temporary:
                temporary.write_text(json.dumps(record), encoding="utf-8")
            tick()
    for path in folder.glob("*.nc"):
        path.unlink()
    results = pd.DataFrame([json.loads(path.read_text()) for path in cells])
    write_frame(results, out)
    return results


def summary(results: pd.DataFrame, against: str = "random") -> pd.DataFrame:
    """Summary of a study over seeds, with a paired comparison to one design.

    Parameters
    ----------
    results : DataFrame
        Result of `study`.
    against : str
        Design to compare with, seed by seed.

    Returns
    -------
    DataFrame
        One row per case and design: `cells`, their number; `flops`, `runs`, `rmse_log`, `width_90`,
        `crps`, `winkler_90`, medians over seeds; mean `coverage_90`; `better`, fraction of seeds
        with a smaller CRPS than `against`; `ratio`, median of the CRPS over that of `against`;
        `predicted`, median of predicted over realised posterior standard deviation. With plans:
        `atpp`, the median (infinite if infeasible), and `held`, the fraction of feasible plans for
        which the true losses meet both limits.
    """
    rows = []
    for (case, design), part in results.groupby(["case", "design"], sort=False):
        own = part.set_index("seed")
        other = results[(results["case"] == case) & (results["design"] == against)]
        ratio = (own["crps"] / other.set_index("seed")["crps"]).dropna()
        medians = ("flops", "runs", "rmse_log", "width_90", "crps", "winkler_90")
        row = {
            "case": case,
            "design": design,
            "cells": len(own),
            **{name: own[name].median() for name in medians},
            "coverage_90": own["coverage_90"].mean(),
            "better": (ratio < 1).mean() if design != against else np.nan,
            "ratio": ratio.median(),
            "predicted": (own["sd_predicted"] / own["sd"]).median(),
        }
        if "atpp" in own:
            budgets = own["atpp"].astype(float).fillna(np.inf)
            held = own["held"].dropna()
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


def _fit(case: Case, settings: RefitSettings) -> Posterior:
    return refit(case.law, case.train, case.seed, **settings)


def _cell(
    case: Case, design: str, fits: Sequence[Posterior], options: Options, settings: RefitSettings
) -> Record:
    """Buy, refit, forecast, plan and score."""
    start, (posterior, *source) = time.perf_counter(), fits
    price = costs(case.pool.frame, case.law.columns, cost=options.cost, fitted=case.train)
    purchase = Purchase(
        pool=case.pool,
        costs=price,
        budget=np.inf if options.budget is None else options.budget,
        rng=np.random.default_rng([case.seed, 0]),
        grid=case.grid,
        posterior=posterior,
        targets=case.targets,
        source=source[0] if source else None,
        plan=_plan(case, fits, options) if design == "plan" else None,
        cost=options.cost,
    )
    if options.budget is None:
        purchase = replace(purchase, budget=price.total(DESIGNS["grid"](purchase)))
    rows = DESIGNS[design](purchase)
    bought = case.pool.frame.loc[rows]
    after = list(fits)
    if rows:
        for i, each in enumerate(_domains(case, options.planning)):
            new = replace(each.pool, frame=each.pool.frame.loc[rows])
            after[i] = refit(each.law, joined(each.train, new), case.seed, **settings)
    forecast = after[0].forecast(
        case.targets,
        kind="latent" if case.exact else "predictive",
        seed=case.seed,
        allow_unconverged=True,
    )
    gate = after[0].convergence
    realised = predicted_sd(after[0], case.pool.frame.iloc[:0], case.targets)
    record: Record = {
        "case": case.name,
        "seed": case.seed,
        "design": design,
        "budget": purchase.budget,
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
    if options.planning:
        record |= _plan_record(case, _plan(case, after, options))
    return record | {"seconds": time.perf_counter() - start}


def _plan(case: Case, fits: Sequence[Posterior], options: Options) -> Plan:
    assert case.world is not None
    target, source = fits
    return plan(
        target=target,
        source=source,
        **case.world.limits,
        baseline=case.world.baseline(),
        confidence=options.confidence,
        seed=case.seed,
        allow_unconverged=True,
    )


def _plan_record(case: Case, chosen: Plan) -> Record:
    """The plan, and whether the true losses meet both limits there."""
    found: Record = {"atpp": chosen.atpp, "replay": chosen.replay, "p_both": chosen.p_both}
    world = case.world
    if world is None or not np.isfinite(chosen.atpp):
        return found | {"held": None}
    loss, after = world.adapted(chosen.replay, chosen.tokens)
    most = (1 + world.limits["max_forgetting"]) * world.baseline()
    return found | {"held": loss <= world.limits["max_loss"] and after <= most}


def _domains(case: Case, planning: bool) -> list[Case]:
    return [case, case.source] if planning and case.source is not None else [case]


def _key(
    case: Case, settings: RefitSettings, options: Options | None = None, design: str = ""
) -> str:
    """Name of a cell, or of the first fit of a case: a hash of all inputs of its numbers."""
    what: list[object] = [VERSION, __version__, design, sorted(settings.items())]
    what.append(vars(options) if options else None)
    for each in _domains(case, options is not None and options.planning):
        tables = [each.train, *([each.pool, each.targets] if options else [])]
        what += [each.seed, each.law.identity, [table.sha256 for table in tables]]
    what += [case.name, case.exact, case.grid] if options else []
    return hashlib.sha256(json.dumps(what, default=str).encode()).hexdigest()[:16]
