"""The gap of two recipes at a scale that was not fitted: joint fit, separate fits, least squares.

Each table has rows of several groups (optimizers, mixtures, routers, learning rates, schedules,
validation sets) at the same N and D. All rows of the larger scales are held out. Forecast is the
gap, the difference in log loss, of each group and the first one. Fits are short, without a retry.
"""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

import bayeslaw as bl
from bayeslaw.common.arrays import Floats
from bayeslaw.evaluate.scores import crps
from benchmarks import methods
from benchmarks.runner import Jobs, Tables, experiment
from benchmarks.splits import CHINCHILLA, DATA

SHORT: dict[str, Any] = {"chains": 2, "draws": 300, "retry": False}
WAYS = ("groups", "separate", "line in N", "line in N and D", "power of N and D")
"""Ways to forecast a gap. A line is least squares on the gap, by logs of the covariates. A power is
least squares on the log of the gap, if that has the same sign in all fitted cells."""
CELL = "pair"
RESAMPLES = 2000


@dataclass(frozen=True)
class Case:
    """Rows of several groups, and what is held out of them."""

    name: str
    source: str
    frame: pd.DataFrame
    by: str
    first: str  # the group that the others are compared with
    train: str
    test: str
    law: str = CHINCHILLA[0]
    along: tuple[str, ...] = ("params", "tokens")

    def rows(self) -> pd.DataFrame:
        """The rows, one of each group in a cell, whose label is `CELL`."""
        frame = self.frame.assign(**{self.by: self.frame[self.by].astype(str)})
        values = frame[list(self.along)].to_numpy(float)
        cells = [" ".join(f"{value:.4g}" for value in row) for row in values]
        frame = frame.assign(**{CELL: cells})
        return frame.drop_duplicates([self.by, CELL]).reset_index(drop=True)


def cases(bench: Path | None) -> Iterator[Case]:
    yield from _optimizers()
    yield from _routers()
    yield from _mixtures()
    yield from _delphi()
    yield from _domains()
    if bench is not None:
        yield from _schedules(bench)


def _optimizers() -> Iterator[Case]:
    frame = pd.read_csv(DATA / "optimizers/losses.csv").drop(columns="run")
    two = frame[frame["optimizer"].isin(["adamw", "muon"])]
    four = frame[frame["optimizer"].isin(["adamw", "muon", "soap", "nadamw"])]
    source = "optimizers"
    largest = "params < 1e9", "params > 1e9"
    smaller = "params < 5e8", "params > 5e8"
    longer = "chinchilla_multiple <= 4", "chinchilla_multiple > 4"
    yield Case("Muon, size", source, two, "optimizer", "adamw", *largest)
    yield Case(
        "Muon, 537M", source, two[two.params < 1e9], "optimizer", "adamw", *smaller
    )
    yield Case("Muon, tokens", source, two, "optimizer", "adamw", *longer)
    yield Case("four, size", source, four, "optimizer", "adamw", *largest)
    yield Case("ten, size", source, frame, "optimizer", "adamw", *largest)


def _routers() -> Iterator[Case]:
    frame = pd.read_csv(DATA / "routing_moe/final.csv").drop(columns="run")
    frame = frame.query(
        "k == 1 and routing_frequency == .5 and step == 249000 and router != 'Dense'"
    )
    frame = frame.assign(ratio=frame["params_total"] / frame["params"])
    parts = {
        "size": (frame, "params < 1e9", "params > 1e9"),
        "370M": (frame[frame["params"] < 1e9], "params < 3e8", "params > 3e8"),
        "experts": (frame, "experts <= 64", "experts > 64"),
    }
    law = str(DATA / "routing_moe/routed.toml")
    for name, (rows, train, test) in parts.items():
        yield Case(
            f"routers, {name}", "routers", rows, "router", "S-Base", train, test,
            law, ("params", "experts"),
        )  # fmt: skip


def _mixtures() -> Iterator[Case]:
    frame = pd.read_csv(DATA / "gadre/overtraining.csv").drop(columns="run")
    for domain in ("c4_val", "openlm", "paloma_redpajama", "paloma_ptb"):
        rows = frame[frame["domain"] == domain]
        smaller = rows[rows["params"] < 1e9]
        for name, some, cut in (("size", rows, 1e9), ("412M", smaller, 4e8)):
            yield Case(
                f"{domain}, {name}", "Gadre", some, "train_set", "c4_original",
                f"params < {cut}", f"params > {cut}",
            )  # fmt: skip


def _delphi() -> Iterator[Case]:
    unread = ["run", "base", "replay", "ptpp"]
    frame = pd.read_csv(DATA / "delphi/k020.csv").drop(columns=unread)
    for domain in ("math_j050", "math_4plus"):
        rows = frame[frame["domain"] == domain]
        for test in ("scale == 1e21", "scale == 1e22"):
            yield Case(
                f"rates {domain}, {test[-4:]}", "Delphi rates", rows, "lr_factor", "0.67",
                "scale < 5e20", test,
            )  # fmt: skip
    frame = pd.read_csv(DATA / "delphi/replay.csv")
    frame = frame.assign(mix=frame["replay"]).drop(columns=[*unread, "role"])
    for rate in (0.5, 0.67):
        rows = frame[frame["lr_factor"] == rate]
        for test in ("scale == 1e21", "scale == 1e22"):
            yield Case(
                f"mixes at {rate}, {test[-4:]}", "Delphi mixes", rows, "mix", "0.33",
                "scale < 5e20", test,
            )  # fmt: skip


def _domains() -> Iterator[Case]:
    """Losses on the domain adapted to and on that of pre-training, at one ratio and one seed."""
    for source, domain in (("tinycpt", "french"), ("tinycode", "python")):
        both = [pd.read_csv(DATA / source / f"{d}.csv") for d in (domain, "english")]
        frame = pd.concat(both).query("annealed and replay == .25 and seed == 0")
        frame = frame.assign(losses_on=frame["domain"])
        frame = frame[["params", "tokens", "ptpp", "replay", "loss", "losses_on"]]
        largest = frame["params"].max()
        yield Case(
            f"{source}, size", "two domains", frame, "losses_on", domain,
            f"params < {largest}", f"params == {largest}", "form1n",
            ("params", "tokens", "ptpp"),
        )  # fmt: skip


def _schedules(bench: Path) -> Iterator[Case]:
    unread = ["run", "domain", "flops", "width", "depth"]
    sets = {
        "porian owt2": ("porian_owt2_cosine", "porian_owt2_const", 3e8),
        "porian rw": ("porian_rw_cosine", "porian_rw_const", 3e8),
        "gemstones": ("gemstones_dclm", "gemstones_fineweb_edu", 6e8),
    }
    for name, (first, other, cut) in sets.items():
        frames = []
        for file in (first, other):
            frame = pd.read_csv(bench / f"{file}.csv").assign(recipe=file)
            frames.append(frame.drop(columns=unread, errors="ignore"))
        yield Case(
            name, name.split()[0], pd.concat(frames), "recipe", first,
            f"params < {cut}", f"params > {cut}",
        )  # fmt: skip


type Drawn = dict[str, Floats]
"""Draws of the gaps of each group, shape (draws, cells)."""


def forecast(
    case: Case, way: str, settings: dict[str, Any]
) -> tuple[Drawn, dict[str, pd.DataFrame]]:
    """Draws of measured gaps in the held-out cells, and these cells, by group."""
    rows = case.rows()
    train = rows.query(case.train)
    test = rows.query(case.test)
    first = test[test[case.by] == case.first]
    others = [group for group in test[case.by].unique() if group != case.first]
    cells = {}
    for group in others:
        own = test[test[case.by] == group]
        cells[group] = own.merge(first, on=CELL, suffixes=("", "_first"))
    if way in ("groups", "separate"):
        fits = _fitted(case, way, train, [case.first, *others], settings)
        return {g: _gaps(case, fits, g, cells[g]) for g in others}, cells
    along = case.along[:1] if way == "line in N" else case.along
    drawn = {}
    for group in others:
        gaps = least_squares(case, train, group, cells[group], along, way)
        if gaps is None:
            return {}, cells
        drawn[group] = gaps
    return drawn, cells


def _fitted(
    case: Case,
    way: str,
    train: pd.DataFrame,
    groups: list[str],
    settings: dict[str, Any],
) -> dict[str, bl.Posterior]:
    table = bl.from_frame(train, case.name)
    if way == "groups":
        return bl.fit_groups(case.law, table, case.by, **settings)
    fits = {}
    for seed, group in enumerate(groups):
        rows = train[train[case.by] == group].drop(columns=CELL)
        own = bl.from_frame(rows, group)
        fits[group] = bl.fit(case.law, own, seed=seed, **settings)
    return fits


def _gaps(
    case: Case, fits: dict[str, bl.Posterior], group: str, cells: pd.DataFrame
) -> Floats:
    """Draws of the gaps of new measurements, whose noise is independent."""
    rng = np.random.default_rng(0)
    logs = []
    for seed, name in enumerate((group, case.first)):
        fit = fits[name].accepted({"unconverged", "beyond-evidence"})
        rows = cells[[c for c in cells if c in (*fit.columns, "params", "tokens")]]
        latent = np.log(fit.forecast(rows, kind="latent").samples)
        values = fit.values()
        noise = fit.spec.likelihood.sample(
            np.random.default_rng(seed), latent.shape, fit.scale(rows), values
        )
        logs.append(latent + noise)
    one, other = logs
    joint = [fits[name].settings.get("joint", name) for name in (group, case.first)]
    if joint[0] != joint[1]:
        other = rng.permutation(other)
    return one - other


def least_squares(
    case: Case,
    train: pd.DataFrame,
    group: str,
    cells: pd.DataFrame,
    along: tuple[str, ...],
    way: str,
) -> Floats | None:
    """Draws of gaps by a regression with Student-t bands; None where it cannot be made."""
    first = train[train[case.by] == case.first]
    both = train[train[case.by] == group].merge(first, on=CELL, suffixes=("", "_first"))
    gaps = np.log(both["loss"] / both["loss_first"]).to_numpy()
    sign = 1.0
    power = way.startswith("power")
    if power:
        if not ((gaps > 0).all() or (gaps < 0).all()):
            return None
        sign = float(np.sign(gaps[0]))
        gaps = np.log(np.abs(gaps))
    means = np.log(both[list(along)]).mean()

    def columns(frame: pd.DataFrame) -> Floats:
        logs = np.log(frame[list(along)]) - means
        return np.column_stack([np.ones(len(frame)), logs])

    fitted = columns(both)
    freedom = len(gaps) - fitted.shape[1]
    if freedom < 1:
        return None
    weights, *_ = np.linalg.lstsq(fitted, gaps, rcond=None)
    variance = ((gaps - fitted @ weights) ** 2).sum() / freedom
    asked = columns(cells)
    inverse = np.linalg.pinv(fitted.T @ fitted)
    spread = np.sqrt(variance * (1 + np.einsum("ij,jk,ik->i", asked, inverse, asked)))
    noise = stats.t.rvs(freedom, size=(RESAMPLES, len(asked)), random_state=0)
    drawn = asked @ weights + spread * noise
    return sign * np.exp(drawn) if power else drawn


def scored(case: Case, way: str, settings: dict[str, Any]) -> pd.DataFrame:
    """Each held-out gap with its forecast; one row without numbers if there is none."""
    drawn, cells = forecast(case, way, settings)
    parts = []
    for group, gaps in drawn.items():
        rows = cells[group]
        measured = np.log(rows["loss"] / rows["loss_first"]).to_numpy()
        low, first, middle, third, high = np.quantile(
            gaps, [0.05, 0.25, 0.5, 0.75, 0.95], axis=0
        )
        part = pd.DataFrame({"cell": rows[CELL].to_numpy(), "gap": measured})
        part["median"] = middle
        part["width_90"] = high - low
        part["inside_90"] = ((low <= measured) & (measured <= high)).astype(int)
        part["inside_50"] = ((first <= measured) & (measured <= third)).astype(int)
        part["crps"] = crps(gaps, measured)
        parts.append(part.assign(group=group))
    return pd.concat(parts) if parts else pd.DataFrame([{"group": ""}])


def tables(rows: pd.DataFrame) -> Tables:
    rows = rows[rows["crps"].notna()]
    error = (rows["median"] - rows["gap"]).abs()
    rows = rows.assign(error=error)
    numbers = ["inside_90", "inside_50", "width_90", "error", "crps"]
    by_case = rows.groupby(["source", "case", "way"])[numbers].mean()
    by_source = by_case.groupby(["source", "way"]).mean()
    scores = by_case["crps"].unstack("way")
    separate = scores.get("separate", np.nan)  # missing while a run has just begun
    ratios = np.log(scores.div(separate, axis=0)).groupby("source").mean()
    return {
        "All sources, each with equal weight": by_source.groupby("way").mean(),
        "CRPS over that of separate fits, geometric means": np.exp(ratios),
        "By source": by_source,
        "CRPS by case": scores,
    }


@experiment(tables, bench=None)
def gaps(options: Namespace) -> Jobs:
    """Forecast the gap of recipes at larger scales by a joint fit and by rivals."""
    settings = SHORT | options.settings
    for case in cases(options.bench):
        for way in WAYS:
            key = {"source": case.source, "case": case.name, "way": way}
            yield key, partial(scored, case, way, settings)


def levels_of(case: Case, way: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Scores of the held-out losses of all groups, of which a gap is the difference."""
    rows = case.rows()
    train = rows.query(case.train)
    test = rows.query(case.test)
    others = [group for group in test[case.by].unique() if group != case.first]
    fits = _fitted(case, way, train, [case.first, *others], settings)
    parts = []
    for group, fit in fits.items():
        own = test[test[case.by] == group]
        if len(own) == 0:
            continue
        table = bl.from_frame(own, group)
        accepted = fit.accepted({"unconverged", "beyond-evidence"})
        parts.append(methods.by_row(accepted.forecast(table).samples, table))
    found = pd.concat(parts)
    passed = all(fit.convergence.ok for fit in fits.values())
    return {
        "losses": len(found),
        **found[["inside_90", "width_90", "error", "crps"]].mean(),
        "gate": "passed" if passed else "failed",
    }


def levels_tables(rows: pd.DataFrame) -> Tables:
    numbers = ["inside_90", "width_90", "error", "crps"]
    by_source = rows.groupby(["source", "way"])[numbers].mean()
    by_source["passed"] = rows.groupby(["source", "way"])["gate"].agg(
        lambda gates: (gates == "passed").sum()
    )
    by_source["splits"] = rows.groupby(["source", "way"]).size()
    scores = rows.pivot_table("crps", ["source", "case"], "way")
    separate = scores.get("separate", np.nan)
    ratios = np.log(scores.div(separate, axis=0)).groupby("source").mean()
    return {
        "By source": by_source,
        "CRPS over that of separate fits, geometric means": np.exp(ratios),
    }


@experiment(levels_tables, bench=None)
def levels(options: Namespace) -> Jobs:
    """The held-out losses themselves, by the joint fits and the separate fits of `gaps`."""
    settings = SHORT | options.settings
    for case in cases(options.bench):
        for way in ("groups", "separate"):
            key = {"source": case.source, "case": case.name, "way": way}
            yield key, partial(levels_of, case, way, settings)
