"""Results equal those recorded: densities, point fits, forecasts, checks, plans and anchors."""

import pytest

from tests.golden import replay

pytestmark = pytest.mark.filterwarnings("ignore")  # recorded fits are short, some end on a bound
THINNED = 9
"""Of the recorded densities, every ninth is compared in the default tests."""


@pytest.fixture(scope="module")
def results():
    return replay.recorded_results()


def test_log_densities_and_gradients(results):
    goldens, tables = results
    some = goldens | {"density": goldens["density"][::THINNED]}
    assert replay.replay_density(some, tables) == 0


@pytest.mark.slow
def test_all_other_log_densities_and_gradients(results):
    goldens, tables = results
    others = [case for i, case in enumerate(goldens["density"]) if i % THINNED]
    assert replay.replay_density(goldens | {"density": others}, tables) == 0


def test_huber_fits(results):
    assert replay.replay_huber(*results) == 0


def test_results_of_saved_posteriors(results):
    assert replay.replay_posteriors(*results) == 0


def test_a_changed_number_is_found(results):
    goldens, tables = results
    case = goldens["density"][0]
    moved = case | {"logp": [case["logp"][0] * (1 + 1e-8), *case["logp"][1:]]}
    assert replay.replay_density(goldens | {"density": [moved]}, tables) == 1
