"""Ticks, lines, markers and colours."""

from itertools import pairwise

import numpy as np
import pytest

from bayeslaw.plots.style import COLOURS, LINES, MARKERS, axes, log_axis


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
