"""Prior and posterior densities of the parameters, and rank plots of the chains."""

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.stats import anderson_ksamp

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import LawError
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.terms import tex
from bayeslaw.plots.style import COLOURS, LINES, from_arviz, legend

if TYPE_CHECKING:
    from arviz_base.labels import MapLabeller

DRAWS = 4000
"""Draws of each prior."""
IMPROPER = ("Flat", "HalfFlat")
LOOKS = (("prior", COLOURS[1], LINES[1]), ("posterior", COLOURS[0], LINES[0]))


def prior_posterior(posterior: Posterior, *, seed: int = 0) -> Figure:
    """Prior and posterior density of each parameter that has a prior (ArviZ).

    Parameters are in the coordinates of their priors: the floor E, and slopes and exponents at the
    reference point. A flat prior has no density and is not drawn.

    Parameters
    ----------
    posterior : Posterior
    seed : int
        Of the prior draws.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    LawError
        If every prior is flat.
    """
    import arviz as az
    import pymc as pm

    known = {"E": posterior.paper["E"], **_scalars(posterior)}
    known |= {"dof": known["dof_above_floor"]} if "dof_above_floor" in known else {}
    priors = posterior.spec.priors
    proper = {n: priors[n] for n in known if n in priors and priors[n].name not in IMPROPER}
    if not proper:
        raise LawError(f"{posterior.law.name}: every prior is flat; give a prior with a density.")
    before = {
        n: pm.draw(p.dist(), draws=DRAWS, random_seed=seed + i)[None]
        for i, (n, p) in enumerate(proper.items())
    }
    after = {n: known[n].values for n in proper}
    columns = 4
    size = (10, 1.75 * -(-len(proper) // columns) + 0.5)
    figure = from_arviz(
        lambda: az.plot_prior_posterior(
            az.from_dict({"prior": before, "posterior": after}),
            labeller=_labels(proper),
            col_wrap=columns,
            color=[c for _, c, _ in LOOKS],
            linestyle=[dashes for _, _, dashes in LOOKS],
            aes={"color": ["group"], "linestyle": ["group"]},
            figure_kwargs={"figsize": size, "layout": "constrained"},
        )
    )
    for drawn in figure.legends:  # ArviZ draws it over the last panel
        drawn.remove()
    legend(figure, [Line2D([], [], color=c, ls=d, label=n) for n, c, d in LOOKS])
    for ax, name in zip(figure.axes, proper, strict=False):
        # A prior with a long right tail would hide the posterior, so its tail is cut.
        wide, narrow = np.quantile(before[name], [0.005, 0.975]), np.ravel(after[name])
        ax.set_xlim(min(wide[0], narrow.min()), max(wide[1], narrow.max()))
        ax.locator_params(axis="x", nbins=4)
    return figure


def ranks(posterior: Posterior) -> Figure:
    """Rank plots of the chains: ECDF of the ranks of each chain's draws, less the uniform one.

    Drawn by ArviZ's ``plot_rank``. Chains that sample the same distribution stay near zero; p is
    from a k-sample Anderson-Darling test of that. The test assumes independent draws, so the draws
    are thinned to about the effective sample size.

    Parameters
    ----------
    posterior : Posterior

    Returns
    -------
    matplotlib.figure.Figure
    """
    import arviz as az

    diagnostics, columns = posterior.convergence, 4
    ess = max(1.0, min(diagnostics.ess_bulk, diagnostics.ess_tail))
    step = max(
        1, min(round(posterior.stats["diverging"].size / ess), posterior.draws.sizes["draw"] // 20)
    )
    sampled = {n: v.isel(draw=slice(None, None, step)) for n, v in _scalars(posterior).items()}
    size = (10, 1.75 * -(-len(sampled) // columns) + 0.3)
    figure = from_arviz(
        lambda: az.plot_rank(
            xr.DataTree.from_dict({"posterior": xr.Dataset(sampled)}),
            labeller=_labels(sampled),
            col_wrap=columns,
            color=list(COLOURS),
            visuals={"xlabel": False},
            figure_kwargs={"figsize": size, "layout": "constrained"},
        )
    )
    for ax, draws in zip(figure.axes, sampled.values(), strict=False):
        # ArviZ's test has p = 1 for two chains whose ECDFs cross, so its marks are replaced.
        for mark in [*ax.texts, *ax.collections]:
            mark.remove()
        ax.text(
            0.04, 0.97, chains_p_value(draws.values), transform=ax.transAxes, va="top", fontsize=9
        )
    for ax in figure.axes[max(0, len(sampled) - columns) : len(sampled)]:
        ax.set_xlabel("fractional rank", fontsize=9)
    chains = posterior.draws.sizes["chain"]
    legend(
        figure, [Line2D([], [], color=COLOURS[i % 7], label=f"chain {i}") for i in range(chains)]
    )
    return figure


def chains_p_value(draws: Floats) -> str:
    """Return the p-value of the k-sample Anderson-Darling test of the chains, as text.

    Parameters
    ----------
    draws : array, shape (chains, draws)
        Of one parameter; independent.

    Examples
    --------
    >>> draws = np.random.default_rng(0).normal(size=(2, 400))
    >>> chains_p_value(draws), chains_p_value(draws + [[0.5], [0.0]])
    ('p > 0.25', 'p < 0.001')
    """
    with warnings.catch_warnings():
        # SciPy warns outside .001 to .25, where the text says so, and of a change of its arguments.
        warnings.simplefilter("ignore", UserWarning)
        p = float(anderson_ksamp(list(draws)).pvalue)
    if not 0.001 < p < 0.25:
        return "p < 0.001" if p < 0.25 else "p > 0.25"
    return f"p = {p:.2g}"


def _scalars(posterior: Posterior) -> dict[str, xr.DataArray]:
    """Return the draws of scalar variables, in the law's order: no random effects."""
    draws = posterior.draws
    names = dict.fromkeys([*posterior.law.coordinates, *map(str, draws.data_vars)])
    return {n: draws[n] for n in names if set(draws[n].dims) == {"chain", "draw"}}


def _labels(names: Iterable[str]) -> "MapLabeller":
    from arviz_base.labels import MapLabeller

    return MapLabeller(var_name_map={n: symbol(n) for n in names})


def symbol(name: str) -> str:
    """Return the symbol of a parameter in Matplotlib's mathematics; other names are unchanged."""
    bare = tex(name)
    return f"${bare}$" if bare.startswith("\\") or len(bare) == 1 else name
