"""Commands that derive numbers and plans from saved fits: ``derive | recipes | plan``."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import bayeslaw as bl
from bayeslaw.cli import options as opt
from bayeslaw.cli import parsing
from bayeslaw.cli.app import Result, command
from bayeslaw.cli.options import argument, as_in, option, output
from bayeslaw.common.errors import BayeslawError, TableError
from bayeslaw.common.formatting import count
from bayeslaw.common.shown import Note, Shown


@dataclass(frozen=True)
class Numbers(opt.Group):
    """The numbers to derive, beside the floor."""

    flops: str | None = option("Budgets: compute-optimal N, D and loss.", metavar="FLOPS,...")
    loss: str | None = option("Losses: FLOPs to reach each, split optimally.", metavar="NATS,...")
    against: Path | None = option("Posterior of a recipe: multiplier over it, at each --loss.")
    at: str | None = option(
        'Rows of local exponents: "params=1e9 tokens=1e10"; other covariates of --flops.',
        metavar="SPEC",
    )
    span: float = as_in("derive.compute_optimal", default=10.0)
    search: str | None = as_in("derive.compute_optimal", metavar="LOW,HIGH")

    def __post_init__(self) -> None:
        """Raise `BayeslawError` for what cannot be read, or is of no use by itself."""
        if self.place and not (self.flops or self.loss or self.place.keys() & {"params", "tokens"}):
            raise BayeslawError("--at needs params and tokens, or --flops or --loss.")
        if self.against and not self.losses:
            raise BayeslawError("--against compares FLOPs to reach a loss; give --loss.")
        parsing.numbers(self.search, "--search", "write it as 1,1000", size=2)

    @property
    def budgets(self) -> list[float]:
        return parsing.numbers(self.flops, "--flops")

    @property
    def losses(self) -> list[float]:
        return parsing.numbers(self.loss, "--loss")

    @property
    def place(self) -> dict[str, Any]:
        return parsing.covariates(self.at, "--at")

    def fixed(self, law: "bl.Law") -> dict[str, Any]:
        """The range that is searched, and values of the covariates besides N and D."""
        fixed: dict[str, Any] = {"search": tuple(parsing.numbers(self.search, "--search")) or None}
        for name, values in self.place.items():
            if name in ("replay", "ptpp", *law.declared):
                if len(values) != 1:
                    raise BayeslawError(f"--at: give one value of {name}, such as {name}=1e9.")
                (fixed[name],) = values
        return fixed

    def of(
        self, fit: "bl.Posterior", other: "bl.Posterior | None"
    ) -> "dict[str, bl.derive.Derived]":
        """The numbers of a fit, some of them compared with an `other` one."""
        from bayeslaw.laws.steps import Tuning

        ask, fixed = bl.derive, self.fixed(fit.law)
        derived = {"floor": ask.floor(fit)}
        if self.budgets:
            optimum = ask.compute_optimal(fit, self.budgets, span=self.span, **fixed)
            derived["compute_optimal"] = optimum
        if other is not None:
            search = fixed["search"]
            multiplier = ask.compute_multiplier(fit, other, self.losses, search=search)
            derived["compute_multiplier"] = multiplier
        elif self.losses:
            derived["flops_to_reach"] = ask.flops_to_reach(fit, self.losses, **fixed)
        if self.place.keys() & {"params", "tokens"}:
            rows = bl.grid(**self.place)
            derived["local_exponents"] = ask.local_exponents(fit, rows)
            if fit.law.step(Tuning):
                derived["best_rate"] = ask.best_rate(fit, rows)
        return derived


@command(
    "bayeslaw derive fit.nc --flops 1e21,1e24 --loss 2.2",
    "bayeslaw derive fit.nc --loss 2.2 --against other.nc --json",
    'bayeslaw derive fit.nc --at "params=1e9 tokens=2e10"',
)
def derive(
    *,
    posterior: Path = opt.SAVED,
    asked: Numbers,
    levels: str = as_in("derive.Derived.to_frame", default="0.5,0.8,0.9", metavar="P,..."),
    out: Path | None = output("File for all intervals, .csv or .parquet.", *opt.TABLES),
    figure: Path | None = output(
        "Draw isoFLOP curves of --flops and the compute-optimal frontier.", *opt.FIGURES
    ),
    allow_unconverged: bool = opt.UNCONVERGED,
    beyond_evidence: bool = opt.BEYOND_EVIDENCE,
) -> Shown:
    """Derive numbers from a fit, each with its median and credible intervals.

    The floor E, and as asked: the compute-optimal split of a budget C = 6 N D, the FLOPs that reach
    a loss, the compute multiplier over another recipe, local exponents, and the rate of least loss
    where several were fitted. All are of the latent loss, without noise and random effects. What
    lies twice as far from the fitted rows as bands were ever tested is refused.
    """
    import pandas as pd

    probabilities = parsing.band_levels(levels)
    if figure is not None and not asked.budgets:
        raise BayeslawError("--figure draws the split of budgets; give --flops.")
    fit = _accepted(posterior, allow_unconverged)
    other = None if asked.against is None else _accepted(asked.against, allow_unconverged)
    derived = asked.of(fit, other)
    _refuse_far(derived, beyond_evidence)
    opt.save_figure(
        figure, lambda: bl.plots.compute_optimal(fit, asked.budgets, **asked.fixed(fit.law))
    )
    frames = [of.to_frame(probabilities).assign(derived=name) for name, of in derived.items()]
    opt.save_frame(out, pd.concat(frames, ignore_index=True))
    whole, document = Shown(), {}
    for name, numbers in derived.items():
        shown = numbers.shown(probabilities)
        document[name] = dict(shown.document)
        blocks = [b for b in shown.blocks if not (isinstance(b, Note) and b.level == "refuse")]
        whole += Shown("", [Note(shown.title), *blocks])
    return opt.beside(fit, whole).adding(levels=probabilities, derived=document, out=out)


def _accepted(posterior: Path, unconverged: bool) -> "bl.Posterior":
    """A saved posterior of one law; what lies too far out is refused by `_refuse_far`."""
    from bayeslaw.inference.pools import load_posterior

    return load_posterior(posterior).accepted(unconverged=unconverged, beyond_evidence=True)


@command(
    "bayeslaw recipes c4.nc refinedweb.nc redpajama.nc --flops 1e21,1e23",
    'bayeslaw recipes c4.nc refinedweb.nc --at "params=6.9e9 tokens=1.4e11" --json',
)
def recipes(
    *,
    posteriors: list[Path] = argument("A posterior for each recipe, of losses on the same data."),
    flops: str | None = as_in("compare_recipes", metavar="FLOPS,..."),
    at: str | None = option('Rows: "params=6.9e9 tokens=1.4e11".', metavar="SPEC"),
    level: float = as_in("Recipes.to_frame", default=0.9),
    out: Path | None = output("File for the table, .csv or .parquet.", *opt.TABLES),
    allow_unconverged: bool = opt.UNCONVERGED,
    beyond_evidence: bool = opt.BEYOND_EVIDENCE,
) -> Shown:
    """Compare recipes: which has the lowest loss, how surely, and what choosing now may cost.

    Recipes are named after their files. With --flops also the compute multiplier over the first
    recipe, and the budget at which the order of the two changes.
    """
    if len({path.stem for path in posteriors}) < len(posteriors):
        raise BayeslawError("two posteriors have the same file name; rename one.")
    fits = {path.stem: _accepted(path, allow_unconverged) for path in posteriors}
    rows = bl.grid(**parsing.covariates(at, "--at")) if at else None
    compared = bl.compare_recipes(fits, rows, flops=parsing.numbers(flops, "--flops") or None)
    _refuse_far({"recipes": compared}, beyond_evidence)
    opt.save_frame(out, compared.to_frame(level))
    return compared.shown(level).adding(out=out)


def _refuse_far(
    derived: "Mapping[str, bl.derive.Derived | bl.Recipes]", beyond_evidence: bool
) -> None:
    """Refuse numbers too far from the fitted rows, as `forecast` does."""
    from bayeslaw.derive.derived import judged

    for numbers in derived.values():
        level, reason = judged(numbers.places, refuse=not beyond_evidence)
        if level == "refuse":
            raise TableError(reason)


@dataclass(frozen=True)
class Limits(opt.Group):
    """The fits, the model, its stage, the limits and what is searched."""

    target: Path | None = option("Posterior of the target domain.", metavar="POSTERIOR")
    source: Path | None = option("Posterior of the source domain.", metavar="POSTERIOR")
    example: Literal["paper"] | None = option("Plan the paper's use case on its synthetic world.")
    params: float | None = as_in("plan")
    ptpp: float | None = as_in("plan")
    max_loss: float | None = as_in("plan", metavar="LOSS")
    max_forgetting: float | None = as_in("plan", metavar="RISE")
    baseline: str | None = as_in("plan", metavar="LOSS[,SD]")
    base: str | None = as_in("plan", metavar="LABEL|new")
    unique_tokens: float | None = as_in("plan")
    relative: bool = as_in("plan", "relative", "--relative/--absolute", default=True)
    atpp: float | None = as_in("plan", metavar="ATPP")
    confidence: float = as_in("plan", default=parsing.CONFIDENCE)
    replay: str | None = as_in("plan", "replay_grid", metavar="RATIO,...")

    def check(self, backtest: Path | None) -> None:
        """Refuse options beside --example; without it, name those that a plan needs."""
        if self.example is not None:
            others = self.changed("example", "relative", "confidence", "replay")
            opt.refuse("on --example", **others, backtest=backtest, absolute=not self.relative)
            return
        needed = ("target", "source", *(parsing.NEEDED if self.atpp is None else ("params",)))
        if missing := [name for name in needed if getattr(self, name) is None]:
            options = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
            raise BayeslawError(f"a plan needs {options} (or --example paper).")

    def check_explored(self) -> None:
        """Raise `BayeslawError` if the page to explore the plan cannot be made."""
        from bayeslaw.reporting.pages import check_plotly

        if self.atpp is not None:
            raise BayeslawError("--explore shows budgets to choose from; leave out --atpp.")
        check_plotly()

    def planned(self, seed: int, **accepted: Any) -> "tuple[bl.Plan, bl.LossTable | None]":
        """The plan, and the rows of the target, which the example has none of."""
        ratios = parsing.numbers(self.replay, "--replay", "write it as 0.3 or 0.1,0.2")
        search: dict[str, Any] = {"confidence": self.confidence, "seed": seed}
        search |= {"replay_grid": ratios or None}
        if self.example is not None:
            return bl.plan_example(**search, **accepted), None
        own = ("target", "source", "example", "replay")
        limits = {name: value for name, value in vars(self).items() if name not in own}
        limits["baseline"] = None if self.baseline is None else _baseline(self.baseline)
        target, source = (
            bl.load(getattr(self, name)).accepted(**accepted) for name in ("target", "source")
        )
        return bl.plan(target=target, source=source, **limits | search), target.table


def _baseline(text: str) -> float | tuple[float, float]:
    """Parse a baseline: a loss, or a loss and its standard deviation."""
    loss, *sd = parsing.numbers(text, "--baseline", "write it as 2.05 or 2.05,0.01")
    if len(sd) > 1:
        raise BayeslawError(f"--baseline {text}: give a loss, or a loss and its sd.")
    return (loss, sd[0]) if sd else loss


@dataclass(frozen=True)
class Choices(opt.Group):
    """Choices to judge beside the plan."""

    max_tokens: float | None = option(
        "Cap on tokens; shows the best choice under it as well.", callback=opt.positive
    )
    max_flops: float | None = option("Cap on FLOPs, 6 N D.", callback=opt.positive)
    at: str | None = option(
        "A budget and a replay ratio of your own, to judge as well.", metavar="ATPP,REPLAY"
    )

    def check(self) -> list[float]:
        """The user's own choice, if there is one."""
        own = parsing.numbers(self.at, "--at", "write it as 8,.3", size=2)
        if own and not (0 < own[0] < math.inf and 0 <= own[1] <= 1):
            raise BayeslawError(f"--at {self.at}: give numbers such as 8,.3.")
        return own

    def shown(self, plan: "bl.Plan") -> Shown:
        """The user's own choice, and the best one under a cap."""
        from bayeslaw.planning.result import choice_table, fields

        shown = Shown()
        if own := self.check():
            choice = plan.at(atpp=own[0], replay=own[1])
            table = choice_table({"yours": choice}, "Your choice")
            shown += Shown("", [table], {"at": fields(choice)})
        if self.max_tokens is not None or self.max_flops is not None:
            cap = {"tokens": self.max_tokens or math.inf, "flops": self.max_flops or math.inf}
            likeliest = plan.within(**cap)
            named = {"tokens": count(cap["tokens"]), "FLOPs": f"{cap['flops']:.3g}"}
            caps = " and ".join(f"{v} {n}" for n, v in named.items() if cap[n.lower()] < math.inf)
            table = choice_table(
                {"likeliest": likeliest}, f"Under a cap of {caps}: largest P(both)"
            )
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
    allow_unconverged: bool = opt.UNCONVERGED,
    beyond_evidence: bool = opt.BEYOND_EVIDENCE,
    seed: int = opt.SEED,
) -> Result:
    """Plan the smallest adaptation budget and its replay ratio.

    Finds the fewest adaptation tokens per parameter (ATPP) with which the target loss and the
    forgetting of the source domain stay within their limits with the stated probability, under
    posteriors saved by `bayeslaw fit --out`. For comparison it shows the plan of the medians,
    with its probability of failure.

    Exits with 1 if the limits are met only farther from the fitted rows than bands were ever
    tested, and refuses a plan twice as far; --beyond-evidence accepts both.
    """
    choices.check()
    tested = None if backtest is None else bl.read_backtest(backtest)
    limits.check(backtest)
    if explore is not None:
        limits.check_explored()
    accepted = {"unconverged": allow_unconverged, "beyond_evidence": beyond_evidence}
    planned, rows = limits.planned(seed, **accepted)
    chosen, quoted = planned.chosen, None
    if tested is not None and rows is not None and chosen.tokens < math.inf:
        run = planned.run.row.assign(tokens=chosen.tokens, replay=chosen.replay)
        quoted = tested.looking(rows, run)
    opt.save_figure(figure, lambda: bl.plots.plan_landscape(planned))
    notes = [] if explore is None else _explored(planned, explore)
    shown = planned.shown().adding(backtest=quoted) + choices.shown(planned)
    if quoted is not None:
        shown += Shown(blocks=[quoted])
    shown = shown.adding(out=figure, page=None if notes else explore)
    near = beyond_evidence or planned.status != "feasible, beyond the evidence"
    return Result(shown, notes, 2 if notes else 0 if near else 1)


def _explored(plan: "bl.Plan", page: Path) -> list[str]:
    """Write the page of a plan, or say why there is none."""
    try:
        bl.explore(plan).write(page)
    except BayeslawError as error:
        return [f"error: {page} is not written: {error}"]
    return []
