"""One list of settings of a fit, and what follows from it."""

import inspect
from dataclasses import fields

import pytest
from typer.testing import CliRunner

import bayeslaw as bl
from bayeslaw.cli import app
from bayeslaw.inference.fitting import SHORT_REFIT, refit
from bayeslaw.inference.settings import FitKeywords, FitSettings, make_settings
from tests.support import small

SETTINGS = {setting.name: setting for setting in fields(FitSettings)}
DEFAULTS = {name: s.default for name, s in SETTINGS.items() if name != "seed"}


def defaults_of(function):
    """Defaults of the settings that a function shows."""
    parameters = inspect.signature(function).parameters
    assert not [p for p in parameters.values() if p.kind is p.VAR_KEYWORD]
    return {name: parameters[name].default for name in DEFAULTS if name in parameters}


def test_editors_see_the_names_and_types_of_the_settings():
    types = {name: SETTINGS[name].type for name in DEFAULTS}
    as_written = {name: getattr(t, "__forward_arg__", t) for name, t in types.items()}
    keywords = FitKeywords.__annotations__
    seen = {name: getattr(t, "__forward_arg__", t) for name, t in keywords.items()}
    assert list(seen.items()) == list(as_written.items())


def test_signatures_show_every_setting_with_its_default():
    for function in (bl.fit, bl.pymc_model, bl.compare, bl.backtest):
        assert defaults_of(function) == DEFAULTS
    without_priors = {n: value for n, value in DEFAULTS.items() if n != "priors"}
    assert defaults_of(bl.fit_pool) == without_priors
    alone = {"cores", "retry"}
    short = {n: v for n, v in (DEFAULTS | SHORT_REFIT).items() if n not in alone}
    assert defaults_of(bl.study) == defaults_of(refit) == short
    assert defaults_of(bl.fit_map).items() <= DEFAULTS.items()
    of_example = DEFAULTS | {"discrepancy": "none", "target_accept": 0.995}
    assert defaults_of(bl.plan_example) == of_example
    assert inspect.signature(bl.fit).parameters["seed"].default == FitSettings.seed


def test_the_docstring_of_fit_names_every_setting():
    described = inspect.getdoc(bl.fit).partition("Returns\n")[0]
    assert not [name for name in SETTINGS if f"\n{name} : " not in described]


@pytest.mark.parametrize("name", SETTINGS)
def test_options_have_the_help_and_the_default_of_their_setting(name):
    env = {"TERMINAL_WIDTH": "1000", "COLUMNS": "1000"}
    shown = CliRunner().invoke(app, ["fit", "--help"], env=env).stdout
    about, default = SETTINGS[name].metadata["about"], SETTINGS[name].default
    option = f"--{name.replace('_', '-')} "
    assert (option in shown) == about.option
    if about.option:
        _, _, of_option = shown.partition(option)
        # Lines are broken at spaces and hyphens.
        after = "".join(of_option.split()).partition("".join(about.help.split()))
        assert after[1]
        if default is not None:
            assert after[2].startswith(f"[default:{default}")


def test_a_pool_has_no_priors_but_the_default():
    for priors in ("flat", {"alpha": "Flat()"}):
        with pytest.raises(bl.FitError, match="fit_pool takes no priors"):
            bl.fit_pool(["chinchilla", "skaling"], small(), priors=priors)
    # As the command line does, which gives all settings.
    with pytest.raises(bl.LawError, match="unknown likelihood"):
        bl.fit_pool(
            ["chinchilla", "skaling"], small(), priors="default", likelihood="no"
        )


def test_a_posterior_records_what_its_draws_depend_on():
    recorded = make_settings({"draws": 7}, 3).recorded()
    expected = {"seed": 3, "chains": 4, "draws": 7, "tune": 300, "target_accept": 0.95}
    assert list(recorded.items()) == list(expected.items())
