"""Commands that derive numbers and plans from saved fits: ``derive | recipes | plan | anchors``."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import bayeslaw as bl
from bayeslaw.cli import options as opt
from bayeslaw.cli import parsing
from bayeslaw.cli.app import Result, command
from bayeslaw.cli.options import argument, option, output, query
from bayeslaw.cli.parsing import Covariates, Levels, Numbers
from bayeslaw.cli.sources import beside, save_figure, save_frame
from bayeslaw.common.errors import BayeslawError
from bayeslaw.common.formatting import count
from bayeslaw.common.shown import Note, Shown

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Asked:
    """The numbers to derive, beside the floor."""

    flops: Numbers = option(
        "Budgets: compute-optimal N, D and loss.", metavar="FLOPS,..."
    )
    loss: Numbers = option(
        "Losses: FLOPs to reach each, split optimally.", metavar="NATS,..."
    )
    against: Path | None = option(
        "Posterior of a recipe: multiplier over it, at each --loss."
    )
    at: Covariates = option(
        'Rows of local exponents: "params=1e9 tokens=1e10"; other covariates of --flops.',
        metavar="SPEC",
    )
    span: float = option(
        "Factor of budget, around C, over which the exponents of N and D are mean slopes.",
        default=10.0,
    )
    search: parsing.Range = option(
        "Least and greatest tokens per parameter among which the best is searched; by default "
        "those of the fitted rows, and .83 decades beyond: as far as bands were tested along D.",
        metavar="LOW,HIGH",
    )
    drift: bool = option(
        "Give the best split of the fit as it is, with exponents that drift, and recommend none.",
        "--drift",
        default=False,
    )

    def __post_init__(self) -> None:
        """Raise `BayeslawError` for options that are of no use by themselves."""
        if self.at and not (
            self.flops or self.loss or self.at.keys() & {"params", "tokens"}
        ):
            raise BayeslawError("--at needs params and tokens, or --flops or --loss.")
        if self.drift and not self.flops:
            raise BayeslawError("--drift is of the split of budgets; give --flops.")
        if self.against and not self.loss:
            raise BayeslawError(
                "--against compares FLOPs to reach a loss; give --loss."
            )

    def fixed(self, law: "bl.Law") -> dict[str, Any]:
        """The range that is searched, and values of the covariates besides N and D."""
        fixed: dict[str, Any] = {"search": tuple(self.search) or None}
        for name, values in self.at.items():
            if name in ("replay", "ptpp", *law.declared):
                if len(values) != 1:
                    raise BayeslawError(
                        f"--at: give one value of {name}, such as {name}=1e9."
                    )
                (fixed[name],) = values
        return fixed

    def derived(
        self, fit: "bl.Posterior", other: "bl.Posterior | None"
    ) -> "dict[str, bl.derive.Derived]":
        """The numbers of a fit, some of them compared with an `other` one."""
        ask = bl.derive
        fixed = self.fixed(fit.law)
        derived = {"floor": ask.floor(fit)}
        if self.flops:
            asked = {"span": self.span, "drift": self.drift, **fixed}
            derived["compute_optimal"] = ask.compute_optimal(fit, self.flops, **asked)
        if other is not None:
            multiplier = ask.compute_multiplier(
                fit, other, self.loss, search=fixed["search"]
            )
            derived["compute_multiplier"] = multiplier
        elif self.loss:
            derived["flops_to_reach"] = ask.flops_to_reach(fit, self.loss, **fixed)
        if self.at.keys() & {"params", "tokens"}:
            rows = bl.grid(**self.at)
            derived["local_exponents"] = ask.local_exponents(fit, rows)
        return derived


@command(
    "bayeslaw derive fit.nc --flops 1e21,1e24 --loss 2.2",
    "bayeslaw derive fit.nc --loss 2.2 --against other.nc --json",
    'bayeslaw derive fit.nc --at "params=1e9 tokens=2e10"',
)
def derive(
    *,
    posterior: Path = opt.SAVED,
    asked: Asked,
    levels: Levels = option(
        "Probabilities of the intervals, between 0 and 1.",
        default="0.5,0.8,0.9",
        metavar="P,...",
    ),
    out: Path | None = output("File for all intervals, .csv or .parquet.", *opt.TABLES),
    figure: Path | None = output(
        "Draw isoFLOP curves of --flops and the compute-optimal frontier.", *opt.FIGURES
    ),
    accept: opt.Accept = opt.ACCEPT,
) -> Shown:
    """Derive numbers from a fit, each with its median and credible intervals.

    The floor E, and as asked: the compute-optimal split of a budget C = 6 N D, the FLOPs that reach
    a loss, the compute multiplier over another recipe, and local exponents. The recommended split
    is that of the law as stated: a fit with a discrepancy is fitted again without it, in a few
    seconds. All are of the latent loss, without noise and random effects. What lies twice as far
    from the fitted rows as bands were ever tested is refused.
    """
    import pandas as pd

    if figure is not None and not asked.flops:
        raise BayeslawError("--figure draws the split of budgets; give --flops.")
    fit = _accepted(posterior, accept)
    other = None if asked.against is None else _accepted(asked.against, accept)
    derived = asked.derived(fit, other)
    _refuse_far(derived, accept)
    fixed = {"drift": asked.drift, **asked.fixed(fit.law)}
    save_figure(figure, lambda: bl.plots.compute_optimal(fit, asked.flops, **fixed))
    frames = [of.to_frame(levels).assign(derived=name) for name, of in derived.items()]
    save_frame(out, pd.concat(frames, ignore_index=True))
    whole = Shown()
    document = {}
    for name, numbers in derived.items():
        shown = numbers.shown(levels)
        document[name] = dict(shown.document)
        blocks = [
            b for b in shown.blocks if not (isinstance(b, Note) and b.level == "refuse")
        ]
        whole += Shown("", [Note(shown.title), *blocks])
    return beside(fit, whole).adding(levels=levels, derived=document, out=out)


def _accepted(posterior: Path, accepts: opt.Accepts) -> "bl.Posterior":
    """A saved posterior of one law; what lies too far out is refused by `_refuse_far`."""
    from bayeslaw.inference.pools import load_posterior

    return load_posterior(posterior).accepted({*accepts, "beyond-evidence"})


@command(
    "bayeslaw recipes c4.nc refinedweb.nc redpajama.nc --flops 1e21,1e23",
    'bayeslaw recipes c4.nc refinedweb.nc --at "params=6.9e9 tokens=1.4e11" --json',
)
def recipes(
    *,
    posteriors: list[Path] = argument(
        "A posterior for each recipe, of losses on the same data."
    ),
    flops: Numbers = option(
        "Budgets C = 6 N D, each split compute-optimally by every recipe and draw.",
        metavar="FLOPS,...",
    ),
    at: Covariates = option('Rows: "params=6.9e9 tokens=1.4e11".', metavar="SPEC"),
    level: float = option("Probability of the intervals.", default=0.9),
    out: Path | None = output("File for the table, .csv or .parquet.", *opt.TABLES),
    accept: opt.Accept = opt.ACCEPT,
) -> Shown:
    """Compare recipes: which has the lowest loss, how surely, and what choosing now may cost.

    Recipes are named after their files. With --flops also the compute multiplier over the first
    recipe, and the budget at which the order of the two changes.
    """
    if len({path.stem for path in posteriors}) < len(posteriors):
        raise BayeslawError("two posteriors have the same file name; rename one.")
    fits = {path.stem: _accepted(path, accept) for path in posteriors}
    rows = bl.grid(**at) if at else None
    compared = bl.compare_recipes(fits, rows, flops=flops or None)
    _refuse_far({"recipes": compared}, accept)
    save_frame(out, compared.to_frame(level))
    return compared.shown(level).adding(out=out)


def _refuse_far(
    derived: "Mapping[str, bl.derive.Derived | bl.Recipes]", accepts: opt.Accepts
) -> None:
    """Refuse numbers too far from the fitted rows, as `forecast` does."""
    from bayeslaw.derive.derived import worst_of

    for numbers in derived.values():
        worst_of(numbers.verdicts).accepting(accepts).require()


# -- plans ----------------------------------------------------------------------------------------


def baseline_of(text: str, option: str) -> list[float]:
    """Parse a loss, or a loss and its standard deviation."""
    loss_and_sd = parsing.numbers(text, option, "write it as 2.05 or 2.05,0.01")
    if len(loss_and_sd) > 2:
        raise BayeslawError(f"{option} {text}: give a loss, or a loss and its sd.")
    return loss_and_sd


def choice_of(text: str, option: str) -> list[float]:
    """Parse a budget and a replay ratio."""
    atpp, replay = parsing.numbers(text, option, "write it as 8,.3", size=2)
    if not (0 < atpp < math.inf and 0 <= replay <= 1):
        raise BayeslawError(f"{option} {text}: give numbers such as 8,.3.")
    return [atpp, replay]


@dataclass(frozen=True)
class Limits:
    """The fits, the model, its stage, the limits and what is searched."""

    target: Path | None = option("Posterior of the target domain.", metavar="POSTERIOR")
    source: Path | None = option("Posterior of the source domain.", metavar="POSTERIOR")
    example: Literal["paper"] | None = option(
        "Plan the paper's use case on its synthetic world."
    )
    params: float | None = option(
        "Parameters N of the model. By default those of base."
    )
    ptpp: float | None = option(
        "Its pre-training tokens per parameter. By default those of base, or the only value in "
        "the tables, if there is one; not needed where no law knows it."
    )
    max_loss: float | None = option(
        "Limit of the target loss, nats per token; may be left out with atpp.",
        metavar="LOSS",
    )
    max_forgetting: float | None = option(
        "Limit of the rise of the source loss over baseline: a fraction of the baseline, at most "
        "1, or nats per token; may be left out with atpp.",
        metavar="RISE",
    )
    baseline: Annotated[list[float], baseline_of] = option(
        "Source loss of the un-adapted model: a measured loss in nats per token, or that and its "
        "standard deviation. By default the row with tokens = 0 of the base in the source's table; "
        "for a new base, draws of its loss, if the source's law starts from the base.",
        metavar="LOSS[,SD]",
    )
    base: str | None = option(
        "The pre-trained model that the run starts from: its label in the tables' column base, or "
        "new. By default the only base of that model and stage in the tables, each up to 1 %, or "
        "else a new one.",
        metavar="LABEL|new",
    )
    unique_tokens: float | None = option(
        "Distinct tokens of the new data. By default no data repeat."
    )
    relative: bool = option(
        "Whether max_forgetting is relative to the baseline.",
        "--relative/--absolute",
        default=True,
    )
    atpp: float | None = option(
        "A fixed budget, adaptation tokens per parameter.", metavar="ATPP"
    )
    confidence: float = option(
        "Probability with which all limits must hold.", default=parsing.CONFIDENCE
    )
    losses: Literal["latent", "predictive"] = option(
        "What the limits are on: latent losses, which are those of the law without the noise of "
        "one run and the effects of base and run, or the losses that one new run will measure.",
        default="latent",
    )
    replay: parsing.Ratios = option(
        "Replay ratios of the lattice, between which it is refined. By default 34 over the ratios "
        "that both fits have rows of: a search beyond them picks those whose losses happen to be "
        "forecast too low.",
        metavar="RATIO,...",
    )

    def check(self) -> None:
        """Refuse options beside --example; without it, name those that a plan needs."""
        if self.example is not None:
            taken = ("max_loss", "max_forgetting", "confidence", "losses", "replay")
            without_effect = opt.names_of(Limits, "example", "relative", *taken)
            opt.refuse("on --example", *without_effect, "backtest")
            if not self.relative:
                raise BayeslawError("--absolute has no effect on --example.")
            return
        needed = ["target", "source"]
        needed += ["params"] if self.base is None else []
        needed += ["max_loss", "max_forgetting"] if self.atpp is None else []
        if missing := [name for name in needed if getattr(self, name) is None]:
            options = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
            raise BayeslawError(f"a plan needs {options} (or --example paper).")

    def planned(
        self, seed: int, accepts: opt.Accepts
    ) -> "tuple[bl.Plan, bl.LossTable | None]":
        """The plan, and the rows of the target, which the example has none of."""
        search: dict[str, Any] = {"confidence": self.confidence, "seed": seed}
        search |= {"losses": self.losses, "replay": self.replay or None}
        if self.example is not None:
            search |= {"max_loss": self.max_loss, "max_forgetting": self.max_forgetting}
            return bl.plan_example(**search, accepts=accepts), None
        names = opt.names_of(Limits, "target", "source", "example", "replay")
        limits: dict[str, Any] = {name: getattr(self, name) for name in names}
        limits |= search | {"baseline": self.baseline or None}
        files = (str(self.target), str(self.source))
        target, source = (bl.load(file).accepted(accepts) for file in files)
        return bl.plan(target=target, source=source, **limits), target.table


@dataclass(frozen=True)
class Choices:
    """Choices to judge beside the plan."""

    max_tokens: float | None = option(
        "Cap on tokens; shows the best choice under it as well.", callback=opt.positive
    )
    max_flops: float | None = option("Cap on FLOPs, 6 N D.", callback=opt.positive)
    at: Annotated[list[float], choice_of] = option(
        "A budget and a replay ratio of your own, to judge as well.",
        metavar="ATPP,REPLAY",
    )

    def shown(self, plan: "bl.Plan") -> Shown:
        """The user's own choice, and the best one under a cap."""
        from bayeslaw.planning.result import choice_table, fields

        shown = Shown()
        if self.at:
            choice = plan.at(atpp=self.at[0], replay=self.at[1])
            table = choice_table({"yours": choice}, "Your choice")
            shown += Shown("", [table], {"at": fields(choice)})
        if self.max_tokens is not None or self.max_flops is not None:
            cap = {
                "tokens": self.max_tokens or math.inf,
                "flops": self.max_flops or math.inf,
            }
            likeliest = plan.within(**cap)
            named = {"tokens": count(cap["tokens"]), "FLOPs": f"{cap['flops']:.3g}"}
            caps = " and ".join(
                f"{v} {n}" for n, v in named.items() if cap[n.lower()] < math.inf
            )
            title = f"Under a cap of {caps}: largest P(both)"
            table = choice_table({"likeliest": likeliest}, title)
            shown += Shown("", [table], {"cap": cap, "within": fields(likeliest)})
        return shown


@command(
    """bayeslaw plan --target french.nc --source english.nc --params 8.1e9 --ptpp 279 \\
    --max-loss 1.8 --max-forgetting .02 --baseline 2.05 --confidence .9""",
    "bayeslaw plan --example paper --json",
)
def plan(
    *,
    limits: Limits,
    choices: Choices,
    backtest: Path | None = opt.QUOTED,
    figure: Path | None = output("Draw the landscape (PNG, PDF or SVG).", *opt.FIGURES),
    explore: Path | None = output("Write a page to explore P(both) (HTML).", ".html"),
    accept: opt.Accept = opt.ACCEPT,
    seed: int = opt.SEED,
) -> Result:
    """Plan the smallest adaptation budget and its replay ratio.

    Finds the fewest adaptation tokens per parameter (ATPP) with which the target loss and the
    forgetting of the source domain stay within their limits with the stated probability, under
    posteriors saved by `bayeslaw fit --out`. The limits are on latent losses, those of the law.
    For comparison it shows the plan for the losses that one new run will measure, and the plan of
    the medians with its probability of failure.

    Exits with 1 if the limits are met only farther from the fitted rows than bands were ever
    tested, and refuses a plan twice as far; --accept beyond-evidence accepts both. --example paper
    takes other limits, and exits with 0 for any plan.
    """
    limits.check()
    tested = None if backtest is None else bl.read_backtest(backtest)
    if explore is not None:
        from bayeslaw.reporting.pages import check_plotly

        if limits.atpp is not None:
            raise BayeslawError(
                "--explore shows budgets to choose from; leave out --atpp."
            )
        check_plotly()
    planned, rows = limits.planned(seed, accept)
    shown = planned.shown().adding(backtest=None) + choices.shown(planned)
    chosen = planned.chosen
    if tested is not None and rows is not None and chosen.tokens < math.inf:
        quoted = tested.looking(rows, planned.run.at(chosen.tokens, chosen.replay))
        shown = (shown + Shown(blocks=[quoted])).adding(backtest=quoted)
    save_figure(figure, lambda: bl.plots.plan_landscape(planned))
    notes = [] if explore is None else _explored(planned, explore)
    shown = shown.adding(out=figure, page=None if notes else explore)
    near = (
        "beyond-evidence" in accept or planned.status != "feasible, beyond the evidence"
    )
    # The verdict of an example is there to be read: no script has to stop for it.
    near = near or limits.example is not None
    return Result(shown, notes, 2 if notes else 0 if near else 1)


def _explored(plan: "bl.Plan", page: Path) -> list[str]:
    """Write the page of a plan, or say why there is none."""
    try:
        bl.explore(plan).write(page)
    except BayeslawError as error:
        return [f"error: {page} is not written: {error}"]
    return []


# -- the next runs --------------------------------------------------------------------------------

ROWS = "TABLE_OR_GRID"


@command(
    """bayeslaw anchors fit.nc --k 4 \\
    --candidates "params=241e6,517e6 tokens=1e9,1e10 replay=.1,.5 ptpp=279" \\
    --targets "params=8.1e9 tokens=1e10,1e11 replay=.1,.5 ptpp=279\"""",
    "bayeslaw anchors fit.nc --candidates pool.csv --targets goals.csv --budget 1e20",
)
def anchors(
    *,
    posterior: Path = opt.SAVED,
    candidates: str = option(
        "Rows that can be measured; rows of one `run` are its checkpoints.",
        default=...,
        metavar=ROWS,
    ),
    targets: str = option(
        "Target rows: those whose losses are to be forecast.", default=..., metavar=ROWS
    ),
    where: str | None = query("Candidates to use; all others are ignored."),
    aim: str | None = query("Targets to use; all others are ignored."),
    k: int | None = option("Number of runs.", min=1),
    budget: float | None = option("Most FLOPs for all runs."),
    cost: str = option(
        "flops (6 N D and each new base's pre-training), adaptation (6 N D), or a column.",
        default="flops",
    ),
    out: Path | None = output(
        "Write the rows to measure (CSV or Parquet).", *opt.TABLES
    ),
    accept: opt.Unconverged = opt.UNCONVERGED,
    seed: int = opt.SEED,
) -> Shown:
    """Choose which runs to buy next.

    Draws runs at random, and predicts the posterior standard deviation of the forecast after each,
    so that you can stop where a further run is too expensive.
    """
    if k is None and budget is None:
        raise BayeslawError("say how many runs (--k) or what they may cost (--budget).")
    pool = _rows(candidates, "--candidates", where)
    target_rows = _rows(targets, "--targets", aim)
    fitted = bl.load(posterior).accepted(accept)
    chosen = bl.choose_anchors(
        fitted, pool, target_rows, k=k, budget=budget, cost=cost, seed=seed
    )
    save_frame(out, chosen.frame)
    return beside(fitted, chosen.shown()).adding(out=out, seed=seed)


def _rows(text: str, option: str, where: str | None) -> "pd.DataFrame":
    """Rows of a table, or of a grid such as ``"params=1e9 tokens=1e9,1e10"``."""
    from bayeslaw.tables.reading import read_frame
    from bayeslaw.tables.table import rows_of

    if "=" in text and not Path(text).is_file():
        return opt.of_grid(parsing.covariates(text, option), option).query(where).frame
    frame = rows_of(read_frame(text), text).frame
    frame = frame[frame["tokens"] > 0] if "tokens" in frame else frame
    return bl.LossTable(frame, text).query(where).frame
