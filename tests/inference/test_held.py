"""Tables that do not vary in a column of a law: of one base, one ratio, or one stage."""

from functools import cache, partial
from unittest.mock import patch

import numpy as np
import pytest

import bayeslaw as bl
from tests.inside import refit
from tests.support import DATA, TRUTH

BRIEF = {"chains": 2, "draws": 40, "tune": 60, "target_accept": 0.8, "retry": False}
ALLOW = {"allow_unconverged": True}
BASE = {"params": 147816.0, "ptpp": 62.0}
OTHERS = {"params": 1e6, "ptpp": 279.0}
ROWS = "annealed and (replay < 1 or tokens == 0) and base == '147k-p62-s0'"
LEFT_OUT = {
    "chinchilla": "A alpha",
    "dcpt": "A alpha",
    "forgetting": "A alpha phi",
    "form1": "A alpha F eta",
    "form1n": "A alpha F eta phi",
    "form2": "A alpha lambda_ zeta",
    "form3": "A alpha lambda_ zeta F eta",
    "form3n": "A alpha lambda_ zeta F eta phi",
    "liew_kato": "alpha1 alpha3",
    "skaling": "A alpha kappa",
    "transfer": "A alpha phi z_N z_P k",
}
"""Parameters of each law that ships that a table of one base does not determine."""


@cache
def one_base(domain):
    folder = DATA / "tinycpt"
    table = bl.read_table(folder / f"{domain}.csv", source=folder / "english.csv", where=ROWS)
    early, late = table.split("atpp <= 8")
    return early, late, late.frame.drop(columns=[*BASE])


@pytest.mark.parametrize("name", [*LEFT_OUT, "adaptation"])
def test_every_law_fits_one_base(name, tmp_path):
    early, late, rows = one_base("french")
    fit = bl.fit(name, early, seed=0, **BRIEF)
    source = bl.fit(name, one_base("english")[0], seed=1, **BRIEF)
    members = fit.members if isinstance(fit, bl.Pool) else {name: fit}
    for label, member in members.items():
        law = member.law
        assert " ".join(law.left_out) == LEFT_OUT[label]
        assert set(law.columns) <= {"tokens", "replay"}
        assert not {*law.left_out} & {*law.parameters, *member.spec.priors}
        assert not {"params", "ptpp"} & set(sum(law.covariates_of.values(), ()))
    text = fit.shown().text(1000)
    for label, member in members.items():
        assert "all rows at params 147816" in text
        assert f"without {', '.join(LEFT_OUT[label].split())}, part of the floor" in text
        assert member.heading().document["left_out"] == LEFT_OUT[label].split()

    fit.save(tmp_path / "fit.nc")
    loaded = bl.load(tmp_path / "fit.nc")
    assert loaded.shown().text(1000) == text
    drawn = fit.forecast(rows, seed=2, **ALLOW)
    for each in (fit.forecast(late, seed=2, **ALLOW), loaded.forecast(rows, seed=2, **ALLOW)):
        np.testing.assert_array_equal(each.samples, drawn.samples)
    assert bl.score(fit, late, **ALLOW)["rmse_log"] < 0.05

    brief = partial(refit, draws=30, tune=30, target_accept=0.8)
    with patch("bayeslaw.checks._check.refit", brief):
        assert bl.check(fit, late)["held out"].facts["own"] is False
    knows_replay = any("replay" in member.law.columns for member in members.values())
    asked = {"target": fit, "source": source, "max_loss": 1.8, "max_forgetting": 0.5}
    asked |= {"replay_grid": [0.1, 0.3] if knows_replay else [1.0], "confidence": 0.6, **ALLOW}
    plan = bl.plan(params=BASE["params"], **asked)
    assert plan.limits["ptpp"] == BASE["ptpp"]
    assert plan.base == "base 147k-p62-s0, with rows of its own"

    held = {column for member in members.values() for column in member.law.held}
    assert held <= {*BASE}
    for column in held:
        elsewhere = late.frame.assign(**{column: OTHERS[column]})
        moved = bl.from_frame(elsewhere, "elsewhere")
        says = rf"{column} .*, but \w+ was fitted to rows of {column} {BASE[column]:g} alone"
        for use in (
            lambda: fit.forecast(elsewhere, **ALLOW),  # noqa: B023
            lambda: fit.latent(elsewhere),  # noqa: B023
            lambda: bl.check(fit, elsewhere),  # noqa: B023
            lambda: bl.score(fit, moved, **ALLOW),  # noqa: B023
            lambda: bl.plan(**asked | BASE | {column: OTHERS[column]}),  # noqa: B023
        ):
            with pytest.raises(bl.BayeslawError, match=says) as error:
                use()
            assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore::bayeslaw.common.errors.FitWarning")
@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_point_fit_of_one_base(name):
    early, late, rows = one_base("french")
    point = bl.fit_huber(name, early, starts=64, polish=6)
    assert " ".join(point.law.left_out) == LEFT_OUT[name]
    assert {*point.parameters} == {*point.law.parameters}
    assert f"without {', '.join(point.law.left_out)}, part of the floor" in point.shown().text(1000)
    np.testing.assert_array_equal(point.predict(rows), point.predict(late))
    assert bl.score(point, early)["rmse_log"] < (
        0.02 if "B" in point.parameters and "replay" in point.columns else 0.06
    )
    with pytest.raises(bl.TableError, match="fitted to rows of params 147816 alone"):
        point.forecast(rows.assign(params=1e6))


OWN = """title = "Own"
reference = "none"
[[term]]
coefficient = "F"
slope = "slope_F"
log = "-eta*log(P) - phi*log(N)"
[[term]]
coefficient = "B"
slope = "slope_D"
log = "-beta*log(D)"
[priors]
E = "LogNormal(median=1.5, sigma=0.5)"
slope_F = "LogNormal(median=0.1, sigma=0.8)"
eta = "LogNormal(median=0.3, sigma=0.4)"
phi = "LogNormal(median=0.3, sigma=0.4)"
slope_D = "LogNormal(median=0.1, sigma=0.8)"
beta = "LogNormal(median=0.3, sigma=0.5)"
"""


@pytest.mark.parametrize(
    ("law", "same", "left_out"),
    [
        ("form1n", "ptpp", "F eta phi"),  # the term in N describes what is left of that in P
        ("own", "ptpp", ""),  # no other term has N
        ("own", "params", "phi"),
        ("own", "params ptpp", "F eta phi"),
        ("dcpt", "replay", "nu C gamma"),
        ("form3", "replay ptpp", "nu lambda_ zeta C gamma F eta"),
        ("form2", "params", "A alpha"),
        ("liew_kato", "params", ""),  # with N fixed, N P still varies
        ("chinchilla", "tokens", "B beta"),
        ("skaling", "tokens", "B beta kappa"),
    ],
)
@pytest.mark.filterwarnings("ignore::bayeslaw.common.errors.FitWarning")
def test_what_a_table_leaves_out(law, same, left_out, tmp_path):
    """Losses of the whole law are those of the reduced one, on rows that agree in some columns."""
    (tmp_path / "own.toml").write_text(OWN)
    law = bl.load_law(tmp_path / "own.toml" if law == "own" else law)
    many = {"params": [1e8, 3e8, 1e9], "ptpp": [15, 60, 200], "replay": [0.1, 0.3, 0.5]}
    many |= {"tokens": [1e9, 1e10, 1e11]}
    for column in same.split():
        many[column] = many[column][1:2]
    rows = bl.grid(**{c: values for c, values in many.items() if c in {*law.columns, *BASE}})
    rows = rows if "tokens" in rows else rows.assign(tokens=1e9)
    truth = {n: TRUTH.get(n, 0.05) for n in law.parameters}
    table = bl.simulate(law, truth, rows, sigma=0.0)
    point = bl.fit_huber(law, table)
    assert " ".join(point.law.left_out) == left_out
    assert {*same.split()} & {*law.columns} == {*point.law.held}
    assert bl.score(point, table)["rmse_log"] < 2e-4
    with pytest.raises(bl.TableError, match=f"fitted to rows of {same.split()[0]}"):
        point.predict(rows.assign(**dict.fromkeys(same.split(), 0.7)))
    if law.name == "own" and left_out == "F eta phi":
        # Medians .1 / .3 nats of the term join the floor's 1.5.
        assert dict(point.law.priors["E"].arguments)["median"] == pytest.approx(1.5 + 1 / 3)


@pytest.mark.filterwarnings("ignore::bayeslaw.common.errors.FitWarning")
def test_laws_that_a_message_names_fit():
    frame = one_base("french")[0].frame[["params", "tokens", "replay", "loss"]]
    table = bl.from_frame(frame)
    with pytest.raises(bl.TableError, match=r"'ptpp'.* is missing") as error:
        bl.fit_huber("form3", table)
    names = str(error.value).split("are there: ")[1].strip(".").split(", ")
    assert "dcpt" in names
    for name in names:
        assert bl.fit_huber(name, table, starts=32, polish=3).law.held == {"params": 147816}


def test_rows_that_are_all_the_same():
    frame = one_base("french")[0].frame
    table = bl.from_frame(frame.assign(tokens=1e6, replay=0.1, run=range(len(frame))))
    with pytest.raises(bl.TableError, match="are the same in params, tokens, replay, so no term"):
        bl.fit("dcpt", table, **BRIEF)
