"""Parameters: prior and posterior densities, agreement of the chains, dependence on the floor E."""

import math
import warnings
from collections.abc import Collection
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from scipy.stats import anderson_ksamp

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import LawError
from bayeslaw.common.formatting import digits
from bayeslaw.derive.exponents import FloorSensitivity
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.priors import FLOOR
from bayeslaw.laws.terms import tex
from bayeslaw.plots.style import COLOURS, LINES, axes, from_arviz, key, legend, style

DRAWS = 4000
"""Draws of each prior."""
IMPROPER = ("Flat", "HalfFlat")
COLUMNS = 4
"""Panels in a row of the figures of ArviZ."""
MOST = 12
"""Largest number of panels against the floor; of more numbers the first are drawn."""


def prior_posterior(posterior: Posterior, *, seed: int = 0) -> Figure:
    """Prior and posterior density of each parameter that has a prior (ArviZ).

    Parameters are in the coordinates of their priors: the floor E, or its share of the loss at the
    reference point, and slopes and exponents there. A flat prior has no density and is not drawn.

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

    floor = posterior.paper["E"]
    known = {"E": floor, FLOOR: floor / posterior.draws["L_ref"], **_scalars(posterior)}
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
    colours, dashes = [COLOURS[1], COLOURS[0]], [LINES[1], LINES[0]]
    figure = from_arviz(
        lambda: az.plot_prior_posterior(
            az.from_dict({"prior": before, "posterior": after}),
            color=colours,
            linestyle=dashes,
            aes={"color": ["group"], "linestyle": ["group"]},
            **_layout(proper, 0.5),
        )
    )
    for drawn in figure.legends:  # ArviZ draws it over the last panel
        drawn.remove()
    names = ("prior", "posterior")
    legend(figure, [key(n, color=c, ls=d) for n, c, d in zip(names, colours, dashes, strict=True)])
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

    diagnostics, sizes = posterior.convergence, posterior.draws.sizes
    ess = max(1.0, min(diagnostics.ess_bulk, diagnostics.ess_tail))
    step = max(1, min(round(posterior.stats["diverging"].size / ess), sizes["draw"] // 20))
    sampled = {n: v.isel(draw=slice(None, None, step)) for n, v in _scalars(posterior).items()}
    figure = from_arviz(
        lambda: az.plot_rank(
            xr.DataTree.from_dict({"posterior": xr.Dataset(sampled)}),
            color=list(COLOURS),
            visuals={"xlabel": False},
            **_layout(sampled, 0.3),
        )
    )
    for ax, draws in zip(figure.axes, sampled.values(), strict=False):
        # ArviZ's test has p = 1 for two chains whose ECDFs cross, so its marks are replaced.
        for mark in [*ax.texts, *ax.collections]:
            mark.remove()
        p = chains_p_value(draws.values)
        ax.text(0.04, 0.97, p, transform=ax.transAxes, va="top", fontsize=9)
    for ax in figure.axes[max(0, len(sampled) - COLUMNS) : len(sampled)]:
        ax.set_xlabel("fractional rank", fontsize=9)
    legend(figure, [key(f"chain {i}", color=COLOURS[i % 7]) for i in range(sizes["chain"])])
    return figure


@style()
def floor_sensitivity(found: FloorSensitivity) -> Figure:
    """Median and 80 % interval of each number, with the floor E in a slice of its posterior.

    The dashed line is the median over all draws. The title states the fraction of the number's
    variance that E explains. Slices where the median is infinite are not drawn, and an infinite end
    of an interval is drawn at the greatest median.

    Parameters
    ----------
    found : FloorSensitivity
        From `bayeslaw.derive.floor_sensitivity`.

    Returns
    -------
    matplotlib.figure.Figure
    """
    shown = found.summary.head(MOST)
    slices = len(found.profile) // len(found.summary)
    asked = [c for c in shown.columns[1:] if c in found.profile and c != "median"]
    figure, panels = axes(len(shown), columns=3)
    for i, (ax, (_, row)) in enumerate(zip(panels, shown.iterrows(), strict=True)):
        profile = found.profile.iloc[i * slices : (i + 1) * slices]
        finite = profile[np.isfinite(profile["median"])]
        upper = finite["upper_80"].replace(np.inf, finite["median"].max())
        ax.fill_between(finite["E"], finite["lower_80"], upper, color=COLOURS[0], alpha=0.25)
        ax.plot(finite["E"], finite["median"], color=COLOURS[0], marker="o", ms=3)
        if np.isfinite(row["median"]):
            ax.axhline(row["median"], color=COLOURS[1], ls="--", lw=1)
        if row["median"] > 1e4 and (finite["lower_80"] > 0).all():
            ax.set_yscale("log")
        where = ", ".join(f"{c} {row[c]:.3g}" for c in asked)
        share = f"E explains {digits(100 * row['explained'], 2)} %"
        ax.set_title("\n".join(filter(None, [str(row["quantity"]), where, share])))
        ax.set_xlabel("floor E (nats per token)")
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


def _layout(names: Collection[str], legend: float) -> dict[str, Any]:
    """Panels and labels of an ArviZ figure with `legend` inches below the panels.

    Labels are symbols where a name is one letter or a Greek one.
    """
    from arviz_base.labels import MapLabeller

    symbols = {n: bare for n in names if (bare := tex(n))[0] == "\\" or len(bare) == 1}
    size = (10, 1.75 * math.ceil(len(names) / COLUMNS) + legend)
    return {
        "labeller": MapLabeller(var_name_map={n: f"${bare}$" for n, bare in symbols.items()}),
        "col_wrap": COLUMNS,
        "figure_kwargs": {"figsize": size, "layout": "constrained"},
    }
