"""Commands of one fit: ``init | simulate | fit | check | report``."""

import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import bayeslaw as bl
from bayeslaw.cli import options as opt
from bayeslaw.cli import parsing, sources
from bayeslaw.cli.app import Result, command
from bayeslaw.cli.options import CONTEXT, argument, option, output
from bayeslaw.common.errors import BayeslawError, FileError
from bayeslaw.common.files import atomic_write
from bayeslaw.common.shown import SYNTHETIC, Block, Detail, Note, Shown
from bayeslaw.inference.settings import FitSettings

if TYPE_CHECKING:
    import pandas as pd

WRITTEN = {
    "losses.csv": "data/delphi/example.csv",
    "analysis.py": "templates/analysis.txt",
    "analysis.ipynb": "templates/analysis.ipynb",
}
"""Files that `init` writes, and those of the package that they are copies of."""


@command("bayeslaw init first", "bayeslaw init .")
def init(*, folder: Path = argument("Folder; made if it is not there.")) -> Shown:
    """Write a sample table, a commented script and the same as a notebook.

    The files are losses.csv, analysis.py and analysis.ipynb; both analyses run as they are. None is
    overwritten.
    """
    from bayeslaw.common.files import shipped

    if there := [name for name in WRITTEN if (folder / name).exists()]:
        raise FileError(f"{folder / there[0]} exists; name another folder, or move it.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(
            f"{folder}: cannot write: {error.strerror or error}."
        ) from error
    for name, original in WRITTEN.items():
        atomic_write(folder / name, shipped(original).read_bytes())
    files = [str(folder / name) for name in WRITTEN]
    lines = [f"wrote {', '.join(files)}", f"next: cd {folder} && python analysis.py"]
    return Shown("", lines, {"files": files})


@command("bayeslaw simulate --domain french --seed 1 --out french.csv")
def simulate(
    *,
    out: Path = output("Table to write (CSV or Parquet).", *opt.TABLES, default=...),
    domain: Literal["french", "english_arabic", "both"] = option(
        "Domain of the losses.", default="french"
    ),
    noise: bool = option("Add noise to log loss, or not.", default=True),
    seed: int = opt.SEED,
) -> Shown:
    """Write a synthetic loss table.

    Losses on the paper's grid from known true laws, calibrated to the results in the paper.
    """
    import pandas as pd

    world = bl.paper_world()
    table = world.table(None if domain == "both" else domain, seed=seed, noise=noise)
    sources.save_frame(
        out, pd.concat([table.frame, table.baselines], ignore_index=True)
    )
    counts = {
        "rows": len(table) + len(table.baselines),
        "baselines": len(table.baselines),
    }
    blocks: list[Block] = [
        Note(SYNTHETIC, "synthetic"),
        f"{len(table)} losses and {len(table.baselines)} baselines (tokens = 0), seed {seed}; the "
        "column `synthetic` is True in every row.",
    ]
    domains = {}
    for name in table.frame["domain"].unique():
        law = world.laws[name].name
        truth = dict(world.truth[name])
        sigma = world.sigma[name]
        sigma = sigma if noise else 0.0
        domains[name] = {"law": law, "truth": truth, "sigma": sigma}
        values = ", ".join(f"{n} {v:g}" for n, v in truth.items())
        blocks += ["", Note(f"{name}: {law}, noise {sigma:g} on log loss"), [values]]
    document = {"out": out, **counts, "seed": seed, "limits": dict(world.limits)}
    return Shown("", blocks, document | {"domains": domains, "synthetic": True})


@command(
    """bayeslaw fit data/delphi/example.csv --law chinchilla \\
    --train "scale <= 3e20" --out fit.nc""",
    'bayeslaw fit losses.csv --law form3 --train "ptpp <= 31" --method huber',
    "bayeslaw fit losses.csv --law chinchilla --by optimizer --out fit.nc",
)
def fit(
    *,
    table: Path = opt.LOSS_TABLE,
    choice: opt.Training,
    out: Path | None = output("Save the posterior (NetCDF).", ".nc"),
    by: str | None = option(
        "Column of groups to fit together, such as optimizers: --out NAME.nc saves the posterior "
        "of each as NAME_GROUP.nc, for bayeslaw recipes.",
        metavar="COLUMN",
    ),
    fitting: opt.Fitting,
) -> Result:
    """Fit a law to a table of losses.

    Shows medians and 90 % intervals of the parameters of the formula and of those at the reference
    point, the convergence diagnostics of the sampler, and the commands that come next. Exit code 1
    if the fit has not converged; it is saved all the same.
    """
    if out is not None and fitting.method != "nuts":
        raise FileError(
            f"--out saves a posterior; --method {fitting.method} has none (use --json)."
        )
    rows = choice.table(table, choice.source_table).training(choice.train)
    law = sources.required(choice.law, rows)
    if by is not None:
        return _fit_groups(law, rows, by, out, fitting)
    fitted = sources.fit_table(law, rows, fitting)
    shown = fitted.shown()
    head = sources.brief(fitted)
    parameters = shown.blocks[len(fitted.heading().blocks) :]
    # Of a fit that is saved the parameters are in the file.
    parameters = parameters if out is None else [Detail(block) for block in parameters]
    shown = replace(shown, title=head.title, blocks=[*head.blocks, *parameters])
    shown = shown.adding(**fitting.document(), out=out)
    if choice.train:
        shown = shown.adding(train=choice.train)
    if isinstance(fitted, bl.PointFit):
        return Result(shown)
    if out is not None:
        try:
            fitted.save(out)
        except (
            FileError
        ) as error:  # such as a full disk, which must not cost the result
            return Result(shown.adding(out=None), [f"error: {error}"], 2)
    return Result(shown, next_commands(fitted, out), int(not fitted.convergence.ok))


def _fit_groups(
    law: str, rows: "bl.LossTable", by: str, out: Path | None, fitting: opt.Fitting
) -> Result:
    """Fit groups of rows together, and save the posterior of each."""
    if fitting.method != "nuts":
        raise BayeslawError(
            f"--by fits posteriors; --method {fitting.method} has none."
        )
    files = {} if out is None else _files_of_groups(rows, by, out)
    fits = bl.fit_groups(law, rows, by, **fitting.arguments())
    saved_files = [str(path) for path in files.values()]
    shown = Shown(document={"by": by, "files": saved_files})
    for group, fitted in fits.items():
        head = sources.brief(fitted)
        saved = f"; saved as {files[group]}" if files else ""
        shown += replace(head, title=f"{group}: {head.title}{saved}", document={})
    groups = {name: fit.shown().document for name, fit in fits.items()}
    shown = shown.adding(**fitting.document(), groups=groups)
    for group, path in files.items():
        fits[group].save(path)
    one = next(iter(fits.values()))
    if not one.convergence.ok:
        return Result(shown, [], 1)
    if not files:
        return Result(shown, ["save the posteriors with --out NAME.nc to use them."])
    names = " ".join(shlex.quote(str(path)) for path in files.values())
    return Result(
        shown, [f'next: bayeslaw recipes {names} --at "params=... tokens=..."']
    )


def _files_of_groups(rows: "bl.LossTable", by: str, out: Path) -> dict[str, Path]:
    """The file of each group's posterior; `FileError` if one would replace another."""
    from bayeslaw.tables.validation import label_texts

    if by not in rows.frame:  # which the fit says
        return {}
    files = {}
    for group in label_texts(rows.frame[by]).dropna().unique():
        name = re.sub(r"[^\w.+-]", "_", str(group))
        files[str(group)] = out.with_name(f"{out.stem}_{name}{out.suffix}")
    if len({*files.values()}) < len(files):
        raise FileError(
            f"--out {out}: two groups would have one file; rename one of them."
        )
    force = bool(CONTEXT.get().params["force"])
    for path in files.values():
        opt.check_outputs({"out": path}, [], force=force)
    return files


def next_commands(fitted: "bl.Posterior | bl.Pool", out: Path | None) -> list[str]:
    """What to do with a fit that converged, as commands that run as they are, in lines."""
    if not fitted.convergence.ok:
        return []
    frame = fitted.table.frame
    # Twice the largest model and its tokens. Its other covariates are its own: the largest ratio of
    # pre-training tokens to parameters, for one, is that of a small model.
    by = [c for c in ("params", "tokens", "flops") if c in fitted.columns]
    largest = frame.sort_values(by).iloc[-1]
    ahead = {c: largest[c] * (2 if c in by else 1) for c in fitted.columns}
    grid = " ".join(f"{column}={value:.3g}" for column, value in ahead.items())
    saved = [] if out else ["save the fit with --out fit.nc to use it:"]
    command = f'{shlex.quote(str(out or "fit.nc"))} --grid "{grid}"'
    return [
        *saved,
        f"next: bayeslaw check {command}",
        f"then: bayeslaw forecast {command}",
    ]


@command(
    """bayeslaw check losses.csv --law form3 \\
    --train "ptpp <= 31" --test "ptpp == 279\"""",
    """bayeslaw check fit.nc \\
    --grid "params=8.1e9 tokens=1e10 replay=.3 ptpp=279" --json""",
)
def check(
    *,
    source: Path = opt.SOURCE,
    choice: opt.Selection,
    fail_on: Literal["caution", "refuse"] = option(
        "Least level that gives exit code 1.", default="refuse"
    ),
    accept: opt.BeyondEvidence = opt.BEYOND_EVIDENCE,
    sampling: FitSettings,
) -> Result:
    """Check a fit before its forecasts are used.

    Checks whether the bands hold on measured rows that were not fitted or, without such rows, on
    the farthest training rows, forecast from the others by a short refit; how far the forecast
    extrapolates; convergence; and which parameters the data do not determine. Exit code 1 if the
    verdict is "refuse" (or "caution", with --fail-on caution), to stop a pipeline.
    """
    from bayeslaw.tables.verdict import SEVERITIES

    saved = sources.is_posterior(source)
    rows = None
    fitted: sources.Fitted
    if choice.test or choice.rows or choice.grid or (choice.train and not saved):
        fitted, rows = sources.fit_or_load(source, choice, sampling)
    elif saved:
        fitted = sources.load(source, choice, sampling=sampling)
    else:
        table = choice.table(source, choice.source_table)
        fitted = sources.fit_table(sources.required(choice.law, table), table, sampling)
    assert not isinstance(fitted, bl.PointFit)
    checked = bl.check(fitted.accepted(accept), rows, seed=sampling.seed)
    shown = sources.beside(fitted, checked.shown(), choice, rows)
    return Result(
        shown, code=int(SEVERITIES.index(checked.level) >= SEVERITIES.index(fail_on))
    )


@dataclass(frozen=True)
class Sections:
    """Sections of a report that need more fits."""

    compare: parsing.Laws = option(
        "Laws to compare on the same rows, such as form1,form2,dcpt.", metavar="LAWS"
    )
    compare_method: Literal["huber", "nuts"] = option(
        "Deterministic fits, or posteriors, whose bands are scored as well.",
        default="huber",
    )
    plan: parsing.PlanLimits = option(
        f'Limits of a plan, the last two optional: "{parsing.PLAN}".', metavar="LIMITS"
    )
    plan_source: Path | None = option("For --plan: posterior of the source domain.")

    def check(self, source: Path, choice: opt.Selection) -> None:
        """Raise `BayeslawError` for sections that cannot be made."""
        if self.compare and (
            sources.is_posterior(source) or choice.rows or choice.grid
        ):
            raise BayeslawError("--compare needs a table with --train and --test rows.")
        for law in self.compare:
            bl.load_law(law)
        if bool(self.plan) != (self.plan_source is not None):
            raise BayeslawError("--plan and --plan-source go together.")

    def other(self, accepts: opt.Accepts) -> "bl.Posterior | bl.Pool | None":
        """The posterior of the source domain, for a plan."""
        if self.plan_source is None:
            return None
        other = bl.load(self.plan_source).accepted({*accepts, "beyond-evidence"})
        other.require_converged()
        return other

    def compared(
        self, table: "bl.LossTable", sampling: FitSettings, **split: Any
    ) -> "pd.DataFrame":
        """Scores of the laws; a Huber fit takes the threshold and the seed alone."""
        used = sampling.arguments()
        if self.compare_method == "huber":
            used = {"delta": sampling.delta, "seed": sampling.seed}
        return bl.compare(
            table, laws=self.compare, method=self.compare_method, **used, **split
        )


@command(
    """bayeslaw report data/delphi/example.csv --law chinchilla \\
    --train "scale <= 3e20" --test "scale >= 1e21" --out report.html""",
    "bayeslaw report fit.nc --rows measured.csv",
    """bayeslaw report french.nc --grid "params=8.1e9 tokens=1e10,1e11 replay=.3 ptpp=279" \\
    --plan-source english.nc \\
    --plan "params=8.1e9 ptpp=279 max_loss=1.8 max_forgetting=.02 baseline=2.05\"""",
)
def report(
    *,
    source: Path = opt.SOURCE,
    choice: opt.Selection,
    sections: Sections,
    backtest: Path | None = opt.QUOTED,
    out: Path = output("Page to write (HTML).", ".html", default=Path("report.html")),
    accept: opt.Unconverged = opt.UNCONVERGED,
    sampling: FitSettings,
) -> Shown:
    """Write a report of a fit and its forecast, one HTML page that needs no network.

    From a table: fits the law to the --train rows and forecasts the --test rows. From a posterior:
    forecasts --rows or --grid. Where rows have a measured loss, the forecast is checked against it.
    With --plan the fit is that of the target domain, and the page has a section on the plan.
    """
    sections.check(source, choice)
    other = sections.other(accept)
    tested = None if backtest is None else bl.read_backtest(backtest)
    fitted, rows = sources.fit_or_load(source, choice, sampling)
    assert not isinstance(fitted, bl.PointFit)
    fitted = fitted.accepted(accept)
    seed = sampling.seed
    plan = None
    comparison = None
    if other is not None:
        target = fitted.accepted("beyond-evidence")
        plan = bl.plan(target=target, source=other, seed=seed, **sections.plan)
    split: dict[str, Any] = {"train": choice.train, "test": choice.test}
    if sections.compare:
        table = choice.table(source, choice.source_table)
        comparison = sections.compared(table, sampling, accepts=accept, **split)
    more: dict[str, Any] = {"comparison": comparison, "plan": plan, "backtest": tested}
    page = bl.report(
        fitted, rows, **split, **more, command=CONTEXT.get().obj, seed=seed
    )
    page.write(out)
    shown = sources.beside(fitted, page.shown(), choice, rows)
    return shown.adding(plan=None if plan is None else plan.to_dict(), out=out)
