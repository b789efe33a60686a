"""Figures that check a forecast: PIT, coverage, residuals, scores."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kstest

from bayeslaw import TableError, compare, plots, score


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
    both = pd.concat({"one": scores, "two": scores}, names=["domain"])
    labels = [text.get_text() for text in plots.compare(both).axes[0].get_yticklabels()]
    assert labels == ["one, chinchilla", "two, chinchilla"]
