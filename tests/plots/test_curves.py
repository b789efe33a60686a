"""Forecasts drawn over D."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from bayeslaw import TableError, fit, fit_huber, from_frame, grid, paper_world, plots
from tests.inside import INK


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


@pytest.mark.slow
def test_rows_of_panels_where_stages_and_replays_differ(paper_rows):
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


# -- point fits -------------------------------------------------------------------------------


def bars(ax):
    """Ends of the error bars of a panel, as (tokens, lowest, highest)."""
    segments = [part for each in ax.collections for part in each.get_segments()]
    return sorted((x[0], *sorted((x[1], y[1]))) for x, y in segments)


def test_a_point_fit_is_a_line_without_bands(small, new_rows):
    fit = fit_huber("chinchilla", small)
    figure = plots.forecast(fit, new_rows)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["point fit", "measured", "extrapolation"]
    for ax, size in zip(figure.axes, (6e9, 1.2e10, 2.4e10), strict=True):
        rows = new_rows.frame[new_rows.frame["params"] == size]
        curve, points = ax.lines[:2]
        at = pd.DataFrame({"params": size, "tokens": curve.get_xdata()})
        assert curve.get_ydata() == pytest.approx(fit.predict(at))
        assert sorted(points.get_ydata()) == pytest.approx(sorted(rows["loss"]))
        assert not ax.collections
        assert len(ax.lines) == 4  # the others are empty: no loss is outside a band


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
