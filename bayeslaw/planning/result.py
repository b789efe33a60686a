"""Choices of a budget and a replay ratio, and plans, with methods for other limits and caps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import BayeslawError
from bayeslaw.common.formatting import certain, count, digits, jsonable
from bayeslaw.common.shown import SYNTHETIC, Block, Format, Note, Showing, Shown, Table
from bayeslaw.inference.variance import shares_blocks
from bayeslaw.laws.steps import epochs
from bayeslaw.planning.chance_constraint import NAMES, Place, Problem
from bayeslaw.planning.planned_run import PlannedRun, check_confidence

LARGE_ERROR = 0.03
"""Monte Carlo error, as a fraction of the budget, from which the first line states it."""
FEASIBLE = "feasible"
BEYOND = "feasible, beyond the evidence"
"""Values of `Plan.status`, beside "infeasible"."""
SHOWN = {"atpp": "ATPP", "replay": "replay", "tokens": "tokens", "flops": "FLOPs"}
SHOWN |= {"p_target": "P(target)", "p_forgetting": "P(forgetting)", "p_both": "P(both)"}
SHOWN |= {"held": "P(both) of this plan"}
MEANINGS = {
    "latent": "those of the law, without the noise of one run and the effects of base and run",
    "predictive": "those that one new run will measure",
}
"""What the losses of each kind are."""
"""Heads of the columns of a choice."""


def replay_ratios(replay: float | Sequence[float] | Floats) -> Floats:
    ratios = np.unique(np.asarray(replay, float))
    if not len(ratios) or not ((ratios >= 0) & (ratios <= 1)).all():
        raise BayeslawError(
            "replay ratios lie in [0, 1]; give at least one, as fractions."
        )
    return ratios


@dataclass(frozen=True, kw_only=True)
class Choice(Showing):
    """A budget and replay ratio, with the probabilities that they meet the limits.

    Probabilities and expectations are over the posterior draws.

    Parameters
    ----------
    atpp, tokens, flops : float
        Adaptation tokens per parameter D/N, tokens D, and 6 N D; infinite if no budget is feasible.
    replay : float
        Replay ratio.
    p_target, p_forgetting, p_both : float
        Probability that the limit of the target loss holds, that of forgetting, and both.
    loss : float
        Expected target loss, nats per token.
    forgetting : float
        Expected rise of the source loss over its baseline: a fraction of the baseline or nats per
        token, as its limit is.

    Examples
    --------
    >>> choice = Choice(atpp=20.0, tokens=2e10, flops=1.2e20, replay=0.3,
    ...                 p_target=0.95, p_forgetting=0.96, p_both=0.92)
    >>> round(choice.p_failure, 2)
    0.08
    """

    atpp: float
    replay: float
    tokens: float
    flops: float
    p_target: float
    p_forgetting: float
    p_both: float
    loss: float = math.nan
    forgetting: float = math.nan

    @property
    def p_failure(self) -> float:
        """Probability that at least one limit does not hold."""
        return 1 - self.p_both

    def shown(self) -> Shown:
        """The budget, and the probabilities that it meets the limits."""
        return Shown("Choice", [choice_table({"choice": self})], fields(self))


def choice_table(choices: Mapping[str, Choice | None], title: str = "") -> Table:
    """A row for each choice that is not None: its budget, and the probabilities of the limits."""
    named = {name: choice for name, choice in choices.items() if choice is not None}
    columns = {n: [getattr(c, n) for c in named.values()] for n in SHOWN if n != "held"}
    return budget_table(pd.DataFrame(columns, list(named)), title)


def budget_table(frame: pd.DataFrame, title: str = "") -> Table:
    """A table of budgets, with those of their columns that are in `SHOWN`."""
    feasible = frame["atpp"].map(math.isfinite)
    cells = {
        "atpp": digits,
        "replay": "{:.1f} %".format,
        "tokens": count,
        "flops": "{:.3g}".format,
    }
    texts = frame[[name for name in SHOWN if name in frame]].astype(object)
    for name, form in cells.items():
        values = 100 * frame[name] if name == "replay" else frame[name]
        texts[name] = [
            form(v) if ok else "" for v, ok in zip(values, feasible, strict=True)
        ]
    texts.loc[~feasible, "atpp"] = "infeasible"
    formats: dict[str, Format] = {
        head: ".3f" for head in SHOWN.values() if head.startswith("P(")
    }
    return Table(texts.rename(columns=SHOWN), title, formats, ("tokens",))


_NONE: dict[str, Any] = dict.fromkeys(
    ("replay", "p_target", "p_forgetting", "p_both"), math.nan
)
INFEASIBLE = Choice(atpp=math.inf, tokens=math.inf, flops=math.inf, **_NONE)
"""The choice where no budget is feasible."""


def choice_at(problem: Problem, place: Place | None, most: float = math.inf) -> Choice:
    """The choice of a budget and a replay ratio; `INFEASIBLE` without one.

    Tokens are rounded up to whole ones, and are at most `most`.
    """
    if place is None:
        return INFEASIBLE
    params = problem.params
    # Rounding in the exponential could give a token less, at which a limit just fails.
    tokens = min(float(math.ceil(params * math.exp(place.budget) * (1 + 1e-12))), most)
    # The probabilities are those of the whole tokens that are shown.
    losses = [
        rows[0] for rows in problem.losses(math.log(tokens / params), place.ratio)
    ]
    target, source = problem.holds(losses)
    pairs = zip(problem.limits, losses, strict=True)
    loss, rise = (
        float(limit.values(x, measured=problem.measured).mean()) for limit, x in pairs
    )
    return Choice(
        atpp=tokens / params,
        replay=place.ratio,
        tokens=tokens,
        flops=6 * params * tokens,
        p_target=float(target.mean()),
        p_forgetting=float(source.mean()),
        p_both=float((target & source).mean()),
        loss=loss,
        forgetting=rise,
    )


def stated_budget(choice: Choice, error: Mapping[str, Any]) -> tuple[float, float]:
    """ATPP and replay ratio of a plan, with the digits that plans of other draws have, too.

    `error` is that of `Plan.error`; without one, the numbers stay as they are.
    """
    atpp = choice.atpp
    replay = choice.replay
    if not error:
        return atpp, replay
    sd = error["atpp"]
    # The budget is flat along the ratio. Unless that is given or lies at an end, plans of
    # neighbouring ranks may have the same one by chance: of other fits to the rows of
    # `plan_example`, at 3 % of forgetting, it varies by 3 %, and the budget by 2 %.
    least = 2 * replay * sd / atpp if error["replay"] > 1e-4 else 0.0
    return certain(atpp, sd), certain(replay, max(error["replay"], least))


def budget_text(choice: Choice, error: Mapping[str, Any]) -> str:
    """The `stated_budget` in words, with its Monte Carlo error if that is large."""
    atpp, replay = stated_budget(choice, error)
    about = ""
    stated_error = ""
    if error:
        about = "about "
        sd = error["atpp"]
        if sd > LARGE_ERROR * atpp:
            stated_error = f" (Monte Carlo error {certain(sd, sd):.3g})"
    return f"{about}{atpp:.3g} ATPP{stated_error} at {100 * replay:.3g} % replay"


def fields(choice: Choice) -> dict[str, Any]:
    return vars(choice) | {"p_failure": choice.p_failure}


@dataclass(frozen=True, kw_only=True)
class Plan(Choice):
    """The smallest budget that meets all limits with the stated probability, or why there is none.

    Parameters
    ----------
    status : {"feasible", "feasible, beyond the evidence", "infeasible"}
        A plan beyond the evidence lies farther from the fitted rows than bands were ever measured,
        and no run nearer meets the limits.
    evidence : str
        If the plan, or else `cheaper`, lies beyond the evidence: how far, as `bayeslaw.check` says.
    cheaper : Choice or None
        Of a plan within the evidence: the smallest budget beyond it, if that is smaller.
    likeliest : Choice or None
        Of a plan beyond the evidence: the choice within it most likely to meet all limits.
    confidence : float
        Probability with which all limits must hold.
    draws, pairing : int, str
        Number of paired draws, and how the draws of the fits were paired.
    losses : {"latent", "predictive"}
        Kind of the losses that the limits are on. Probabilities and expectations are of these,
        except in `other` and `other_plan`.
    other : Choice
        The plan's budget and replay ratio, or those of `best`, with the probabilities for losses
        of the other kind.
    other_plan, other_status : Choice, str
        The plan for losses of the other kind, and its `status`; one that would be refused is
        infeasible.
    spread : DataFrame
        Shares of the variance of the log losses there; see `bayeslaw.inference.variance`.
    base, baseline : str
        The base that the plan starts from, and the baseline of forgetting, in words.
    limits : mapping
        Arguments that the plan was made for, by their names in `bayeslaw.plan`: `params`, `ptpp`,
        `base`, `unique_tokens`, `max_loss`, `max_forgetting`, `relative`, `baseline`, and `atpp` if
        the budget was fixed. A limit that was not given is None.
    binds : str
        If infeasible, the limits that cannot be met.
    best : Choice or None
        If infeasible, the choice most likely to meet all limits, within the evidence if it can be.
    deterministic : Choice
        The plan made from the median losses alone, with its probabilities under the posterior.
    held_out : float
        P(both) on half of the draws of a plan made on the other half, mean of both directions.
    error : mapping
        Monte Carlo error, from the plans of neighbouring ranks: `atpp` and `replay`, standard
        deviations; `atpp_90`, the ends of a 90 % interval of ATPP, infinite if other draws may have
        no plan; `infeasible`, the probability of that if they may; `ess`, how many independent
        draws the draws are worth at the plan. Empty for a single draw.
    outside, unconverged : tuple of str
        How the plan lies outside the training rows of the fits, as `bayeslaw.check` says; failures
        of the convergence check.
    data : mapping
        Ranges of params, ptpp, replay and ATPP that the training rows of every fit cover.
    synthetic : bool
        Whether some fitted losses are simulated.
    problem, run
        The limits and the lattice of losses, and the run for which they are; see `lattice`.
    """

    status: str
    evidence: str = ""
    cheaper: Choice | None = None
    likeliest: Choice | None = None
    confidence: float
    draws: int
    pairing: str
    losses: str
    other: Choice
    other_plan: Choice
    other_status: str
    spread: pd.DataFrame = field(repr=False)
    base: str
    baseline: str
    limits: Mapping[str, Any]
    binds: str
    best: Choice | None = None
    deterministic: Choice
    held_out: float
    error: Mapping[str, Any]
    outside: tuple[str, ...]
    data: Mapping[str, tuple[float, float]]
    unconverged: tuple[str, ...]
    synthetic: bool = False
    seed: int = 0
    problem: Problem = field(repr=False)
    run: PlannedRun = field(repr=False)

    @property
    def epochs(self) -> float | None:
        """Epochs of the new data in the plan, or in `best`; None if no data repeat."""
        unique = self.limits["unique_tokens"]
        chosen = self.chosen
        if unique is None:
            return None
        return epochs(chosen.tokens, chosen.replay, unique)

    @property
    def chosen(self) -> Choice:
        """The plan itself if it is feasible, otherwise `best`."""
        return self if self.best is None else self.best

    def surface(
        self, atpp: Sequence[float] | Floats, replay: Sequence[float] | Floats
    ) -> pd.DataFrame:
        """Probability that all limits hold, over budgets and replay ratios.

        Parameters
        ----------
        atpp, replay : sequence of float
            Adaptation tokens per parameter, and replay ratios.

        Returns
        -------
        DataFrame
            Probabilities; the index is ATPP, the columns are replay ratios in ascending order.
        """
        ratios = replay_ratios(replay)
        budgets = np.log(np.asarray(atpp, float))
        # A surface shows what the draws say, also where the plan may not lie.
        everywhere = replace(self.problem, far=None)
        held = everywhere.held(
            np.repeat(budgets, len(ratios)), np.tile(ratios, len(budgets))
        )
        chances = held.reshape(-1, len(ratios)) / self.draws
        return pd.DataFrame(
            chances, pd.Index(atpp, name="atpp"), pd.Index(ratios, name="replay")
        )

    def _on(self, losses: str | None) -> Problem:
        """The problem of a kind of losses, by default the plan's."""
        return self.problem.on(self.losses if losses is None else losses)

    def lattice(
        self, *, losses: Literal["latent", "predictive"] | None = None
    ) -> tuple[Floats, Floats, dict[str, Floats]]:
        """What is limited, for each draw at each node of the lattice that the plan was found on.

        Parameters
        ----------
        losses : {"latent", "predictive"}, optional
            Kind of the losses; by default that of the plan.

        Returns
        -------
        atpp : array, shape (budgets,)
            Adaptation tokens per parameter.
        replay : array, shape (ratios,)
        values : dict of str to array, shape (budgets, ratios, draws)
            Of "target" its loss, nats per token, and of "forgetting" the rise of the source loss,
            in the unit of its limit. P(both) is the share of the draws that keep both limits.

        Examples
        --------
        >>> atpp, replay, values = plan.lattice()  # doctest: +SKIP
        """
        problem = self._on(losses)
        lattice = problem.lattice
        values = {}
        for name, limit, latent in zip(
            NAMES, problem.limits, lattice.losses, strict=True
        ):
            values[name] = limit.values(latent, measured=problem.measured)
        return np.exp(lattice.budgets), lattice.ratios, values

    def at(
        self,
        *,
        atpp: float,
        replay: float,
        losses: Literal["latent", "predictive"] | None = None,
    ) -> Choice:
        """The probabilities and expectations of a budget and a replay ratio of your own.

        Parameters
        ----------
        atpp, replay : float
            Adaptation tokens per parameter, and replay ratio.
        losses : {"latent", "predictive"}, optional
            Kind of the losses; by default that of the plan.
        """
        (ratio,) = replay_ratios([replay])
        if not 0 < atpp < math.inf:
            raise BayeslawError(
                f"atpp={atpp:g}: give a positive number of tokens per parameter."
            )
        return choice_at(self._on(losses), Place(math.log(atpp), float(ratio), 0))

    def frontier(
        self,
        confidences: Sequence[float] = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99),
        *,
        losses: Literal["latent", "predictive"] | None = None,
    ) -> pd.DataFrame:
        """Smallest budget for each of several confidences; infinite if there is none.

        Parameters
        ----------
        confidences : sequence of float
            Between 0 and 1; 0.9 is 90 %.
        losses : {"latent", "predictive"}, optional
            Kind of the losses; by default that of the plan.

        Returns
        -------
        DataFrame
            One row per confidence: `confidence`, and the fields of `Choice`.
        """
        problem = self._on(losses)
        rows = []
        for confidence in confidences:
            check_confidence(confidence)
            place = problem.smallest(confidence, exact=confidence == self.confidence)
            rows.append({"confidence": confidence} | vars(choice_at(problem, place)))
        return pd.DataFrame(rows)

    def sensitivity(self) -> pd.DataFrame:
        """Plans under changed limits and a changed baseline.

        `max_loss` and `baseline` move by .25 %, `max_forgetting` by a tenth, each down and up.
        A baseline that is drawn is not changed.

        Returns
        -------
        DataFrame
            One row per change: `quantity` and `moved`, the relative change; `held`, P(both) of
            this plan under the changed limit; and the fields of `Choice` for the new plan.
        """
        changes = {"max_loss": 0.0025, "max_forgetting": 0.1, "baseline": 0.0025}
        unlimited = {name for name in changes if self.limits[name] is None}
        # Draws are no measurement that could be off.
        if "max_forgetting" in unlimited or "drawn" in np.ravel(
            self.limits["baseline"]
        ):
            unlimited.add("baseline")
        rows = []
        losses = None
        if self.atpp < math.inf:
            losses = self.problem.losses(math.log(self.atpp), self.replay)
        for name in (name for name in changes if name not in unlimited):
            for by in (1 - changes[name], 1 + changes[name]):
                problem = self.problem.scaled(**{name: by})
                held = (
                    math.nan
                    if losses is None
                    else problem.number(losses)[0] / self.draws
                )
                moved = {"quantity": name, "moved": by - 1, "held": float(held)}
                rows.append(moved | vars(choice_at(problem, problem.smallest())))
        return pd.DataFrame(rows)

    def within(self, *, tokens: float = math.inf, flops: float = math.inf) -> Choice:
        """The choice most likely to meet all limits under a cap on tokens or FLOPs.

        Of equally probable choices it is the one with the smallest budget.

        Parameters
        ----------
        tokens, flops : float
            Upper bounds on D and on 6 N D.
        """
        most = min(tokens, flops / (6 * self.problem.params))
        if not most > 0:
            raise BayeslawError(
                f"a cap of {most:g} tokens leaves no budget; give a positive cap."
            )
        place = self.problem.likeliest(math.log(most / self.problem.params))
        return choice_at(self.problem, place if place.held else None, most)

    def to_dict(self) -> dict[str, object]:
        """The plan as plain numbers and text for JSON; values that are not finite become None."""
        # Objects to compute with, which are large and have no form in JSON.
        hidden = ("problem", "run")
        shown = {
            name: value for name, value in vars(self).items() if name not in hidden
        }
        shown |= {name: fields(v) for name, v in shown.items() if isinstance(v, Choice)}
        about = "cheaper" if self.cheaper else "plan" if self.best is None else "best"
        shown |= {"spread": self.spread.to_dict("index")}
        shown |= {"evidence_of": about if self.evidence else ""}
        shown |= {} if self.epochs is None else {"epochs": self.epochs}
        document: dict[str, object] = jsonable(shown)
        return document

    def shown(self) -> Shown:
        """The verdict and its reservations, the plan beside others, and what it depends on."""
        frontier = self.frontier()
        sensitivity = self.sensitivity()
        notes: list[Block] = [Note(SYNTHETIC, "synthetic")] * self.synthetic
        notes += [*self.reservations, ""] if self.reservations else []
        blocks = [
            *notes,
            *self._stated(),
            "",
            *self._answer(),
            self._compared(),
            *self._beside(),
        ]
        chosen = self.chosen
        certain = self.deterministic
        if math.isfinite(chosen.atpp):
            rise = self.problem.limits[1].text(chosen.forgetting)
            blocks.append(
                f"Expected target loss {chosen.loss:.4g}; expected forgetting {rise}."
            )
        words = "is infeasible"
        if math.isfinite(certain.atpp):
            words = f"fails with probability {certain.p_failure:.2f}"
            if self.best is None and self.problem.fixed is None:
                words += (
                    f"; this plan has {self.atpp / certain.atpp:.2g} times its budget"
                )
        if len(self._no_limits) < 2:
            blocks.append(f"The deterministic plan (median losses) {words}.")
        # Without a plan or a table there is nothing to check.
        if math.isfinite(chosen.tokens) and self.data:
            row = f"params={self.run.params:g} tokens={chosen.tokens:.4g}"
            row += f" replay={chosen.replay:.3g}"
            row += "" if self.run.ptpp is None else f" ptpp={self.run.ptpp:g}"
            blocks.append(f'Check each fit there: bayeslaw check FIT --grid "{row}"')
        if len(self.spread):
            blocks += shares_blocks(self.spread)
        budgets = ["atpp", "replay", "tokens", "flops"]
        # A table without a feasible budget has empty cells alone.
        if np.isfinite(frontier["atpp"]).any():
            index = frontier["confidence"].map(lambda p: f"{100 * p:g} %")
            within = ", within the evidence" if self.problem.far else ""
            what = (
                "Smallest budget"
                if self.problem.fixed is None
                else "Replay at this budget"
            )
            title = f"{what} by confidence{within}"
            blocks.append(budget_table(frontier[budgets].set_index(index), title))
        if len(sensitivity) and np.isfinite(sensitivity["atpp"]).any():
            moved = sensitivity["moved"].map(lambda by: f" {100 * by:+.3g} %")
            rows = sensitivity[[*budgets, "held"]].set_index(
                sensitivity["quantity"] + moved
            )
            blocks.append(
                budget_table(rows.rename_axis(None), "Sensitivity to the limits")
            )
        document = self.to_dict() | {
            "frontier": frontier.to_dict("records"),
            "sensitivity": sensitivity.to_dict("records"),
        }
        figures = ("plan_landscape", "plan_frontier")
        return Shown(f"Plan: {self.verdict}", blocks, document, figures)

    @property
    def verdict(self) -> str:
        """The plan, and whether it is feasible, in one line.

        With the digits that plans of other draws have, too; the tables have more.
        """
        if self.best is not None:
            within = " within the evidence" if self.problem.far else ""
            what = (
                "budget"
                if self.problem.fixed is None
                else "replay ratio at this budget"
            )
            return (
                f"{self.status}: no {what} meets the limits on {self.losses} losses with "
                f"probability {100 * self.confidence:g} %; at most "
                f"{100 * self.best.p_both:.1f} %{within}"
            )
        held = ""
        # A single draw has no other half.
        if self.error:
            held = f"; P(both) on held-out draws {certain(self.held_out, self._held_sd):.3g}"
        share = stated_budget(self, self.error)[0] / self.atpp
        return (
            f"{self.status}: {budget_text(self, self.error)}, "
            f"{count(share * self.tokens)} tokens, {share * self.flops:.3g} FLOPs{held}"
        )

    @property
    def _held_sd(self) -> float:
        """Monte Carlo standard deviation of `held_out`, which is over half of the draws."""
        return math.sqrt(self.held_out * (1 - self.held_out) / (self.error["ess"] / 2))

    @property
    def sentence(self) -> str:
        """The verdict, and what binds if there is no plan, or else how surely it holds."""
        if self.best is not None:
            return f"Plan: {self.verdict}; binding limit: {self.binds}."
        repeated = (
            "" if self.epochs is None else f", {self.epochs:.3g} epochs of the new data"
        )
        held = f"meets the limits on {self.losses} losses with probability "
        held += f"{100 * self.p_both:.3g} %{repeated}"
        # Beside a cheaper plan the words are of that one.
        evidence = "" if self.cheaper else self.evidence
        return f"Plan: {self.verdict}. It {held}. {evidence}".strip()

    @property
    def reservations(self) -> list[Note]:
        """How the plan lies outside the fitted rows, and the fits that have not converged."""
        notes = (
            [Note(self.evidence, "no evidence")]
            if self.evidence and not self.cheaper
            else []
        )
        if (near := self.likeliest) is not None:
            text = f"Within the evidence: P(both) is at most {near.p_both:.3f}"
            text += (
                f", at {digits(near.atpp)} ATPP and {100 * near.replay:.1f} % replay"
            )
            notes.append(
                Note(
                    f"{text if near.p_both else 'no draw meets the limits'}.", "caution"
                )
            )
        if (cheaper := self.cheaper) is not None:
            text = f"{digits(cheaper.atpp)} ATPP at {100 * cheaper.replay:.1f} % replay would do."
            notes.append(
                Note(f"Beyond the evidence: {text} {self.evidence}", "caution")
            )
        notes += [Note(text[:1].upper() + text[1:], "caution") for text in self.outside]
        failures: dict[str, list[str]] = {}
        for text in self.unconverged:
            # The name of a fit may have a colon itself.
            fit, _, failure = text.rpartition(": ")
            failures.setdefault(fit, []).append(failure)
        for fit, texts in failures.items():
            notes.append(Note(f"NOT CONVERGED: {fit}: {'; '.join(texts)}.", "refuse"))
        return notes

    @property
    def model(self) -> str:
        """The model that is planned for, in words: its size, and its stage if that is known."""
        ptpp = self.run.ptpp
        return f"N {count(self.run.params)}{'' if ptpp is None else f', PTPP {ptpp:g}'}"

    def _stated(self) -> list[Block]:
        problem = self.problem
        probability = f"with probability {100 * self.confidence:g} %"
        # Of a loss with its standard deviation the loss alone; the other is in `baseline`.
        level = np.ravel(self.limits["baseline"])[0]
        start = "the" if isinstance(level, str) else f"{level:.4g}, the"
        most, rise = (limit.text(limit.most) for limit in problem.limits)
        stated = {
            "target": f"target loss at most {most} nats per token",
            "forgetting": f"forgetting at most {rise} over {start} {self.baseline}",
        }
        given = [text for name, text in stated.items() if name not in self._no_limits]
        budget = (
            ""
            if problem.fixed is None
            else f"at {math.exp(problem.fixed):.4g} ATPP, the "
        )
        if given:
            least = "least replay with " if budget else ""
            both = "both " if len(given) == 2 else ""
            asked = f"{budget}{least}{', '.join(given)}, {both}{probability}"
        else:
            asked = (
                f"{budget}replay with the least target loss that holds {probability}"
            )
        return [
            Note(f"{self.model}: {asked}."),
            f"The limits are on {self.losses} losses: {MEANINGS[self.losses]}.",
            f"The run starts from {self.base}.",
            f"{self.draws} draws, {self.pairing}.",
        ]

    def _answer(self) -> list[Block]:
        if self.best is not None:
            return [Note(f"Binding limit: {self.binds}.", "refuse")]
        blocks: list[Block] = []
        unique = self.limits["unique_tokens"]
        if self.epochs is not None and unique is not None:
            blocks.append(
                f"{digits(self.epochs)} epochs of {count(unique)} new tokens."
            )
        if self.problem.fixed is not None:
            ends = [f"{loss:.4g}" for loss in self.target_loss()]
            held = f"{100 * self.confidence:g}"
            blocks.append(
                f"{self.losses.capitalize()} target loss at this budget and replay: "
                f"median {ends[1]}, 90 % {ends[0]} to {ends[2]}; with probability {held} % "
                f"at most {ends[3]} nats per token."
            )
        elif self.error:
            low, high = self.error["atpp_90"]
            blocks.append(
                f"Monte Carlo error: ATPP ± {digits(self.error['atpp'])} (90 %: {digits(low)} to "
                f"{digits(high)}), replay ± {100 * self.error['replay']:.2g} points; "
                f"P(both) on held-out draws {self.held_out:.3f} ± {self._held_sd:.2g}."
            )
        return blocks

    def _compared(self) -> Table:
        name = "plan" if self.best is None else "likeliest"
        rows: dict[str, Choice | None] = {name: self.chosen}
        if self.problem.noisy:
            rows[f"plan, {self._other_kind} losses"] = self.other_plan
        rows |= {
            "beyond the evidence": self.cheaper,
            "within the evidence": self.likeliest,
        }
        table = choice_table(rows | {"deterministic": self.deterministic})
        # The probability of a limit that was not given is 1, and says nothing.
        unlimited = [SHOWN[f"p_{name}"] for name in self._no_limits]
        unlimited += [SHOWN["p_both"]] * bool(unlimited)
        return replace(table, frame=table.frame.drop(columns=unlimited))

    @property
    def _other_kind(self) -> str:
        (other,) = MEANINGS.keys() - {self.losses}
        return other

    def _beside(self) -> list[Block]:
        """What losses of the other kind are, and what they say of the plan."""
        if not self.problem.noisy:
            return []
        kind = self._other_kind
        text = f"{kind.capitalize()} losses are {MEANINGS[kind]}"
        if len(self._no_limits) < 2 and math.isfinite(self.chosen.atpp):
            name = "this plan" if self.best is None else "the likeliest choice"
            text += f"; with {name} they meet the limits with probability {self.other.p_both:.3f}"
        blocks: list[Block] = [f"{text}."]
        if self.other_status == BEYOND != self.status:
            blocks.append(f"The plan for {kind} losses lies beyond the evidence.")
        return blocks

    @property
    def _no_limits(self) -> list[str]:
        names = {"target": "max_loss", "forgetting": "max_forgetting"}
        return [name for name, limit in names.items() if self.limits[limit] is None]

    def target_loss(self) -> tuple[float, float, float, float]:
        """Target loss there: 5, 50 and 95 %, and the `confidence` quantile; nats per token."""
        chosen = self.chosen
        problem = self.problem
        latent = problem.losses(math.log(chosen.atpp), chosen.replay)[0][0]
        losses = problem.limits[0].values(latent, measured=problem.measured)
        quantiles = np.quantile(losses, (0.05, 0.5, 0.95, self.confidence))
        low, middle, high, stated = map(float, quantiles)
        return low, middle, high, stated
