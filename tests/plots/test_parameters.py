"""Figures of parameters."""

from dataclasses import replace

import numpy as np
import pytest

from bayeslaw import plots
from bayeslaw.common.errors import LawError
from bayeslaw.laws.priors import flat
from tests.plots.conftest import titled


def test_priors_that_are_flat_are_not_drawn(posterior):
    spec = posterior.spec
    one = {**spec.priors, "alpha": flat((0, np.inf))}
    some = plots.prior_posterior(replace(posterior, spec=replace(spec, priors=one)))
    every = plots.prior_posterior(posterior)
    assert len(titled(some)) == len(titled(every)) - 1
    none = {name: flat((0, np.inf)) for name in spec.priors}
    with pytest.raises(LawError, match="every prior is flat"):
        plots.prior_posterior(replace(posterior, spec=replace(spec, priors=none)))
