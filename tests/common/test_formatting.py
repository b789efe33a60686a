"""Numbers in text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayeslaw.common.formatting import count


@pytest.mark.parametrize(
    ("value", "text"),
    [(241e6, "241M"), (8.1e9, "8.1B"), (21624, "21.6k"), (0.33, "0.33"), (279, "279"), (1e12, "1T"),
     (999.9e6, "1B"), (2048, "2048"), (13.6, "13.6"), (999.6, "1000"), (999.4, "999")],
)  # fmt: skip
def test_numbers_as_people_write_them(value, text):
    assert count(value) == text


@given(st.floats(min_value=1e3, max_value=9e14))
def test_a_written_number_is_near(value):
    text = count(value)
    scale = {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}.get(text[-1], 1.0)
    assert float(text.rstrip("kMBT")) * scale == pytest.approx(value, rel=6e-3)
