"""The paper's use case, planned on its synthetic world beside the plan of the true laws."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bayeslaw.common.arrays import Floats
from bayeslaw.common.formatting import count
from bayeslaw.common.shown import Block, Note, Shown
from bayeslaw.inference.fitting import fit
from bayeslaw.inference.pools import Fit
from bayeslaw.planning.planned_run import check_limits
from bayeslaw.planning.planner import monte_carlo, plan
from bayeslaw.planning.result import (
    INFEASIBLE,
    Choice,
    Plan,
    budget_text,
    choice_at,
    replay_ratios,
)
from bayeslaw.simulation.worlds import World, paper_world, true_fits


@dataclass(frozen=True, kw_only=True)
class WorldPlan(Plan):
    """A plan in a world whose true laws are known, beside the plan of these.

    Parameters
    ----------
    truth : Choice
        The plan of the true laws, without any uncertainty, and its probabilities under the
        posteriors.
    latent_plan : Choice
        The smallest budget with which the latent losses, in place of the measured ones, meet the
        limits with the stated probability.
    latent_error : mapping
        Its Monte Carlo error; see `Plan`.
    """

    truth: Choice
    latent_plan: Choice
    latent_error: dict[str, Any]

    def shown(self) -> Shown:
        """The plan of the true laws, what the stated probability costs, and the plan itself."""
        whole = super().shown()
        blocks: list[Block] = []
        if math.isfinite(self.truth.atpp):
            budget = f"{self.truth.atpp:.1f} ATPP at {100 * self.truth.replay:.0f} % replay"
            title = (
                f"Deterministic plan of the true laws: {budget}, {count(self.truth.tokens)} "
                f"tokens, {self.truth.flops:.3g} FLOPs"
            )
            blocks += [
                "With so many tokens the true laws just meet the limits. By the posteriors, a new "
                f"run meets them with probability {self.truth.p_both:.2f}."
            ]
        else:
            title = "Deterministic plan of the true laws: infeasible"
        stated = f"{100 * self.confidence:g} %"
        measured = "infeasible" if self.best is not None else budget_text(self, self.error)
        latent = "infeasible"
        if math.isfinite(self.latent_plan.atpp):
            latent = budget_text(self.latent_plan, self.latent_error)
        noise = [f"{100 * np.std(limit.domain.deviation):.2g} %" for limit in self.problem.limits]
        blocks += [
            f"To meet both limits with probability {stated} takes, of",
            [
                f"latent losses, without noise: {latent};",
                f"measured losses of one new run: {measured}.",
            ],
            "The two differ by the noise of one new run, with a standard deviation of "
            f"{noise[0]} of the target's loss and {noise[1]} of the source's: a plan that just "
            "meets a limit leaves no room for it.",
            "",
            Note(whole.title),
        ]
        return replace(whole, title=title, blocks=[*blocks, *whole.blocks])


def plan_example(
    *,
    max_loss: float | None = None,
    max_forgetting: float | None = None,
    confidence: float = 0.9,
    replay: float | Sequence[float] | Floats | None = None,
    discrepancy: str = "none",
    seed: int = 0,
    **settings: Any,
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
    replay : float or sequence of float, optional
        Replay ratios to search; see `bayeslaw.plan`.
    discrepancy : str
        Of the fits; by default none, since the laws are exact in this world.
    seed : int
        Of the tables, the fits and the plan.
    **settings
        For `bayeslaw.fit` (by default ``target_accept=0.995``); ``unconverged`` and
        ``beyond_evidence`` for `Posterior.accepted`.

    Returns
    -------
    WorldPlan
        A `Plan` with the choices `truth`, of the true laws, and `latent_plan`.
    """
    world, train = paper_world(), "ptpp <= 31"
    limits: dict[str, float | None] = {
        "max_loss": world.limits["max_loss"] if max_loss is None else max_loss,
        "max_forgetting": world.limits["max_forgetting"]
        if max_forgetting is None
        else max_forgetting,
    }
    # Before the fits, which take half a minute.
    check_limits(limits, None, confidence, relative=True)
    if replay is not None:
        replay_ratios(replay)
    accepted = {name: settings.pop(name, False) for name in ("unconverged", "beyond_evidence")}
    # With the default target_accept, a few trajectories of the source law diverge.
    settings = {"target_accept": 0.995} | settings | {"discrepancy": discrepancy, "seed": seed}
    fits = []
    for domain in (world.target, world.source):
        table, _ = world.table(domain, seed=seed).split(train, "ptpp == 279", world.anchors)
        fits.append(fit(world.laws[domain], table, **settings).accepted(**accepted))
    asked = {**world.limits, **limits, "confidence": confidence, "replay": replay}
    target, source = fits
    return plan_in_world(world, target, source, **asked, seed=seed)


def plan_in_world(world: World, target: Fit, source: Fit, **asked: Any) -> WorldPlan:
    """A plan by fits to tables of a world, beside that of the world's true laws."""
    asked = {"baseline": world.baseline()} | asked
    found = plan(target=target, source=source, **asked)
    true_target, true_source = true_fits(world)
    sure = plan(target=true_target, source=true_source, **asked)
    truth = INFEASIBLE
    if math.isfinite(sure.atpp):
        truth = found.at(atpp=sure.atpp, replay=sure.replay)
    latent = replace(found.problem, measured=False)
    place = latent.smallest(exact=True)
    return WorldPlan(
        **vars(found),
        truth=truth,
        latent_plan=choice_at(latent, place),
        latent_error=monte_carlo(latent, place)[0],
    )
