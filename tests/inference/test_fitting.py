"""Settings of a fit, and fits under other priors, likelihoods and samplers."""

import numpy as np
import pytest

from bayeslaw import FitError, LawError, TableError, fit, from_frame


def test_a_failed_gate_is_retried_once(unconverged):
    assert unconverged.settings["draws"] == 20
    assert unconverged.settings["tune"] == 30
    assert unconverged.settings["target_accept"] == 0.99


@pytest.mark.parametrize(
    ("labels", "says"), [(["a", "b"], "a, b.*domain == 'a'"), ([None, "a", 1, 2], "a, 1.*'a'")]
)
def test_several_domains_are_refused(olmo, labels, says):
    mixed = from_frame(olmo.frame.assign(domain=np.resize(np.array(labels, object), len(olmo))))
    with pytest.raises(TableError, match=f"several domains .{says}"):
        fit("chinchilla", mixed)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"method": "nutz"}, "unknown method 'nutz'; did you mean 'nuts'.*map"),
        ({"likelihood": "huberr"}, "unknown likelihood 'huberr'; did you mean 'huber'"),
        ({"priors": {"alhpa": "Flat()"}}, "unknown prior 'alhpa'; did you mean 'alpha'"),
    ],
)
def test_misspelt_settings(small, settings, says):
    with pytest.raises(LawError, match=says):
        fit("chinchilla", small, **settings)


def test_rows_that_are_flagged_as_undertuned_are_refused(small):
    for flag in (0, 1):
        table = from_frame(small.frame.assign(undertuned=0).replace({"undertuned": {0: flag}}))
        if flag:
            with pytest.raises(TableError, match=r"column 'undertuned' was removed: drop the rows"):
                fit("chinchilla", table)
        else:
            fit("chinchilla", table, chains=1, draws=5, tune=5, retry=False)


@pytest.mark.parametrize("settings", [{"noise": "size"}, {"sampler": "pymc"}])
def test_removed_settings_say_what_to_do(small, settings):
    with pytest.raises(FitError, match=r"was removed: .*; drop it\.$"):
        fit("chinchilla", small, **settings)


def test_priors_matter_where_they_are_tight(small, posterior):
    tight = fit(
        "chinchilla", small, priors={"alpha": "LogNormal(median=0.6, sigma=0.01)"},
        seed=0, discrepancy="none", draws=300, tune=500,
    )  # fmt: skip
    assert np.median(tight.draws["alpha"]) == pytest.approx(0.6, rel=0.05)
    assert np.median(posterior.draws["alpha"]) < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", ["normal", "huber"])
def test_other_likelihoods_agree_on_clean_noise(likelihood, small, posterior):
    other = fit("chinchilla", small, likelihood=likelihood, discrepancy="none", seed=0)
    assert other.convergence.ok
    assert "dof_above_floor" in posterior.draws
    assert "dof_above_floor" not in other.draws
    np.testing.assert_allclose(other.predict(small), posterior.predict(small), rtol=2e-3)
