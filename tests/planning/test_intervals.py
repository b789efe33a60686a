"""Counts of intervals against brute force."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bayeslaw.planning.intervals import intervals


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_interval_counts_agree_with_brute_force(data):
    draws = data.draw(st.integers(1, 8))
    ends = st.floats(-5, 5) | st.sampled_from([-np.inf, np.inf, 0.0, 1.0])
    pieces = []
    for _ in range(draws):
        four = sorted(data.draw(st.lists(ends, min_size=4, max_size=4)))
        both = four[1] < four[2]
        pieces.append([(four[0], four[1]), (four[2], four[3]) if both else (np.inf, -np.inf)])
    array = np.array(pieces, float).transpose(2, 1, 0)[:, :, None, :]
    sets = intervals(array[0], array[1])
    finite = np.unique(array[np.isfinite(array)])
    probes = np.unique(np.concatenate([[-np.inf, -1e3], finite, finite + 1e-9]))
    counts = np.array([sets.contains(u)[0].sum() for u in probes])
    expected = [
        sum(any(a <= u <= b and a < np.inf and b > -np.inf for a, b in s) for s in pieces)
        for u in probes
    ]
    np.testing.assert_array_equal(counts, expected)
    np.testing.assert_allclose(sets.fraction(probes)[:, 0], counts / draws)
    for rank in range(1, draws + 1):
        reached = probes[counts >= rank]
        assert sets.smallest(rank)[0] == (reached.min() if len(reached) else np.inf)
    for cap in (np.inf, 0.5):
        count, at = sets.most_common(cap)
        assert count[0] == counts[probes <= cap].max()
        if count[0]:
            assert at[0] == probes[(probes <= cap) & (counts == count[0])].min()
