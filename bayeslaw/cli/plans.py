"""The command ``plan``."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import bayeslaw as bl
from bayeslaw.cli import options as opt
from bayeslaw.cli import parsing
from bayeslaw.cli.app import Result, command
from bayeslaw.cli.options import option, output
from bayeslaw.cli.sources import save_figure
from bayeslaw.common.errors import BayeslawError
from bayeslaw.common.formatting import count
from bayeslaw.common.shown import Shown


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
        if self.base is None:
            needed.append("params")
        if self.atpp is None:
            needed += ["max_loss", "max_forgetting"]
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
        from bayeslaw.planning.choices import choice_table, fields

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
    if notes:
        return Result(shown, notes, 2)
    return Result(shown, notes, 0 if near else 1)


def _explored(plan: "bl.Plan", page: Path) -> list[str]:
    """Write the page of a plan, or say why there is none."""
    try:
        bl.explore(plan).write(page)
    except BayeslawError as error:
        return [f"error: {page} is not written: {error}"]
    return []
