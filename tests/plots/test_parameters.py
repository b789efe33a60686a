"""Figures of parameters."""

from dataclasses import replace

import numpy as np
import pytest

from bayeslaw import LawError, plots
from bayeslaw.laws.priors import flat
from tests.plots.conftest import titled


def test_priors_that_are_flat_are_not_drawn(posterior):
    spec = posterior.spec
    one = {**spec.priors, "alpha": flat((0, np.inf))}
    some = plots.prior_posterior(replace(posterior, spec=replace(spec, priors=one)))
    every = plots.prior_posterior(posterior)
    assert len(titled(some)) == len(titled(every)) - 1
    none = {name: flat((0, np.inf)) for name in spec.priors}
    with pytest.raises(LawError, match="every prior is flat"):
        plots.prior_posterior(replace(posterior, spec=replace(spec, priors=none)))


def test_rank_plots_of_two_chains_have_p_values(posterior):
    two = replace(
        posterior,
        draws=posterior.draws.isel(chain=[0, 1]),
        stats=posterior.stats.isel(chain=[0, 1]),
    )
    moved = two.draws.assign(alpha=two.draws["alpha"] + two.draws["chain"])
    figure = plots.ranks(replace(two, draws=moved))
    found = {ax.get_title(): ax.texts[0].get_text() for ax in titled(figure)}
    assert found["$\\alpha$"] == "p < 0.001"
    assert all(text.startswith("p ") for text in found.values())
    assert sum(text != "p < 0.001" for text in found.values()) >= len(found) - 2
