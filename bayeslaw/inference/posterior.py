"""A posterior and its forecasts: draws of the loss of any rows, with bands."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from bayeslaw.common.arrays import Floats, Ints, Model
from bayeslaw.common.errors import FitError, LawError, TableError, unknown
from bayeslaw.common.formatting import count
from bayeslaw.common.shown import SYNTHETIC, Block, Format, Note, Showing, Shown, Table
from bayeslaw.inference import storage
from bayeslaw.inference.fitted import Convergence, FittedLaw
from bayeslaw.inference.residuals import residual_draws, too_few_sizes
from bayeslaw.inference.storage import to_datatree
from bayeslaw.laws.adjustments import ANNEALED, RATE, UNIQUE
from bayeslaw.laws.priors import FLOORS, NOISE
from bayeslaw.model import effects
from bayeslaw.model.building import build
from bayeslaw.model.spec import make_data, make_spec
from bayeslaw.tables.hull import evidence, in_words, locate, warn_beyond
from bayeslaw.tables.table import LossTable, is_synthetic, write_frame
from bayeslaw.tables.validation import COLUMNS, COVARIATES, LABELS, canonical, check_rows, distinct

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("predictive", "latent")
BAND_LEVELS = (0.5, 0.8, 0.9)


def ends(level: float) -> list[float]:
    """Probabilities of the ends of a central band, whose level is strictly between 0 and 1."""
    if not 0 < level < 1:
        raise TableError(f"band level {level:g} is not between 0 and 1; 0.9 is a 90 % band.")
    return [(1 - level) / 2, (1 + level) / 2]


def band_columns(level: float) -> list[str]:
    """Columns with the ends of a central band, such as ``lower_90`` and ``upper_90``."""
    return [f"{side}_{100 * level:g}" for side in ("lower", "upper")]


def inside(frame: pd.DataFrame, levels: Sequence[float]) -> pd.DataFrame:
    """Whether losses lie inside their bands: `inside_90` and so on, missing without a loss."""
    loss, marks = frame["loss"], {}
    for level in levels:
        lower, upper = (frame[column] for column in band_columns(level))
        marks[f"inside_{100 * level:g}"] = loss.between(lower, upper)
    found = pd.DataFrame(marks, frame.index)
    return found.astype("boolean").where(loss.notna(), axis=0) if loss.hasnans else found


def band_table(frame: pd.DataFrame, covariates: Sequence[str], levels: Sequence[float]) -> Table:
    """Medians and bands of rows; beside measured losses the error, and whether they lie inside."""
    ends = [band_columns(level) for level in levels]
    narrow = min((float((frame[high] - frame[low]).min()) for low, high in ends), default=0.0)
    # As many places as tell the ends of the narrowest band apart.
    places = min(max(3, 1 - math.floor(math.log10(narrow))), 6) if narrow > 0 else 4
    loss = f".{places}f"
    columns = {c: frame[c] for c in covariates}
    if measured := "loss" in frame:
        columns["loss"] = frame["loss"]
    columns["median"] = frame["median"]
    if measured:
        columns["error"] = 100 * (frame["median"] / frame["loss"] - 1)
    for level, (low, high) in zip(levels, ends, strict=True):
        name = f"{100 * level:g}"
        band = frame[low].map(f"{{:{loss}}}".format) + "–" + frame[high].map(f"{{:{loss}}}".format)
        if measured:
            band += frame[f"inside_{name}"].map({True: "  in", False: " out"})
        columns[f"{name} % band"] = band
    if "position" in frame and frame["position"].nunique() > 1:
        columns["position"] = frame["position"]
    if "decades" in frame and frame["decades"].any():
        columns["decades"] = frame["decades"]
    formats: dict[str, Format] = {c: count for c in covariates if c not in ("row", *LABELS)}
    formats |= {"loss": loss, "median": loss, "error": "{:+.1f} %".format, "decades": ".2f"}
    shown = pd.DataFrame(columns).reset_index(drop=True)
    left = ("position", *LABELS)
    return Table(shown, "", formats, ("decades", "error", "position"), left)


def inside_words(frame: pd.DataFrame, levels: Sequence[float]) -> str:
    """How many measured losses lie inside each band."""
    names = [f"{100 * level:g}" for level in levels]
    *counts, last = [f"{int(frame[f'inside_{n}'].sum())} in the {n} % band" for n in names]
    words = f"{', '.join(counts)} and {last}" if counts else last
    return f"Of {len(frame)} measured losses, {words}."


@dataclass(frozen=True)
class Forecast(Showing):
    """Draws of the loss for each row of a table or grid.

    Parameters
    ----------
    draws : DataArray
        Loss in nats per token, dims (chain, draw, row); the covariates are coordinates of `row`.
    frame : DataFrame
        The rows of the table or grid.
    law : str
        Name of the law.
    kind : {"predictive", "latent"}
        Posterior predictive draws of a measured loss, or draws of the latent loss.
    convergence : Convergence
        Convergence checks of the posterior. If they failed, every exported table has a column
        `unconverged` with the reasons.
    fits : mapping of label to Posterior
        The posteriors that the forecast was made from: one, by the name of its law, or those of a
        pool.
    seed : int
        Seed of the noise and of the random effects of new groups.
    """

    draws: xr.DataArray = field(repr=False)
    frame: pd.DataFrame = field(repr=False)
    law: str
    kind: str
    convergence: Convergence
    fits: "Mapping[str, Posterior]" = field(default_factory=dict, repr=False, kw_only=True)
    seed: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", int(self.seed))  # of NumPy, which files cannot hold

    @cached_property
    def positions(self) -> pd.DataFrame:
        """Where each row lies with respect to the training rows; see `bayeslaw.locate`.

        Columns `position` (interpolation, extrapolation or projection), `decades`, the same by
        covariate, and `unvaried`. Without posteriors it has no columns.
        """
        if not self.fits:
            return pd.DataFrame(index=self.frame.index)
        table = next(iter(self.fits.values())).table  # all fits of a pool are of one table
        return locate(table, self.frame, self.columns).set_index(self.frame.index)

    @property
    def columns(self) -> tuple[str, ...]:
        """Covariates of the laws."""
        return tuple(dict.fromkeys(c for fit in self.fits.values() for c in fit.law.columns))

    @property
    def stated(self) -> pd.DataFrame:
        """The rows, with the domain, rate and kind of all fitted rows where they state none."""
        rows = self.frame
        for fitted in (fit.table.frame for fit in self.fits.values()):
            for column in ("domain", RATE, ANNEALED):
                known = distinct(fitted, column)
                if column not in rows and len(known) == 1:
                    rows = rows.assign(**{column: known[0]})
        return rows

    @property
    def labels(self) -> tuple[str, ...]:
        """Columns of labels by which rows are told apart."""
        levels = [level for fit in self.fits.values() for level in fit.spec.effects]
        return tuple(dict.fromkeys([*LABELS, *(effects.level(name).column for name in levels)]))

    @property
    def synthetic(self) -> bool:
        """Whether losses of the rows, or those fitted, are simulated."""
        tables = [fit.table for fit in self.fits.values()]
        return is_synthetic(self.frame) or any(map(is_synthetic, tables))

    @property
    def samples(self) -> Floats:
        """Draws as an array of shape (draws, rows), chain by chain."""
        flat = self.draws.transpose("chain", "draw", "row").values.reshape(-1, len(self.frame))
        return np.asarray(flat, float)

    @property
    def median(self) -> Floats:
        """Median loss per row, nats per token."""
        return np.median(self.samples, axis=0)

    def quantile(self, q: float | Sequence[float]) -> Floats:
        """Quantiles of the loss in nats per token, shape (quantiles, rows)."""
        return np.asarray(np.quantile(self.samples, np.atleast_1d(q), axis=0))

    def bands(self, levels: Sequence[float] = BAND_LEVELS) -> pd.DataFrame:
        """Central posterior predictive intervals as a tidy data frame.

        One row per row of the forecast and level, such as 0.9 for a 90 % band: `row`, the
        covariates, `level`, `median`, `lower`, `upper` in nats per token; and `position` and
        `decades` of `positions`. `TableError` if a level is not strictly between 0 and 1.
        """
        if not levels:
            raise TableError("bands needs at least one level, such as 0.9.")
        rows = self.frame[[c for c in COLUMNS if c in self.frame]].rename_axis("row").reset_index()
        marks, parts = self._marks(), []
        for level in levels:
            lower, upper = self.quantile(ends(level))
            band = {"level": level, "median": self.median, "lower": lower, "upper": upper}
            parts.append(rows.assign(**band, **marks))
        return pd.concat(parts, ignore_index=True)

    def to_frame(self, levels: Sequence[float] = BAND_LEVELS) -> pd.DataFrame:
        """The rows of the forecast with their bands.

        The columns of the table or grid; `median`, and `lower_90`, `upper_90` and so on of each
        level, in nats per token; `inside_90` and so on beside a measured loss; `position` and
        `decades` of `positions`.
        """
        frame = self.frame.assign(median=self.median)
        for level in levels:
            frame[band_columns(level)] = self.quantile(ends(level)).T
        if "loss" in frame:
            frame = pd.concat([frame, inside(frame, levels)], axis=1)
        return frame.assign(**self._marks())

    def shown(self, levels: Sequence[float] = (0.5, 0.9)) -> Shown:
        """Median and bands of each row beside its loss, and where the rows lie.

        Parameters
        ----------
        levels : sequence of float
            Probabilities of the bands.
        """
        frame, rows = self.to_frame(levels), len(self.frame)
        measured = "loss" in frame
        laws = [fit.law for fit in self.fits.values()]
        used = [*(self.columns or COVARIATES)]
        used += [UNIQUE] * any(law.repetition for law in laws)
        used += [RATE] * any(law.tuning is not None for law in laws)
        used += [ANNEALED] * (ANNEALED in frame and not frame[ANNEALED].all())
        used = [c for c in (*COVARIATES, UNIQUE, RATE, ANNEALED) if c in used and c in frame]
        constant = [c for c in used if rows > 1 and frame[c].nunique() == 1]
        kind = "posterior predictive" if self.kind == "predictive" else "latent loss"
        words = in_words(self.positions) if self.fits else ""
        far = ""
        if self.fits:
            far = evidence(self.positions, self.columns)[1]
        blocks: list[Block] = [Note(far, "no evidence")] * bool(far)
        blocks += [Note(SYNTHETIC, "synthetic")] * self.synthetic
        if not self.convergence.ok:
            blocks.append(Note(str(self.convergence), "refuse"))
        if constant:
            same = ", ".join(f"{c} {count(frame[c].iloc[0])}" for c in constant)
            blocks.append(f"all at {same}")
        blocks += [f"{words}."] if words else []
        known = {*used, *(c for fit in self.fits.values() for c in fit.table.frame)}
        if other := [c for c in COVARIATES if c in frame and c not in known]:
            text = f"The fit does not know {' and '.join(other)}: the forecast is the same at any."
            blocks.append(Note(text, "caution"))
        told = [c for c in used if c not in constant]
        if frame.duplicated(used).any():
            # Rows that differ in no covariate are told apart by their run or base.
            told = [*[c for c in ("run", "base") if c in frame][:1], *told]
        blocks.append(band_table(frame, told, levels))
        blocks += [inside_words(frame, levels)] if measured else []
        document = {
            "kind": self.kind,
            "levels": list(levels),
            "positions": words,
            "evidence": far or None,
            "synthetic": self.synthetic,
            "rows": frame.to_dict("records"),
        }
        figures = ("observed", "coverage") if measured else ()
        title = f"Forecast of {rows} row{'s' * (rows != 1)}: {kind}, nats per token"
        return Shown(title, blocks, document, figures)

    def write(self, path: str | Path, levels: Sequence[float] = BAND_LEVELS) -> None:
        """Write `to_frame` as Parquet if the path ends in ``.parquet``, otherwise as CSV."""
        write_frame(self.to_frame(levels), path)

    def _marks(self) -> dict[str, Any]:
        """Columns of every exported table: positions, and what a reader must know of the fit."""
        positions, failures = self.positions, self.convergence.failures
        marks: dict[str, Any] = {
            c: positions[c].to_numpy() for c in ("position", "decades") if c in positions
        }
        marks |= {"synthetic": True} if self.synthetic and "synthetic" not in self.frame else {}
        return marks | ({"unconverged": "; ".join(failures)} if failures else {})


@dataclass(frozen=True, repr=False)
class Posterior(Showing, FittedLaw):
    """Draws of a law's parameters given a table.

    Parameters
    ----------
    spec : Spec
        Law, priors and likelihood.
    table : LossTable
        The training table.
    at : mapping
        Logarithms of the covariates at the reference point.
    draws : Dataset
        Reference coordinates and noise parameters as sampled, dims (chain, draw), and random
        effects on log loss, such as ``run_effect``, dims (chain, draw, level). The parameters of
        the formula, such as E, are in `paper`.
    stats : Dataset
        Sampler statistics, dims (chain, draw).
    convergence : Convergence
    settings : mapping
        Seed, settings of the sampler, and versions.
    """

    @cached_property
    def model(self) -> Model:
        """The ``pm.Model`` that was sampled, in other coordinates; see `bayeslaw.pymc_model`.

        Raises
        ------
        FitError
            If the fit is of several domains, whose effects are correlated.
        """
        if "joint" in self.settings:
            raise FitError(
                f"{self.law.name} on {self.table.name}: its model is of several domains; "
                "bayeslaw.pymc_model gives that of one."
            )
        return build({"": make_data(self.spec, self.table, at=self.at)})

    def by_member(self, draws: Ints | None = None) -> "Iterator[tuple[Posterior, Ints, Ints]]":
        """The posterior, some draws and their places; the same of a pool has several members."""
        chosen = np.arange(self.count) if draws is None else draws
        yield self, chosen, np.arange(len(chosen))

    def forecast(
        self, table: LossTable | pd.DataFrame, *, kind: str = "predictive", seed: int = 0
    ) -> Forecast:
        """Forecast the loss of each row of a table or grid.

        Parameters
        ----------
        table : LossTable or DataFrame
            Rows with the law's covariates; a loss is not needed.
        kind : {"predictive", "latent"}
            ``latent`` is the loss of the law. ``predictive`` adds noise and random effects: it is
            the posterior predictive distribution of a new measured loss.
        seed : int
            Seed of the noise and of the random effects of new groups.

        Raises
        ------
        NotConverged
            If the posterior failed the convergence checks, unless that is `accepted`; the
            forecast is then marked as unconverged.
        TableError
            If a covariate is missing, invalid or in another unit than that of the fitted rows, or
            rows are of a domain, a rate or a kind that the fit does not know.

        Warns
        -----
        TableWarning
            If rows lie so far out that the command line refuses them, unless that is `accepted`.
        """
        if kind not in KINDS:
            raise LawError(unknown("kind of forecast", kind, KINDS))
        self.require_converged()
        frame = table.frame if isinstance(table, LossTable) else canonical(table, "grid", ())
        name = table.name if isinstance(table, LossTable) else "grid"
        check_rows(frame, name, self.table.frame)
        frame = self.law.at_held(frame, name)
        loss = self.latent(frame)
        if kind == "predictive":
            residuals = residual_draws(self, frame, np.random.default_rng(seed))
            with np.errstate(over="ignore"):  # infinite under a posterior that the data do not hold
                loss = loss * np.exp(residuals)
        coords = {c: ("row", frame[c].to_numpy()) for c in COLUMNS if c in frame and c != "loss"}
        draws = xr.DataArray(
            loss.reshape(self.draws.sizes["chain"], self.draws.sizes["draw"], -1),
            dims=("chain", "draw", "row"),
            coords={"row": np.arange(len(frame)), **coords},
            name="loss",
            attrs={"units": "nats per token", "kind": kind, "law": self.law.name},
        )
        if not self.accepts_beyond:
            warn_beyond(self.table, frame, self.columns, name)
        return Forecast(
            draws, frame, self.law.name, kind, self.convergence,
            fits={self.law.name: self}, seed=seed,
        )  # fmt: skip

    def summary(self) -> pd.DataFrame:
        """Median, 5 and 95 % quantiles, mean, sd, R-hat and ESS of every parameter.

        The parameters of the formula and those at the reference point, and the noise. Mean and sd
        of coefficients such as A say little: their posteriors have long tails.
        """
        import arviz_stats as azs

        merged = xr.merge([self.scalars, self.paper], compat="override")
        columns = {
            "median": merged.median(),
            "q05": merged.quantile(0.05),
            "q95": merged.quantile(0.95),
            "mean": merged.mean(),
            "sd": merged.std(),
            "rhat": azs.rhat(merged),
            "ess_bulk": azs.ess(merged, method="bulk"),
            "ess_tail": azs.ess(merged, method="tail"),
        }
        numbers = {n: {str(v): float(x) for v, x in c.items()} for n, c in columns.items()}
        return pd.DataFrame(numbers)

    @property
    def plot(self) -> "Plots":
        """Figures of this posterior; see `bayeslaw.plots.Plots`."""
        return Plots(self)

    def how(self) -> tuple[str, str]:
        """The model and the sampler, in words."""
        spec, run = self.spec, self.settings
        discrepancy = spec.discrepancy.words if self.law.discrepancy_parameters else "no"
        model = {
            f"{spec.likelihood.kind} likelihood": True,
            f"{self._prior} priors": True,
            f"{discrepancy} discrepancy": True,
            f"random effects of {' and '.join(spec.effects)}": spec.effects,
            "size effects propagated to new sizes": too_few_sizes(self),
            "worth of repeated tokens": self.law.repetition,
            "offset of un-annealed checkpoints": self.law.offset,
            "errors correlated within runs": spec.errors == "run",
        }
        sampler = f"{run.get('chains')} chains of {run.get('draws')} draws (nutpie, seed "
        words = ", ".join(words for words, applies in model.items() if applies)
        return words, f"{sampler}{run.get('seed')})"

    def heading(self) -> Shown:
        """The law, its training rows, the model and convergence, without the parameters."""
        spec, state = self.spec, self.convergence
        shown = self.law.described(self.table, self.at)
        gate = Note(str(state), "ok" if state.ok else "refuse")
        blocks: list[Block] = [*shown.blocks, *self.how(), self.law.units(self.at), gate]
        return replace(shown, blocks=blocks).adding(
            likelihood=spec.likelihood.kind,
            discrepancy=spec.discrepancy.kind,
            effects=list(spec.effects),
            errors=spec.errors,
            prior=self._prior,
            **{name: value for name, value in self.settings.items() if name != "versions"},
            converged=state.ok,
            failures=list(state.failures),
            convergence=asdict(state),
        )

    def shown(self) -> Shown:
        """The heading, and median and 90 % interval of every parameter."""
        return self.heading() + self.parameters()

    def parameters(self) -> Shown:
        """Median and 90 % interval of every parameter, and the priors."""
        summary, law, spec = self.summary(), self.law, self.spec
        added = law.discrepancy_parameters
        known = {*law.parameters, *law.coordinates}
        groups = {
            "parameters of the formula": [n for n in law.parameters if n not in added],
            "discrepancy": [n for n in law.parameters if n in added],
            "at the reference point": [n for n in law.coordinates if n not in law.parameters],
            "noise and random effects" if spec.effects else "noise on log loss": [
                n for n in summary.index if n not in known
            ],
        }
        pairs = [(group, name) for group, names in groups.items() for name in names]
        rows = summary.loc[[name for _, name in pairs]]
        ess = rows[["ess_bulk", "ess_tail"]].min(axis=1)
        columns = {"median": "median", "q05": "5 %", "q95": "95 %", "rhat": "R-hat"}
        frame = rows[list(columns)].rename(columns=columns).assign(ESS=ess)
        frame.index = pd.MultiIndex.from_tuples(pairs, names=["", ""])
        changed = {n: p for n, p in spec.priors.items() if p != law.priors.get(n, p)}
        words = "".join(f"{n} ~ {p}, " for n, p in changed.items())
        document = {
            "parameters": summary.rename_axis("name").reset_index().to_dict("records"),
            "priors": {name: str(prior) for name, prior in spec.priors.items()},
        }
        priors = f"Priors: {words}others by default." if changed else "Default priors."
        table = Table(frame, formats={"R-hat": ".3f", "ESS": ".0f"})
        return Shown("", [table, priors], document)

    @property
    def _prior(self) -> str:
        spec = self.spec
        defaults = make_spec(
            spec.law,
            likelihood=spec.likelihood,
            discrepancy=spec.discrepancy,
            effects=spec.effects,
            errors=spec.errors,
        ).priors
        if spec.priors == defaults:
            return "default"
        of_law = {*spec.law.priors, *FLOORS} - {*NOISE}
        shapes = {prior.name for name, prior in spec.priors.items() if name in of_law}
        return "flat" if shapes <= {"Flat", "HalfFlat", "Uniform"} else "own"

    def to_datatree(self, *, seed: int = 0, prior: int = 1000) -> xr.DataTree:
        """The posterior, its data and its predictions, for ArviZ.

        Parameters
        ----------
        seed : int
            Of the predictive draws and the prior's.
        prior : int
            Number of draws of the prior.

        Returns
        -------
        DataTree
            ``posterior`` (reference coordinates, the paper's parameters, noise, random effects),
            ``sample_stats``, ``log_likelihood``, ``posterior_predictive`` and ``observed_data`` of
            the training rows, ``constant_data`` (their covariates and groups), ``prior`` and
            ``prior_predictive``; the last two are left out if a prior is flat and improper, which
            ``attrs["prior"]`` states. The observed variable is ``log_loss``, dims (chain, draw,
            row); ``attrs["units"]`` states the unit of most variables.
        """
        return to_datatree(self, seed=seed, prior=prior)

    def save(self, path: str | Path, *, losses: bool = True) -> None:
        """Write the posterior to one NetCDF file; an interrupted save leaves an earlier one.

        Parameters
        ----------
        path : str or Path
        losses : bool
            Whether the file has the training losses. Without them it forecasts and plans as before,
            with a stated baseline, and refuses what compares the fit with its losses.

        Raises
        ------
        FileError
            If the file cannot be written; `LawError` if it cannot name the class of the likelihood
            or the discrepancy, or hold one of its fields.
        """
        storage.write(storage.tree_of(self, losses), path)


def _drawn(name: str, *results: object, **settings: Any) -> "Figure":
    # By name and on first use: plots stand above posteriors, and Matplotlib takes long to import.
    figure: Figure = resolve_name(f"bayeslaw.plots:{name}")(*results, **settings)
    return figure


@dataclass(frozen=True)
class Plots:
    """Figures of one posterior, such as ``fit.plot.forecast(test)``.

    `seed` is that of `Posterior.forecast`. Each method returns a `matplotlib.figure.Figure`; the
    function of the same name in `bayeslaw.plots` describes it.
    """

    posterior: Posterior

    def forecast(self, rows: LossTable | pd.DataFrame, *, seed: int = 0) -> "Figure":
        """Forecast against tokens, with bands."""
        return _drawn("forecast", self.posterior, rows, seed=seed)

    def in_sample(self, *, seed: int = 0) -> "Figure":
        """Fitted curves on the training rows."""
        return _drawn("in_sample", self.posterior, seed=seed)

    def overview(self, rows: LossTable | pd.DataFrame, *, seed: int = 0) -> "Figure":
        """Fitted runs, law and forecasts by compute and tokens."""
        return _drawn("overview", self.posterior, rows, seed=seed)

    def compute_optimal(self, flops: float | Sequence[float], **settings: Any) -> "Figure":
        """IsoFLOP curves and the compute-optimal frontier; settings of `derive.compute_optimal`."""
        return _drawn("compute_optimal", self.posterior, flops, **settings)

    def observed(self, rows: LossTable, *, seed: int = 0) -> "Figure":
        """Measured loss against its forecast."""
        return _drawn("observed", self.posterior.forecast(rows, seed=seed))

    def coverage(self, rows: LossTable, *, seed: int = 0) -> "Figure":
        """Coverage of bands by nominal level."""
        return _drawn("coverage", self.posterior.forecast(rows, seed=seed))

    def residuals(self, rows: LossTable, *, seed: int = 0) -> "Figure":
        """Residuals of held-out and training rows."""
        fits = (self.posterior.forecast(t, seed=seed) for t in (rows, self.posterior.table))
        return _drawn("residuals", *fits)
