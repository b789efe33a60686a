"""The paper's use case, planned on its synthetic world beside the plan of the true laws."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Unpack

import numpy as np

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import Acceptance
from bayeslaw.common.formatting import count
from bayeslaw.common.shown import Block, Note, Shown
from bayeslaw.inference.fitting import fit
from bayeslaw.inference.pools import Fit
from bayeslaw.inference.settings import FitKeywords, shows_settings
from bayeslaw.planning.arguments import are_measured, check_limits
from bayeslaw.planning.chance_constraint import Candidate
from bayeslaw.planning.choices import (
    INFEASIBLE,
    Choice,
    budget_text,
    replay_ratios,
)
from bayeslaw.planning.monte_carlo import monte_carlo
from bayeslaw.planning.planner import plan
from bayeslaw.planning.result import BEYOND, Plan
from bayeslaw.simulation.worlds import World, paper_world, true_fits


@dataclass(frozen=True, kw_only=True)
class WorldPlan(Plan):
    """A plan in a world whose true laws are known, beside the plan of these.

    Parameters
    ----------
    truth : Choice
        The plan of the true laws, without any uncertainty, and its probabilities under the
        posteriors.
    other_error : mapping
        Monte Carlo error of `other_plan`; see `Plan`.
    """

    truth: Choice
    other_error: dict[str, Any]

    def shown(self) -> Shown:
        """The plan of the true laws, what the confidence costs, and the plan itself."""
        whole = super().shown()
        title = "Deterministic plan of the true laws: infeasible"
        blocks: list[Block] = []
        truth = self.truth
        if math.isfinite(truth.atpp):
            title = (
                f"Deterministic plan of the true laws: {truth.atpp:.1f} ATPP at "
                f"{100 * truth.replay:.0f} % replay, {count(truth.tokens)} tokens, "
                f"{truth.flops:.3g} FLOPs"
            )
            run = {"atpp": truth.atpp, "replay": truth.replay}
            latent = self.at(**run, losses="latent").p_both
            measured = self.at(**run, losses="predictive").p_both
            blocks.append(
                "With so many tokens the true laws just meet the limits. By the posteriors, latent "
                f"losses meet them with probability {latent:.2f}, and the measured losses of one "
                f"new run with {measured:.2f}."
            )
        budget = f"{KINDS[self.losses]}: {_budget(self, self.error)}"
        other_budget = _budget(self.other_plan, self.other_error)
        other_budget = f"{KINDS[self._other_kind]}: {other_budget}"
        noise = []
        for limit in self.problem.limits:
            sd = 100 * np.std(limit.domain.deviation)
            noise.append(f"{sd:.2g} %")
        blocks += [
            f"To meet both limits with probability {100 * self.confidence:g} % takes, of",
            [f"{budget};", f"{other_budget}."],
            "The two differ by the noise of one new run, with a standard deviation of "
            f"{noise[0]} of the target's loss and {noise[1]} of the source's: a plan that just "
            "meets a limit leaves no room for it.",
            "",
            Note(whole.title),
        ]
        return replace(whole, title=title, blocks=[*blocks, *whole.blocks])


KINDS = {
    "latent": "latent losses, without noise",
    "predictive": "measured losses of one new run",
}
"""Kinds of losses, in words."""
# With the default target_accept, a few trajectories of the source law diverge.
FITS: FitKeywords = {"target_accept": 0.995, "discrepancy": "none"}
"""Settings of the fits of the example."""


@shows_settings(**FITS)
def plan_example(
    *,
    max_loss: float | None = None,
    max_forgetting: float | None = None,
    confidence: float = 0.9,
    losses: Literal["latent", "predictive"] = "latent",
    replay: float | Sequence[float] | Floats | None = None,
    seed: int = 0,
    accepts: Collection[Acceptance] = (),
    **settings: Unpack[FitKeywords],
) -> WorldPlan:
    """Plan the paper's use case on the synthetic world that is calibrated to it.

    Posteriors are fitted to the synthetic tables' rows at PTPP 15 and 31 and to the world's anchors
    at PTPP 279. The plan of the world's true laws, which is the paper's, stands beside theirs.

    Parameters
    ----------
    max_loss, max_forgetting : float, optional
        Limits of the target loss, nats per token, and of forgetting, a fraction of the baseline. By
        default the paper's, 1.8 and .02.
    confidence : float
        Probability with which both limits must hold.
    losses : {"latent", "predictive"}
        Kind of the losses that the limits are on; see `bayeslaw.plan`.
    replay : float or sequence of float, optional
        Replay ratios to search; see `bayeslaw.plan`.
    seed : int
        Of the tables, the fits and the plan.
    accepts : set of {"unconverged", "beyond-evidence"}
        What is accepted of the fits; see `Posterior.accepted`.
    **settings
        Arguments of `bayeslaw.fit`. By default there is no discrepancy, since the laws are exact in
        this world, and the target acceptance is 0.995.

    Returns
    -------
    WorldPlan
        A `Plan` with the choice `truth`, of the true laws.
    """
    world = paper_world()
    train = "ptpp <= 31"
    if max_loss is None:
        max_loss = world.limits["max_loss"]
    if max_forgetting is None:
        max_forgetting = world.limits["max_forgetting"]
    limits: dict[str, float | None] = {
        "max_loss": max_loss,
        "max_forgetting": max_forgetting,
    }
    # Before the fits, which take half a minute.
    check_limits(limits, None, confidence, relative=True)
    are_measured(losses)
    if replay is not None:
        replay_ratios(replay)
    merged: FitKeywords = {**FITS, **settings}
    fits = []
    for domain in (world.target, world.source):
        table = world.table(domain, seed=seed)
        fitted, _ = table.split(train, "ptpp == 279", world.anchors)
        posterior = fit(world.laws[domain], fitted, seed=seed, **merged)
        fits.append(posterior.accepted(accepts))
    target, source = fits
    arguments = {**world.limits, **limits, "confidence": confidence, "replay": replay}
    return plan_in_world(world, target, source, **arguments, losses=losses, seed=seed)


def plan_in_world(
    world: World, target: Fit, source: Fit, **arguments: Any
) -> WorldPlan:
    """A plan by fits to tables of a world, beside that of the world's true laws."""
    arguments = {"baseline": world.baseline()} | arguments
    uncertain = plan(target=target, source=source, **arguments)
    true_target, true_source = true_fits(world)
    certain = plan(target=true_target, source=true_source, **arguments)
    truth = INFEASIBLE
    if math.isfinite(certain.atpp):
        truth = uncertain.at(atpp=certain.atpp, replay=certain.replay)
    other_error = _error_of_other(uncertain)
    return WorldPlan(**vars(uncertain), truth=truth, other_error=other_error)


def _error_of_other(plan: Plan) -> dict[str, Any]:
    """Monte Carlo error of `Plan.other_plan`; of none, nothing."""
    other = plan.other_plan
    if not math.isfinite(other.atpp):
        return {}
    problem = replace(plan.problem, measured=not plan.problem.measured)
    if plan.other_status == BEYOND:
        problem = replace(problem, far=None)
    candidate = Candidate(math.log(other.atpp), other.replay, 0)
    error, _ = monte_carlo(problem, candidate)
    return error


def _budget(choice: Choice, error: Mapping[str, Any]) -> str:
    """A budget in words, with its Monte Carlo error."""
    if not math.isfinite(choice.atpp):
        return "infeasible"
    return budget_text(choice, error)
