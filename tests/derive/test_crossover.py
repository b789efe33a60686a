"""Where continual pre-training and training from scratch cross, against closed forms."""

import numpy as np
import pytest

from bayeslaw import derive
from bayeslaw.common.errors import BayeslawError, LawError
from tests.support import CHINCHILLA

N = 1e9


def test_crossing_from_above_from_below_never_and_always(known):
    scratch = known(**CHINCHILLA)
    # Draw by draw: ahead until D, ahead from D, never ahead, always ahead.
    b = np.array([200.0, 800.0, 500.0, 300.0])
    e = np.array([1.75, 1.65, 1.71, 1.69])
    cpt = known(**CHINCHILLA | {"B": b, "E": e})
    scratch = known(**CHINCHILLA | {"E": np.full(4, 1.7)})
    found = derive.crossover(cpt, scratch, N)
    # Both have the same draws of `scratch`: pairs need no alignment.
    beta, own = CHINCHILLA["beta"], CHINCHILLA["B"]
    at = ((b[:2] - own) / (1.7 - e[:2])) ** (1 / beta)
    begin, end = N * 1e-3, np.inf
    order = np.argsort(found.draws.tokens_from.values[:, 0])
    assert np.sort(found.draws.tokens_from.values[:, 0]) == pytest.approx(
        [begin, begin, at[1], np.inf], rel=1e-9
    )
    until = found.draws.tokens_until.values[order, 0]
    assert sorted(until[:2]) == pytest.approx([at[0], end], rel=1e-9)
    assert until[2] == np.inf
    assert np.isnan(until[3])
    assert found.at_bound["tokens_from"].sum() == 2
    assert "independently" in found.notes[0]
    assert found.to_frame().loc[1, "undefined"] == 0.25


def test_fits_of_other_laws(two_stages, posterior):
    found = derive.crossover(two_stages, posterior, N, replay=0.2, ptpp=31)
    assert found.draws.sizes["case"] == 1
    assert list(found.cases.iloc[0]) == [N, 0.2, 31]


def test_mistakes(two_stages, posterior):
    with pytest.raises(LawError, match="depends on replay"):
        derive.crossover(two_stages, posterior, N)
    with pytest.raises(LawError, match="depends on replay"):
        derive.crossover(posterior, two_stages, N)
    with pytest.raises(BayeslawError, match="params must be"):
        derive.crossover(posterior, posterior, 0)
    with pytest.raises(BayeslawError, match="range of tokens"):
        derive.crossover(posterior, posterior, N, search=(10, 1))
