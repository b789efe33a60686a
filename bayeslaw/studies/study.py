"""Studies: buy anchors by several designs at equal FLOPs, refit, forecast, plan, and score.

A study is a set of *cells*, one per case, seed and design. The record of each finished cell is
written at once to a JSON file, so an interrupted study resumes with the cells that are missing. The
results are one Parquet or CSV file. Cells run through joblib.
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
from bayeslaw.common.errors import BayeslawError, FileError, unknown
from bayeslaw.common.files import Call, atomic_write, results
from bayeslaw.design.anchors import choose_anchors, predicted_sd
from bayeslaw.design.search import GAINS, SLACK, Costs, costs
from bayeslaw.evaluate import scores
from bayeslaw.inference.fitting import joined, refit
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.settings import RefitSettings
from bayeslaw.planning.planner import plan
from bayeslaw.planning.result import Plan
from bayeslaw.studies.cases import Case
from bayeslaw.tables.table import write_frame

DESIGNS = ("none", "random", "cheapest", "grid", *GAINS)
MOST = 40
"""Most runs of a design by gain; the others are limited by the budget alone."""
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
    jobs: int = 2,
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
    jobs : int
        Number of processes on this machine; within ``joblib.parallel_config(backend="dask")`` the
        cells run on the Dask cluster that a client of yours is connected to.
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
        If a design is unknown, or a case has no source domain to plan with.
    FileError
        If the folder of the cells cannot be written.
    """
    for design in designs:
        if design not in DESIGNS:
            raise BayeslawError(unknown("design", design, DESIGNS))
    if "plan" in designs and not planning:
        raise BayeslawError("the design 'plan' needs planning=True (--planning).")
    if planning and any(case.source is None or case.world is None for case in cases):
        raise BayeslawError("planning needs cases with a source domain, such as those of a world.")
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
    # Designs of one case share its first fits.
    domains = [each for case, _ in missing.values() for each in _domains(case, planning)]
    fitted = {_key(each, settings): each for each in domains}
    calls: list[Call[Posterior]] = [(_fit, (each, settings)) for each in fitted.values()]
    first = dict(zip(fitted, results(calls, jobs, "first fits", progress), strict=True))
    work: list[Call[tuple[Path, Record]]] = []
    for path, (case, design) in missing.items():
        fits = [first[_key(each, settings)] for each in _domains(case, planning)]
        work.append((_cell, (path, case, design, fits, options, settings)))
    for path, record in results(work, jobs, "cells", progress, ordered=False):
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps(record), encoding="utf-8")
    found = pd.DataFrame([json.loads(path.read_text()) for path in cells])
    write_frame(found, out)
    return found


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


def buy(
    design: str,
    case: Case,
    price: Costs,
    budget: float,
    fits: Sequence[Posterior],
    *,
    cost: str = "adaptation",
    planned: Plan | None = None,
    seed: int = 0,
) -> list[int]:
    """Positions in a case's pool of the rows that a design measures, free checkpoints included.

    `price` has the costs of the pool's rows, and `fits` the posteriors of the case and, for the
    design of a plan, of its source. `seed` is that of the design ``"random"``.
    """
    frame = case.pool.frame.drop(columns="loss")
    if design == "none":
        return []
    if design in GAINS:
        anchors = choose_anchors(
            fits[0],
            frame.assign(row=frame.index),
            case.targets.frame,
            k=MOST,
            budget=budget,
            cost=cost,
            gain=design,
            plan=planned,
            source=None if planned is None else fits[1],
            allow_unconverged=True,
        )
        return sorted(anchors.frame["row"])
    if design == "random":  # whole runs in random order
        whole = pd.Series(price.own).groupby(price.run).idxmax().to_numpy()
        order = np.random.default_rng([case.seed, seed]).permutation(whole)
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


def _fit(case: Case, settings: RefitSettings) -> Posterior:
    return refit(case.law, case.train, case.seed, **settings)


def _cell(
    path: Path,
    case: Case,
    design: str,
    fits: Sequence[Posterior],
    options: Options,
    settings: RefitSettings,
) -> tuple[Path, Record]:
    """Buy, refit, forecast, plan and score."""
    start = time.perf_counter()
    price = costs(case.pool.frame, case.law.columns, cost=options.cost, fitted=case.train)
    budget = options.budget
    if budget is None:
        budget = price.total(buy("grid", case, price, math.inf, fits))
    planned = _plan(case, fits, options) if design == "plan" else None
    rows = buy(design, case, price, budget, fits, cost=options.cost, planned=planned)
    bought, after = case.pool.frame.loc[rows], list(fits)
    if rows:
        for i, each in enumerate(_domains(case, options.planning)):
            new = replace(each.pool, frame=each.pool.frame.loc[rows])
            after[i] = refit(each.law, joined(each.train, new), case.seed, **settings)
    kind = "latent" if case.exact else "predictive"
    forecast = after[0].forecast(case.targets, kind=kind, seed=case.seed, allow_unconverged=True)
    checked = after[0].convergence
    nothing = case.pool.frame.iloc[:0]
    record: Record = {
        "case": case.name,
        "seed": case.seed,
        "design": design,
        "budget": budget,
        "flops": price.total(rows),
        "runs": len(np.unique(price.run[rows])),
        "rows": len(rows),
        **{str(n): v for n, v in scores.score(forecast, case.targets).items()},
        "sd": float(np.median(predicted_sd(after[0], nothing, case.targets))),
        "sd_predicted": float(np.median(predicted_sd(fits[0], bought, case.targets))),
        "rhat": checked.rhat,
        "ess": min(checked.ess_bulk, checked.ess_tail),
        "divergences": checked.divergences,
    }
    if options.planning and case.world is not None:
        chosen, limits = _plan(case, after, options), case.world.limits
        record |= {"atpp": chosen.atpp, "replay": chosen.replay, "p_both": chosen.p_both}
        record["held"] = None
        if math.isfinite(chosen.atpp):
            loss, later = case.world.adapted(chosen.replay, chosen.tokens)
            most = (1 + limits["max_forgetting"]) * case.world.baseline()
            record["held"] = loss <= limits["max_loss"] and later <= most
    return path, record | {"seconds": time.perf_counter() - start}


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
