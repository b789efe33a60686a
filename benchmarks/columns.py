"""What further columns are worth: rates, checkpoints, repeats, experts, tuning, a run, accuracy."""

import time
from argparse import Namespace
from collections.abc import Iterator
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares, minimize
from scipy.special import huber

import bayeslaw as bl
from bayeslaw.common.arrays import Floats
from bayeslaw.derive.downstream import accuracies, curves
from bayeslaw.evaluate.scores import crps
from benchmarks.methods import scored
from benchmarks.runner import Jobs, Tables, experiment
from benchmarks.splits import DATA, shipped

SCORES = ["rmse_log", "bias_log", "coverage_50", "coverage_90", "width_90", "crps"]


def few(rows: pd.DataFrame) -> Tables:
    """The rows without their less common scores."""
    return {"rows": rows.drop(columns=["coverage_80", "winkler_90"], errors="ignore")}


# -- un-annealed checkpoints -------------------------------------------------------------------


@experiment(few, bench=None)
def annealing(options: Namespace) -> Jobs:
    """What checkpoints that are not annealed add to forecasts of the largest size, annealed."""
    rows, tables = "0 < replay < 1 and seed == 0", []
    for source, domain in (
        ("tinycpt", "french"),
        ("tinycpt", "english"),
        ("tinycode", "python"),
    ):
        table = bl.read_table(DATA / source / f"{domain}.csv", where=rows)
        tables.append(
            (f"{source} {domain}", "form1n", table, table.frame["params"].max())
        )
    if options.bench:  # Gemstones, which may not be shipped
        both = [
            pd.read_csv(options.bench / f"gemstones_{kind}.csv")
            for kind in ("hot", "cool")
        ]
        frame = pd.concat([each.assign(annealed=i) for i, each in enumerate(both)])
        columns = ["params", "tokens", "loss", "run", "annealed"]
        frame = (
            frame[columns].drop_duplicates().assign(run=lambda f: f["run"].astype(str))
        )
        tables.append(
            ("gemstones", "chinchilla", bl.from_frame(frame, "gemstones"), 1e9)
        )
    for name, law, table, size in tables:
        test = table.query(f"annealed == 1 and params >= {size}")
        every = table.query(f"annealed == 0 or params < {size}")
        alike = bl.from_frame(every.frame.drop(columns="annealed"), table.name)
        own = table.query(f"annealed == 1 and params < {size}")
        ways = {"annealed only": own, "offset": every, "alike": alike}
        ways |= {"offset run": every} if law == "chinchilla" else {}
        for way, train in ways.items():
            run = law != "chinchilla" or way == "offset run"
            settings = options.settings | {"errors": "auto" if run else "independent"}
            yield (
                {"table": name, "law": law, "way": way},
                partial(fitted, law, train, test, settings),
            )


def fitted(
    law: str, train: bl.LossTable, test: bl.LossTable, settings: dict
) -> dict[str, Any]:
    """Scores of a fit."""
    return {"train": len(train)} | scored(bl.fit(law, train, **settings), test)


# -- learning rates ----------------------------------------------------------------------------

RATE_COLUMNS = ["params", "tokens", "loss", "base", "scale", "rate"]


def rate_tables() -> Iterator[tuple[str, pd.DataFrame, pd.DataFrame]]:
    """Name, fitted and held-out rows of Delphi's bases, at four learning rates."""
    swept = pd.read_csv(DATA / "delphi/k020.csv").rename(columns={"lr_factor": "rate"})
    same = pd.read_csv(DATA / "delphi/isotoken.csv").rename(
        columns={"lr_factor": "rate"}
    )
    clean, other = (
        swept[swept["domain"] == d][RATE_COLUMNS] for d in ("math_j050", "math_4plus")
    )
    small, large = (
        clean[near] for near in (clean["scale"] < 5e20, clean["scale"] > 5e20)
    )
    yield "swept", small, large
    yield "partly swept", small[(small["scale"] < 3e19) | (small["rate"] == 0.5)], large
    both = pd.concat([same[RATE_COLUMNS], other])
    yield "both", both[both["scale"] < 5e20], other[other["scale"] > 5e20]


def best_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Of each base and budget, the row of least loss, without its rate."""
    frame = frame.reset_index(drop=True)
    least = frame.groupby(["scale", "tokens"])["loss"].idxmin()
    return frame.loc[least].drop(columns="rate").reset_index(drop=True)


def best_rate(fit: bl.Posterior, cell: pd.DataFrame) -> dict[str, Any]:
    """The best rate of one base: forecast, vertex of a parabola, and what others cost by it."""
    usable = fit.accepted("unconverged")
    found = bl.derive.best_rate(usable, best_rows(cell)).to_frame([0.9])
    square, line, _ = np.polyfit(np.log(cell["rate"]), np.log(cell["loss"]), 2)
    best = -line / (2 * square)
    ends = found.loc[0, ["median", "lower_90", "upper_90"]].to_dict()
    rates = {"median": ends["median"], ".83": 0.83}
    costs = {f"cost_{n}": square * (np.log(r) - best) ** 2 for n, r in rates.items()}
    return ends | {"vertex": float(np.exp(best))} | costs


@experiment(few)
def rate(options: Namespace) -> Jobs:
    """What a column `rate` adds to forecasts of Delphi's larger bases."""
    for name, small, large in rate_tables():
        ways = {
            "rate": small,
            "alike": small.drop(columns="rate"),
            "best": best_rows(small),
        }
        ways[".5"] = small[small["rate"] == 0.5].drop(columns="rate")
        for way, train in ways.items():

            def job(
                way: str = way, train: pd.DataFrame = train, large: pd.DataFrame = large
            ) -> pd.DataFrame:
                table = bl.from_frame(train.reset_index(drop=True))
                fit, rows = bl.fit("chinchilla", table, **options.settings), []
                own = large if way == "rate" else large.drop(columns="rate")
                for held, test in {"all": own, "best": best_rows(large)}.items():
                    for scale, part in test.groupby("scale"):
                        row = {"fitted": len(train), "held": held, "scale": scale}
                        row |= scored(fit, bl.from_frame(part.reset_index(drop=True)))
                        if (way, held) == ("rate", "best"):
                            row |= best_rate(fit, large[large["scale"] == scale])
                        rows.append(row)
                return pd.DataFrame(rows)

            yield {"table": name, "way": way}, job


# -- repeated tokens, and experts --------------------------------------------------------------

ONE_EPOCH = {"E": 1.8692, "A": 521.2, "alpha": 0.3526, "B": 1488.0, "beta": 0.3526}
"""Constants of Muennighoff et al. for C4; their R_D is 15.39, their R_N 5.31."""
FEW, MANY = "tokens <= 16 * unique_tokens", "tokens <= 100 * unique_tokens"
REPEATED = {
    "more epochs": (FEW, f"not ({FEW}) and {MANY}"),
    "above 300M": (f"params < 3e8 and {MANY}", f"params > 3e8 and {MANY}"),
    "above 1B": (f"params < 1e9 and {MANY}", f"params > 1e9 and {MANY}"),
    "above 300M to 16 epochs": (f"params < 3e8 and {FEW}", f"params > 3e8 and {FEW}"),
    **{
        f"to 1.4 times {k} epochs": (
            f"tokens <= {k} * unique_tokens",
            f"{k} * unique_tokens < tokens <= {1.4 * k:g} * unique_tokens",
        )
        for k in (4, 8, 16)
    },
}
"""Training and held-out runs."""
ROUTED = {
    "size": ("params < 1e9", "params > 1e9"),
    "experts": ("experts <= 64", "experts > 64"),
}
"""The same of routed models."""
ROUTERS = "S-Base", "RL-R", "Hash"


def worth(seen: Floats, unique: Floats, rate: float) -> Floats:
    """Their equation (5)."""
    return unique + unique * rate * (1 - np.exp(-(seen / unique - 1) / rate))


def as_published(frame: pd.DataFrame, *, free: bool) -> dict[str, float]:
    """R_D and R_N by their procedure, with their constants of one epoch or all estimated."""
    params, unique = frame["params"].to_numpy(), frame["unique_tokens"].to_numpy()

    def objective(logs: Floats) -> float:
        values = np.exp(logs)
        c = dict(zip(ONE_EPOCH, values[2:], strict=True)) if free else ONE_EPOCH
        # Parameters at which both terms fall equally with FLOPs, for the distinct tokens.
        optimal = c["alpha"] * c["A"] / (c["beta"] * c["B"]) * unique ** c["beta"]
        size = worth(params, np.minimum(optimal ** (1 / c["alpha"]), params), values[1])
        tokens = worth(frame["tokens"].to_numpy(), unique, values[0])
        loss = c["E"] + c["A"] / size ** c["alpha"] + c["B"] / tokens ** c["beta"]
        return 1e4 * float(huber(1e-3, np.log(loss) - np.log(frame["loss"])).sum())

    best = np.log([15.4, 5.3, *(ONE_EPOCH.values() if free else ())])
    for _ in range(6):  # restarts, since the simplex shrinks too early
        settings = {"maxiter": 20_000, "maxfev": 20_000}
        best = minimize(objective, best, method="Nelder-Mead", options=settings).x
    return dict(zip(("R_D", "R_N"), np.exp(best[:2]).tolist(), strict=True))


def of_covariates() -> Iterator[
    tuple[str, str, str | Path, bl.LossTable, bl.LossTable]
]:
    """Name, column, law that reads it, training and held-out rows."""
    table = bl.read_table(DATA / "datablations/c4.csv")
    for name, queries in REPEATED.items():
        yield name, "unique_tokens", "chinchilla", *table.split(*queries)
    for router, (name, queries) in product(ROUTERS, ROUTED.items()):
        table = bl.read_table(
            DATA / "routing_moe/final.csv",
            columns={"ratio": "params_total / params"},
            where=f"router in ['Dense', '{router}'] and k == 1 and routing_frequency == .5"
            " and step == 249000",
        )
        law = DATA / "routing_moe/routed.toml"
        yield f"{router}, {name}", "ratio", law, *table.split(*queries)


def by_column(rows: pd.DataFrame) -> Tables:
    """Scores over the losses of what was held out, those of each split, and estimates."""
    measured = rows.dropna(subset="crps")
    measured = measured.assign(held=measured["split"].str.split(", ").str[-1])
    keys = ["column", "held", "discrepancy", "way"]
    losses = measured["test"] / measured.groupby(keys)["test"].transform("sum")
    weighted = measured[[*SCORES, "r2"]].mul(losses, axis=0)
    names = ["split", "discrepancy", "way", "train", "test", "gate", "seconds"]
    estimates = ["discrepancy", "way", "R_D", "R_N", "lower_90", "upper_90", "R_D_N"]
    return {
        "by what was held out": weighted.join(measured[keys])
        .groupby(keys, sort=False)
        .sum(),
        "by split": measured[[*names, *SCORES, "r2"]],
        "what repeated tokens are worth": rows[rows["crps"].isna()].reindex(
            columns=estimates
        ),
    }


@experiment(by_column)
def covariates(options: Namespace) -> Jobs:
    """What the columns of repeated tokens and of experts are worth, by discrepancy."""
    for discrepancy, (split, column, law, *parts) in product(
        ("none", "auto"), of_covariates()
    ):
        for way in ("with", "without"):

            def job(
                law: str | Path = law if way == "with" else "chinchilla",
                drop: list[str] = [] if way == "with" else [column],
                parts: list[bl.LossTable] = parts,
                discrepancy: str = discrepancy,
            ) -> dict[str, Any]:
                train, test = (
                    bl.from_frame(p.frame.drop(columns=drop), p.name) for p in parts
                )
                start = time.process_time()
                settings = {
                    "discrepancy": discrepancy,
                    "retry": True,
                } | options.settings
                found = fitted(law, train, test, settings)
                r2 = 1 - (found["rmse_log"] / np.log(test.loss).std()) ** 2
                return found | {"r2": r2, "seconds": time.process_time() - start}

            yield (
                {
                    "split": split,
                    "column": column,
                    "discrepancy": discrepancy,
                    "way": way,
                },
                job,
            )
    table = bl.read_table(DATA / "datablations/c4.csv")
    for free in (False, True):
        key = {"split": "none", "column": "unique_tokens", "discrepancy": "none"}
        key["way"] = f"published{', all free' * free}"
        yield key, partial(as_published, table.frame, free=free)
    for discrepancy in ("none", "auto"):

        def posterior(discrepancy: str = discrepancy) -> dict[str, Any]:
            settings = {"discrepancy": discrepancy, "retry": True} | options.settings
            fit = bl.fit("chinchilla", table, **settings)
            ends = fit.draws["R_D"].quantile([0.5, 0.05, 0.95]).to_numpy()
            falls = float(fit.draws["R_D_N"].median())
            return dict(zip(("R_D", "lower_90", "upper_90"), ends, strict=True)) | {
                "R_D_N": falls
            }

        key = {"split": "none", "column": "unique_tokens", "discrepancy": discrepancy}
        yield key | {"way": "posterior"}, posterior


# -- badly tuned runs --------------------------------------------------------------------------

CELL = ["params", "tokens", "replay"]
TUNED = "olmo c4_en", "olmo pile", "gadre rpj"
"""Splits of tables that are tuned alike everywhere."""


def undertuned_tables(
    bench: Path | None,
) -> Iterator[tuple[str, str, pd.DataFrame, str, str]]:
    """Name, law, rows, and queries of training and test rows, where the best-tuned run is known."""
    frame = pd.read_csv(DATA / "delphi/k020.csv")
    rows = frame[frame["domain"] == "math_j050"]
    yield "delphi math_j050", "chinchilla", rows, "scale <= 3e20", "scale > 3e20"
    rows = pd.read_csv(DATA / "delphi/replay.csv")
    yield "delphi replay", "dcpt", rows, "scale < 4e19", "4e19 < scale < 1e21"
    for corpus in ("rw", "owt2") if bench else ():
        kinds = ("const", "cosine")
        files = [
            pd.read_csv(bench / f"porian_{corpus}_{k}.csv").assign(schedule=k)
            for k in kinds
        ]
        # Of sizes and budgets with both schedules; tokens differ by rounding.
        rows = pd.concat(files)
        cells = rows.groupby(["params", "flops"])
        rows = rows[cells["loss"].transform("size") == 2]
        tokens = rows.groupby(["params", "flops"])["tokens"].transform("first")
        rows = rows.assign(tokens=tokens).drop(columns=["run", "domain"])
        yield f"porian {corpus}", "chinchilla", rows, "flops < 2e18", "flops > 6e18"
        late = rows[rows["schedule"] == "cosine"]
        yield (
            f"porian {corpus} cosine",
            "chinchilla",
            late,
            "flops < 2e18",
            "flops > 6e18",
        )


def best(rows: pd.DataFrame) -> pd.DataFrame:
    """The row of least loss in each cell."""
    return rows.loc[rows.groupby([c for c in CELL if c in rows])["loss"].idxmin()]


def tuning(
    law: str, method: str, train: bl.LossTable, test: pd.DataFrame, settings: dict
) -> dict:
    """Scores of forecasts of log losses, the latent and the measured one."""
    truth = np.log(test["loss"].to_numpy())
    if method == "huber":
        error = np.log(bl.fit_huber(law, train).predict(test)) - truth
        return {"bias_latent": error.mean(), "crps_latent": np.abs(error).mean()}
    fit = bl.fit(law, train, likelihood=method, **settings).accepted("unconverged")
    found: dict[str, Any] = {"gate": "; ".join(fit.convergence.failures) or "passed"}
    for kind in ("latent", "predictive"):
        logs = np.log(fit.forecast(test, kind=kind).samples)
        found[f"bias_{kind}"] = (np.median(logs, 0) - truth).mean()
        found[f"crps_{kind}"] = crps(logs, truth).mean()
        for level in (50, 90):
            low, high = np.quantile(
                logs, [0.5 - level / 200, 0.5 + level / 200], axis=0
            )
            found[f"in_{level}_{kind}"] = ((low <= truth) & (truth <= high)).mean()
        found[f"width_{kind}"] = (high - low).mean()
    return found


def by_method(rows: pd.DataFrame) -> Tables:
    """Means by table, rows that are fitted, and method."""
    rows["rows"] = rows["rows"].str.split().str[0]
    return {
        "means": rows.groupby(["table", "rows", "method"], sort=False).mean(
            numeric_only=True
        )
    }


@experiment(by_method, bench=None)
def undertuned(options: Namespace) -> Jobs:
    """The best-tuned loss from tables some of whose runs are badly tuned, by likelihood."""
    # Fitted with all runs of a cell, or one drawn of each (three seeds), or the best.
    methods, cases = ("studentt", "skewed", "huber"), []
    for name, _, train, test, laws in shipped():
        if name in TUNED:
            cases.append(
                (name, "tuned", laws[0], train, test.frame.reset_index(drop=True))
            )
    for name, law, rows, train, test in undertuned_tables(options.bench):
        rows = rows.reset_index(drop=True).drop(
            columns=["run", "base"], errors="ignore"
        )
        inside, outside = (
            rows.query(train),
            best(rows.query(test)).reset_index(drop=True),
        )
        tables, keys = {"all": inside}, [c for c in CELL if c in rows]
        if len(inside) > len(best(inside)):
            tables["best"] = best(inside)
            for seed in range(3):
                drawn = inside.sample(frac=1, random_state=seed).drop_duplicates(keys)
                tables[f"one {seed}"] = drawn.sort_index()
        for kind, table in tables.items():
            cases.append(
                (
                    name,
                    kind,
                    law,
                    bl.from_frame(table.reset_index(drop=True), name),
                    outside,
                )
            )
    settings = {"seed": 0, "draws": 500, "retry": False} | options.settings
    for (name, kind, law, train, test), method in product(cases, methods):
        if (kind, method) != ("best", "skewed"):
            key = {"table": name, "rows": kind, "method": method}
            yield key, partial(tuning, law, method, train, test, settings)


# -- a run that goes on ------------------------------------------------------------------------

PARTS = (0.1, 0.25, 0.5)
ENDS = ("cosine_72000", "cosine_24000", "wsd_20000_24000", "wsdld_20000_24000")
FINISHED = ("new size", "same size")
"""Sizes of the finished runs, against that of the running one."""
RUNNING_KEY = ["finished", "size", "schedule", "part", "way"]


@cache
def loss_curves() -> pd.DataFrame:
    """All rows, with a label of the checkpoints that the run began with, and D in steps."""
    frame = pd.read_csv(DATA / "multipowerlaw/curves.csv")
    first = frame.groupby("run")["loss"].transform("first").astype(str)
    frame["cosine"] = frame["schedule"].str.startswith("cosine")
    trunk = (
        frame["params"].astype(str)
        + frame["schedule"].where(frame["cosine"], "")
        + first
    )
    plateau = (frame["lr"] >= 0.9 * frame["lr"].max()) & (frame["annealed"] == 0)
    return frame.assign(tokens=frame["step"], plateau=plateau, trunk=trunk)


def used(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of curves to fit: one in .2 e-folds of D, and checkpoints of two runs once."""
    frame = frame[(frame["annealed"] == 0) & (frame["step"] >= 5e3)]
    run = frame["trunk"].where(frame["cosine"] | frame["plateau"], frame["run"])
    found = frame.assign(run=run)[frame["plateau"]].drop_duplicates(["run", "step"])
    found["place"] = (np.log(found["tokens"] / 5e3) // 0.2).astype(int)
    return found.drop_duplicates(["run", "place"])


def power_law(frame: pd.DataFrame, tokens: float) -> float:
    """Log loss at some tokens, by a power law fitted to one curve by Huber on log loss."""
    x, y = np.log(frame["tokens"] / tokens).to_numpy(), np.log(frame["loss"]).to_numpy()

    def law(q: Floats, at: Floats) -> Floats:
        return np.logaddexp(q[0], q[1] - np.exp(q[2]) * at)

    starts = (
        [[y[-1] - 0.1, y[-1] - 2, np.log(b)] for b in (0.2, 0.5, 1.0)]
        if len(x) > 3
        else []
    )
    fits = [
        least_squares(lambda q: law(q, x) - y, s, loss="huber", f_scale=1e-3)
        for s in starts
    ]
    found = min(fits, key=lambda fit: fit.cost, default=None)
    return float(y[-1] if found is None else law(found.x, np.zeros(1))[0])


def rivals(finished: str) -> pd.DataFrame:
    """Errors of ways without a posterior: the last loss so far, a curve, and it corrected."""
    frame, found = loss_curves(), []
    for (_, end), part in product(frame[frame["annealed"] == 1].iterrows(), PARTS):
        curve = frame[
            (frame["run"] == end["run"]) & (frame["step"] <= part * end["step"])
        ]
        ways = {
            "curve": power_law(curve, end["tokens"]),
            "last": np.log(curve["loss"].iloc[-1]),
        }
        case = {"size": end["params"], "schedule": end["schedule"], "part": part}
        case |= {"trunk": end["trunk"], "finished": finished}
        found += [
            case | {"way": w, "error": v - np.log(end["loss"])} for w, v in ways.items()
        ]
    rows = pd.DataFrame(found)
    law, group = (
        rows[rows["way"] == "curve"],
        "size" if finished == "new size" else "trunk",
    )
    parts = dict(list(law.groupby("part")))
    pairs = [
        (parts[part], own) for part, own in zip(law["part"], law[group], strict=True)
    ]
    means = [alike.loc[alike[group] != own, "error"].mean() for alike, own in pairs]
    return pd.concat([rows, law.assign(way="corrected", error=law["error"] - means)])


def by_part(rows: pd.DataFrame) -> Tables:
    """Means by what is fitted, and the part of the running run that is known."""
    rows = pd.concat([rows, *(rivals(finished) for finished in FINISHED)])
    rows["absolute"] = rows["error"].abs()
    rows["crps"] = rows["crps"].fillna(rows["absolute"])
    groups = rows.groupby(["finished", "way", "part"])
    scores = ["coverage_50", "coverage_90", "width_90", "crps", "error", "absolute"]
    return {"means": groups[scores].mean().assign(ends=groups.size())}


@experiment(by_part)
def running(options: Namespace) -> Jobs:
    """The final loss of a run that goes on, from the first part of its curve and finished runs."""
    settings = {"seed": 0} | options.settings
    frame = loss_curves()
    ends = frame[frame["annealed"] == 1]
    # Two ends of one run would be two errors of its path at equal tokens.
    labelled = ends.assign(
        run=ends["trunk"].where(ends["schedule"] != ENDS[3], ends["run"])
    )
    columns = ["params", "tokens", "loss", "run", "annealed"]
    sizes = sorted(set(ends["params"]), reverse=True)
    fits: dict[tuple, bl.Posterior] = {}  # parts that add no row share a fit

    def job(train: pd.DataFrame, own: int, end: pd.DataFrame) -> dict[str, Any]:
        if (index := tuple(train.index)) not in fits:
            fits[index] = bl.fit(
                "chinchilla", bl.from_frame(train[columns]), **settings
            )
        table = bl.from_frame(end[columns].assign(run="running"), "end")
        found = scored(fits[index], table)
        return {"own": own, "error": found["bias_log"]} | found

    for finished, size, group in product(
        FINISHED, sizes, (ENDS[:1], ENDS[1:2], ENDS[2:])
    ):
        tests = ends[(ends["params"] == size) & ends["schedule"].isin(group)]
        same = frame["params"] == size
        out = frame.index[
            same if finished == "new size" else frame["trunk"].isin(tests["trunk"])
        ]
        others = pd.concat([t[~t.index.isin(out)] for t in (used(frame), labelled)])
        for part, (i, schedule) in product((0.0, *PARTS), enumerate(group)):
            seen = same & (frame["step"] <= part * tests["step"].max())
            seen &= frame["run"] == tests["run"].iloc[0]
            own = used(frame[seen]).assign(run="running")
            way = "running" if part else "others"
            key = dict(
                zip(RUNNING_KEY, (finished, size, schedule, part, way), strict=True)
            )
            yield key, partial(job, pd.concat([others, own]), len(own), tests.iloc[[i]])


# -- accuracy ----------------------------------------------------------------------------------

ACCURACY = {
    "tokens": ("ptpp <= 40", "ptpp > 40"),
    "size": ("params < 2e8", "2e8 < params < 1e9"),
    "corpus": ("params < 1e9", "params > 1e9"),
}
"""Training and held-out models; of "corpus" the pairs are of the other corpus."""


def quantiles(draws: Floats, truth: Floats) -> dict[str, Any]:
    """Quantiles and CRPS of draws, a column a row."""
    low90, low50, high50, high90 = np.quantile(draws, [0.05, 0.25, 0.75, 0.95], axis=0)
    ends = {"low90": low90, "low50": low50, "high50": high50, "high90": high90}
    return {**ends, "median": np.median(draws, axis=0), "crps": crps(draws, truth)}


def accuracy_rows(corpus: str, split: str, settings: dict) -> pd.DataFrame:
    """Held-out accuracies by task and way: a band, the median's curve, and a curve of FLOPs."""
    train, test = ACCURACY[split]
    own = f"domain == 'c4_val' and train_set == '{corpus}'"
    table = bl.read_table(DATA / "gadre" / "overtraining.csv", where=own)
    known, held_out = table.split(train, test)
    fit = bl.fit("chinchilla", known, seed=0, **settings)
    loss = fit.accepted("unconverged").forecast(held_out).samples
    median, frames = np.median(loss, axis=0), []
    measured = pd.read_csv(DATA / "gadre" / "accuracy.csv")
    here = measured["train_set"] == corpus
    for task, every in measured.groupby("task", sort=False):
        truth = every.set_index("run")["accuracy"][held_out.frame["run"]].to_numpy()
        chosen = every[here].query(train)
        pairs = every[~here] if split == "corpus" else chosen
        x, y = pairs["loss"].to_numpy(), pairs["accuracy"].to_numpy()
        rng = np.random.default_rng(0)
        mid, width, floor, ceiling, _ = curves(x, y, len(loss), rng)[..., None]
        point = np.median(
            floor + (ceiling - floor) / (1 + np.exp((median - mid) / width)), axis=0
        )
        flops = -np.log(chosen["params"] * chosen["tokens"]).to_numpy()
        asked = -np.log(held_out.frame["params"] * held_out.frame["tokens"]).to_numpy()
        direct = accuracies(
            np.tile(asked, (len(loss), 1)), flops, chosen["accuracy"].to_numpy(), rng
        )
        ways = {
            "band": quantiles(accuracies(loss, x, y, rng), truth),
            "point": {"median": point, "crps": np.abs(point - truth)},
            "direct": quantiles(direct, truth),
        }
        about = {
            "task": task,
            "run": held_out.frame["run"].to_numpy(),
            "accuracy": truth,
        }
        about |= {
            "loss": held_out.loss,
            "forecast": median,
            "converged": fit.convergence.ok,
        }
        about["refused"] = (median < x.min()) | (median > x.max())
        frames += [
            pd.DataFrame({**about, "way": way, **values})
            for way, values in ways.items()
        ]
    return pd.concat(frames)


def curve_alone() -> pd.DataFrame:
    """Share in the 90 % band at measured losses, without a law, by split and whether refused."""
    rows, everything = [], pd.read_csv(DATA / "gadre" / "accuracy.csv")
    for (corpus, task), own in everything.groupby(["train_set", "task"]):
        other = everything.query(f"train_set != '{corpus}' and task == '{task}'")
        for split, (train, test) in ACCURACY.items():
            pairs, held_out = (
                other if split == "corpus" else own.query(train),
                own.query(test),
            )
            x, y = pairs["loss"].to_numpy(), pairs["accuracy"].to_numpy()
            draws = accuracies(
                np.tile(held_out["loss"], (4000, 1)), x, y, np.random.default_rng(0)
            )
            low, high = np.quantile(draws, [0.05, 0.95], axis=0)
            new = held_out.assign(
                split=split, in90=held_out["accuracy"].between(low, high)
            )
            rows.append(new.assign(refused=~held_out["loss"].between(x.min(), x.max())))
    return pd.concat(rows).groupby(["split", "refused"])["in90"].agg(["mean", "size"])


def by_split(rows: pd.DataFrame) -> Tables:
    """Coverage, width, CRPS and error by split and way, and of bands by corpus and task."""
    for level in (50, 90):
        inside = rows["accuracy"].between(rows[f"low{level}"], rows[f"high{level}"])
        rows[f"in{level}"] = inside.where(rows[f"low{level}"].notna()).astype(float)
    rows["width90"] = rows["high90"] - rows["low90"]
    rows["error"] = (rows["median"] - rows["accuracy"]).abs()
    scores, bands = (
        ["in50", "in90", "width90", "crps", "error"],
        rows[rows["way"] == "band"],
    )
    ways = rows.groupby(["split", "refused", "way"])
    tasks = bands.groupby(["split", "refused", "corpus", "task"])
    found = {"by way": ways, "bands by task": tasks}
    tables = {
        title: g[scores].mean().assign(rows=g.size()) for title, g in found.items()
    }
    return tables | {"curves at measured losses": curve_alone()}


@experiment(by_split)
def accuracy(options: Namespace) -> Jobs:
    """Bands of accuracy from forecast losses, on the over-trained models of Gadre et al."""
    for split, corpus in product(ACCURACY, ("c4_original", "rpj")):
        key = {"corpus": corpus, "split": split}
        yield key, partial(accuracy_rows, corpus, split, options.settings)
