"""Coverage and scores of forecasts on held-out rows of real tables: ways, sizes, runs, distance."""

import dataclasses
import re
from argparse import Namespace
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, product
from pathlib import Path

import numpy as np
import pandas as pd

import bayeslaw as bl
from benchmarks.methods import UNSUITED, WAYS, by_row, measured, scored
from benchmarks.runner import Jobs, Rows, Tables, experiment
from benchmarks.splits import Split, adapted, benched, ratios, shipped

GROUPS = ["source", "law", "way"]
LAW = "chinchilla"

# -- by way -----------------------------------------------------------------------------------


def by_way(every: Iterable[Split], options: Namespace) -> Jobs:
    """A job for each split, law and way that suit each other."""
    draws, resamples = (
        (20, 5) if options.smoke else (options.draws or None, options.resamples)
    )
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


def pooled(rows: pd.DataFrame, base: str = "curvature") -> Tables:
    """Measured losses in the bands of each source, and scores relative to one way.

    `bias_log` is the mean signed error of the medians, `rms_error` the root of their mean squared
    one: errors of two sources may cancel in the first.
    """
    scores = ["width_90", "crps", "winkler_90"]
    keys = ["table", "source", "law"]
    ratios, reference = rows.set_index(keys), rows[rows["way"] == base].set_index(keys)
    for score in scores:
        ratios[score] = np.log(ratios[score] / reference[score].reindex(ratios.index))
    means = ratios.groupby(GROUPS)[["coverage_50", "coverage_90", *scores]].mean()
    overall = means.groupby(["law", "way"]).mean()
    for found in (means, overall):
        found[scores] = np.exp(found[scores])
    means["least"] = ratios.groupby(GROUPS)["coverage_90"].min()
    return {
        "by source, over rows": over_rows(rows, GROUPS),
        "over rows": over_rows(rows, ["law", "way"]),
        "by source, over splits": means,
        "over sources": overall,
        "coverage of 50 % bands, by split": half_bands(rows),
        "CRPS of the default over that of another way, by split": against(rows),
    }


def over_rows(rows: pd.DataFrame, groups: list[str]) -> pd.DataFrame:
    """Losses in the bands and mean scores over held-out rows, and splits without a CRPS.

    A split without a score has none of the weight: its rows count for the bands alone.
    """
    losses = rows["test"]
    keys = [rows[name] for name in groups]
    found = pd.DataFrame({"test": losses.groupby(keys).sum()})
    for level in (50, 90):
        found[f"in_{level}"] = (rows[f"coverage_{level}"] * losses).groupby(keys).sum()
    squares = rows.assign(rms_error=rows["rmse_log"] ** 2)
    for score in ("bias_log", "rms_error", "width_90", "crps", "winkler_90"):
        weights = losses.where(squares[score].notna())
        sums = (squares[score] * weights).groupby(keys).sum()
        found[score] = sums / weights.groupby(keys).sum()
    found["rms_error"] = np.sqrt(found["rms_error"])
    found["no_crps"] = rows["crps"].isna().groupby(keys).sum()
    return found


def half_bands(rows: pd.DataFrame) -> pd.DataFrame:
    """How coverage of 50 % bands varies over splits, and in how many they hold none or all."""
    coverage = rows.groupby(["law", "way"])["coverage_50"]
    ends = {
        "least": 0.0,
        "lower quarter": 0.25,
        "median": 0.5,
        "upper quarter": 0.75,
        "most": 1.0,
    }
    found = pd.DataFrame(
        {name: coverage.quantile(share) for name, share in ends.items()}
    )
    none, every = (rows["coverage_50"] == share for share in (0, 1))
    keys = [rows["law"], rows["way"]]
    return found.assign(
        splits=coverage.size(),
        none=none.groupby(keys).sum(),
        all=every.groupby(keys).sum(),
    )


def against(rows: pd.DataFrame) -> pd.DataFrame:
    """Splits that the default wins and loses by CRPS, and the geometric means of the ratios.

    The mean over splits counts a source as often as it has splits, the mean over sources once;
    then those of each source.
    """
    logs = np.log(
        rows.pivot(index=["law", "source", "table"], columns="way", values="crps")
    )
    default = "walk" if "walk" in logs else "default"
    if default not in logs:  # of one way alone there is nothing to compare
        return pd.DataFrame()
    ratios = logs.drop(columns=default).rsub(logs[default], axis=0)
    ratios = ratios.assign(**{"better peer": ratios.filter(regex="^peer").max(axis=1)})
    compared = ratios.stack().dropna().rename("ratio")
    groups = compared.groupby(level=["law", "way"])
    found = groups.agg(wins=lambda x: (x < 0).sum(), losses=lambda x: (x > 0).sum())
    by_source = compared.groupby(level=["law", "way", "source"]).mean()
    found["splits"] = np.exp(groups.mean())
    found["sources"] = np.exp(by_source.groupby(level=["law", "way"]).mean())
    return found.join(np.exp(by_source).unstack("source"))


def by_part(rows: pd.DataFrame) -> Tables:
    """Coverage, its least, that of 50 % bands, and CRPS over domains, by what was held out."""
    part = rows["table"].str.split(n=2).str[2].rename("held out")
    groups = rows.assign(crps=np.log(rows["crps"])).groupby([part, "law", "way"])
    found = groups["coverage_90"].agg(["size", "mean", "min"])
    found = found.assign(
        half=groups["coverage_50"].mean(),
        bias=groups["bias_log"].mean(),
        crps=np.exp(groups["crps"].mean()),
    )
    passed = rows.assign(passed=rows["gate"] == "passed").groupby(["law", "way"])
    over = passed[["coverage_50", "coverage_90", "passed", "seconds"]].mean()
    return {"by what was held out": found, "over splits": over}


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
    """Coverage, its least, signed error and CRPS of each source and law, by what was held out."""
    part = rows["table"].str.replace(r" lr.*", "", regex=True).str.split().str[-1]
    groups = rows.groupby(["source", part.rename("held out"), "law", "way"])
    found = groups["coverage_90"].agg(["size", "mean", "min"])
    found = found.join(groups[["coverage_50", "bias_log"]].mean())
    found["in_90"] = (
        (rows["coverage_90"] * rows["test"]).groupby(groups.ngroup()).sum().to_numpy()
    )
    found["losses"] = groups["test"].sum()
    found["crps"] = np.exp(
        np.log(rows["crps"]).groupby(groups.ngroup()).mean().to_numpy()
    )
    return {"by what was held out": found}


@experiment(
    by_share, laws="dcpt,mixture", ways="default", bench=None, draws=0, resamples=100
)
def replay(options: Namespace) -> Jobs:
    """Ratios of replay, shares of mixtures, and sizes, left out of tables of N, D and r."""
    yield from by_way(ratios(options.bench), options)


@experiment(by_part, laws="transfer", ways="default", draws=0, resamples=1000)
def adaptation(options: Namespace) -> Jobs:
    """The sixteen splits each of tinycpt and tinycode."""
    yield from by_way(
        (s for s in shipped() if s[1] in ("tinycpt", "tinycode")), options
    )


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
    rows["source"], rows["passed"] = (
        rows["table"].str.split().str[0],
        rows["gate"] == "passed",
    )
    scores = ["rmse_log", "coverage_50", "coverage_90", "width_90", "crps"]
    groups = (
        rows[scores]
        .mul(rows["test"], axis=0)
        .join(rows[["source", "way", "test", "passed"]])
    )
    found = groups.groupby(["source", "way"]).sum()
    return {
        "by source": found[scores]
        .div(found["test"], axis=0)
        .join(found[["test", "passed"]])
    }


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

            def job(
                train: bl.LossTable = train, test: bl.LossTable = test
            ) -> pd.DataFrame:
                fit = bl.fit(
                    LAW, train, discrepancy=options.discrepancy, **options.settings
                )
                spec = fit.spec
                bare = dataclasses.replace(
                    spec, priors=spec.priors | {"tau_size": NO_EFFECTS}
                )
                ways = {"none": dataclasses.replace(fit, spec=bare), "propagated": fit}
                return pd.DataFrame(
                    [{"way": way} | scored(f, test) for way, f in ways.items()]
                )

            yield {"table": name, "size": int(sizes[k])}, job


# -- by the number of runs ---------------------------------------------------------------------

DESIGNS = ((3, 2), (4, 3), (2, 2), (4, 2))
"""Sizes, and token counts of each."""
FAR = (0.0, 0.5, 1.0, 1.5, np.inf)
FAR_NAMES = ("to 0.5", "0.5 to 1", "1 to 1.5", "above 1.5")


def spaced(values: np.ndarray, k: int) -> np.ndarray:
    """Both ends of the values, and those nearest to geometric spacing between them."""
    chosen: list[float] = []
    marks = np.geomspace(values.min(), values.max(), k)
    for mark in marks[[0, -1, *range(1, k - 1)]]:  # no mark takes the value of an end
        left = values[~np.isin(values, chosen)]
        chosen.append(left[np.abs(np.log(left / mark)).argmin()])
    return np.sort(chosen)


def designed(
    table: bl.LossTable, sizes: int, per_size: int, place: str
) -> bl.LossTable | None:
    """Rows of a design, or nothing where the table has too few sizes or token counts."""
    frame = table.frame.drop_duplicates(["params", "tokens"])
    counts = frame.groupby("params").size()
    enough = counts.index[counts >= per_size].to_numpy()
    if len(enough) < sizes:
        return None
    chosen = enough[:sizes] if place == "smallest" else spaced(enough, sizes)
    own = (frame[frame["params"] == n] for n in chosen)
    kept = [f[f["tokens"].isin(spaced(f["tokens"].to_numpy(), per_size))] for f in own]
    return bl.LossTable(pd.concat(kept, ignore_index=True), baselines=table.baselines)


def ranges(
    folder: Path | None,
) -> Iterator[tuple[str, str, str, bl.LossTable, bl.LossTable]]:
    """Place, name, source, rows that a design may have, and rows among which are the held out."""
    splits = [s for s in chain(shipped(), benched(folder)) if LAW in s[-1]]
    tables = pd.Series(
        [re.sub("-(larger|longer|ptpp|compute).*", "", s[0]) for s in splits]
    )
    for table, places in tables.groupby(tables, sort=False).groups.items():
        frames = [part.frame for i in places for part in splits[i][2:4]]
        rows = bl.from_frame(
            pd.concat(frames, ignore_index=True).drop_duplicates(), table
        )
        yield "smallest", table, splits[places[0]][1], rows, rows
    for name, source, train, test, _ in splits:
        yield "spread", name, source, train, test


def by_design(rows: pd.DataFrame) -> Tables:
    """Width, coverage and its least by source, by the runs' number and place, and by distance."""
    far = pd.cut(rows["decades"], FAR, labels=FAR_NAMES, include_lowest=True)
    rows = rows.assign(far=far, bias=rows["error"], error=rows["error"].abs())

    def means(keys: list[str]) -> pd.DataFrame:
        """Over sources, each of which counts once, however many tables and rows it has."""
        groups = rows.groupby([*keys, "source"], observed=True)
        middle = groups[["width_90", "error"]].median()
        each = middle.join(groups[["inside_90", "inside_50", "bias", "crps"]].mean())
        inside = each["inside_90"].unstack("source")
        return (
            each.groupby(level=keys, observed=True)
            .mean()
            .assign(
                least=inside.min(axis=1),
                worst=inside.idxmin(axis=1),
                sources=inside.count(axis=1),
                losses=rows.groupby(keys, observed=True).size(),
            )
        )

    found = means(["place", "far", "rows"])
    percent = (100 * found[["width_90", "inside_90", "least", "inside_50"]]).round(0)
    text = percent.astype(int).astype(str).agg("/".join, axis=1)
    text += (100 * found["bias"]).map("; {:+.1f}".format)
    spans = ["width_90", "inside_90", "params_decades", "tokens_decades"]
    tables = rows.groupby(["place", "rows", "table"])
    by_table = tables[spans].mean()
    failed = (tables["gate"].first() != "passed").groupby(["place", "rows"])
    return {
        "by place, distance and runs": found,
        "in percent: width, in 90, least, in 50; signed error": text.unstack("rows"),
        "by place and runs": means(["place", "rows"]),
        "by source": rows.groupby(["place", "rows", "source"])[spans].mean(),
        "tables of which a fifth is outside": by_table[by_table["inside_90"] < 0.8],
        "fits that fail the convergence check": failed.agg(["sum", "size"]),
        "rule": rule(rows[rows["decades"] > 0]),
    }


def rule(rows: pd.DataFrame) -> pd.DataFrame:
    """Width as a product of powers, by least squares of logs, and the factor that a source needs.

    Each source weighs the same in each design.
    """
    names = ["decades", "rows", "params_decades"]
    root = (
        rows.groupby(["rows", "place", "source"])["error"].transform("size").to_numpy()
        ** -0.5
    )
    logs = np.column_stack([np.ones(len(rows)), np.log(rows[names])])
    width = np.log(rows["width_90"])
    found = np.linalg.lstsq(logs * root[:, None], width * root)[0]
    factors = np.exp((width - logs @ found).groupby(rows["source"]).mean())
    powers = pd.Series([np.exp(found[0]), *found[1:]], ["constant", *names])
    return pd.concat([powers, factors]).to_frame("value")


def placed(
    fit: bl.Posterior, test: bl.LossTable, levels: tuple[int, ...]
) -> pd.DataFrame:
    """Scores of each test row, its position, and what failed of the convergence check."""
    forecast = fit.accepted("unconverged").forecast(test)
    columns = ["position", "decades", "beyond_params", "beyond_tokens"]
    places = forecast.positions[columns].reset_index(drop=True)
    gate = "; ".join(fit.convergence.failures) or "passed"
    return by_row(forecast.samples, test, levels).join(places).assign(gate=gate)


@experiment(by_design, bench=None, seed=0)
def runs(options: Namespace) -> Jobs:
    """Width and coverage by the number of runs and where they lie: smallest sizes, or spread."""
    cases = [(d, *each) for d in DESIGNS for each in ranges(options.bench)]
    for design, place, name, source, train, test in cases:
        few = designed(train, *design, place)
        if few is None:
            continue
        own = np.log10(few.frame[["params", "tokens"]])
        if place == "smallest":
            larger = test.frame[test.frame["params"] > few.frame["params"].max()]
            test = bl.LossTable(larger.reset_index(drop=True), baselines=test.baselines)
        if not len(test):
            continue

        about = {"source": source, "rows": len(few)}
        about |= {f"{name}_decades": np.ptp(values) for name, values in own.items()}

        def job(
            few: bl.LossTable = few, test: bl.LossTable = test, about: dict = about
        ) -> Rows:
            settings = {
                "draws": 500,
                "retry": False,
                "seed": options.seed,
            } | options.settings
            rows = placed(bl.fit(LAW, few, **settings), test, (50, 90))
            rows = rows.drop(
                columns=["position", "beyond_params", "beyond_tokens", "width_50"]
            )
            return rows.assign(**about).round(4)

        yield (
            {"table": name, "place": place, "sizes": design[0], "per_size": design[1]},
            job,
        )


# -- by distance -------------------------------------------------------------------------------

EDGES = (0.0, 0.1, 0.25, 0.5, 0.75, np.inf)
NAMES = ("to 0.1", "0.1 to 0.25", "0.25 to 0.5", "0.5 to 0.75", "above 0.75")
"""Bins of the distance, in decades."""


def by_distance(rows: pd.DataFrame) -> Tables:
    """Scores by distance, over rows and, for the least coverage, over sources."""
    far = pd.cut(rows["decades"], EDGES, labels=NAMES, include_lowest=True).rename(
        "far"
    )
    groups = rows.groupby(far, observed=True)
    found = groups[
        ["error", "width_90", *(f"inside_{level}" for level in (50, 80, 90))]
    ].mean()
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
            fit = bl.fit(LAW, train, **options.settings)
            return placed(fit, test, (50, 80, 90)).assign(source=source)

        if LAW in laws:
            yield {"table": name}, job
