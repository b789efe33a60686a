from dataclasses import replace

import numpy as np
import pytest

from bayeslaw import NotConverged, TableError, fit_huber, load, score
from bayeslaw.model.effects import labels


def test_a_good_posterior_passes(posterior, small):
    assert posterior.convergence.ok
    assert posterior.settings["seed"] == 0
    assert posterior.predict(small).shape == (len(small),)
    np.testing.assert_allclose(
        posterior.predict(small), fit_huber("chinchilla", small).predict(small), rtol=0.005
    )


def test_an_unconverged_posterior_is_refused(unconverged, small):
    assert not unconverged.convergence.ok
    failures = unconverged.convergence.failures
    for use in (unconverged.forecast, unconverged.predict, lambda rows: score(unconverged, rows)):
        with pytest.raises(NotConverged, match=r"bulk ESS .* < 400.*allow_unconverged=True"):
            use(small)
    with pytest.raises(NotConverged, match="ESS"):
        unconverged.forecast(small, kind="latent")
    marked = unconverged.forecast(small, allow_unconverged=True)
    assert marked.convergence.failures == failures
    for frame in (marked.bands(), marked.to_frame()):
        assert (frame["unconverged"] == "; ".join(failures)).all()
    assert np.isfinite(score(unconverged, small, allow_unconverged=True)).all()
    assert np.isfinite(unconverged.predict(small, allow_unconverged=True)).all()


def test_a_good_posterior_is_not_marked(posterior, small):
    assert "unconverged" not in posterior.forecast(small).to_frame()


def test_rows_may_have_aliases_for_columns():
    """Also where a random effect depends on N."""
    fit = load("tests/golden/delphi_chinchilla.nc")
    base, size = (labels(fit.table.frame, level) for level in ("base", "size"))
    same = dict(zip(base, size, strict=True))  # the bases of this table are its sizes
    sized = fit.draws.rename(base="size", base_effect="size_effect", tau_base="tau_size")
    sized = sized.assign_coords(size=[same[name] for name in sized["size"].values])
    spec = replace(fit.spec, effects=("size",))
    fit, frame = replace(fit, draws=sized, spec=spec), fit.table.frame.head(5)
    aliased = frame.rename(columns={"params": "N", "tokens": "D"})
    for method in (fit.latent, fit.scale, lambda rows: fit.extended(rows)[1]["alpha"]):
        np.testing.assert_array_equal(method(aliased), method(frame))
    with pytest.raises(TableError, match="rows: column 'params' is not positive"):
        fit.latent(frame.assign(params=0.0))


def test_paper_draws_are_the_same_law(posterior, small):
    paper = {str(n): v.values.reshape(-1, 1) for n, v in posterior.paper.data_vars.items()}
    loss = posterior.law.loss(paper, posterior.law.covariates(small.frame))
    np.testing.assert_allclose(loss, posterior.latent(small), rtol=1e-10)
    assert (paper["E"] > 0).all()
