"""Commands that derive numbers from saved fits: ``derive | recipes | anchors``."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bayeslaw as bl
from bayeslaw.cli import options as opt
from bayeslaw.cli import parsing
from bayeslaw.cli.app import command
from bayeslaw.cli.options import argument, option, output, query
from bayeslaw.cli.parsing import Covariates, Levels, Numbers
from bayeslaw.cli.sources import beside, save_figure, save_frame
from bayeslaw.common.errors import BayeslawError
from bayeslaw.common.shown import Note, Shown
from bayeslaw.tables.assignments import covariates

if TYPE_CHECKING:
    import pandas as pd


AMOUNTS = {"params", "tokens", "flops"}
"""Covariates of rows whose local exponents are asked for."""


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
        if self.at and not (self.flops or self.loss or self.at.keys() & AMOUNTS):
            raise BayeslawError(
                "--at needs params and tokens, or flops, or --flops or --loss."
            )
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
            settings = {"span": self.span, "drift": self.drift, **fixed}
            derived["compute_optimal"] = ask.compute_optimal(
                fit, self.flops, **settings
            )
        if other is not None:
            multiplier = ask.compute_multiplier(
                fit, other, self.loss, search=fixed["search"]
            )
            derived["compute_multiplier"] = multiplier
        elif self.loss:
            derived["flops_to_reach"] = ask.flops_to_reach(fit, self.loss, **fixed)
        if self.at.keys() & AMOUNTS:
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
    """bayeslaw recipes math.nc --source web.nc --limit 2.9 \\
    --at "params=6.9e9 tokens=2e10 replay=.1,.25,.5\"""",
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
    source: list[Path] = option(
        "Posterior of the losses to be retained: of all recipes, which are then the rows of --at, "
        "or once for each recipe, in their order.",
        metavar="FILE",
        default=[],
    ),
    limit: float | None = option("Greatest loss of --source, in nats."),
    weight: float | None = option(
        "Nats of target loss that a nat of --source's loss is worth."
    ),
    confidence: float = option(
        "Least probability with which a chosen recipe keeps --limit.", default=0.8
    ),
    level: float = option("Probability of the intervals.", default=0.9),
    figure: Path | None = output(
        "Draw the frontier of both losses, with --source.", *opt.FIGURES
    ),
    out: Path | None = output("File for the table, .csv or .parquet.", *opt.TABLES),
    accept: opt.Accept = opt.ACCEPT,
) -> Shown:
    """Compare recipes: which has the lowest loss, how surely, and what choosing now may cost.

    Recipes are named after their files. With --flops also the compute multiplier over the first
    recipe, and the budget at which the order of the two changes. With --source, which recipes are
    on the frontier of both losses, and which to choose under --limit or --weight.
    """
    if len({path.stem for path in posteriors}) < len(posteriors):
        raise BayeslawError("two posteriors have the same file name; rename one.")
    if source:
        if not at or flops:
            raise BayeslawError("--source needs rows (--at), not budgets (--flops).")
        if len(posteriors) != len(source):
            raise BayeslawError(
                "give --source once for each posterior, in their order."
            )
        found = bl.derive.frontier(
            _recipe_fits(posteriors, posteriors, accept),
            _recipe_fits(posteriors, source, accept),
            bl.grid(**at),
            limit=limit,
            weight=weight,
            confidence=confidence,
        )
        _refuse_far({"recipes": found}, accept)
        save_figure(figure, lambda: bl.plots.frontier(found))
        save_frame(out, found.to_frame(level))
        return found.shown(level).adding(out=out)
    if limit is not None or weight is not None or figure is not None:
        raise BayeslawError("--limit, --weight and --figure need --source.")
    fits = {path.stem: _accepted(path, accept) for path in posteriors}
    rows = bl.grid(**at) if at else None
    compared = bl.compare_recipes(fits, rows, flops=flops or None)
    _refuse_far({"recipes": compared}, accept)
    save_frame(out, compared.to_frame(level))
    return compared.shown(level).adding(out=out)


def _recipe_fits(
    names: list[Path], files: list[Path], accept: opt.Accepts
) -> "bl.Posterior | bl.Pool | dict[str, bl.Posterior | bl.Pool]":
    """The fit of a single file, or those of several by the names of the recipes."""
    from bayeslaw.inference.pools import load

    fits = [load(file).accepted({*accept, "beyond-evidence"}) for file in files]
    if len(fits) == 1:
        return fits[0]
    return {name.stem: fit for name, fit in zip(names, fits, strict=True)}


def _refuse_far(
    derived: "Mapping[str, bl.derive.Derived | bl.Recipes | bl.derive.Frontier]",
    accepts: opt.Accepts,
) -> None:
    """Refuse numbers too far from the fitted rows, as `forecast` does."""
    from bayeslaw.derive.verdicts import worst_of

    for numbers in derived.values():
        worst_of(numbers.verdicts).accepting(accepts).require()


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
    from bayeslaw.tables.files import read_frame
    from bayeslaw.tables.table import rows_of

    if "=" in text and not Path(text).is_file():
        return opt.of_grid(covariates(text, option), option).query(where).frame
    frame = rows_of(read_frame(text), text).frame
    frame = frame[frame["tokens"] > 0] if "tokens" in frame else frame
    return bl.LossTable(frame, text).query(where).frame
