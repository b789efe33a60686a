"""`bayeslaw plan`, through Typer's runner."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from matplotlib.image import imread

import bayeslaw as bl
from bayeslaw import load, plan
from tests.cli import commands
from tests.planning import posteriors

LIMITS = ("--params", "8.1e9", "--ptpp", "279", "--max-forgetting", ".02")
MOST = ("--max-loss", "1.81")
run, fails = partial(commands.run, "plan"), partial(commands.fails, "plan")
document, both = partial(commands.document, "plan"), partial(commands.both, "plan")


@pytest.fixture(scope="module")
def fits(tmp_path_factory):
    """Posteriors of the synthetic world's two domains, as files."""
    folder = tmp_path_factory.mktemp("plan")
    saved = {name: folder / f"{name}.nc" for name in ("target", "source")}
    for name, fitted in posteriors.both().items():
        fitted.save(saved[name])
    return saved


@pytest.fixture(scope="module")
def options(fits):
    paths = [text for name in fits for text in (f"--{name}", str(fits[name]))]
    return (*paths, *LIMITS, "--allow-unconverged")


@pytest.fixture(scope="module")
def found(fits):
    loaded = {name: load(path) for name, path in fits.items()}
    return plan(
        **loaded,
        params=8.1e9,
        ptpp=279,
        max_loss=1.81,
        max_forgetting=0.02,
        seed=3,
        allow_unconverged=True,
    )


def test_json_is_the_plan(options, found):
    content = document(*options, *MOST, "--seed", "3")
    assert content["command"] == "plan"
    assert content["synthetic"] is True
    assert content["status"] == found.status == "feasible"
    assert content["evidence"] == found.evidence
    for name in ("atpp", "replay", "p_target", "p_forgetting", "p_both", "held_out", "flops"):
        assert content[name] == getattr(found, name)
    assert content["deterministic"]["p_failure"] == found.deterministic.p_failure
    assert content["error"]["atpp"] == found.error["atpp"]
    assert "tokens = 0" in content["baseline"]
    assert content["frontier"][0]["confidence"] == 0.5
    assert {row["quantity"] for row in content["sensitivity"]} == {
        "max_loss",
        "max_forgetting",
        "baseline",
    }


def test_text_says_what_a_buyer_must_know(options, found):
    text = " ".join(run(*options, *MOST, "--max-tokens", "5e10", "--seed", "3").stdout.split())
    for words in (
        "Synthetic data",
        "P(forgetting)",
        "Monte Carlo error: ATPP ± ",
        "In 57 synthetic worlds",
        "bayeslaw check FIT --grid",
        "On held-out draws",
        "fails with probability",
        "Under a cap of 50B tokens",
        "Smallest budget by confidence",
        "Sensitivity to the limits",
        f"Plan: feasible: {found.atpp:.3g}",
        f"{found.flops:.3g} FLOPs",
    ):
        assert words in text


def test_limits_of_every_kind(options):
    in_nats = tuple(".05" if text == ".02" else text for text in options)
    nats = document(*in_nats, *MOST, "--absolute", "--baseline", "2.05")
    assert nats["limits"]["relative"] is False
    fixed = document(*options, *MOST, "--replay", ".5", "--confidence", ".8")
    assert (fixed["replay"], fixed["confidence"]) == (0.5, 0.8)
    floor = document(*options, *MOST, "--baseline", "asymptote", "--noise", "predictive")
    assert (floor["limits"]["baseline"], floor["noise"]) == ("asymptote", "predictive")
    capped = document(*options, *MOST, "--max-flops", "2e21")
    assert capped["within"]["flops"] <= 2e21
    assert capped["least_loss"]["p_forgetting"] is None or capped["least_loss"]["flops"] == 2e21


def test_two_targets(options, fits):
    content = document(*options, *MOST, "--target", str(fits["target"]), "--max-loss", "1.8")
    assert len(content["p_targets"]) == 2
    assert content["limits"]["max_loss"] == [1.81, 1.8]


def test_infeasible_is_a_result_not_an_error(options):
    text, content = both(*options, "--max-loss", "1.4")
    assert (content["status"], content["atpp"]) == ("infeasible", None)
    assert "Plan: infeasible: no budget meets" in text
    assert "Binding limit: target" in text


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        (".3,.4,.5", 0, "Plan: feasible: "),
        (".7", 1, "Plan: feasible, beyond the evidence: "),
        (".7 --beyond-evidence", 0, "Plan: feasible, beyond the evidence: "),
        (".9 --beyond-evidence", 0, "Plan: feasible, beyond the evidence: "),
    ],
)
def test_the_exit_code_and_the_first_line_have_the_verdict(options, asked, code, words):
    out = run(*options, *MOST, "--confidence", ".8", "--replay", *asked.split(), code=code)
    lines = [line for line in out.stdout.splitlines() if not line.startswith("Synthetic")]
    assert lines[0].startswith(words)
    assert out.stdout.count("No evidence") == ("beyond" in words)
    assert "No evidence" not in out.stdout[out.stdout.index("N 8.1B") :]
    assert out.stderr == ""


def test_mistakes_in_one_line(options, tmp_path):
    assert "a plan needs --target, --source, --params" in fails("--max-loss", "1.8")
    assert "--max-loss" in fails(*options)
    billions = [text.removesuffix("e9") for text in options]
    assert "counts are expected, not millions or billions: params = 8.1e+09?" in fails(
        *billions, *MOST
    )
    assert "no value at D = 0" in fails(*options, *MOST, "--baseline", "law")
    assert "--base has no effect" in fails("--example", "paper", "--base", "new")
    assert "did you mean 'asymptote'" in fails(*options, *MOST, "--baseline", "asymptot")
    assert "baseline='matched' was removed: give" in fails(*options, *MOST, "--baseline", "matched")
    assert "--max-cvar was removed: lower" in fails(*options, *MOST, "--max-cvar", "0")
    assert "--price was removed: compare" in fails(*options, *MOST, "--price", "1e23")
    beyond = fails(*options, *MOST, "--replay", ".9")
    assert "no plan within the evidence" in beyond
    assert "0.4 of replay (bands were tested to 0.15)" in beyond
    assert beyond.rstrip().endswith("ask for nearer rows, or add --beyond-evidence.")
    assert "--replay: cannot read 'a'" in fails(*options, *MOST, "--replay", "a")
    assert "fractions" in fails(*options, *MOST, "--replay", "30")
    assert "--max-tokens 0: give a positive number" in fails(*options, *MOST, "--max-tokens", "0")
    assert "--params has no effect on --example" in fails("--example", "paper", "--params", "1e9")
    assert "no folder" in fails(*options, *MOST, "--figure", str(tmp_path / "no" / "a.png"))
    assert "must end in .png or" in fails(*options, *MOST, "--figure", str(tmp_path / "a.xyz"))
    two = (*options, *MOST, "--source", "nowhere.nc", "--explore", str(tmp_path / "a.html"))
    assert "--explore shows one target and one source" in fails(*two)
    percent = ["2" if text == ".02" else text for text in options]
    assert "not a percentage; 0.02 allows a rise of 2 %" in fails(*percent, *MOST)
    assert "one posterior" in fails("--target", options[1], "--source", options[1], *LIMITS, *MOST)
    assert "2 targets" in fails(*options, *MOST, "--target", options[1])


def test_without_plotly_it_stops_before_the_work(monkeypatch):
    monkeypatch.setattr("bayeslaw.reporting.pages.find_spec", lambda _name: None)
    asked = ("--target", "nowhere.nc", "--source", "nowhere.nc", *LIMITS, *MOST)
    assert "needs Plotly: uv sync --extra explore" in fails(*asked, "--explore", "a.html")


def test_the_plan_is_printed_if_there_is_no_page(options, tmp_path):
    page = tmp_path / "a.html"
    result = run(*options, "--max-loss", ".1", "--explore", page, code=2)
    assert "Plan: infeasible" in result.stdout
    assert result.stderr.startswith(f"error: {page} is not written: plan: no draw meets")


def test_unconverged_needs_consent(fits, tmp_path):
    bad = load(fits["target"])
    bad = replace(bad, convergence=replace(bad.convergence, divergences=9))
    bad.save(tmp_path / "bad.nc")
    asked = ("--target", str(tmp_path / "bad.nc"), "--source", str(fits["source"]), *LIMITS, *MOST)
    assert "9 divergences" in fails(*asked)
    assert "NOT CONVERGED" in run(*asked, "--allow-unconverged").stdout


def test_figure(options, tmp_path):
    path = tmp_path / "plan.png"
    run(*options, *MOST, "--figure", str(path))
    picture = imread(path)
    assert min(picture.shape[:2]) > 300
    assert np.ptp(picture[..., :3]) > 0.9


def test_a_choice_of_ones_own_and_a_baseline_with_an_error(options):
    more = ("--at", "30,.9", "--baseline", "2.05,.001")
    text, content = both(*options, *MOST, *more)
    assert content["at"]["atpp"] == pytest.approx(30)
    assert 0 <= content["at"]["p_both"] <= 1
    assert content["limits"]["baseline"] == [2.05, 0.001]
    for words in ("yours", "Where its uncertainty comes from"):
        assert words in text


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--at", "30"), "--at: cannot read '30'"),
        (("--at", "-1,.3"), "--at -1,.3: give numbers such as 8,.3"),
        (("--at", "8,30"), "--at 8,30: give numbers"),
        (("--max-flops", "nan"), "--max-flops nan: give a positive number"),
        (("--baseline", "1,2,3"), "give a loss, or a loss and its sd"),
        (("--base", "8b"), "the tables have no column base"),
    ],
)
def test_mistakes_in_these_options(options, more, says):
    assert says in fails(*options, *MOST, *more)


@pytest.mark.slow
def test_paper_example(monkeypatch):
    """With short fits; those of the notebook `plan` are as long as a user's."""
    brief = {"chains": 2, "draws": 100, "tune": 200, "target_accept": 0.9, "retry": False}
    monkeypatch.setattr(bl, "plan_example", partial(bl.plan_example, **brief))
    content = document("--example", "paper", "--allow-unconverged")
    assert content["status"] == "feasible"
    assert content["deterministic"]["atpp"] == pytest.approx(6.56, abs=0.1)
    assert content["deterministic"]["replay"] == pytest.approx(0.168, abs=0.01)
    assert content["p_both"] >= 0.9
    assert content["replay"] < 0.5
    assert content["atpp"] < 32
    assert content["synthetic"] is True
    assert "ptpp <= 31" in content["note"]
    assert content["deterministic"]["p_failure"] > 0.5


def test_a_choice_of_ones_own_and_where_to_stop(options):
    at, stop = ("--at", "30,.6"), ("--stop", ".002,1e9")
    text, found = both(*options, *MOST, *at, *stop)
    text = " ".join(text.split())
    assert "At its replay" in text
    assert "keeps all limits with 90 %" in text
    assert "1e+09 more tokens lower the expected target loss by less than 0.002 nats" in text
    assert set(found["at"]["around"]) == {"atpp", "replay"}
    assert found["stop"]["atpp"] > 0
    assert "--stop: cannot read '1'" in fails(*options, *MOST, "--stop", "1")


def test_several_sources(fits, options):
    more = ("--source", str(fits["source"]), "--max-forgetting", ".05")
    levels = ("--baseline", "2.05", "--baseline", "2.04,.001")
    text, content = both(*options, *more, *levels, *MOST)
    assert content["limits"]["max_forgetting"] == [0.02, 0.05]
    assert content["limits"]["baseline"] == [2.05, [2.04, 0.001]]
    assert len(content["p_sources"]) == len(content["forgettings"]) == 2
    words = " ".join(text.split())
    assert "forgetting at most 2 % and 5 %" in words
    assert "The limits of the sources hold with probability" in words
    assert "2 sources and 1 of baseline" in fails(*options, *more, "--baseline", "2.05", *MOST)


def test_repeated_tokens_need_a_fit_that_knows_them(options):
    assert "column unique_tokens" in fails(*options, *MOST, "--unique-tokens", "1e9")
