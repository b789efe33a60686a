"""Plans: the numbers of `plan_numbers`, in words and tables."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from bayeslaw.common.formatting import certain, count, digits
from bayeslaw.common.shown import SYNTHETIC, Block, Note, Shown, Table
from bayeslaw.inference.variance import shares_blocks
from bayeslaw.planning.choices import (
    HEADS,
    Choice,
    budget_table,
    budget_text,
    certain_budget,
    choice_table,
)
from bayeslaw.planning.plan_numbers import PlanNumbers

FEASIBLE = "feasible"
BEYOND = "feasible, beyond the evidence"
"""Values of `Plan.status`, beside "infeasible"."""
MEANINGS = {
    "latent": "those of the law, without the noise of one run and the effects of base and run",
    "predictive": "those that one new run will measure",
}
"""What the losses of each kind are."""
BUDGET_COLUMNS = ["atpp", "replay", "tokens", "flops"]


@dataclass(frozen=True, kw_only=True)
class Plan(PlanNumbers):
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

    @property
    def verdict(self) -> str:
        """The plan, and whether it is feasible, in one line.

        With the digits that plans of other draws have, too; the tables have more.
        """
        if self.best is not None:
            return self._infeasible(self.best)
        held_out = ""
        # A single draw has no other half.
        if self.error:
            share = certain(self.held_out, self._held_out_sd)
            held_out = f"; P(both) on held-out draws {share:.3g}"
        atpp, _ = certain_budget(self, self.error)
        rounded = atpp / self.atpp
        return (
            f"{self.status}: {budget_text(self, self.error)}, "
            f"{count(rounded * self.tokens)} tokens, {rounded * self.flops:.3g} FLOPs{held_out}"
        )

    def _infeasible(self, best: Choice) -> str:
        what = "budget"
        if self.problem.fixed is not None:
            what = "replay ratio at this budget"
        within = " within the evidence" if self.problem.far else ""
        return (
            f"{self.status}: no {what} meets the limits on {self.losses} losses with "
            f"probability {100 * self.confidence:g} %; at most {100 * best.p_both:.1f} %{within}"
        )

    @property
    def _held_out_sd(self) -> float:
        """Monte Carlo standard deviation of `held_out`, which is over half of the draws."""
        draws = self.error["ess"] / 2
        return math.sqrt(self.held_out * (1 - self.held_out) / draws)

    @property
    def sentence(self) -> str:
        """The verdict, and what binds if there is no plan, or else how surely it holds."""
        if self.best is not None:
            return f"Plan: {self.verdict}; binding limit: {self.binds}."
        repeated = ""
        if self.epochs is not None:
            repeated = f", {self.epochs:.3g} epochs of the new data"
        # Beside a cheaper plan the words are of that one.
        evidence = "" if self.cheaper else self.evidence
        return (
            f"Plan: {self.verdict}. It meets the limits on {self.losses} losses with probability "
            f"{100 * self.p_both:.3g} %{repeated}. {evidence}"
        ).strip()

    @property
    def model(self) -> str:
        """The model that is planned for, in words: its size, and its stage if that is known."""
        size = f"N {count(self.run.params)}"
        if self.run.ptpp is None:
            return size
        return f"{size}, PTPP {self.run.ptpp:g}"

    # -- reservations -----------------------------------------------------------------------------

    @property
    def reservations(self) -> list[Note]:
        """How the plan lies outside the fitted rows, and the fits that have not converged."""
        notes: list[Note] = []
        if self.evidence and not self.cheaper:
            notes.append(Note(self.evidence, "no evidence"))
        if self.likeliest is not None:
            notes.append(_within_the_evidence(self.likeliest))
        if self.cheaper is not None:
            notes.append(self._beyond_the_evidence(self.cheaper))
        for text in self.outside:
            notes.append(Note(text[:1].upper() + text[1:], "caution"))
        return notes + self._not_converged()

    def _beyond_the_evidence(self, cheaper: Choice) -> Note:
        budget = f"{digits(cheaper.atpp)} ATPP at {100 * cheaper.replay:.1f} % replay"
        return Note(
            f"Beyond the evidence: {budget} would do. {self.evidence}", "caution"
        )

    def _not_converged(self) -> list[Note]:
        """The failures of each fit, in one note."""
        failures_of_fits: dict[str, list[str]] = {}
        for text in self.unconverged:
            # The name of a fit may have a colon itself.
            fit, _, failure = text.rpartition(": ")
            failures_of_fits.setdefault(fit, []).append(failure)
        notes = []
        for fit, failures in failures_of_fits.items():
            text = f"NOT CONVERGED: {fit}: {'; '.join(failures)}."
            notes.append(Note(text, "refuse"))
        return notes

    # -- what is shown ----------------------------------------------------------------------------

    def shown(self) -> Shown:
        """The verdict and its reservations, the plan beside others, and what it depends on."""
        frontier = self.frontier()
        sensitivity = self.sensitivity()
        blocks: list[Block] = []
        if self.synthetic:
            blocks.append(Note(SYNTHETIC, "synthetic"))
        if self.reservations:
            blocks += [*self.reservations, ""]
        blocks += [*self._question(), "", *self._answer()]
        blocks.append(self._compared())
        blocks += self._other_losses()
        blocks += self._expected()
        if len(self.spread):
            blocks += shares_blocks(self.spread)
        # A table without a feasible budget has empty cells alone.
        if np.isfinite(frontier["atpp"]).any():
            blocks.append(self._frontier_table(frontier))
        if len(sensitivity) and np.isfinite(sensitivity["atpp"]).any():
            blocks.append(_sensitivity_table(sensitivity))
        document = self.to_dict() | {
            "frontier": frontier.to_dict("records"),
            "sensitivity": sensitivity.to_dict("records"),
        }
        figures = ("plan_landscape", "plan_frontier")
        return Shown(f"Plan: {self.verdict}", blocks, document, figures)

    def _question(self) -> list[Block]:
        """What was asked for: model, limits, kind of losses, base and draws."""
        return [
            Note(f"{self.model}: {self._sought()}."),
            f"The limits are on {self.losses} losses: {MEANINGS[self.losses]}.",
            f"The run starts from {self.base}.",
            f"{self.draws} draws, {self.pairing}.",
        ]

    def _sought(self) -> str:
        """The limits and the confidence; at a fixed budget, that and what is least there."""
        probability = f"with probability {100 * self.confidence:g} %"
        fixed = self.problem.fixed
        budget = "" if fixed is None else f"at {math.exp(fixed):.4g} ATPP, the "
        limits = self._limits_in_words()
        if not limits:
            return f"{budget}replay with the least target loss that holds {probability}"
        least = "least replay with " if budget else ""
        both = "both " if len(limits) == 2 else ""
        return f"{budget}{least}{', '.join(limits)}, {both}{probability}"

    def _limits_in_words(self) -> list[str]:
        """The limits that the plan has."""
        target, forgetting = self.problem.limits
        limits = []
        if "target" not in self._no_limits:
            most = target.text(target.most)
            limits.append(f"target loss at most {most} nats per token")
        if "forgetting" not in self._no_limits:
            # Of a loss with its standard deviation the loss alone; the other is in `baseline`.
            loss = np.ravel(self.limits["baseline"])[0]
            start = "the" if isinstance(loss, str) else f"{loss:.4g}, the"
            most = forgetting.text(forgetting.most)
            limits.append(f"forgetting at most {most} over {start} {self.baseline}")
        return limits

    @property
    def _no_limits(self) -> list[str]:
        """Of target and forgetting those without a limit."""
        names = {"target": "max_loss", "forgetting": "max_forgetting"}
        return [name for name, limit in names.items() if self.limits[limit] is None]

    def _answer(self) -> list[Block]:
        """Without a plan the binding limit; otherwise how sure the plan is."""
        if self.best is not None:
            return [Note(f"Binding limit: {self.binds}.", "refuse")]
        blocks: list[Block] = []
        unique_tokens = self.limits["unique_tokens"]
        if self.epochs is not None and unique_tokens is not None:
            repeated = f"{digits(self.epochs)} epochs of {count(unique_tokens)}"
            blocks.append(f"{repeated} new tokens.")
        if self.problem.fixed is not None:
            low, middle, high, held = [f"{loss:.4g}" for loss in self.target_loss()]
            blocks.append(
                f"{self.losses.capitalize()} target loss at this budget and replay: "
                f"median {middle}, 90 % {low} to {high}; with probability "
                f"{100 * self.confidence:g} % at most {held} nats per token."
            )
        elif self.error:
            low_atpp, high_atpp = self.error["atpp_90"]
            blocks.append(
                f"Monte Carlo error: ATPP ± {digits(self.error['atpp'])} "
                f"(90 %: {digits(low_atpp)} to {digits(high_atpp)}), "
                f"replay ± {100 * self.error['replay']:.2g} points; P(both) on held-out draws "
                f"{self.held_out:.3f} ± {self._held_out_sd:.2g}."
            )
        return blocks

    def _compared(self) -> Table:
        """The plan beside those that it can be compared with."""
        name = "plan" if self.best is None else "likeliest"
        choices: dict[str, Choice | None] = {name: self.chosen}
        if self.problem.noisy:
            choices[f"plan, {self._other_kind} losses"] = self.other_plan
        choices["beyond the evidence"] = self.cheaper
        choices["within the evidence"] = self.likeliest
        choices["deterministic"] = self.deterministic
        table = choice_table(choices)
        # The probability of a limit that was not given is 1, and says nothing.
        unlimited = [HEADS[f"p_{name}"] for name in self._no_limits]
        if unlimited:
            unlimited.append(HEADS["p_both"])
        return replace(table, frame=table.frame.drop(columns=unlimited))

    @property
    def _other_kind(self) -> str:
        """The kind of losses that the plan is not for."""
        return "predictive" if self.losses == "latent" else "latent"

    def _other_losses(self) -> list[Block]:
        """What losses of the other kind are, and what they say of the plan."""
        if not self.problem.noisy:
            return []
        kind = self._other_kind
        text = f"{kind.capitalize()} losses are {MEANINGS[kind]}"
        if len(self._no_limits) < 2 and math.isfinite(self.chosen.atpp):
            name = "this plan" if self.best is None else "the likeliest choice"
            text += f"; with {name} they meet the limits with probability {self.other.p_both:.3f}"
        blocks: list[Block] = [f"{text}."]
        if self.other_status == BEYOND and self.status != BEYOND:
            blocks.append(f"The plan for {kind} losses lies beyond the evidence.")
        return blocks

    def _expected(self) -> list[Block]:
        """Expected losses, what the deterministic plan risks, and how to check the run."""
        blocks: list[Block] = []
        chosen = self.chosen
        if math.isfinite(chosen.atpp):
            rise = self.problem.limits[1].text(chosen.forgetting)
            blocks.append(
                f"Expected target loss {chosen.loss:.4g}; expected forgetting {rise}."
            )
        if len(self._no_limits) < 2:
            risk = self._risk_of_deterministic()
            blocks.append(f"The deterministic plan (median losses) {risk}.")
        # Without a plan or a table there is nothing to check.
        if math.isfinite(chosen.tokens) and self.data:
            row = f"params={self.run.params:g} tokens={chosen.tokens:.4g}"
            row += f" replay={chosen.replay:.3g}"
            if self.run.ptpp is not None:
                row += f" ptpp={self.run.ptpp:g}"
            blocks.append(f'Check each fit there: bayeslaw check FIT --grid "{row}"')
        return blocks

    def _risk_of_deterministic(self) -> str:
        deterministic = self.deterministic
        if not math.isfinite(deterministic.atpp):
            return "is infeasible"
        risk = f"fails with probability {deterministic.p_failure:.2f}"
        if self.best is None and self.problem.fixed is None:
            factor = self.atpp / deterministic.atpp
            risk += f"; this plan has {factor:.2g} times its budget"
        return risk

    def _frontier_table(self, frontier: pd.DataFrame) -> Table:
        what = "Smallest budget"
        if self.problem.fixed is not None:
            what = "Replay at this budget"
        within = ", within the evidence" if self.problem.far else ""
        index = frontier["confidence"].map(lambda share: f"{100 * share:g} %")
        rows = frontier[BUDGET_COLUMNS].set_index(index)
        return budget_table(rows, f"{what} by confidence{within}")


def _within_the_evidence(likeliest: Choice) -> Note:
    text = "no draw meets the limits"
    if likeliest.p_both:
        budget = (
            f"{digits(likeliest.atpp)} ATPP and {100 * likeliest.replay:.1f} % replay"
        )
        text = f"Within the evidence: P(both) is at most {likeliest.p_both:.3f}, at {budget}"
    return Note(f"{text}.", "caution")


def _sensitivity_table(sensitivity: pd.DataFrame) -> Table:
    moved = sensitivity["moved"].map(lambda change: f" {100 * change:+.3g} %")
    rows = sensitivity[[*BUDGET_COLUMNS, "held"]]
    rows = rows.set_index(sensitivity["quantity"] + moved)
    return budget_table(rows.rename_axis(None), "Sensitivity to the limits")
