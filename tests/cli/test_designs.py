"""Commands that choose runs: ``anchors``, ``study``."""

from functools import partial

import pandas as pd
import pytest

from bayeslaw import choose_anchors, grid, load, paper_world, plan
from bayeslaw.inference.fitting import refit
from bayeslaw.tables.table import read_frame
from tests.cli.commands import both, document, fails, run

CANDIDATES = "params=2e8,2e9,6e9 tokens=2e9,2e10,2e11"
TARGETS = "params=3e10 tokens=1e11,1e12"
LIMITS = "params=8.1e9 ptpp=279 max_loss=1.85 max_forgetting=.04 baseline=2.05 confidence=.8"
ROWS = ("--candidates", CANDIDATES, "--targets", TARGETS)


def test_document_equals_the_python_result(saved, posterior, tmp_path):
    out = tmp_path / "buy.csv"
    content = document("anchors", saved, *ROWS, "--budget", "3e22", "--out", out)
    candidates = grid(params=[2e8, 2e9, 6e9], tokens=[2e9, 2e10, 2e11])
    targets = grid(params=3e10, tokens=[1e11, 1e12])
    found = choose_anchors(posterior, candidates, targets, budget=3e22)
    assert pd.DataFrame(content["picks"])["sd"].tolist() == pytest.approx(
        found.picks["sd"].tolist()
    )
    assert (content["flops"], content["budget"]) == (pytest.approx(found.flops), 3e22)
    assert content["atpp_now"] is None
    bought = read_frame(out).reset_index(drop=True)
    assert bought[["params", "tokens", "pick"]].equals(found.frame[["params", "tokens", "pick"]])
    assert len(content["rows"]) == len(bought)
    off = found.picks["sd_before"].iloc[0] - found.picks["sd"].to_numpy()
    assert off[content["picks_for_90_percent"] - 1] >= 0.9 * off[-1]
    assert (off[: content["picks_for_90_percent"] - 1] < 0.9 * off[-1]).all()


def test_text_shows_each_pick_and_where_to_stop(saved):
    drawn = run("anchors", saved, *ROWS, "--k", "3", "--seed", "4").stdout
    assert "drawn at random: no gain gave better forecasts of measured losses; seed 4" in drawn
    text = run("anchors", saved, *ROWS, "--k", "3", "--gain", "variance").stdout
    assert "3 runs of 2 sizes" in text or "3 runs of 3 sizes" in text
    assert "greedy, then exchanges" in text
    _, table = text.split("greedy, then exchanges")
    first = [line.split()[0] for line in table.splitlines() if "%" in line]
    assert first[:4] == ["now", "1", "2", "3"]
    one = run("anchors", saved, *ROWS, "--k", "2", "--where", "params == 2e9").stdout
    assert "All of one size" in one


def test_candidates_may_be_a_table_of_runs(saved, tmp_path):
    pool = grid(params=[2e8, 2e9], tokens=[2e9, 2e10]).assign(run=["a", "a", "b", "b"])
    path = tmp_path / "pool.csv"
    pool.to_csv(path, index=False)
    text = run("anchors", saved, "--candidates", path, "--targets", TARGETS, "--k", "2").stdout
    assert "2 further rows are checkpoints of these runs, free" in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (ROWS, "--k"),
        (("--candidates", CANDIDATES, "--k", "1"), "--targets"),
        ((*ROWS, "--k", "1", "--gain", "plan"), "--gain plan needs --source and --plan"),
        ((*ROWS, "--k", "1", "--gain", "plan", "--plan", LIMITS), "go together"),
        ((*ROWS, "--k", "1", "--evsi", "2"), "--evsi needs --source and --plan"),
        ((*ROWS, "--k", "1", "--against", TARGETS), "--against needs --evsi"),
        ((*ROWS, "--k", "1", "--plan", LIMITS, "--source", "x.nc"), "have no effect"),
        ((*ROWS, "--budget", "5"), "nothing to buy"),
        ((*ROWS, "--k", "1", "--cost", "hours"), "unknown cost"),
        ((*ROWS, "--k", "1", "--where", "params == 1"), "no row satisfies"),
        (("--candidates", "nowhere.csv", "--targets", TARGETS, "--k", "1"), "no such file"),
        (("--candidates", "params=x", "--targets", TARGETS, "--k", "1"), "--candidates: cannot"),
        (("--candidates", "N=.2 D=2e9", "--targets", TARGETS, "--k", "1"), "params = 2e+08?"),
        (("--candidates", CANDIDATES, "--targets", "N=30 D=1e11", "--k", "1"), "params = 3e+10?"),
    ],
)
def test_mistakes_are_reported_in_one_line(saved, args, message):
    assert message in fails("anchors", saved, *args)


@pytest.fixture(scope="module")
def fits(tmp_path_factory):
    """Posteriors of the synthetic world's two domains, as files: target, source."""
    folder, world = tmp_path_factory.mktemp("planned"), paper_world()
    paths = [folder / f"{domain}.nc" for domain in (world.target, world.source)]
    for path in paths:
        refit("form1", world.table(path.stem).query("ptpp <= 31"), 0).save(path)
    return paths


@pytest.fixture(scope="module")
def planned(fits):
    pool = "params=241e6,1.4e9 tokens=1e9,1e10 replay=.2,.4 ptpp=279"
    args = ("anchors", fits[0], "--candidates", pool, "--k", "2", "--cost", "adaptation")
    return (*args, "--source", fits[1], "--plan", LIMITS, "--allow-unconverged")


def test_gain_of_the_plan_equals_the_python_result(planned, fits):
    text, content = both(*planned, "--gain", "plan")
    target, source = map(load, fits)
    limits = {"params": 8.1e9, "ptpp": 279, "max_loss": 1.85, "max_forgetting": 0.04}
    limits |= {"baseline": 2.05, "confidence": 0.8, "allow_unconverged": True}
    needed = plan(target=target, source=source, **limits)
    pool = grid(params=[241e6, 1.4e9], tokens=[1e9, 1e10], replay=[0.2, 0.4], ptpp=279)
    found = choose_anchors(
        target, pool, k=2, gain="plan", plan=needed, source=source, cost="adaptation",
        allow_unconverged=True,
    )  # fmt: skip
    assert content["atpp_now"] == pytest.approx(needed.atpp)
    picks = pd.DataFrame(content["picks"])
    assert picks["atpp"].tolist() == pytest.approx(found.picks["atpp"].tolist())
    assert picks["atpp"].iloc[-1] < content["atpp_now"]
    assert "P(plan): predicted probability" in text


@pytest.fixture
def brief(monkeypatch):
    """Refits of few draws."""
    monkeypatch.setattr("bayeslaw.design.anchors.refit", partial(refit, draws=100, tune=150))


@pytest.mark.slow
@pytest.mark.usefixtures("brief")
def test_evsi_compares_flops_saved_with_flops_spent(planned, tmp_path):
    same = str(tmp_path / "same.csv")
    run(*planned, "--gain", "plan", "--out", same, "--seed", "1")
    content = document(
        *planned, "--gain", "plan", "--evsi", "3", "--jobs", "1", "--against", same, "--seed", "1"
    )
    evsi = pd.DataFrame(content["evsi"]).set_index("set")
    assert evsi.index.tolist() == ["first 1", "all 2", same]
    assert evsi.loc["all 2"].tolist() == evsi.loc[same].tolist()
    spent = pd.DataFrame(content["picks"])["flops_total"]
    assert evsi["flops"].tolist()[:2] == pytest.approx(spent.tolist())
    assert (evsi["atpp_now"] == content["atpp_now"]).all()
    saved = 6 * 8.1e9**2 * (evsi["atpp_now"] - evsi["atpp"])
    assert evsi["saved"].tolist() == pytest.approx(saved.tolist(), rel=1e-6)
    assert evsi["net"].tolist() == pytest.approx((evsi["saved"] - evsi["flops"]).tolist())
    assert evsi.loc["all 2", "less"] > 0


@pytest.mark.usefixtures("brief")
def test_evsi_of_a_choice_by_variance(planned):
    goals = "params=8.1e9 tokens=1e11 replay=.3 ptpp=279"
    text = run(
        *planned, "--targets", goals, "--gain", "variance", "--evsi", "2", "--jobs", "1"
    ).stdout
    head, table = text.split("Expected value of sample information")
    assert "minimises the mean variance" in head
    rows = [line.split()[:2] for line in table.splitlines() if " ± " in line]
    assert rows == [["first", "1"], ["all", "2"]]
    assert all(len(line) <= 80 for line in text.splitlines())


def test_study_of_a_measured_pool(measured, tmp_path):
    out = tmp_path / "study.parquet"
    args = ("study", measured, "--law", "chinchilla", "--train", "tokens < 2e10", "--out", out)
    args += ("--pool", "tokens > 2e10 and params < 2e9", "--seeds", "1", "--jobs", "1")
    args += ("--targets", "tokens > 2e10 and params > 2e9", "--draws", "100", "--tune", "100")
    content = document(*args)
    assert content["cells"] == 6
    assert [row["design"] for row in content["designs"]] == [
        "none", "random", "cheapest", "grid", "doptimal", "variance",
    ]  # fmt: skip
    assert len(read_frame(out)) == 6
    text = run(*args).stdout
    assert all(row["design"] in text for row in content["designs"])
    assert "better" in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--designs", "best"), "unknown design 'best'"),
        (("--designs", "plan"), "unknown design"),
        (("--law", "form3"), "--law, --columns and --where need a TABLE"),
        (("--train", "nothing == 1"), "cannot evaluate"),
        (("--targets", "nothing == 1"), "targets: cannot evaluate"),
    ],
)
def test_study_mistakes_are_reported_in_one_line(args, message, tmp_path):
    assert message in fails("study", "--seeds", "1", "--out", tmp_path / "x.parquet", *args)


def test_study_of_a_pool_needs_its_queries(measured, tmp_path):
    assert "--pool and --targets" in fails(
        "study", measured, "--train", "tokens > 0", "--out", tmp_path / "x.parquet"
    )
