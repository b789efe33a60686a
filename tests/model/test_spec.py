"""Specifications of a model: unknown settings are refused."""

import numpy as np
import pytest

from bayeslaw import FitError, LawError
from bayeslaw.model.spec import make_spec


def test_bad_specs():
    with pytest.raises(LawError, match=r"unknown likelihood 'student'; did you mean 'studentt'"):
        make_spec("form3", likelihood="student")
    for delta in (0, -1, np.nan):
        with pytest.raises(FitError, match="delta must be positive"):
            make_spec("form3", likelihood="huber", delta=delta)


def test_a_misspelt_discrepancy():
    with pytest.raises(LawError, match="curvature"):
        make_spec("form1", discrepancy="curved")
