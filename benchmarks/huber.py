"""The Huber fit against SciPy's least squares: objectives reached, starts that agree, CPU seconds.

Training rows of shipped tables and splits are fitted with every law that suits them, within the
bounds of the paper; Forms 2 and 3 also with ``bounds="prior"``, which the column `law` says.
``trf`` and ``dogbox`` are the bounded methods of `scipy.optimize.least_squares` with
``loss="huber"``, the exact Jacobian, and the same coordinates, bounds and screened starts, as many
as `fit_huber` polishes when they disagree. Columns: `excess`, of the objective over the least of
all methods, relatively; `agreeing`, the share of starts within 1e-5 of the best of this method;
`capped`, that of starts which SciPy's limit of evaluations stopped.
"""

import time
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from itertools import chain

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

import bayeslaw as bl
from bayeslaw.common.arrays import Floats
from bayeslaw.common.defaults import DELTA
from bayeslaw.huber.objective import Bounds, Objective
from bayeslaw.huber.starts import screened_starts
from bayeslaw.laws.departure import Departure
from benchmarks.runner import Jobs, Tables, experiment
from benchmarks.splits import POOL, shipped, synthetic

type Ends = tuple[Floats, float, float]
"""Objectives where starts ended, CPU seconds, and the share that was stopped."""


def own_fit(law: bl.Law, table: bl.LossTable, bounds: Bounds) -> Ends:
    """Ends of `fit_huber`, median time of three; of starts that do not agree one knows no more."""
    seconds = []
    for _ in range(3):
        start = time.process_time()
        fit = bl.fit_huber(law, table, bounds=bounds)
        seconds.append(time.process_time() - start)
    ends = np.full(fit.polished, np.inf)
    ends[: round(fit.agreeing * fit.polished)] = fit.objective * len(table)
    return ends, float(np.median(seconds)), 0.0


def scipy_fit(law: bl.Law, table: bl.LossTable, bounds: Bounds, method: str) -> Ends:
    """Ends of SciPy's least squares with the Huber loss, from the best screened starts."""
    objective = Objective(law, table, DELTA, bounds)

    def residuals(vector: Floats) -> Floats:
        return objective.residuals(vector[None])[0]

    def jacobian(vector: Floats) -> Floats:
        return objective.jacobian(vector[None], objective.residuals(vector[None]))[0].T

    ends, exponents = (objective.low, objective.high), len(law.exponents)
    settings = {"loss": "huber", "f_scale": DELTA, "x_scale": "jac", "method": method}
    precise = {"ftol": 1e-15, "xtol": 1e-15, "gtol": 1e-15}
    objectives, capped, start = [], [], time.process_time()
    for point in screened_starts(objective, 64 * exponents, 0)[: 3 * exponents]:
        try:
            with np.errstate(all="ignore"):
                first = np.clip(point, *ends)
                found = least_squares(
                    residuals, first, jacobian, ends, **settings, **precise
                )
        except (
            ValueError,
            np.linalg.LinAlgError,
        ):  # of a start or Jacobian that is not finite
            objectives.append(np.inf)
            continue
        objectives.append(float(objective.value(residuals(found.x)[None])[0]))
        capped.append(found.status == 0)
    return (
        np.array(objectives),
        time.process_time() - start,
        sum(capped) / len(objectives),
    )


def cases() -> Iterator[tuple[str, bl.Law, Bounds, bl.LossTable]]:
    """Table, law, bounds that are searched, and training rows of every case."""
    for name, _, table, _, laws in chain(shipped(), synthetic()):
        splits = ("stage from two", "stage from four", "size")
        if name.startswith("tinycode") or (
            name.startswith("tinycpt") and not name.endswith(splits)
        ):
            continue
        # Source losses rise under adaptation: the law of forgetting is for the English tables.
        source = name.startswith(("tinycpt english", "synthetic english"))
        alone = [law for law in laws if law != POOL]
        for law in map(bl.load_law, (*alone, "forgetting") if source else alone):
            if law.step(Departure):  # it needs the bases of the table
                continue
            yield name, law, "paper", table
            if any(row.published for row in law.by_symbol.values()):
                yield name, law, "prior", table


def compared(law: bl.Law, table: bl.LossTable, bounds: Bounds) -> pd.DataFrame:
    """A row for each method."""
    bl.fit_huber(law, table, bounds=bounds)  # the first run also imports
    ends = {"fit_huber": own_fit(law, table, bounds)}
    ends |= {
        method: scipy_fit(law, table, bounds, method) for method in ("trf", "dogbox")
    }
    least, rows = min(found.min() for found, *_ in ends.values()), []
    for name, (found, seconds, capped) in ends.items():
        row = {
            "optimizer": name,
            "starts": len(found),
            "seconds": seconds,
            "capped": capped,
        }
        row |= {
            "objective": found.min() / len(table),
            "excess": found.min() / least - 1,
        }
        rows.append(row | {"agreeing": np.mean(found <= (1 + 1e-5) * found.min())})
    return pd.DataFrame(rows).assign(rows=len(table))


def by_law(rows: pd.DataFrame) -> Tables:
    """Objectives reached and ratios of times to `fit_huber`, by source, law and method."""
    key = ["table", "law"]
    own = rows[rows["optimizer"] == "fit_huber"].set_index(key)["seconds"].rename("own")
    rows = rows.join(own, on=key)
    source = (
        rows["table"]
        .str.partition(" ")[0]
        .replace(["delphi", "olmo", "gadre"], "public")
    )
    rows = rows.assign(
        ratio=rows["seconds"] / rows["own"], reached=rows["excess"] <= 1e-9
    )
    grouped = rows.groupby([source, "law", "optimizer"], sort=False)
    found = grouped[["agreeing", "capped", "seconds", "ratio"]].median()
    found = found.assign(cases=grouped.size(), reached=grouped["reached"].sum())
    return {"by source": found.assign(largest_excess=grouped["excess"].max())}


@experiment(by_law)
def huber(options: Namespace) -> Jobs:
    """The Huber fit against SciPy's least squares."""
    for name, law, bounds, table in cases():
        label = f"{law.name} prior" if bounds == "prior" else law.name
        yield {"table": name, "law": label}, partial(compared, law, table, bounds)
