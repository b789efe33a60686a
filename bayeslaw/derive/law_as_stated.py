"""The fit of a law as it is stated, without discrepancy, to the rows of a fit that has one.

Exponents that drift serve forecasts: they follow the rows, and beyond these they differ from draw
to draw. A rule for sizes is a statement about the law, whose exponents are constant, so it comes
from a fit of the law alone.
"""

from bayeslaw.common.errors import FitError, LawError, NotConverged, accept, argument
from bayeslaw.inference.fitting import fit_as_stated
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.specification import spec_as_stated

MOST_KEPT = 8
_KEPT: dict[tuple[str, str, int], Posterior] = {}
"""The last fits, by spec, table and seed: a figure and its numbers need the same one."""


def law_as_stated(posterior: Posterior) -> Posterior:
    """The fit of the same law to the same rows without discrepancy; the posterior if it has none.

    What is accepted of the posterior is accepted of this fit.

    Raises
    ------
    FitError
        If the posterior was saved without its losses.
    NotConverged
        If the fit fails the convergence check, unless that is accepted.
    """
    if not posterior.law.discrepancy_parameters:
        return posterior
    name = f"{posterior.law.name} on {posterior.table.name}"
    instead = f"or ask for the split with drift alone, by {argument('drift', True)}"
    if "loss" not in posterior.table.frame:
        raise FitError(
            f"{name}: saved without its losses, so the law cannot be fitted without discrepancy, "
            f"as the rule for sizes needs; derive from a fit with losses, {instead}."
        )
    fitted = _fitted(posterior).accepted(posterior.accepts)
    state = fitted.convergence
    if not (state.ok or "unconverged" in fitted.accepts):
        raise NotConverged(
            f"{name}, fitted without discrepancy for the rule: {'; '.join(state.failures)}. Derive "
            f"from a fit with {argument('discrepancy', 'none')} and more draws, {instead}, or "
            f"{accept('unconverged')}."
        )
    return fitted


def _fitted(posterior: Posterior) -> Posterior:
    """The fit, sampled unless it is one of the last."""
    seed = int(posterior.settings.get("seed", 0))
    try:
        identity = spec_as_stated(posterior).identity
    except LawError:
        # A likelihood that is defined within a function has no name to know it by.
        return fit_as_stated(posterior)
    key = identity, posterior.table.sha256, seed
    if key not in _KEPT:
        if len(_KEPT) == MOST_KEPT:
            oldest = next(iter(_KEPT))
            del _KEPT[oldest]
        _KEPT[key] = fit_as_stated(posterior)
    return _KEPT[key]
