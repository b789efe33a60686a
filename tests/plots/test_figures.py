"""Figures: their data are those recorded, they show the forecast, and their text is legible."""

import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from scipy.stats import kstest

from bayeslaw import (
    LawError,
    NotConverged,
    TableError,
    compare,
    derive,
    fit_huber,
    from_frame,
    grid,
    paper_world,
    plots,
)
from tests.inside import COLOURS, INK, LINES, MARKERS, axes, flat, log_axis
from tests.plots import recorded


def titled(figure):
    """Axes in use: ArviZ leaves the last of its grid blank."""
    return [ax for ax in figure.axes if ax.get_title()]


def same(now, before):
    """Texts are equal, and numbers to three digits."""
    if isinstance(before, dict):
        return now.keys() == before.keys() and all(same(now[k], before[k]) for k in before)
    if isinstance(before, list):
        return len(now) == len(before) and all(map(same, now, before))
    try:
        return float(now) == pytest.approx(float(before), rel=2e-3, abs=1e-6, nan_ok=True)
    except ValueError:
        return now == before


@pytest.mark.filterwarnings("ignore")  # recorded fits are short
@pytest.mark.parametrize("name", recorded.FIGURES)
def test_data_of_every_figure(name):
    before = json.loads(recorded.FILE.read_text())[name]
    now = recorded.data_of(recorded.FIGURES[name]())
    # A plan is known to its Monte Carlo error, and starts of a point fit agree along a flat
    # objective as the processor rounds.
    if name in ("plan_frontier", "forecast, point fit"):
        before["panels"], now["panels"] = [
            [panel["texts"] for panel in f["panels"]] for f in (before, now)
        ]
    assert same(now, before)


def test_every_public_figure_is_recorded():
    drawn = {name.split(",")[0] for name in recorded.FIGURES}
    assert drawn == {*plots.__all__} - {"Plots", "pit_values"}


def test_every_figure_from_the_posterior(posterior, new_rows):
    before, drawn = dict(mpl.rcParams), posterior.plot
    others = plt.get_fignums()  # of benchmarks in this process
    figures = [
        drawn.forecast(new_rows), drawn.in_sample(), drawn.observed(new_rows), drawn.pit(new_rows),
        drawn.coverage(new_rows), drawn.residuals(new_rows), drawn.prior_posterior(), drawn.ranks(),
    ]  # fmt: skip
    assert all(isinstance(figure, Figure) for figure in figures)
    assert all(ax.get_xlabel() for figure in figures[:6] for ax in figure.axes)
    assert plt.get_fignums() == others  # none is left to be shown twice
    assert dict(mpl.rcParams) == before
    sampled = sum(v.ndim == 2 for v in posterior.draws.data_vars.values())
    assert len(titled(figures[-1])) == sampled


def test_figures_of_a_posterior_need_no_import():
    code = (
        "import sys, bayeslaw as bl\n"
        "assert 'matplotlib' not in sys.modules\n"
        "fit = bl.load('tests/data/delphi_chinchilla.nc')\n"
        "assert 'bayeslaw.plots' not in sys.modules\n"
        "print(type(fit.plot).__name__, 'bayeslaw.plots' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["Plots", "False"]


def test_ipython_prints_what_is_shown(posterior):
    pretty = pytest.importorskip("IPython.lib.pretty").pretty
    assert pretty(posterior) == str(posterior)
    assert repr(posterior) == "<Posterior 'chinchilla: Chinchilla: model size and tokens'>"


def test_what_cannot_be_drawn_raises(posterior, unconverged, new_rows, small):
    bare = posterior.forecast(new_rows.frame.drop(columns="loss"))
    for draw in (plots.observed, plots.pit, plots.coverage, plots.residuals):
        with pytest.raises(TableError, match="'loss'"):
            draw(bare)
    assert len(plots.forecast(posterior, new_rows.frame.drop(columns="loss")).axes) == 3
    with pytest.raises(TableError, match="column 'tokens'"):
        plots.forecast(posterior, new_rows.frame.drop(columns="tokens"))
    with pytest.raises(TableError, match="too few"):
        plots.pit(posterior.forecast(new_rows.query("tokens == 1e9")))
    with pytest.raises(NotConverged):
        plots.forecast(unconverged, small)
    assert plots.forecast(unconverged, small, allow_unconverged=True).axes


# -- style ----------------------------------------------------------------------------------------


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


# -- curves ---------------------------------------------------------------------------------------


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


def test_sizes_that_are_nearly_equal_share_a_panel(posterior):
    rows = grid(params=[1e9, 1.01e9, 1.04e9, 1.2e9], tokens=[1e9, 1e10])
    titles = [ax.get_title(loc="left") for ax in plots.forecast(posterior, rows).axes]
    assert titles == ["N 1B", "N 1.2B"]


def test_the_law_is_drawn_through_some_of_many_runs(posterior):
    many = grid(params=np.geomspace(1e8, 1e9, 30), tokens=[1e9, 1e10])
    table = from_frame(posterior.table.frame.merge(many, how="outer").fillna({"loss": 3.0}))
    figure = plots.overview(replace(posterior, table=table), grid(params=1e9, tokens=2e11))
    assert "law (median)" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_no_size_is_faint_on_white(posterior):
    figure = plots.overview(posterior, grid(params=6e9, tokens=2e11))
    red, green, blue, _ = figure.axes[0].lines[-1].get_color()
    assert 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.8


def test_isoflops_have_their_minimum_at_the_best_size(posterior):
    figure = plots.compute_optimal(posterior, [1e20, 1e22])
    best = derive.compute_optimal(posterior, [1e20, 1e22]).to_frame([0.9])
    curves, sizes, ratios = figure.axes
    found = best.set_index("quantity").loc["params", "median"].to_numpy()
    marks = [line.get_xdata()[0] for line in curves.lines if line.get_marker() == "D"]
    assert marks == pytest.approx(found, rel=0.02)
    lines = [each for each in curves.lines if len(each.get_xdata()) > 25]
    for line, size in zip(lines, found, strict=True):
        assert line.get_xdata()[np.argmin(line.get_ydata())] == pytest.approx(size, rel=0.1)
    frontier = sizes.lines[-1]
    at = np.interp(np.log(1e20), np.log(frontier.get_xdata()), np.log(frontier.get_ydata()))
    assert np.exp(at) == pytest.approx(found[0], rel=0.02)
    assert ratios.patches  # beyond the budgets of the rows
    assert figure.get_suptitle().startswith("best splits: extrapolation up to")


def shades(ax):
    """Backgrounds of a panel: from, to, hatched or not."""
    return [
        (*(float(x) for x in patch.get_extents().transformed(ax.transData.inverted()).intervalx),
         bool(patch.get_hatch()))
        for patch in ax.patches
    ]  # fmt: skip


def test_extrapolations_are_grey(posterior):
    """The training rows have N from 1e8 to 3e9 and D from 1e9 to 1e11, at every combination."""
    figure = plots.forecast(posterior, grid(params=[1e9, 6e9], tokens=[1e10, 1e12]))
    inside, outside = figure.axes
    right = inside.get_xlim()[1]
    spans = shades(inside)
    assert min(start for start, *_ in spans) == pytest.approx(1e11, rel=0.2)
    assert max(end for _, end, _ in spans) == pytest.approx(right)
    assert {hatched for *_, hatched in spans} == {False}
    assert min(start for start, *_ in shades(outside)) == pytest.approx(outside.get_xlim()[0])
    assert figure.get_suptitle() == "extrapolation up to 1 decades: params 0.3, tokens 1"
    assert figure.legends[0].get_texts()[-1].get_text() == "extrapolation"
    assert not any(ax.patches for ax in plots.in_sample(posterior).axes)


def test_projections_are_hatched(posterior):
    staged = replace(posterior, table=from_frame(posterior.table.frame.assign(ptpp=31.0)))
    figure = plots.forecast(staged, grid(params=1e9, tokens=[1e9, 1e11], ptpp=279))
    assert [hatched for *_, hatched in shades(figure.axes[0])] == [True, True]
    assert figure.get_suptitle() == "projection up to 0.95 decades: ptpp 0.95"
    assert figure.legends[0].get_texts()[-1].get_text() == "projection"
    same = plots.forecast(staged, grid(params=1e9, tokens=[1e9, 1e11], ptpp=31))
    assert not same.axes[0].patches


def bars(ax):
    """Ends of the error bars of a panel, as (tokens, lowest, highest)."""
    segments = [part for each in ax.collections for part in each.get_segments()]
    return sorted((x[0], *sorted((x[1], y[1]))) for x, y in segments)


def test_bars_are_the_range_of_a_point_fit_that_is_not_unique(paper_rows):
    fit = fit_huber("form2", paper_rows)
    late = paper_world().table("french", seed=0).query("ptpp == 279")
    figure = plots.forecast(fit, late)
    assert len(figure.axes) == 4
    wanted = fit.forecast(late)
    assert not wanted["unique"].any()
    drawn = [bar for ax in figure.axes for bar in bars(ax)]
    columns = wanted[["tokens", "lowest", "highest"]]
    assert np.array(sorted(drawn)) == pytest.approx(columns.sort_values([*columns]).to_numpy())
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["r 0.1", "r 0.25", "r 0.5", "range of fits that agree", "extrapolation"]
    grid = plots.in_sample(fit)
    assert len(grid.axes) == 12
    assert not any(ax.collections for ax in grid.axes)
    unmeasured = plots.forecast(fit, late.frame.drop(columns="loss"))
    assert [bar for ax in unmeasured.axes for bar in bars(ax)] == drawn


def test_a_point_fit_without_a_table_has_no_in_sample_figure(small, new_rows):
    fit = replace(fit_huber("chinchilla", small), table=None)
    with pytest.raises(TableError, match="no training table"):
        plots.in_sample(fit)
    assert len(plots.forecast(fit, new_rows).axes) == 3


# -- forecasts against measured losses ------------------------------------------------------------


def test_pit_is_the_share_of_draws_below(predicted):
    loss = predicted.frame["loss"].to_numpy()
    share = np.array([np.mean(d < y) for d, y in zip(predicted.samples.T, loss, strict=True)])
    assert plots.pit_values(predicted) == pytest.approx(share, abs=1e-3)


def test_pit_of_the_forecasts_own_draws_is_uniform(posterior):
    rows = pd.DataFrame({"params": np.full(400, 1e9), "tokens": np.geomspace(1e9, 1e11, 400)})
    fc, new = posterior.forecast(rows, seed=1), posterior.forecast(rows, seed=2)
    rng = np.random.default_rng(0)
    own = new.samples[rng.integers(len(new.samples), size=400), np.arange(400)]
    values = plots.pit_values(replace(fc, frame=rows.assign(loss=own)))
    assert kstest(values, "uniform").pvalue > 0.01


def test_laws_side_by_side(small):
    scores = compare(small, test="params > 2e9", laws=["chinchilla"])
    figure = plots.compare(scores)
    assert figure.axes[0].lines[-1].get_xdata() == pytest.approx(scores["rmse_log"])
    with pytest.raises(TableError, match="no score"):
        plots.compare(scores.drop(columns=scores.columns))
    domains = pd.concat({"one": scores, "two": scores}, names=["domain"])
    labels = [text.get_text() for text in plots.compare(domains).axes[0].get_yticklabels()]
    assert labels == ["one, chinchilla", "two, chinchilla"]


# -- parameters -----------------------------------------------------------------------------------


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
    draws, stats = (d.isel(chain=[0, 1]) for d in (posterior.draws, posterior.stats))
    moved = draws.assign(alpha=draws["alpha"] + draws["chain"])
    figure = plots.ranks(replace(posterior, draws=moved, stats=stats))
    found = {ax.get_title(): ax.texts[0].get_text() for ax in titled(figure)}
    assert found["$\\alpha$"] == "p < 0.001"
    assert all(text.startswith("p ") for text in found.values())
    assert sum(text != "p < 0.001" for text in found.values()) >= len(found) - 2


# -- plans ----------------------------------------------------------------------------------------


def test_pictures_of_what_is_infeasible():
    never = recorded.plan(max_loss=1.4)
    assert "infeasible at 90 %" in plots.plan_landscape(never, points=11).get_suptitle()
    texts = plots.plan_frontier(never, points=4).axes[0].texts
    assert texts[-1].get_text().strip() == "infeasible"
