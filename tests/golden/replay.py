"""Recompute golden results and compare them with goldens.json.

    OMP_NUM_THREADS=1 python tests/golden/replay.py [density huber posteriors fits]
    OMP_NUM_THREADS=1 python tests/golden/replay.py record

``density``: log densities and gradients of laws at 20 points each, to 1e-10, and ``huber``: point
fits, to 1e-9; both are of commit e6d23c6. ``posteriors``: forecasts, checks, scores, plans and
anchors of four saved posteriors, to 1e-9. ``fits``: forecasts of the same four fits made afresh;
these depend on how the processor rounds, and agree to 1e-9 only on the kind that recorded them.
Without arguments all four are run. ``record`` makes the four fits and what is computed from them
again.

Point fits are within the bounds of the priors. Of them the objective is compared, and which
parameters end on a bound: the code that recorded them gives a third of the parameters to other
digits on another processor, where the objective is flat.

Only the functions under "calls into the package" import its modules.
"""

import functools
import json
import math
import operator
import sys
import time
from pathlib import Path

import numpy as np

import bayeslaw as bl
from bayeslaw.checks._check import judge_alone

HERE = Path(__file__).parents[1] / "data"

# -- calls into the package -----------------------------------------------------------------

DATA = Path(__file__).parents[2] / "data"


def measured(csv, query):
    """Rows of a table of data/, under a name that does not depend on the machine."""
    table = bl.read_table(DATA / csv).query(query)
    return type(table)(table.frame, table.baselines, csv)


def simulated(domain, seed, query):
    return bl.paper_world().table(domain, seed=seed).query(query)


FLOORS = {"forgetting": "LogNormal(median=1.3, sigma=0.4)"}
"""Priors of E, as recorded, where it is not that of the other laws."""


def model_of(law, table, likelihood):
    """The PyMC model of one law."""
    from bayeslaw.model.building import build
    from bayeslaw.model.spec import make_data, make_spec

    priors = {"E": FLOORS.get(law, "LogNormal(median=1.2, sigma=0.6)")}
    spec = make_spec(law, likelihood=likelihood, priors=priors)
    return build({"": make_data(spec, table)})


def log_likelihood(posterior):
    from bayeslaw.inference.residuals import log_likelihood

    return log_likelihood(posterior)


# The rest is the public interface: bl.fit_huber, bl.fit, bl.load, posterior.forecast, .summary,
# bl.plan, bl.choose_anchors, bl.check, bl.score, bl.loo, bl.grid, bl.paper_world.

SCALE = 0.1
"""Of the noise about the start, where a case does not say `nearer`."""

# -- density ----------------------------------------------------------------------------------


def table_of(definition):
    kind, *rest = definition
    return measured(*rest) if kind == "data" else simulated(*rest)


def tables_of(goldens):
    return {name: table_of(d) for name, d in goldens["tables"].items()}


def unpack(goldens):
    """Split what the file holds of each variable: its start, and two numbers of its gradient.

    The numbers are those of `dots` at the first point, and `mix` of those at all points.
    """
    for case in goldens.get("density", []):
        variables, nearer = case.pop("variables"), case.pop("nearer")
        case["start"] = {n: v[0] for n, v in variables.items()}
        case["gradient"] = {n: v[1:] for n, v in variables.items()}
        case["scales"] = [nearer.get(str(i), SCALE) for i in range(len(case["logp"]))]
    return goldens


def compiled(model):
    """Log density with Jacobian and its gradient by value variable, as one function of a point.

    By the Python linker without rewrites: no compiler, a second or two per model. The terms are
    added one by one, since NumPy's ufuncs take no more than 32 operands.
    """
    import pytensor
    import pytensor.tensor as pt
    from pytensor.compile.mode import Mode

    logp = functools.reduce(operator.add, [term.sum() for term in model.logp(sum=False)])
    free = list(model.value_vars)
    function = pytensor.function(
        free,
        [logp, *pt.grad(logp, free)],
        mode=Mode(linker="py", optimizer=None),
        on_unused_input="ignore",
    )
    names = [variable.name for variable in free]

    def evaluate(point):
        with np.errstate(all="ignore"):
            value, *gradient = function(*(point[name] for name in names))
        return float(value), dict(zip(names, gradient, strict=True))

    return evaluate


def point_of(case, shapes, index, scale):
    """The point of an index: the case's start plus noise, variables sorted by name, xi as kappa."""
    rng = np.random.default_rng([case["index"], index])
    return {
        name: case["start"][name] + scale * rng.standard_normal(shapes[name])
        for name in sorted(case["start"], key=lambda name: name.replace("xi_", "kappa_"))
    }


def dots(gradient):
    """Each variable's gradient, flattened, times cos(1), cos(2), ..."""
    return {
        n: float(np.ravel(g) @ np.cos(np.arange(1, np.size(g) + 1))) for n, g in gradient.items()
    }


def densities(case, tables):
    """Log densities, and the gradients' dot products by variable, at every point of a case."""
    model = model_of(case["law"], tables[case["table"]], case["likelihood"])
    names = sorted(v.name for v in model.value_vars)
    if names != sorted(case["start"]):
        raise ValueError(f"variables {sorted(set(names) ^ set(case['start']))} differ")
    evaluate = compiled(model)
    shapes = {n: np.shape(v) for n, v in model.initial_point().items()}
    logp, gradient = [], {name: [] for name in names}
    for i, scale in enumerate(case["scales"]):
        value, slopes = evaluate(point_of(case, shapes, i, scale))
        logp.append(value)
        for name, dot in dots(slopes).items():
            gradient[name].append(dot)
    return logp, gradient


# -- Huber fits -------------------------------------------------------------------------------


def huber(law, table):
    """What defines a point fit; parameters along a flat objective depend on the processor."""
    fit = bl.fit_huber(law, table, bounds="prior")
    return {"objective": float(fit.objective), "at_bounds": sorted(fit.at_bounds)}


# -- posteriors -------------------------------------------------------------------------------


def fresh(goldens, tables, name):
    """Fit again, as recorded."""
    each = goldens["posteriors"]["fitted"][name]
    return bl.fit(each["law"], tables[each["table"]], **each["arguments"])


def rows_of(goldens, name):
    import pandas as pd

    return pd.DataFrame(goldens["posteriors"]["rows"][name])


def forecasts(posterior, rows):
    return {
        kind: posterior.forecast(rows, kind=kind, seed=3, allow_unconverged=True)
        .quantile([0.05, 0.5, 0.95])
        .tolist()
        for kind in ("predictive", "latent")
    }


def numbers(value):
    """Plain numbers, texts and lists of anything."""
    if isinstance(value, dict):
        return {str(k): numbers(v) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return numbers(value.tolist())
    if isinstance(value, list | tuple):
        return [numbers(v) for v in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else str(float(value))
    return value if value is None else str(value)


def frame_numbers(frame):
    """A frame by columns."""
    return numbers({c: frame[c].tolist() for c in frame})


def own_results(posterior, rows, table):
    """What a posterior says by itself."""
    density = log_likelihood(posterior)
    loo = bl.loo(posterior)
    parts = {}
    for part in judge_alone(posterior, bl.LossTable(rows, rows.iloc[:0], "rows"), 3):
        own = part.frame.select_dtypes("number")
        parts[part.name] = {
            "level": part.level,
            "facts": numbers(dict(part.facts)),
            "sums": numbers({c: float(np.nansum(own[c])) for c in own}),
        }
    columns = ["mean", "sd", "q05", "q95", "rhat", "ess_bulk", "ess_tail"]  # as recorded
    summary = posterior.summary()[columns]
    return {
        "forecast": forecasts(posterior, rows),
        "score": numbers(bl.score(posterior, table, seed=3, allow_unconverged=True).to_dict()),
        "log_likelihood": [float(density.sum()), *numbers(density.sum(0)[:5])],
        "loo": [float(loo.total), float(loo.se)],
        "summary": {str(n): numbers(row.tolist()) for n, row in summary.iterrows()},
        "convergence": numbers(vars(posterior.convergence)),
        "check": {"parts": parts},
    }


LATER = ("p_sources", "forgettings")
"""Results that the recording does not have."""


def without(found):
    """Without the entries of `LATER`."""
    return {n: v for n, v in found.items() if n not in LATER} if isinstance(found, dict) else found


PLANNED = ("status", "atpp", "replay", "tokens", "flops", "binds", "held_out", "pairing")


def planned(posteriors, case):
    """A plan: the choice and its probabilities, the deterministic one, the bootstrap's error."""
    settings = {k: v for k, v in case.items() if k not in ("target", "source")}
    plan = bl.plan(
        target=posteriors[case["target"]],
        source=posteriors[case["source"]],
        allow_unconverged=True,
        **{"noise": "latent"} | settings,
    )
    found = without(plan.to_dict())
    keep = [n for n in found if n in PLANNED or n.startswith("p_")]
    result = {n: numbers(found[n]) for n in keep}
    nested = ("best", "deterministic", "error", "outside")
    result |= {n: numbers(without(found[n])) for n in nested}
    frontier = plan.frontier((0.5, 0.8, 0.9))
    result["frontier"] = frame_numbers(frontier[["confidence", "atpp", "replay"]])
    return plan, result


def anchored(posteriors, case, tables, plans):
    """Anchors picked: their rows, sd columns and gains."""
    settings = {"gain": "variance"} | case["settings"]
    if settings.get("gain") == "plan":
        settings["plan"] = plans[case["plan"]]
    candidates = table_of(case["candidates"]).frame.drop(columns="loss")
    chosen = bl.choose_anchors(
        posteriors[case["posterior"]],
        candidates,
        None if case["targets"] is None else bl.grid(**case["targets"]),
        allow_unconverged=True,
        **settings,
    )
    # What a plan becomes is simulated, and tested in tests/design/test_evsi.py.
    picks = chosen.picks.drop(columns=["p_plan", "atpp"], errors="ignore")
    return {"picks": frame_numbers(picks), "sd": numbers(chosen.sd), "method": chosen.method}


def posterior_results(goldens, tables):
    """Everything computed from the saved files."""
    part = goldens["posteriors"]
    posteriors = {name: bl.load(HERE / f"{name}.nc") for name in part["fitted"]}
    own = {
        name: own_results(fit, rows_of(goldens, name), tables[part["fitted"][name]["table"]])
        for name, fit in posteriors.items()
    }
    plans, results = {}, {}
    for name, case in part["plan_cases"].items():
        plans[name], results[name] = planned(posteriors, case)
    anchors = {
        name: anchored(posteriors, case, tables, plans)
        for name, case in part["anchor_cases"].items()
    }
    return {"own": own, "plans": results, "anchors": anchors}


# -- comparison -------------------------------------------------------------------------------


class Report:
    """Mismatches, and the largest relative deviation, of a section."""

    def __init__(self, section, tolerance):
        self.section, self.tolerance, self.largest, self.bad, self.count = (
            section, tolerance, 0.0, 0, 0,
        )  # fmt: skip

    def number(self, where, old, new, scale=1.0, floor=True):
        self.count += 1
        size = max(abs(old), scale if floor else 0.0)
        off = 0.0 if old == new else abs(new - old) / size if size else math.inf
        off = off if math.isfinite(off) else math.inf
        self.largest = max(self.largest, off)
        if not off <= self.tolerance:
            self.differ(where, old, new, f" ({off:.3g})")

    def differ(self, where, old, new, more=""):
        self.bad += 1
        print(f"MISMATCH {self.section} {where}: {old!r} -> {new!r}{more}")

    def tree(self, where, old, new, floor=True):
        if isinstance(old, dict) and isinstance(new, dict):
            if old.keys() != new.keys():
                self.differ(where, sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys()))
            for key in old.keys() & new.keys():
                self.tree(f"{where}.{key}", old[key], new[key], floor)
        elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
            for i, pair in enumerate(zip(old, new, strict=True)):
                self.tree(f"{where}[{i}]", *pair, floor)
        elif all(isinstance(v, float | int) and not isinstance(v, bool) for v in (old, new)):
            self.number(where, old, new, floor=floor)
        else:
            self.count += 1
            if old != new:
                self.differ(where, old, new)

    def end(self, start):
        print(
            f"{self.section}: {self.count} numbers, {self.bad} mismatches, largest relative "
            f"deviation {self.largest:.3g} (tolerance {self.tolerance:g}), "
            f"{time.time() - start:.0f} s",
            flush=True,
        )
        return self.bad


def mix(values):
    """The gradients of a variable at all points, times cos(1), cos(2), ..., and their scale."""
    weights = np.cos(np.arange(1, len(values) + 1))
    return float(np.dot(values, weights)), float(np.abs(values).sum())


def replay_density(goldens, tables):
    start, report = time.time(), Report("density", 1e-10)
    for case in goldens["density"]:
        where = " ".join(str(case[n]) for n in ("index", "label"))
        try:
            logp, gradient = densities(case, tables)
        except ValueError as error:
            report.differ(where, "values", str(error))
            continue
        for i, pair in enumerate(zip(case["logp"], logp, strict=True)):
            report.number(f"{where} logp[{i}]", *pair)
        names = sorted(case["gradient"])
        for name in names:
            first, mixed = case["gradient"][name]
            report.number(f"{where} d/d{name}[0]", first, gradient[name][0])
            new, scale = mix(gradient[name])
            report.number(f"{where} d/d{name} mixed", mixed, new, max(1.0, scale))
    return report.end(start)


def replay_huber(goldens, tables):
    start, report = time.time(), Report("huber", 1e-9)
    for name, old in goldens["huber"].items():
        law, table = name.split(" on ")
        report.tree(name, old, huber(law, tables[table]), floor=False)
    return report.end(start)


def replay_posteriors(goldens, tables):
    start, report = time.time(), Report("posteriors", 1e-9)
    report.tree("", goldens["posteriors"]["results"], posterior_results(goldens, tables))
    return report.end(start)


def replay_fits(goldens, tables):
    start, report = time.time(), Report("fits", 1e-9)
    for name, old in goldens["fits"]["forecast"].items():
        new = forecasts(fresh(goldens, tables, name), rows_of(goldens, name))
        report.tree(name, old, new)
    return report.end(start)


SECTIONS = {
    "density": replay_density,
    "huber": replay_huber,
    "posteriors": replay_posteriors,
    "fits": replay_fits,
}


def recorded_results():
    """What goldens.json holds, and the tables it is of."""
    goldens = unpack(json.loads((HERE / "goldens.json").read_text(encoding="utf-8")))
    return goldens, tables_of(goldens)


def record():
    """Make the fits again, and what is computed from them."""
    goldens = json.loads((HERE / "goldens.json").read_text(encoding="utf-8"))
    tables = tables_of(goldens)
    for name in goldens["posteriors"]["fitted"]:
        fit = fresh(goldens, tables, name)
        fit.save(HERE / f"{name}.nc")
        goldens["fits"]["forecast"][name] = forecasts(fit, rows_of(goldens, name))
    goldens["posteriors"]["results"] = posterior_results(goldens, tables)
    text = json.dumps(goldens, separators=(",", ":"))
    (HERE / "goldens.json").write_text(text + "\n", encoding="utf-8")


def main():
    if sys.argv[1:] == ["record"]:
        record()
        return
    goldens, tables = recorded_results()
    asked = sys.argv[1:] or list(SECTIONS)
    sys.exit(bool(sum(SECTIONS[name](goldens, tables) for name in asked)))


if __name__ == "__main__":
    main()
