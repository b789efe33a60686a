"""Figures: their data are those recorded, they show the forecast, and their text is legible."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

import bayeslaw as bl
from bayeslaw import NotConverged, TableError, fit_huber, from_frame, grid, plots
from bayeslaw.plots.style import COLOURS, LINES, MARKERS, axes, log_axis
from tests.recorded import data_of, differences, plan, recorded
from tests.support import CHINCHILLA, delphi, paper_rows, refused, saved, small

SHORT = "delphi_chinchilla"


@cache
def point_fit():
    return fit_huber("form2", paper_rows())


@cache
def figures():
    """Functions that draw the recorded figures, by name."""
    plots, train = bl.plots, delphi().query("scale <= 3e20")
    test = delphi().query("scale >= 1e21")
    fit, stages = (
        saved(name).accepted("unconverged") for name in (SHORT, "world_form3")
    )
    fc = fit.forecast(test)
    late = (
        bl.paper_world().table("french", seed=0).query("ptpp == 279 and params > 1e9")
    )
    design = {"params": [2.41e8, 8.1e9], "replay": [0.1, 0.5], "tokens": [3e9, 3e10]}
    # A backtest of two models, and a plan of round numbers, whatever the planner finds.
    rows = fc.to_frame((0.9,)).assign(cut=1e20, model="walk")
    rows["error"] = np.log(rows["median"] / rows["loss"])
    rows["decades"] = np.log10(6 * rows["params"] * rows["tokens"] / 1e20)
    other = rows.assign(model="none", lower_90=rows["median"] - 0.01, inside_90=False)
    rows = pd.concat([rows, other], ignore_index=True)
    backtest = bl.Backtest(rows, "flops", ("walk", "none"), "delphi")
    found = plan()
    medians = replace(found.deterministic, atpp=11.0, replay=0.45, p_both=0.2)
    error = {"atpp": 0.1, "replay": 0.001, "atpp_90": (32.0, 39.0), "ess": 1000.0}
    chosen = {
        "atpp": 35.0,
        "replay": 0.9,
        "tokens": 2.8e11,
        "flops": 1.4e22,
        "p_both": 0.9,
    }
    chosen |= {"error": error, "held_out": 0.9}
    planned = replace(
        found, deterministic=medians, status="feasible", best=None, **chosen
    )
    return {
        "forecast": lambda: plots.forecast(fit, test),
        "forecast, stages": lambda: plots.forecast(
            stages, bl.grid(**design, ptpp=[31, 279])
        ),
        "forecast, point fit": lambda: plots.forecast(point_fit(), late),
        "in_sample": lambda: plots.in_sample(stages),
        "overview": lambda: plots.overview(fit, test),
        "compute_optimal": lambda: plots.compute_optimal(fit, [1e20, 1e21]),
        "compute_optimal, drift": lambda: plots.compute_optimal(
            fit, [1e20, 1e21], drift=True
        ),
        "observed": lambda: plots.observed(fc),
        "coverage": lambda: plots.coverage(fc),
        "residuals": lambda: plots.residuals(fc, fit.forecast(train)),
        "backtest": lambda: plots.backtest(backtest),
        "plan_landscape": lambda: plots.plan_landscape(planned, points=15),
        "plan_frontier": lambda: plots.plan_frontier(planned, points=6),
    }


@pytest.mark.filterwarnings("ignore")  # recorded fits are short
@pytest.mark.parametrize("name", recorded("figures"))
def test_data_of_every_figure(name):
    as_recorded(name, figures()[name]())


def as_recorded(name, figure):
    """Compare the data of a figure with those recorded."""
    new, old = data_of(figure), recorded("figures")[name]
    # A plan is known to its Monte Carlo error, and starts of a point fit agree along a flat
    # objective as the processor rounds. The law as stated is sampled.
    if name in ("plan_frontier", "forecast, point fit", "compute_optimal"):
        new, old = [[panel["texts"] for panel in each["panels"]] for each in (new, old)]
    assert not differences(new, old, name, 2e-3)


def test_every_public_figure_is_recorded():
    drawn = {name.split(",")[0] for name in recorded("figures")}
    assert drawn == {*plots.__all__} - {"pit_values"}


BEYOND = grid(params=[6e9, 1.2e10, 2.4e10], tokens=[1e9, 1e10, 1e11, 1e12])
"""Rows beyond the training table of `plain`."""


def labels(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_figures_of_a_posterior_leave_nothing_behind():
    before, others = dict(mpl.rcParams), plt.get_fignums()
    assert all(ax.get_xlabel() for ax in plots.in_sample(saved("plain")).axes)
    assert plt.get_fignums() == others  # none is left to be shown twice
    assert dict(mpl.rcParams) == before


def test_what_cannot_be_drawn_raises():
    bare = saved("plain").forecast(BEYOND)
    for draw in (plots.observed, plots.coverage, plots.residuals):
        refused(TableError, "'loss'", draw, bare)
    with pytest.raises(TableError, match="column 'tokens'"):
        plots.forecast(saved("plain"), BEYOND.drop(columns="tokens"))
    with pytest.raises(NotConverged):
        plots.forecast(saved("unconverged"), small())
    point = replace(fit_huber("chinchilla", small()), table=None)
    refused(TableError, "no training table", plots.in_sample, point)
    assert len(plots.forecast(point, BEYOND).axes) == 3


def test_residuals_along_a_column_that_training_rows_lack():
    fit = saved("plain")
    fitted = fit.table.frame.drop(columns="ptpp", errors="ignore")
    training = replace(fit.forecast(fit.table), frame=fitted)
    predicted = fit.forecast(grid(params=[5e9, 9e9], tokens=[1e10, 3e10]))
    rows = predicted.frame.assign(ptpp=[15, 31, 62, 124], loss=predicted.median)
    figure = plots.residuals(replace(predicted, frame=rows), training)
    (panel,) = [ax for ax in figure.axes if "pre-training" in ax.get_xlabel()]
    assert [len(line.get_xdata()) for line in panel.lines][1:] == [4]


@pytest.mark.parametrize("span", [1.0, 1.3, 2.0, 3.5, 8.0, 40.0, 250.0, 3e3, 1e6])
def test_tick_labels_do_not_overlap(span):
    figure, panels = axes(4)
    for ax, start, number in zip(
        panels, (2.3e4, 1.7e8, 9.9e8, 3.3e10), (30, 5, 2, 1), strict=True
    ):
        log_axis(ax, np.geomspace(start, start * span, number), "tokens")
    figure.draw_without_rendering()
    for ax in panels:
        low, high = ax.get_xlim()
        ticks = zip(ax.get_xticks(), ax.get_xticklabels(), strict=True)
        boxes = [label.get_window_extent() for at, label in ticks if low <= at <= high]
        assert boxes
        boxes.sort(key=lambda box: box.x0)
        assert all(a.x1 < b.x0 for a, b in pairwise(boxes))


def test_looks_are_distinct_without_colour_and_none_is_faint_on_white():
    assert len(set(LINES)) == len(set(MARKERS)) == len(set(COLOURS)) == 7
    figure = plots.overview(saved("plain"), grid(params=6e9, tokens=2e11))
    red, green, blue, _ = figure.axes[0].lines[-1].get_color()
    assert 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.8


def test_sizes_that_are_nearly_equal_share_a_panel_and_of_many_runs_some_are_drawn():
    rows = grid(params=[1e9, 1.01e9, 1.04e9, 1.2e9], tokens=[1e9, 1e10])
    panels = plots.forecast(saved("plain"), rows).axes
    assert [ax.get_title(loc="left") for ax in panels] == ["N 1B", "N 1.2B"]
    assert not any(ax.patches for ax in panels)  # nothing is extrapolated
    many = grid(params=np.geomspace(1e8, 1e9, 30), tokens=[1e9, 1e10])
    table = from_frame(small().frame.merge(many, how="outer").fillna({"loss": 3.0}))
    figure = plots.overview(
        replace(saved("plain"), table=table), grid(params=1e9, tokens=2e11)
    )
    assert "law (median)" in labels(figure)


def test_an_overview_says_in_what_runs_of_one_size_differ_and_leads_to_a_single_run():
    fit = saved("world_form3").accepted("unconverged")
    run = grid(params=8.1e9, tokens=1e10, replay=0.3, ptpp=279)
    figure = plots.overview(fit, run)
    assert figure.get_suptitle() == (
        "Runs of one size differ in replay and PTPP; forecast: r 0.3, PTPP 279"
    )
    median = float(fit.forecast(run).median[0])
    ends = [
        line.get_xydata()[-1]
        for line in figure.axes[1].lines
        if len(line.get_xdata()) > 2
    ]
    assert any(np.allclose(end, [1e10, median], rtol=1e-3) for end in ends)


def test_an_overview_draws_fitted_rows_as_fitted_runs():
    fit = saved("plain")
    new = bl.simulate(
        "chinchilla", CHINCHILLA, grid(params=6e9, tokens=[1e11, 2e11]), sigma=0.002
    )
    both = from_frame(pd.concat([fit.table.frame, new.frame], ignore_index=True))
    shown = [
        [line.get_xdata().tolist() for line in plots.overview(fit, rows).axes[1].lines]
        for rows in (new, both)
    ]
    assert shown[0] == shown[1]


def test_projections_are_hatched_and_extrapolations_are_not():
    staged = replace(saved("plain"), table=from_frame(small().frame.assign(ptpp=31.0)))
    for ptpp, most, kind in ((279, 1e11, "projection"), (31, 1e12, "extrapolation")):
        figure = plots.forecast(staged, grid(params=1e9, tokens=[1e9, most], ptpp=ptpp))
        hatched = {bool(patch.get_hatch()) for patch in figure.axes[0].patches}
        assert hatched == {kind == "projection"}
        assert labels(figure)[-1] == kind


def bars(figure):
    """Ends of the error bars of a figure, as (tokens, lowest, highest)."""
    collections = [each for ax in figure.axes for each in ax.collections]
    segments = [part for each in collections for part in each.get_segments()]
    return np.array(sorted((x[0], *sorted((x[1], y[1]))) for x, y in segments))


def test_bars_are_the_range_of_a_point_fit_that_is_not_unique():
    fit = point_fit()
    late = (
        bl.paper_world().table("french", seed=0).query("ptpp == 279 and params < 1e9")
    )
    figure, wanted = plots.forecast(fit, late), fit.forecast(late)
    assert not wanted["unique"].any()
    columns = wanted[["tokens", "lowest", "highest"]]
    assert bars(figure) == pytest.approx(columns.sort_values([*columns]).to_numpy())
    unmeasured = plots.forecast(fit, late.frame.drop(columns="loss"))
    assert (bars(unmeasured) == bars(figure)).all()


def test_pictures_of_what_is_infeasible():
    never = plan(max_loss=1.4)
    (ax, _) = plots.plan_landscape(never, points=11).axes
    assert "infeasible" in ax.get_title(loc="left")
    assert labels(plots.plan_frontier(never, points=4))[-1] == "infeasible"


def test_a_panel_is_grey_where_all_lines_are_extrapolations_and_else_these_are_thin():
    design = {"params": 2.41e8, "tokens": [3e9, 6e10], "ptpp": 31}
    fit = saved("world_form3").accepted("unconverged")
    for replay, thin in (([0.3], 0), ([0.3, 0.9], 1)):
        rows = grid(**design, replay=replay)
        (ax,) = (figure := plots.forecast(fit, rows)).axes
        beyond = (
            bl.locate(fit.table, rows, fit.law.columns)["position"] == "extrapolation"
        )
        shaded = [
            patch.get_extents().transformed(ax.transData.inverted())
            for patch in ax.patches
        ]
        (grey,) = shaded
        far, near = rows["tokens"].max(), rows["tokens"].min()
        assert grey.x0 < far < grey.x1
        assert grey.x0 > near
        # At 60B, and r = .9 everywhere.
        assert beyond.to_numpy().sum() == len(replay) + thin
        assert ("thin line: extrapolation" in labels(figure)) == bool(thin)
