"""The Huber objective and its starts: linear parameters at given exponents."""

import numpy as np
import pytest

from bayeslaw import from_frame, load_law
from bayeslaw.huber.descent import Objective, linear_fit
from tests.support import DESIGN, TRUTH, made, truth_of


@pytest.mark.parametrize("name", ["form1", "dcpt"])
def test_sizes_of_a_start_do_not_follow_outliers(name):
    """At the true exponents the reweighted sizes give the losses, whatever two rows say."""
    law, frame = load_law(name), made(name).frame.copy()
    frame.loc[[11, 140], "loss"] *= [1.6, 0.7]
    objective = Objective(law, from_frame(frame), 0.02)
    point = np.array([[TRUTH[n] if n in law.exponents else 1.0 for n in objective.names]])
    sizes = linear_fit(objective, point)
    point[:, : objective.linear] = sizes
    found = law.loss(objective.paper(point[0]), law.covariates(DESIGN))
    truth = law.loss(truth_of(law.parameters), law.covariates(DESIGN))
    assert np.abs(np.log(found / truth)).max() < 2e-3
