"""Forecasts drawn over D."""

import numpy as np
import pytest

from bayeslaw import plots
from bayeslaw.plots.style import INK


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
