"""Figures: they show the forecast, and their text is legible."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure

from bayeslaw import NotConverged, TableError, plots
from tests.plots.conftest import titled


def test_every_figure_from_the_posterior(posterior, new_rows):
    before, drawn = dict(mpl.rcParams), plots.Plots(posterior)
    others = plt.get_fignums()  # of benchmarks in this process
    figures = [
        drawn.forecast(new_rows), drawn.in_sample(), drawn.observed(new_rows), drawn.pit(new_rows),
        drawn.coverage(new_rows), drawn.residuals(new_rows), drawn.prior_posterior(), drawn.ranks(),
    ]  # fmt: skip
    assert all(isinstance(figure, Figure) for figure in figures)
    named = [a for figure in figures[:6] for a in figure.axes]
    assert all(ax.get_xlabel() for ax in named)
    assert plt.get_fignums() == others  # none is left to be shown twice
    assert dict(mpl.rcParams) == before
    sampled = sum(v.ndim == 2 for v in posterior.draws.data_vars.values())
    assert len(titled(figures[-1])) == sampled


def test_what_cannot_be_drawn_raises(posterior, unconverged, new_rows, small):
    bare = posterior.forecast(new_rows.frame.drop(columns="loss"))
    for draw in (plots.observed, plots.pit, plots.coverage, plots.residuals):
        with pytest.raises(TableError, match="'loss'"):
            draw(bare)
    assert len(plots.forecast(posterior, new_rows.frame.drop(columns="loss")).axes) == 3
    with pytest.raises(TableError, match="too few"):
        plots.pit(posterior.forecast(new_rows.query("tokens == 1e9")))
    with pytest.raises(NotConverged):
        plots.forecast(unconverged, small)
    assert plots.forecast(unconverged, small, allow_unconverged=True).axes
