"""Figures: they show the forecast, and their text is legible."""

from dataclasses import replace
from itertools import pairwise

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from scipy.stats import kstest

from bayeslaw import plots
from bayeslaw.common.errors import LawError, NotConverged, TableError
from bayeslaw.common.formatting import count
from bayeslaw.evaluate.comparison import compare
from bayeslaw.evaluate.scores import score
from bayeslaw.laws.priors import flat
from bayeslaw.plots.style import COLOURS, INK, LINES, MARKERS, axes, log_axis
from bayeslaw.simulation.worlds import simulate
from bayeslaw.tables.reading import from_frame
from bayeslaw.tables.table import grid

TRUTH = {"E": 1.7, "A": 400.0, "alpha": 0.34, "B": 410.0, "beta": 0.28}


@pytest.fixture(scope="module")
def new_rows():
    """Twelve rows beyond the training table, two of them far off."""
    design = grid(params=[6e9, 1.2e10, 2.4e10], tokens=[1e9, 1e10, 1e11, 1e12])
    table = simulate("chinchilla", TRUTH, design, sigma=0.003, seed=2)
    loss = table.loss.copy()
    loss[[0, 7]] *= 1.2
    return from_frame(table.frame.assign(loss=loss), "held out")


@pytest.fixture(scope="module")
def predicted(posterior, new_rows):
    return posterior.forecast(new_rows, seed=0)


def titled(figure):
    """Axes in use: ArviZ leaves the last of its grid blank."""
    return [ax for ax in figure.axes if ax.get_title()]


def test_a_panel_per_size_and_crosses_outside_the_band(posterior, new_rows, predicted):
    figure = plots.forecast(posterior, new_rows)
    assert [ax.get_title(loc="left").split(" (")[0] for ax in figure.axes] == [
        "N 6B", "N 12B", "N 24B",
    ]  # fmt: skip
    frame = predicted.to_frame((0.9,))
    outside = ~frame["loss"].between(frame["lower_90"], frame["upper_90"])
    crosses = [
        point
        for ax in figure.axes
        for line in ax.lines
        if line.get_marker() == "x" and line.get_color() == INK
        for point in line.get_ydata()
    ]
    assert sorted(crosses) == pytest.approx(sorted(frame["loss"][outside]))
    assert outside.sum() >= 2


def test_curves_run_through_the_forecast(posterior, new_rows, predicted):
    for ax in plots.forecast(posterior, new_rows).axes:
        curve = next(line for line in ax.lines if len(line.get_xdata()) > 10)
        x, y = np.log(curve.get_xdata()), curve.get_ydata()
        size = float(ax.get_title(loc="left").split()[1][:-1]) * 1e9
        mine = predicted.frame["params"] == size
        at = np.log(predicted.frame["tokens"][mine])
        assert np.interp(at, x, y) == pytest.approx(predicted.median[mine], rel=2e-3)


@pytest.mark.slow
def test_rows_of_panels_where_stages_and_replays_differ(paper_rows):
    from bayeslaw.inference.fitting import fit

    few = paper_rows.query("params < 1e9 and replay < 0.4")
    fitted = fit("form1", few, seed=0, discrepancy="none", chains=2, draws=25, tune=50)
    figure = plots.in_sample(fitted, allow_unconverged=True)
    sizes, replays = few.frame["params"].nunique(), few.frame["replay"].nunique()
    assert len(figure.axes) == sizes * replays
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[:2] == ["PTPP 15", "PTPP 31"]
    one_stage = plots.forecast(fitted, few.query("ptpp == 31"), allow_unconverged=True)
    assert one_stage.get_suptitle() == "PTPP 31"
    assert len(one_stage.axes) == sizes


def test_pit_is_the_share_of_draws_below(predicted):
    loss = predicted.frame["loss"].to_numpy()
    share = np.array([np.mean(d < y) for d, y in zip(predicted.samples.T, loss, strict=True)])
    assert plots.pit_values(predicted) == pytest.approx(share, abs=1e-3)


def test_pit_of_the_forecasts_own_draws_is_uniform(posterior):
    rows = pd.DataFrame({"params": np.full(400, 1e9), "tokens": np.geomspace(1e9, 1e11, 400)})
    fc, new = posterior.forecast(rows, seed=1), posterior.forecast(rows, seed=2)
    rng = np.random.default_rng(0)
    own = new.samples[rng.integers(len(new.samples), size=400), np.arange(400)]
    assert (
        kstest(plots.pit_values(replace(fc, frame=rows.assign(loss=own))), "uniform").pvalue > 0.01
    )


def test_coverage_is_that_of_the_scores(predicted, new_rows):
    (ax,) = plots.coverage(predicted).axes
    levels, shares = next(
        (x.get_xdata(), x.get_ydata()) for x in ax.lines if len(x.get_xdata()) > 2
    )
    at = dict(zip(np.round(levels), shares, strict=True))
    scores = score(predicted, new_rows)
    for level in (50, 80, 90):
        assert at[level] == pytest.approx(100 * scores[f"coverage_{level}"])


def test_residuals_are_in_per_cent(posterior, predicted):
    figure = plots.residuals(predicted, posterior.forecast(posterior.table))
    drawn = figure.axes[0].lines[-1].get_ydata()
    assert drawn == pytest.approx(100 * (predicted.frame["loss"] / predicted.median - 1))
    assert len(figure.axes) == 2  # N and D; neither r nor PTPP is there


def test_laws_side_by_side(small):
    scores = compare(small, test="params > 2e9", laws=["chinchilla"])
    figure = plots.compare(scores)
    assert figure.axes[0].lines[-1].get_xdata() == pytest.approx(scores["rmse_log"])
    with pytest.raises(TableError, match="no score"):
        plots.compare(scores, ["crps"])


def test_every_figure_from_the_posterior(posterior, new_rows):
    before, drawn = dict(mpl.rcParams), plots.Plots(posterior)
    figures = [
        drawn.forecast(new_rows), drawn.in_sample(), drawn.observed(new_rows), drawn.pit(new_rows),
        drawn.coverage(new_rows), drawn.residuals(new_rows), drawn.prior_posterior(), drawn.ranks(),
    ]  # fmt: skip
    assert all(isinstance(figure, Figure) for figure in figures)
    named = [a for figure in figures[:6] for a in figure.axes]
    assert all(ax.get_xlabel() for ax in named)
    assert plt.get_fignums() == []  # none is left to be shown twice
    assert dict(mpl.rcParams) == before
    sampled = sum(v.ndim == 2 for v in posterior.draws.data_vars.values())
    assert len(titled(figures[-1])) == sampled


def test_priors_that_are_flat_are_not_drawn(posterior):
    spec = posterior.spec
    one = {**spec.priors, "alpha": flat((0, np.inf))}
    some = plots.prior_posterior(replace(posterior, spec=replace(spec, priors=one)))
    every = plots.prior_posterior(posterior)
    assert len(titled(some)) == len(titled(every)) - 1
    none = {name: flat((0, np.inf)) for name in spec.priors}
    with pytest.raises(LawError, match="every prior is flat"):
        plots.prior_posterior(replace(posterior, spec=replace(spec, priors=none)))


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


@pytest.mark.parametrize(
    ("value", "text"),
    [(241e6, "241M"), (8.1e9, "8.1B"), (21624, "21.6k"), (0.33, "0.33"), (279, "279"), (1e12, "1T"),
     (999.9e6, "1B"), (2048, "2048"), (13.6, "13.6")],
)  # fmt: skip
def test_numbers_as_people_write_them(value, text):
    assert count(value) == text


@given(st.floats(min_value=1e3, max_value=9e14))
def test_a_written_number_is_near(value):
    text = count(value)
    scale = {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}.get(text[-1], 1.0)
    assert float(text.rstrip("kMBT")) * scale == pytest.approx(value, rel=6e-3)


@pytest.mark.parametrize("span", [1.0, 1.3, 2.0, 3.5, 8.0, 40.0, 250.0, 3e3, 1e6])
@pytest.mark.parametrize("number", [1, 2, 5, 30])
def test_tick_labels_do_not_overlap(span, number):
    figure, panels = axes(4)
    for ax, start in zip(panels, (2.3e4, 1.7e8, 9.9e8, 3.3e10), strict=True):
        log_axis(ax, np.geomspace(start, start * span, number), "tokens")
    figure.draw_without_rendering()
    for ax in panels:
        low, high = ax.get_xlim()
        ticks = zip(ax.get_xticks(), ax.get_xticklabels(), strict=True)
        boxes = [label.get_window_extent() for at, label in ticks if low <= at <= high]
        assert boxes
        boxes.sort(key=lambda box: box.x0)
        assert all(a.x1 < b.x0 for a, b in pairwise(boxes))


def test_lines_are_distinct_without_colour():
    assert len(set(LINES)) == len(set(MARKERS)) == len(set(COLOURS)) == 7
