"""Numbers, arguments and names in text."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayeslaw.common.errors import argument, command_line, unknown
from bayeslaw.common.formatting import count, digits, jsonable, percent


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


def test_short_text_and_json_of_numbers():
    assert [digits(0.12), digits(2), digits(math.nan)] == ["0.120", "2.00", ""]
    assert [percent(0.123), percent(math.nan)] == ["12 %", ""]
    assert jsonable({"atpp": math.inf, "losses": (1.8, 2.0)}) == {
        "atpp": None,
        "losses": [1.8, 2.0],
    }


def test_arguments_as_their_reader_writes_them():
    columns = {"loss": "final_loss", "tokens": "billions * 1e9"}
    assert argument("columns", {"loss": "final_loss"}) == "columns={'loss': 'final_loss'}"
    with command_line():
        text = argument("columns", columns)
    assert text == '--columns "loss=final_loss; tokens=billions * 1e9"'


def test_a_name_that_is_not_known():
    says = "unknown law 'from1'; did you mean 'form1'? Valid: dcpt, form1."
    assert unknown("law", "from1", ["form1", "dcpt"]) == says
