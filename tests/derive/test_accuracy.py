"""Accuracy from forecast losses, by a curve through pairs of loss and accuracy."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy.special import expit

import bayeslaw as bl
from tests.inside import Convergence, curves

GOOD = Convergence(rhat=1.0, ess_bulk=1e4, ess_tail=1e4, divergences=0, bfmi=1.0)


def curve(loss):
    return 0.25 + 0.6 * expit((2.6 - loss) / 0.2)


def pairs(sd=0.01, count=20, seed=0, **columns):
    """Models on a curve, with deviations."""
    loss = np.linspace(2, 4, count)
    noise = np.random.default_rng(seed).normal(0, sd, count)
    return pd.DataFrame({"loss": loss, "accuracy": curve(loss) + noise, **columns})


def forecast(losses, sd=1e-6, kind="predictive"):
    """A forecast around given losses, with a standard deviation."""
    draws = np.asarray(losses) + sd * np.random.default_rng(1).normal(size=(1, 4000, 1))
    array = xr.DataArray(draws, dims=("chain", "draw", "row"))
    frame = pd.DataFrame({"params": [1e8] * len(losses), "domain": "web"})
    return bl.Forecast(array, frame, "chinchilla", kind, GOOD)


def test_pairs_on_a_curve_give_its_accuracies():
    losses = [2.2, 2.6, 3.4]
    found = bl.derive.accuracy(forecast(losses), pairs(sd=0)).to_frame()
    np.testing.assert_allclose(found["median"], curve(np.array(losses)), atol=1e-3)
    assert (found["upper_90"] - found["lower_90"] < 2e-3).all()
    assert found["loss"].tolist() == pytest.approx(losses)


def test_bands_hold_new_models_of_simulated_curves():
    """Twelve tables of 20 pairs, five models each."""
    losses = np.array([2.1, 2.4, 2.7, 3.0, 3.6])
    made, inside = forecast(losses), []
    for seed in range(12):
        found = bl.derive.accuracy(made, pairs(seed=seed), seed=seed).to_frame()
        new = curve(losses) + np.random.default_rng(100 + seed).normal(0, 0.01, len(losses))
        inside.append(found["lower_90"].le(new) & found["upper_90"].ge(new))
    assert 0.8 <= np.mean(inside) <= 0.98


def test_the_band_has_the_uncertainty_of_the_loss():
    """By the slope of the curve, beside the deviations of the pairs."""
    sure, unsure = (bl.derive.accuracy(forecast([2.6], sd), pairs()) for sd in (1e-6, 0.05))
    spread = [each.draws["accuracy"].std().item() for each in (sure, unsure)]
    slope = 0.6 / 4 / 0.2
    assert spread[0] == pytest.approx(0.01, rel=0.4)
    assert spread[1] == pytest.approx(np.hypot(spread[0], 0.05 * slope), rel=0.15)


def test_the_posterior_is_that_of_random_walks():
    """Against Metropolis steps on the same density, at two losses without deviations."""
    x, y = pairs(sd=0.02, count=12).to_numpy().T
    rng = np.random.default_rng(0)
    extent = np.ptp(x)

    def log_density(p):
        mid, log_width, floor, ceiling = p.T
        fitted = floor + (ceiling - floor) * expit((mid - x[:, None]) / np.exp(log_width))
        inside = (abs(mid - x.mean()) < 1.5 * extent) & (floor >= 0) & (floor <= ceiling)
        inside &= (ceiling <= 1) & (abs(log_width - np.log(extent / 10)) < np.log(10))
        squares = ((y[:, None] - fitted) ** 2).sum(0)
        return np.where(inside, -len(x) / 2 * np.log(squares), -np.inf)

    walkers = np.array([2.6, np.log(0.2), 0.25, 0.85]) + 0.02 * rng.normal(size=(400, 4))
    density, kept = log_density(walkers), []
    for step in range(3000):
        one, two = rng.integers(0, len(walkers), (2, len(walkers)))
        moved = walkers + rng.choice([0.6, 1.0], (len(walkers), 1)) * (walkers[one] - walkers[two])
        moved += 1e-4 * rng.normal(size=moved.shape)
        new = log_density(moved)
        better = np.log(rng.random(len(walkers))) < new - density
        walkers[better], density[better] = moved[better], new[better]
        if step > 1000 and step % 20 == 0:
            kept.append(walkers.copy())
    mid, log_width, floor, ceiling = np.concatenate(kept).T
    ours = curves(x, y, 20_000, rng)
    for loss in (2.1, 3.0):
        wanted = floor + (ceiling - floor) * expit((mid - loss) / np.exp(log_width))
        found = ours[2] + (ours[3] - ours[2]) * expit((ours[0] - loss) / ours[1])
        q = [0.05, 0.5, 0.95]
        ends = np.quantile(wanted, q)
        np.testing.assert_allclose(np.quantile(found, q), ends, atol=0.06 * (ends[2] - ends[0]))


def test_deviations_are_drawn_about_the_curve_that_is_drawn():
    """Given a curve the sum of squares of n pairs, over the variance, is chi-squared of n."""
    x, y = pairs(sd=0.02, count=8).to_numpy().T
    mid, width, floor, ceiling, sigma = curves(x, y, 20_000, np.random.default_rng(0))[..., None]
    squares = ((y - floor - (ceiling - floor) * expit((mid - x) / width)) ** 2).sum(1)
    assert np.mean(squares / sigma[:, 0] ** 2) == pytest.approx(8, abs=0.2)


def test_losses_outside_the_pairs_are_refused():
    found = bl.derive.accuracy(forecast([1.9, 2.2, 4.5]), pairs())
    assert found.to_frame()["undefined"].tolist() == [1, 0, 1]
    assert found.notes == (
        "refused: rows 0, 2, whose loss lies outside the losses of the 20 pairs of accuracy, "
        "2 to 4",
    )
    assert "100 % undefined" in str(found)
    with pytest.raises(bl.BayeslawError, match=r"every forecast loss \(1.8 to 1.9\) lies outside"):
        bl.derive.accuracy(forecast([1.8, 1.9]), pairs())
    partly = bl.derive.accuracy(forecast([2.05], sd=0.1), pairs())
    assert "row" in partly.notes[0]
    assert "of the draws of the loss lie outside" in partly.notes[0]


def test_each_task_has_a_curve_of_its_own():
    one, two = pairs(task="one"), pairs(task="two")
    both = pd.concat([one, two.assign(accuracy=two["accuracy"] / 2)])
    found = bl.derive.accuracy(forecast([2.6]), both).to_frame().set_index("quantity")["median"]
    assert found["one"] == pytest.approx(curve(2.6), abs=0.01)
    assert found["two"] == pytest.approx(curve(2.6) / 2, abs=0.01)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"accuracy": 50.0},
            "rows 0, 1, 2, 3, 4 and 15 more: accuracy 50.0 is not between 0 and 1",
        ),
        ({"loss": np.nan}, "loss nan is not a positive number"),
        ({"loss": 0.0}, "loss 0.0 is not a positive number"),
        ({"domain": "books"}, "rows of domain books"),
        ({"task": ["a"] * 12 + [None] * 8}, "rows 12, 13, 14, 15, 16 and 3 more: task is empty"),
        ({"task": "draw"}, "a task cannot be called 'draw'"),
        ({"task": "case"}, "a task cannot be called 'case'"),
        ({"loss": 3.0}, "20 pairs of accuracy; give at least 8, of different losses"),
    ],
)
def test_pairs_that_cannot_be_used(change, words):
    with pytest.raises(bl.TableError, match=words):
        bl.derive.accuracy(forecast([2.6]), pairs().assign(**change))


def test_losses_of_pairs_may_be_in_another_unit():
    nats = bl.derive.accuracy(forecast([2.6]), pairs())
    given = pairs()
    for unit, loss in (("bits", given["loss"] / np.log(2)), ("perplexity", np.exp(given["loss"]))):
        found = bl.derive.accuracy(forecast([2.6]), given.assign(loss=loss), loss_unit=unit)
        np.testing.assert_allclose(found.draws["accuracy"], nats.draws["accuracy"])
    twice = pd.concat([given, given["loss"]], axis=1)
    with pytest.raises(bl.TableError, match="column 'loss' is there twice"):
        bl.derive.accuracy(forecast([2.6]), twice)


def test_a_note_if_the_accuracy_falls_as_the_loss_falls():
    rates = pairs().assign(accuracy=lambda f: 1 - f["accuracy"])
    (note,) = bl.derive.accuracy(forecast([2.6]), rates).notes
    assert "falls as the loss falls (rank correlation" in note
    assert "1 - rate" in note
    assert not bl.derive.accuracy(forecast([2.6]), pairs()).notes
    assert not bl.derive.accuracy(forecast([2.6]), pairs().assign(accuracy=0.5)).notes


def test_a_latent_forecast_or_few_pairs_are_refused():
    with pytest.raises(bl.BayeslawError, match="a latent forecast has no noise"):
        bl.derive.accuracy(forecast([2.6], kind="latent"), pairs())
    with pytest.raises(bl.TableError, match="7 pairs of accuracy"):
        bl.derive.accuracy(forecast([2.6]), pairs(count=7))
    with pytest.raises(bl.TableError, match="no column 'accuracy'"):
        bl.derive.accuracy(forecast([2.6]), pairs().drop(columns="accuracy"))
