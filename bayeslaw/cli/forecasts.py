"""Commands that forecast: ``forecast | running | register | verify | accuracy``."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import bayeslaw as bl
from bayeslaw.cli import options as opt
from bayeslaw.cli import sources
from bayeslaw.cli.app import command
from bayeslaw.cli.options import argument, option, output, query
from bayeslaw.cli.parsing import Covariates, Levels, numbers
from bayeslaw.common.defaults import AUTO, COVARIATE_TOLERANCE
from bayeslaw.common.errors import TableError
from bayeslaw.common.shown import Shown
from bayeslaw.tables.covariates import FLOPS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bayeslaw.inference.asked_rows import Need

LEVELS = option("Probabilities of the bands.", default="0.5,0.9", metavar="P,...")


@dataclass(frozen=True)
class Bands:
    """What is shown and written of a forecast."""

    levels: Levels = LEVELS
    kind: Literal["predictive", "latent"] = option(
        "Posterior predictive, or latent loss without noise.", default="predictive"
    )
    why: bool = option(
        "Take the variance of each row apart: law, parameters, discrepancy, effects, noise.",
        "--why",
        default=False,
    )
    floors: str | None = option(
        "Forecast with the floor E at these values too, in nats, or at quantiles of its posterior: "
        "auto, which is the default of a law of FLOPs alone.",
        metavar="auto|E,...",
        default=None,
    )
    out: Path | None = output("Write the bands (CSV or Parquet).", *opt.TABLES)
    figure: Path | None = output(
        "Draw fitted runs, the law, and the forecast with its bands (PNG, PDF or SVG).",
        *opt.FIGURES,
    )

    def check(self, fitting: opt.Fitting) -> None:
        """Raise `BayeslawError` for options that have no effect on the fit."""
        self._floors()  # raises before the fit
        if fitting.method != "nuts":
            opt.refuse(
                f"on --method {fitting.method}",
                "levels",
                "kind",
                "why",
                "floors",
                "backtest",
            )

    def _floors(self) -> list[float] | None:
        """The values of --floors; None for quantiles of the posterior."""
        if self.floors in (None, AUTO):
            return None
        return numbers(self.floors, "--floors", "write it as 1.4,1.6, or auto")

    def _by_floor(
        self, fitted: "bl.Posterior | bl.Pool", rows: "bl.LossTable", seed: int
    ) -> Shown:
        """How the forecast moves with the floor, if that was asked for or is the law's default."""
        from bayeslaw.inference.pools import of_one_law

        if self.floors is None and fitted.columns != (FLOPS,):
            return Shown()
        fit = of_one_law(fitted, "--floors")
        return bl.derive.at_floors(fit, rows, self._floors(), seed=seed).shown()

    def forecast(
        self, fitted: sources.Fitted, rows: "bl.LossTable", fitting: opt.Fitting
    ) -> Shown:
        """Forecast the rows; write and draw what was asked for."""
        from bayeslaw.evaluate.scores import scored, shown_scores
        from bayeslaw.huber.point_fit import shown_points

        def drawn() -> "Figure":
            if isinstance(fitted, bl.PointFit):  # which has no bands
                return bl.plots.forecast(fitted, rows, seed=fitting.seed)
            return bl.plots.overview(fitted, rows, seed=fitting.seed)

        sources.save_figure(self.figure, drawn)
        predicted: bl.Forecast | bl.PointFit
        if isinstance(fitted, bl.PointFit):
            predicted = fitted
            points = fitted.forecast(rows)
            sources.save_frame(self.out, points)
            shown = shown_points(points, fitted.columns).adding(**fitting.document())
        else:
            predicted = fitted.forecast(rows, kind=self.kind, seed=fitting.seed)
            if self.out is not None:
                predicted.write(self.out, self.levels)
            shown = predicted.shown(self.levels, why=self.why)
        whole = _titled(shown, rows).adding(out=self.out)
        if not isinstance(fitted, bl.PointFit):
            whole += self._by_floor(fitted, rows, fitting.seed)
        if "loss" in rows.frame:
            scores, words = scored(predicted, rows)
            # A forecast with bands has said which rows were fitted.
            return whole + shown_scores(scores, words if predicted is fitted else "")
        return whole.adding(scores=None)


def _near(accepts: opt.Accepts) -> "Need":
    return "any" if "beyond-evidence" in accepts else "near"


def _titled(shown: Shown, rows: "bl.LossTable") -> Shown:
    """A forecast under a title that names its rows."""
    return replace(shown, title=f"Forecast of {rows}: {shown.title.partition(': ')[2]}")


@command(
    """bayeslaw forecast data/delphi/example.csv --law chinchilla \\
    --train "scale <= 3e20" --test "scale >= 1e21\"""",
    """bayeslaw forecast losses.csv --law form3 --method huber --train "ptpp <= 31" \\
    --test "ptpp == 279\"""",
    """bayeslaw forecast fit.nc \\
    --grid "params=8.1e9 tokens=1e9,1e10 replay=.1,.3 ptpp=279\"""",
    """bayeslaw forecast wandb_export.csv --target "params=7e9 tokens=2e12" \\
    --figure forecast.png""",
)
def forecast(
    *,
    source: Path = opt.SOURCE,
    target: Covariates = option(
        "Runs to forecast from a table as it is, with columns, units, annealing and the law "
        'guessed and the fit checked: "params=7e9 tokens=2e12".',
        metavar="SPEC",
    ),
    choice: opt.Selection,
    bands: Bands,
    backtest: Path | None = opt.QUOTED,
    accept: opt.Accept = opt.ACCEPT,
    fitting: opt.Fitting,
) -> Shown:
    """Forecast losses with bands.

    From a table: fits the law to the --train rows and forecasts the --test rows. From a posterior:
    forecasts --rows or --grid. Measured losses, if there are any, are shown beside the bands. Each
    row is an interpolation, extrapolation or projection of the training rows; rows twice as far out
    as bands were ever tested are refused. A point fit (--method huber or map) has no bands; where
    starts with the same objective forecast different losses, their range is shown.

    With --target the table may have any names: what is guessed of it is said first, and what cannot
    be guessed is refused with what to write. The fit is checked as by `bayeslaw check`.
    """
    if target:
        return _forecast_of_target(source, target, choice, bands, accept, fitting)
    bands.check(fitting)
    tested = None if backtest is None else bl.read_backtest(backtest)
    fitted, rows = sources.fit_or_load(source, choice, fitting, _near(accept))
    # Rows too far out were refused above.
    fitted = fitted.accepted({*accept, "beyond-evidence"})
    whole = bands.forecast(fitted, rows, fitting)
    if tested is not None:
        assert fitted.table is not None  # it is a posterior
        quoted = tested.looking(fitted.table, rows.frame)
        whole += Shown(blocks=[quoted], document={"backtest": quoted})
    return sources.beside(fitted, whole, choice, rows)


def _forecast_of_target(
    source: Path,
    target: dict[str, Any],
    choice: opt.Selection,
    bands: Bands,
    accepts: opt.Accepts,
    fitting: opt.Fitting,
) -> Shown:
    """The forecast of --target: `bayeslaw.forecast`."""
    without_effect = ("train", "test", "rows", "grid", "kind", "backtest", "method")
    opt.refuse("beside --target (--where selects rows)", *without_effect, "bounds")
    how: dict[str, Any] = {"accepts": accepts, "seed": fitting.seed}
    losses: Path | bl.Posterior | bl.Pool = source
    if sources.is_posterior(source):
        losses = sources.load(source, choice, sampling=fitting)
    else:
        how |= {"law": choice.law, "source": choice.source_table, **choice.settings()}
        how |= fitting.arguments()
    answer = bl.forecast(losses, target, **how)
    sources.save_figure(bands.figure, answer.figure)
    if bands.out is not None:
        answer.forecast.write(bands.out, bands.levels)
    answer.fit.require_converged()
    shown = answer.shown(bands.levels, why=bands.why)
    return shown.adding(out=bands.out, target=target)


@command("bayeslaw running finished.csv run.csv --law chinchilla --grid tokens=1e11")
def running(
    *,
    finished: Path = argument("Loss table of finished runs."),
    run: Path = argument("Loss table of the run so far."),
    grid: Covariates = option(
        'Where the run ends: "tokens=1e11", and columns that differ from its rows so far.',
        metavar="SPEC",
        default=...,
    ),
    choice: opt.Training,
    bands: Bands,
    accept: opt.Accept = opt.ACCEPT,
    fitting: opt.Fitting,
) -> Shown:
    """Forecast where a run that goes on will end.

    Fits the law to the finished runs and to the rows of the run so far. The end has the random
    effect of the run. It is annealed and the rows so far are not, unless a column says so.
    """
    from bayeslaw.inference.asked_rows import checked, laws_of

    bands.check(fitting)
    table = choice.table(finished, choice.source_table).training(choice.train)
    law = sources.required(choice.law, table)
    ends = opt.of_grid(grid, "--grid")
    table, rows = going_on(table, choice.table(run, choice.source_table), ends)
    rows = checked(rows, laws_of(law, table), table, _near(accept))
    fitted = sources.fit_table(law, table, fitting)
    fitted = fitted.accepted({*accept, "beyond-evidence"})
    return sources.beside(fitted, bands.forecast(fitted, rows, fitting), rows=rows)


def going_on(
    finished: "bl.LossTable", run: "bl.LossTable", ends: "bl.LossTable"
) -> "tuple[bl.LossTable, bl.LossTable]":
    """Rows of finished runs with those of a run that goes on, and the `ends` of that run.

    Rows of the run are not annealed and `ends` are, unless a column says so. Columns that are
    constant in the run, such as its size, need not be given for `ends`.
    """
    from bayeslaw.inference.fitting import joined
    from bayeslaw.tables.comparison import agree

    defaults: dict[str, Any] = {"run": run.name, "annealed": 0}
    frame = run.frame.assign(
        **{c: v for c, v in defaults.items() if c not in run.frame}
    )
    constant = {str(c): frame[c].iloc[0] for c in frame if frame[c].nunique() == 1}
    identity = [c for c in ("run", "params", "ptpp", "replay", "base") if c in frame]
    for column in identity:
        if column not in constant:
            raise TableError(
                f"{run.name}: rows differ in {column!r}; give rows of one run."
            )
    if "run" in finished.frame and agree(frame[:1], finished.frame, "run").any():
        raise TableError(
            f"{finished.name} has rows of {constant['run']}, the run of {run.name}, too: leave "
            "them out with --train."
        )
    kept = {c: v for c, v in constant.items() if c not in ("loss", "tokens")} | {
        "annealed": 1
    }
    rows = ends.frame.assign(**{c: v for c, v in kept.items() if c not in ends.frame})
    for column in identity:
        if not agree(frame[:1], rows, column).all():
            raise TableError(
                f"{ends.name}: {column!r} is {constant[column]} in {run.name}."
            )
    last = frame["tokens"].max()
    if "tokens" in rows and (rows["tokens"] <= last).any():
        raise TableError(
            f"{ends.name}: give tokens beyond {last:.4g}, the last of {run.name}."
        )
    fitted = joined(finished, replace(run, frame=frame))
    return replace(fitted, name=f"{finished.name} and {run.name}"), replace(
        ends, frame=rows
    )


@dataclass(frozen=True)
class OfSaved(opt.Rows):
    """The forecast of a saved posterior."""

    posterior: Path = opt.SAVED
    accept: opt.Accept = opt.ACCEPT
    seed: int = opt.SEED

    def forecast(
        self, *used: str
    ) -> "tuple[bl.Posterior | bl.Pool, bl.LossTable, bl.Forecast]":
        """The posterior, the rows, and their forecast; options `used` beside it need no --rows."""
        fitted = sources.load(self.posterior, self, *used)
        rows = sources.rows_of(fitted, self, _near(self.accept))
        fitted = fitted.accepted({*self.accept, "beyond-evidence"})
        return fitted, rows, fitted.forecast(rows, seed=self.seed)


@command(
    """bayeslaw register fit.nc planned.json --rows planned.csv --draws 500
bayeslaw verify planned.json measured.csv"""
)
def register(
    *,
    of: OfSaved,
    file: Path = argument(
        "New file for the forecast (JSON).", callback=opt.writable(".json")
    ),
    draws: int = option(
        "Draws per row that are stored, evenly spaced among the forecast's: none, or at least 100.",
        default=0,
        min=0,
    ),
) -> Shown:
    """Write a forecast to a file with its hash, before the losses are measured.

    The file has median and bands of each row, the hash of the training table, versions and seeds.
    It is never replaced. `bayeslaw verify` scores it when losses are measured. Publish the hash
    where others can see the date.
    """
    from bayeslaw.evaluate.registered import check_new

    check_new(file, draws)
    fitted, rows, predicted = of.forecast()
    sha256 = bl.register(predicted, file, draws=draws)
    shown = _titled(predicted.shown(), rows)
    shown += Shown(blocks=[f"registered {file}, SHA-256 {sha256}"])
    return sources.beside(fitted, shown, rows=rows).adding(file=file, sha256=sha256)


@command(
    "bayeslaw verify planned.json measured.csv",
    "bayeslaw verify planned.json",
)
def verify(
    *,
    file: Path = argument("File written by `bayeslaw register`."),
    measured: Path | None = argument(
        "Losses measured so far, CSV or Parquet.", default=None
    ),
    reading: opt.Reading,
    sha256: str | None = option(
        "Hash that was published when the forecast was registered."
    ),
    tolerance: float = option(
        "Largest relative difference between a planned and a measured covariate.",
        default=COVARIATE_TOLERANCE,
    ),
) -> Shown:
    """Check a registered forecast, and score it on the losses measured so far.

    Stops if the forecast was edited. Measured rows are matched to the forecast's by covariates and
    labels; rows that are still missing, and rows that were not forecast, are named. The scores are
    appended to the file; without a table of losses nothing is scored or written.
    """
    if measured is None:
        opt.refuse("without a table of losses", *opt.names_of(opt.Reading))
    losses = None if measured is None else reading.table(measured)
    verified = bl.verify(file, losses, sha256=sha256, tolerance=tolerance)
    name = None if losses is None else losses.name
    return verified.shown().adding(file=str(file), measured=name)


@command(
    """bayeslaw accuracy fit.nc pairs.csv --grid "params=7e9 tokens=1e11" \\
    --pairs-where "task == 'hellaswag'\"""",
)
def accuracy(
    *,
    of: OfSaved,
    pairs: Path = argument(
        "Pairs of loss and accuracy of measured models (CSV or Parquet), by task if there is a "
        "column task."
    ),
    pairs_where: str | None = query("Pairs to use; all others are ignored."),
    levels: Levels = LEVELS,
    out: Path | None = output("Write the accuracies (CSV or Parquet).", *opt.TABLES),
) -> Shown:
    """Forecast the accuracy on a task, with bands, from losses and measured pairs.

    Forecasts the losses of --rows or --grid, and fits a curve of accuracy against loss to the
    pairs. --loss-unit is the unit of the pairs, too. Rows whose loss lies outside the pairs' losses
    are refused.
    """
    from bayeslaw.derive.downstream import read_pairs

    unit: dict[str, Any] = {
        "loss_unit": of.loss_unit,
        "bytes_per_token": of.bytes_per_token,
    }
    measured = read_pairs(pairs, pairs_where, **unit)
    fitted, rows, predicted = of.forecast(*unit)
    derived = bl.derive.accuracy(predicted, measured, seed=of.seed)
    if out is not None:
        derived.write(out, levels)
    shown = replace(derived.shown(levels), title="Accuracy")
    return sources.beside(fitted, shown, rows=rows).adding(out=out, seed=of.seed)
