"""Coverage and scores of forecasts on held-out rows of real tables: ways, sizes, runs, distance."""

import dataclasses
from argparse import Namespace
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, product

import numpy as np
import pandas as pd

import bayeslaw as bl
from bayeslaw.inference.fitting import refit
from benchmarks.methods import UNSUITED, WAYS, by_row, measured, scored
from benchmarks.runner import Jobs, Tables, experiment
from benchmarks.splits import Split, adapted, benched, ratios, shipped

GROUPS = ["source", "law", "way"]
LAW = "chinchilla"

# -- by way -----------------------------------------------------------------------------------


def by_way(every: Iterable[Split], options: Namespace) -> Jobs:
    """A job for each split, law and way that suit each other."""
    draws, resamples = (20, 5) if options.smoke else (options.draws or None, options.resamples)
    for name, source, train, test, laws in every:
        runs = "run" in train.frame and train.frame["run"].duplicated().any()
        for law, way in product(options.laws.split(","), options.ways.split(",")):
            if (
                law in laws
                and law not in UNSUITED.get(way, ())
                and (runs or not way.endswith(" run"))
            ):
                key = {"table": name, "source": source, "law": law, "way": way}
                yield key, partial(measured, law, way, train, test, draws, resamples)


def pooled(rows: pd.DataFrame) -> Tables:
    """Measured losses in the bands of each source, and scores relative to the way "curvature"."""
    scores = ["width_90", "crps", "winkler_90"]
    sums = rows[[*GROUPS, "test"]].assign(
        in_50=rows["coverage_50"] * rows["test"],
        in_90=rows["coverage_90"] * rows["test"],
        **{score: rows[score] * rows["test"] for score in scores},
    )
    totals = sums.groupby(GROUPS).sum()
    totals[scores] = totals[scores].div(totals["test"], axis=0)
    keys = ["table", "source", "law"]
    base = rows[rows["way"] == "curvature"].set_index(keys)
    ratios = rows.set_index(keys)
    for score in scores:
        ratios[score] = np.log(ratios[score] / base[score].reindex(ratios.index))
    means = ratios.groupby(GROUPS)[["coverage_50", "coverage_90", *scores]].mean()
    overall = means.groupby(["law", "way"]).mean()
    for found in (means, overall):
        found[scores] = np.exp(found[scores])
    means["least"] = ratios.groupby(GROUPS)["coverage_90"].min()
    return {
        "by source, over rows": totals,
        "by source, over splits": means,
        "over sources": overall,
    }


def by_part(rows: pd.DataFrame) -> Tables:
    """Coverage, its least, and CRPS over tables and domains, by what was held out of them."""
    part = rows["table"].str.split(n=2).str[2].rename("held out")
    groups = rows.assign(crps=np.log(rows["crps"])).groupby([part, "law", "way"])
    found = groups["coverage_90"].agg(["size", "mean", "min"])
    return {"by what was held out": found.assign(crps=np.exp(groups["crps"].mean()))}


@experiment(pooled, laws=LAW, ways=",".join(WAYS), bench=None, draws=0, resamples=1000)
def truth(options: Namespace) -> Jobs:
    """The law of Chinchilla by several ways, on 35 splits of six sources."""
    # Three of the sources may not be shipped: --bench is their folder, with splits.json.
    yield from by_way(chain(shipped(), benched(options.bench)), options)


@experiment(
    pooled,
    laws="chinchilla",
    ways="default,curvature,plain,pairs",
    draws=0,
    resamples=100,
)
def real(options: Namespace) -> Jobs:
    """Splits of real models that were adapted."""
    yield from by_way(adapted(), options)


def by_share(rows: pd.DataFrame) -> Tables:
    """Coverage, its least, and CRPS of each source and law, by what was held out."""
    part = rows["table"].str.replace(r" lr.*", "", regex=True).str.split().str[-1]
    groups = rows.groupby(["source", part.rename("held out"), "law", "way"])
    found = groups["coverage_90"].agg(["size", "mean", "min"])
    found["crps"] = np.exp(np.log(rows["crps"]).groupby(groups.ngroup()).mean().to_numpy())
    return {"by what was held out": found}


@experiment(by_share, laws="dcpt,mixture", ways="default", bench=None, draws=0, resamples=100)
def replay(options: Namespace) -> Jobs:
    """Ratios of replay, shares of mixtures, and sizes, left out of tables of N, D and r."""
    yield from by_way(ratios(options.bench), options)


@experiment(by_part, laws="adaptation", ways="adaptation run", draws=0, resamples=1000)
def adaptation(options: Namespace) -> Jobs:
    """The twelve splits each of tinycpt and tinycode."""
    yield from by_way((s for s in shipped() if s[1] in ("tinycpt", "tinycode")), options)


# -- a size from three smaller ones -----------------------------------------------------------

NO_EFFECTS = bl.Prior.parse("LogNormal(median=1e-12, sigma=0.25)")


def ladders() -> Iterator[tuple[str, bl.LossTable]]:
    """Tables of several sizes; of Delphi the rows that other splits fit."""
    for name, source, train, test, _ in shipped():
        if source in ("olmo", "gadre"):
            frame = pd.concat([train.frame, test.frame], ignore_index=True)
            yield name, bl.from_frame(frame, name)
        elif source == "delphi":
            yield name, train


def weighted(rows: pd.DataFrame) -> Tables:
    """Means over held-out rows, and how many fits passed the convergence check."""
    rows["source"], rows["passed"] = rows["table"].str.split().str[0], rows["gate"] == "passed"
    scores = ["rmse_log", "coverage_50", "coverage_90", "width_90", "crps"]
    groups = rows[scores].mul(rows["test"], axis=0).join(rows[["source", "way", "test", "passed"]])
    found = groups.groupby(["source", "way"]).sum()
    return {"by source": found[scores].div(found["test"], axis=0).join(found[["test", "passed"]])}


@experiment(weighted, discrepancy="walk")
def left_out(options: Namespace) -> Jobs:
    """A size from the three below it, with effects of size drawn from their prior and without."""
    for name, table in ladders():
        sizes = np.unique(table.frame["params"])
        for k in range(3, len(sizes)):
            train, test = (
                bl.from_frame(table.frame[table.frame["params"].isin(s)], name)
                for s in (sizes[k - 3 : k], sizes[k : k + 1])
            )

            def job(train: bl.LossTable = train, test: bl.LossTable = test) -> pd.DataFrame:
                fit = bl.fit(LAW, train, discrepancy=options.discrepancy, **options.settings)
                spec = fit.spec
                bare = dataclasses.replace(spec, priors=spec.priors | {"tau_size": NO_EFFECTS})
                ways = {"none": dataclasses.replace(fit, spec=bare), "propagated": fit}
                return pd.DataFrame([{"way": way} | scored(f, test) for way, f in ways.items()])

            yield {"table": name, "size": int(sizes[k])}, job


# -- by the number of runs ---------------------------------------------------------------------

FEW_RUNS = (
    "delphi",
    "olmo c4_en",
    "olmo dolma_books",
    "olmo dolma_wiki",
    "gadre c4_original",
    "gadre rpj",
)
SIZES, PER_SIZE, SEEDS = (2, 3, 4, 7), (2, 3, 5), range(5)
"""Sizes kept, runs kept of each, where there are as many, and seeds of what is kept."""
RUNS_KEY = ["table", "sizes", "per_size", "seed"]


def thinned(train: bl.LossTable, sizes: int, per_size: int, seed: int) -> bl.LossTable:
    """The training rows of some sizes, and some of each, with the ends of both among them."""
    rng, frame = np.random.default_rng(seed), train.frame
    kept: list[int] = []
    for size in ends_first(np.unique(frame["params"]), rng)[:sizes]:
        own = frame.index[frame["params"] == size]
        ordered = own[np.argsort(frame.loc[own, "tokens"], kind="stable")]
        order = np.random.default_rng([seed, int(size)])  # the same whichever sizes are kept
        kept += [*ends_first(ordered.to_numpy(), order)[:per_size]]
    return bl.LossTable(frame.loc[sorted(kept)].reset_index(drop=True), train.baselines)


def ends_first(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Last, first, then the others at random: fewer runs are not farther from the forecast."""
    return np.r_[values[-1:], values[:-1][:1], rng.permutation(values[1:-1].copy())]


def thinnings(train: bl.LossTable) -> list[tuple[int, int, int]]:
    """Sizes, runs of a size, and seed of every thinning of a table, each set of rows once."""
    counts = train.frame.groupby("params").size()
    sizes = sorted({min(n, len(counts)) for n in SIZES})
    found: dict[tuple, tuple[int, int, int]] = {}
    for n, seed, k in product(sizes, SEEDS, sorted({min(k, counts.max()) for k in PER_SIZE})):
        frame = thinned(train, n, k, seed).frame
        rows = frozenset(zip(frame["params"], frame["tokens"], frame["loss"], strict=True))
        found.setdefault((n, k, rows), (n, int(k), seed))
    return sorted(found.values(), key=lambda case: (case[2], *case[:2]))


def by_number(rows: pd.DataFrame) -> Tables:
    """Width, coverage, error and share of failed fits by numbers of runs; a summary in percent."""
    rows = rows.assign(
        failed=rows["gate"] != "passed",
        error=rows["error"].abs(),
        log_width=np.log(rows["width_90"]),
        fit=rows[RUNS_KEY].astype(str).agg(" ".join, axis=1),
    )

    def means(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
        groups = rows.groupby(keys)
        found = groups[["rows", "inside_90", "failed"]].mean()
        return found.assign(
            fits=groups["fit"].nunique(),
            losses=groups.size(),
            width=np.exp(groups["log_width"].mean()),
            median_error=groups["error"].median(),
            nine_of_ten_below=groups["error"].quantile(0.9),
        )

    labelled = {}
    for column, few in (("sizes", (2, 3, 4)), ("per_size", (2, 3))):
        most = rows[column] == rows.groupby("table")[column].transform("max")
        labels = rows[column].where(rows[column].isin(few)).astype("Int64").astype("string")
        labelled[column] = labels.where(~most, "all")
    percent = rows.assign(**labelled).dropna(subset=[*labelled])
    found = 100 * means(percent, [*labelled, "source"])[["width", "inside_90", "median_error"]]
    digits = {"width": 1, "inside_90": 0, "median_error": 1}
    texts = pd.DataFrame({c: found[c].map(f"{{:.{n}f}}".format) for c, n in digits.items()})
    sources = ", ".join(sorted(set(rows["source"])))
    return {
        "by number": means(rows, ["source", "sizes", "per_size"]),
        f"in percent: {sources}": texts.groupby(level=[*labelled], sort=False).agg(", ".join),
    }


@experiment(by_number)
def runs(options: Namespace) -> Jobs:
    """Width and coverage by the number of runs: a few sizes of the training rows, a few of each."""
    chosen = [split for split in shipped() if split[0] in FEW_RUNS]
    todo = [(split, case) for split in chosen for case in thinnings(split[2])]
    settings = {"discrepancy": "auto", "effects": "auto", "chains": 4, "draws": 500}
    settings |= {key: value for key, value in options.settings.items() if key != "retry"}
    for (name, source, train, test, _), case in sorted(todo, key=lambda pair: pair[1][2]):

        def job(
            source: str = source,
            train: bl.LossTable = train,
            test: bl.LossTable = test,
            case: tuple[int, int, int] = case,
        ) -> pd.DataFrame:
            fewer = thinned(train, *case)
            fit = refit(LAW, fewer, 0, **settings).accepted(unconverged=True)
            rows = by_row(fit.forecast(test).samples, test)
            gate = "; ".join(fit.convergence.failures) or "passed"
            return rows.assign(source=source, rows=len(fewer), gate=gate)

        yield dict(zip(RUNS_KEY, (name, *case), strict=True)), job


# -- by distance -------------------------------------------------------------------------------

EDGES = (0.0, 0.1, 0.25, 0.5, 0.75, np.inf)
NAMES = ("to .1", ".1 to .25", ".25 to .5", ".5 to .75", "above .75")
"""Bins of the distance, in decades."""


def by_distance(rows: pd.DataFrame) -> Tables:
    """Scores by distance, over rows and, for the least coverage, over sources."""
    far = pd.cut(rows["decades"], EDGES, labels=NAMES, include_lowest=True).rename("far")
    groups = rows.groupby(far, observed=True)
    found = groups[["error", "width_90", *(f"inside_{level}" for level in (50, 80, 90))]].mean()
    each = rows.groupby([far, "source"], observed=True)["inside_90"].mean()
    return {
        "by distance": found.rename(columns={"error": "bias"}).assign(
            rows=groups.size(),
            sources=groups["source"].nunique(),
            median_error=groups["error"].agg(lambda e: e.abs().median()),
            nine_of_ten_below=groups["error"].agg(lambda e: e.abs().quantile(0.9)),
            least=each.groupby(level=0, observed=True).min(),
        )
    }


@experiment(by_distance, bench=None)
def distance(options: Namespace) -> Jobs:
    """Error and coverage by how far rows lie beyond the fitted ones, in decades of `bl.locate`."""
    for name, source, train, test, laws in chain(shipped(), benched(options.bench)):

        def job(
            source: str = source, train: bl.LossTable = train, test: bl.LossTable = test
        ) -> pd.DataFrame:
            found = bl.fit(LAW, train, **options.settings).accepted(unconverged=True)
            forecast = found.forecast(test)
            rows = by_row(forecast.samples, test, (50, 80, 90))
            place = ["position", "decades", "beyond_params", "beyond_tokens"]
            rows[place] = forecast.positions[place].to_numpy()
            gate = "; ".join(found.convergence.failures) or "passed"
            return rows.assign(source=source, gate=gate)

        if LAW in laws:
            yield {"table": name}, job
