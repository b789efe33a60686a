"""The paper's use case: a plan on the synthetic world that is calibrated to it."""

from typing import Any

from bayeslaw.huber.point_fit import PointFit
from bayeslaw.laws.terms import ORIGIN
from bayeslaw.planning.planner import plan
from bayeslaw.planning.result import Plan
from bayeslaw.simulation.worlds import World, paper_world


def plan_example(
    *, confidence: float = 0.9, discrepancy: str = "none", seed: int = 0, **settings: Any
) -> Plan:
    """Plan the paper's use case on the synthetic world that is calibrated to it.

    Posteriors are fitted to the synthetic tables' rows at PTPP 15 and 31 and to the world's anchors
    at PTPP 279. The deterministic plan is that of the true parameters.

    Parameters
    ----------
    confidence : float
        Probability with which both limits must hold.
    discrepancy : str
        Of the fits; by default none, since the laws are exact in this world.
    seed : int
        Of the tables, the fits and the plan.
    **settings
        For `bayeslaw.fit` (by default ``target_accept=0.995``), and ``allow_unconverged``,
        ``noise`` and ``replay_grid`` for `bayeslaw.plan`.

    Returns
    -------
    Plan
        Its `note` describes the data.
    """
    from bayeslaw.inference.fitting import fit

    world, train = paper_world(), "ptpp <= 31"
    for_plan = {"allow_unconverged", "noise", "replay_grid"}
    own = {name: settings.pop(name) for name in for_plan & settings.keys()}
    # With the default target_accept, a few trajectories of the source law diverge.
    settings = {"target_accept": 0.995} | settings | {"discrepancy": discrepancy, "seed": seed}
    fits, rows = [], 0
    for domain in (world.target, world.source):
        table, _ = world.table(domain, seed=seed).split(train, "ptpp == 279", world.anchors)
        fits.append(fit(world.laws[domain], table, **settings))
        rows += len(table)
    target, source = fits
    return plan(
        target=target,
        source=source,
        **world.limits,
        baseline=world.baseline(),
        point=true_fits(world),
        confidence=confidence,
        seed=seed,
        note=f"Synthetic: {rows} rows of {world.title}: {train}, or {world.anchors}; "
        f"discrepancy {discrepancy}. "
        "The deterministic plan is that of the true parameters.",
        **own,
    )


def true_fits(world: World) -> tuple[PointFit, PointFit]:
    """The true laws of a world's target and source domain, as point fits.

    Examples
    --------
    >>> target, source = true_fits(paper_world())
    >>> target.law.name, target.parameters["E"] > 0
    ('form3', True)
    """

    def true(domain: str) -> PointFit:
        return PointFit(world.laws[domain], world.truth[domain], ORIGIN, 0.0, 0.02, 0, 0, 1.0)

    return true(world.target), true(world.source)
