"""Numbers of the figures of the measured results, from the CSV files of the benchmarks alone.

Each function returns a frame with a line for each dot: its `row` and `method`, and what it shows.
Errors and shares are percentages.
"""

import numpy as np
import pandas as pd

from benchmarks.dots import with_interval
from benchmarks.held_out import EDGES, NAMES, by_design, over_rows
from benchmarks.measured import DESIGNS
from benchmarks.runner import FOLDER


def read(name: str) -> pd.DataFrame:
    """Rows of an experiment as they are kept."""
    return pd.read_csv(FOLDER / f"{name}.csv")


# -- methods -----------------------------------------------------------------------------------

DEFAULT = "bayeslaw, default"
CURVATURE = "bayeslaw, curvature"
EXACT = "bayeslaw, exact law"
HUBER = "bootstrap of Huber fits"
RIVAL = "simple rival: three power laws"
SEPARABLE = "simple-scaling-laws, separable"
COUPLED = "simple-scaling-laws, coupled"
METHODS = {
    "walk": DEFAULT,
    "default": DEFAULT,
    "curvature": CURVATURE,
    "plain": EXACT,
    "kappa pairs": HUBER,
    "pairs": HUBER,
    "three laws": RIVAL,
    "peer": SEPARABLE,
    "peer kappa": COUPLED,
}
"""Methods by their names in the CSV files."""


def pooled_rows(rows: pd.DataFrame, row: pd.Series, method: pd.Series) -> pd.DataFrame:
    """Coverage with intervals, errors and CRPS over the losses of each row and method."""
    found = over_rows(rows.assign(row=row, method=method), ["row", "method"])
    found = found.rename(columns={"test": "losses"}).reset_index()
    found["error"] = 100 * found["bias_log"]
    for level in (90, 50):
        found = with_interval(found, level)
    return found


def ordered(numbers: pd.DataFrame, names: list[str], gap: str = "\n") -> pd.DataFrame:
    """Rows in a given order, labelled with their losses, after a `gap` of two-line names."""
    place = {name: i for i, name in enumerate([*names, *METHODS.values()])}
    found = numbers.sort_values(["row", "method"], key=lambda column: column.map(place))
    labels = []
    for name, losses in zip(found["row"], found["losses"], strict=True):
        before = gap if "\n" in name else "\n"
        labels.append(f"{name}{before}({losses:,.0f} losses)")
    return found.assign(row=labels).reset_index(drop=True)


# -- six sources -------------------------------------------------------------------------------

SOURCES = {
    "delphi": "Delphi",
    "olmo": "OLMo",
    "gadre": "Gadre et al.",
    "chinchilla": "Chinchilla points",
    "gemstones": "Gemstones",
    "porian": "Porian et al.",
}
ALL = "all six sources"


def six_sources() -> pd.DataFrame:
    """Coverage and errors of each method on each source, and on all."""
    rows = read("truth")
    rows = rows[rows["way"].isin(METHODS) & (rows["way"] != "pairs")]
    method = rows["way"].map(METHODS)
    each = pooled_rows(rows, rows["source"].map(SOURCES), method)
    every = pooled_rows(rows, method.map(lambda _: ALL), method)
    return ordered(pd.concat([each, every]), [*SOURCES.values(), ALL])


def crps_ratios() -> pd.DataFrame:
    """CRPS over the default's: geometric mean over the splits of a source, least and most split.

    The last row is the geometric mean over sources, and the least and the most source.
    """
    rows = read("truth")
    logs = np.log(rows.pivot(index=["source", "table"], columns="way", values="crps"))
    ratios = logs.sub(logs["walk"], axis=0).stack().rename("ratio").reset_index()
    ratios = ratios[ratios["way"].isin(METHODS) & (ratios["way"] != "pairs")]
    means = ratios.groupby(["source", "way"])["ratio"].mean().reset_index()
    parts = dict(list(ratios.groupby("source")))
    found = []
    for source, label in SOURCES.items():
        found.append(parts[source].assign(row=label))
    found.append(means.assign(row=ALL))
    groups = pd.concat(found).groupby(["row", "way"], sort=False)["ratio"]
    numbers = groups.agg(ratio="mean", least="min", most="max")
    numbers = np.exp(numbers).reset_index()
    numbers["method"] = numbers["way"].map(METHODS)
    both = numbers.merge(six_sources_errors(), on=["row", "method"])
    return ordered(both, [*SOURCES.values(), ALL])


def six_sources_errors() -> pd.DataFrame:
    """Errors of the medians, by plain names of the rows."""
    found = six_sources()
    found["row"] = found["row"].str.partition("\n")[0]
    return found[["row", "method", "losses", "error", "rms_error"]]


# -- real models, replay, adaptation, further columns -------------------------------------------

REAL = {
    "delphi clean": "Delphi,\nclean set",
    "delphi contaminated": "Delphi,\ncontaminated set",
    "multipowerlaw": "annealed ends\nof loss curves",
    "rectified size": "larger\nfine-tuned models",
    "rectified samples": "more\nfine-tuning samples",
}


def real_models() -> pd.DataFrame:
    """Methods that were run on all splits that simple-scaling-laws was run on."""
    rows = read("real").query("law == 'chinchilla'")
    rows = rows[rows["way"].isin(METHODS)]
    peer = set(rows.loc[rows["way"] == "peer", "table"])
    rows = rows[rows["table"].isin(peer)]
    splits = rows.groupby(["source", "way"])["table"].transform("size")
    most = rows.groupby("source")["table"].transform("nunique")
    rows = rows[splits == most]
    numbers = pooled_rows(rows, rows["source"].map(REAL), rows["way"].map(METHODS))
    return ordered(numbers, list(REAL.values()))


REPLAY = {
    "delphi high": "Delphi: highest of three\nreplay ratios",
    "delphi middle": "Delphi: middle ratio",
    "delphi low": "Delphi: lowest ratio",
    "delphi size": "Delphi: base of\n1e21 FLOPs (3.4B)",
    "delphi 1e22": "Delphi: base of\n1e22 FLOPs (9.7B)",
    "mixlaw low": "RedPajama: large shares\nof the domain",
    "mixlaw high": "RedPajama: shares\nnear 0",
    "mixlaw size": "RedPajama:\nlarger models",
    "starcoder low": "two phases: more code\nthan fitted",
    "starcoder high": "two phases: less code",
    "starcoder phase": "two phases: code\nin phase one",
}


def replay() -> pd.DataFrame:
    """What was held out, by law."""
    rows = read("replay")
    words = rows["table"].str.replace(r" lr.*", "", regex=True).str.split()
    part = words.str[0] + " " + words.str[-1]
    return ordered(
        pooled_rows(rows, part.map(REPLAY), rows["law"]), list(REPLAY.values()), " "
    )


ADAPTED = {
    "stage from two": "last stage,\nfrom two stages",
    "stage from four": "last stage,\nfrom four stages",
    "size": "largest size",
    "corner": "largest size\nat the last stage",
    "longer": "above 8 tokens\nper parameter",
    "low replay": "replay of 0.1 or less",
    "middle replay": "replay of 0.25",
    "high replay": "replay of 0.5",
}


def adaptation() -> pd.DataFrame:
    """Means over domains, with the least and the most domain."""
    rows = read("adaptation")
    part = rows["table"].str.split(n=2).str[2].map(ADAPTED)
    groups = rows.assign(row=part, method=rows["law"]).groupby(
        ["row", "method"], sort=False
    )
    numbers = pd.DataFrame({"losses": groups["test"].sum()})
    for level in (90, 50):
        shares = 100 * groups[f"coverage_{level}"].agg(["mean", "min", "max"])
        numbers[[f"inside_{level}", f"low_{level}", f"high_{level}"]] = shares
    ends = 100 * groups["bias_log"].agg(["mean", "min", "max"])
    numbers[["error", "low_error", "high_error"]] = ends
    logs = rows.assign(crps=np.log(rows["crps"]), row=part, method=rows["law"])
    numbers["crps"] = np.exp(logs.groupby(["row", "method"])["crps"].mean())
    numbers = numbers.reset_index()
    place = {name: i for i, name in enumerate(ADAPTED.values())}
    return numbers.sort_values("row", key=lambda names: names.map(place), kind="stable")


COLUMNS = {
    "above 300M to 16 epochs": "models above 300M,\nat most 16 epochs",
    "above 300M": "models above 300M,\nat most 100 epochs",
    "above 1B": "models above 1B",
    "more epochs": "more than 16 epochs",
    "size": "routed: 1.3B active\nparameters",
    "experts": "routed: more than\n64 experts",
}
WITHOUT = "default, without the column"


def further_columns() -> pd.DataFrame:
    """Repeated data and experts: with and without the column, with and without discrepancy."""
    rows = read("covariates").dropna(subset="crps")
    row = rows["split"].str.split(", ").str[-1].map(COLUMNS)
    ways = rows["discrepancy"] + " " + rows["way"]
    names = {"auto with": DEFAULT, "none with": EXACT, "auto without": WITHOUT}
    kept = row.notna() & ways.isin(names)
    rows = rows[kept].assign(row=row[kept], method=ways[kept].map(names))
    numbers = pooled_rows(rows, rows["row"], rows["method"])
    weighted = (rows["r2"] * rows["test"]).groupby([rows["row"], rows["method"]]).sum()
    numbers["r2"] = (
        numbers.set_index(["row", "method"]).index.map(weighted) / numbers["losses"]
    )
    return ordered(numbers, list(COLUMNS.values()), gap=" ")


# -- distance ----------------------------------------------------------------------------------

FEWEST = 5
"""Losses of a source in a bin, of which a median is shown."""


def distance() -> pd.DataFrame:
    """Errors of the default in bins of decades, over all losses and by source; coverage of all."""
    rows = read("distance")
    far = pd.cut(rows["decades"], EDGES, labels=NAMES, include_lowest=True)
    rows = rows.assign(bin=far.astype(str), percent=100 * rows["error"])
    found = []
    for source, own in [(ALL, rows), *rows.groupby("source")]:
        groups = own.groupby("bin")
        numbers = groups["percent"].agg(
            losses="size",
            error="median",
            low_error=lambda e: e.quantile(0.1),
            high_error=lambda e: e.quantile(0.9),
        )
        for level in (50, 80, 90):
            numbers[f"in_{level}"] = groups[f"inside_{level}"].sum()
            numbers = with_interval(numbers, level)
        numbers = numbers[numbers["losses"] >= FEWEST].reindex(NAMES).dropna()
        found.append(numbers.reset_index().assign(source=SOURCES.get(source, source)))
    return pd.concat(found, ignore_index=True)


# -- anchors, runs, plans ----------------------------------------------------------------------

BOUGHT = {
    "two budgets": "nothing",
    "1 anchor": "1 anchor",
    "2 anchors": "2 anchors",
    "4 anchors": "4 anchors",
    "8 anchors": "8 anchors",
    "two sizes": "all runs of two sizes",
    "pilot 0.5": "two sizes, pilot to 0.5",
    "pilot 1": "two sizes, pilot to 1",
    "pilot 2": "two sizes, pilot to 2",
    "four budgets": "nothing, but budgets\n62 and 124 are fitted",
}
SWEEPS = {"tinycpt": "tinycpt", "tinycode": "tinycode", "third": "third sweep"}
DOMAINS = {
    "tinycpt french": "tinycpt, French",
    "tinycpt english": "tinycpt, English",
    "tinycode python": "tinycode, Python",
    "tinycode english": "tinycode, English",
    "third source": "third sweep, its source",
}
MEAN = "mean of the five"


def anchors() -> pd.DataFrame:
    """Width, CRPS and coverage of each domain by what is bought, and their means."""
    rows = read("measured_plans").query("kind == 'forecast' and way == 'default'")
    rows = rows.assign(
        row=rows["design"].map(BOUGHT),
        method=(rows["table"] + " " + rows["domain"]).map(DOMAINS),
        width=100 * rows["width_90"],
        inside_90=100 * rows["coverage_90"],
    )
    names = ["width", "crps", "inside_90"]
    means = rows.groupby("row")[names].mean().reset_index().assign(method=MEAN)
    place = [BOUGHT[design] for design in DESIGNS]
    found = pd.concat([rows[["row", "method", *names]], means], ignore_index=True)
    return found.sort_values("row", key=lambda row: row.map(place.index), kind="stable")


FEWEST_SOURCES = 4
"""Sources of a distance and place, of which means are shown."""
PLACES = {"smallest": "the smallest sizes", "spread": "sizes spread over the range"}


def runs() -> pd.DataFrame:
    """Width and coverage by place, distance and number of runs: means of sources, and the worst."""
    found = by_design(read("runs"))["by place, distance and runs"].reset_index()
    for name in ("width_90", "inside_90", "least", "inside_50", "bias"):
        found[name] *= 100
    names = ["place", "far", "rows", "width_90", "inside_90", "least", "inside_50"]
    fewest = found.groupby(["place", "far"], observed=True)["sources"].transform("min")
    found = found[fewest >= FEWEST_SOURCES]
    return found[[*names, "bias", "sources", "losses"]].reset_index(drop=True)


LOSSES = {"latent": "for latent losses", "predictive": "for the losses of a new run"}
WORLDS = {
    ("transfer", "all"): "synthetic worlds, transfer,\nall replay ratios",
    ("adaptation", "fitted"): "synthetic worlds, a pool,\nfitted replay ratios",
}
"""Laws and replay ratios of plans in synthetic worlds."""
EVERY_SWEEP = "all three sweeps"


def plans() -> pd.DataFrame:
    """Plans made, kept, and their budget over the least, by sweep, kind of losses and level.

    `kept_80` is the percentage of plans with a stated 80 % that kept their limits. Cases of one
    sweep share forecasts, so the interval of a sweep is too narrow. In synthetic worlds it is the
    mean probability that a new run keeps them, with 1.96 standard errors over worlds.
    """
    rows = read("measured_plans").query("kind != 'forecast' and way == 'default'")
    named = rows.assign(row=rows["table"].map(SWEEPS))
    both = pd.concat([named, rows.assign(row=EVERY_SWEEP)])
    both["log_budget"] = np.log(both["budget"]) * both["made"]
    found: dict[tuple[str, str], dict[str, float]] = {}
    for (row, kind, level), own in both.groupby(["row", "kind", "level"], sort=False):
        sums = own[["cases", "made", "kept", "log_budget"]].sum()
        percent = round(100 * level)
        counts = pd.DataFrame({f"in_{percent}": [sums["kept"]], "losses": sums["made"]})
        share = with_interval(counts, percent).iloc[0]
        found.setdefault((row, LOSSES[kind]), {}).update(
            {
                f"cases_{percent}": sums["cases"],
                f"made_{percent}": sums["made"],
                f"kept_{percent}": share[f"inside_{percent}"],
                f"low_{percent}": share[f"low_{percent}"],
                f"high_{percent}": share[f"high_{percent}"],
                f"budget_{percent}": np.exp(sums["log_budget"] / sums["made"]),
            }
        )
    numbers = pd.DataFrame(found).T.rename_axis(["row", "method"]).reset_index()
    return pd.concat([numbers, of_worlds()], ignore_index=True)


def of_worlds() -> pd.DataFrame:
    """The same of plans in synthetic worlds; the budget is a median over worlds."""
    rows = read("violations").query("pilot == 'short'")
    rows = rows[np.isfinite(rows["atpp"])]
    found = []
    for (law, ratios), row in WORLDS.items():
        own = rows[(rows["law"] == law) & (rows["ratios"] == ratios)]
        for kind, method in LOSSES.items():
            of_kind = own[own["noise"] == kind]
            line: dict[str, object] = {"row": row, "method": method}
            for percent in (80, 90):
                at = of_kind[np.isclose(of_kind["confidence"], percent / 100)]
                kept = 100 * (1 - at["risk"])
                margin = 1.96 * kept.std() / np.sqrt(len(kept))
                over = (at["atpp"] / at["oracle"]).replace(np.inf, np.nan)
                line |= {
                    f"made_{percent}": len(at),
                    f"kept_{percent}": kept.mean(),
                    f"low_{percent}": max(kept.mean() - margin, 0),
                    f"high_{percent}": min(kept.mean() + margin, 100),
                    f"budget_{percent}": over[np.isfinite(at["oracle"])].median(),
                }
            found.append(line)
    return pd.DataFrame(found)
