"""Laws against published equations and recorded numbers; columns, bases, and forgetting."""

import json
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.mathtext import MathTextParser
from scipy.optimize import curve_fit

import bayeslaw as bl
from bayeslaw import TableError, fit_huber, grid, load_law
from bayeslaw.common.files import models_dir
from bayeslaw.design.bases import drawn_bases, of_bases, unknown_bases
from bayeslaw.design.design import Design
from bayeslaw.huber.bases import base_table, fit_bases
from bayeslaw.laws.departure import Departure, log_slopes, total_tokens
from bayeslaw.laws.deviations import CORE, START
from bayeslaw.laws.forms import identity, of_role, reads_share, taking
from bayeslaw.laws.law import shares
from bayeslaw.laws.lawfiles import restored_law, stored_law
from bayeslaw.laws.shares import REPLAY_CLIP
from bayeslaw.laws.steps import Offset, Repetition
from bayeslaw.laws.symbols import ORIGIN
from bayeslaw.laws.terms import Term
from bayeslaw.model.discrepancy import Adaptation, Curvature, FromBase
from bayeslaw.model.training import for_columns, for_table
from bayeslaw.tables.verdict import judge
from tests import support
from tests.support import (
    CHINCHILLA,
    DESIGN,
    LAWS,
    TRANSFER,
    exact_transfer,
    refused,
    saved,
    truth_of,
)

RECORDED = json.loads((support.SAVED / "laws.json").read_text())
few = settings(max_examples=30, deadline=None)


def texts(name):
    return (models_dir() / f"{name}.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("case", RECORDED.values(), ids=RECORDED)
def test_laws_are_as_recorded(case):
    """By hand-written classes of terms, before terms were formulas."""
    law = of_role(load_law(case["law"]), "target")
    # When they were recorded, the worth of repeated data did not depend on N.
    if case["columns"]:
        law = taking(law.with_steps(Repetition(falls=False)), Offset)
    x, at = {name: np.array(values) for name, values in case["x"].items()}, case["at"]
    weights = np.cos(np.arange(1, 7))
    for point in case["points"]:
        p = point["p"]
        assert list(law.parameters) == list(p)
        assert list(law.coordinates) == list(point["q"])
        q = law.to_reference(p, at)
        for name, value in point["q"].items():
            assert q[name] == pytest.approx(value, rel=1e-12, abs=1e-14)
        for name, value in law.to_paper(q, at).items():
            assert value == pytest.approx(p[name], rel=1e-11, abs=1e-11)
        np.testing.assert_allclose(law.loss(p, x), point["loss"], rtol=1e-12)
        np.testing.assert_allclose(
            law.loss(law.amounts(q, at), x, at), point["loss_at"], 1e-12
        )
        for name, slope in law.gradient(p, x).items():
            mixed, scale = slope * weights, np.abs(slope * weights).sum()
            assert mixed.sum() == pytest.approx(
                point["gradient"][name], abs=1e-12 * scale
            )
    if case["law"] not in (
        "forgetting",
        "transfer",
    ):  # the same powers in another order
        assert "".join(law.latex().split()) == "".join(case["latex"].split())
    MathTextParser("agg").parse(f"${law.latex()}$")
    for name in load_law(case["law"]).parameters:
        assert name.removesuffix("_").rstrip("0123456789") in law.latex()


@pytest.mark.parametrize("name", LAWS)
def test_gradients_of_curved_laws_are_derivatives(name):
    law = Curvature().apply(load_law(name))
    x, at = Design(law, DESIGN).x, Design(law, DESIGN).at
    p = truth_of(load_law(name).parameters) | dict.fromkeys(
        law.discrepancy_parameters, 0.03
    )
    p = law.amounts(law.to_reference(p, at), at)
    for n, slope in law.gradient(p, x, at).items():
        up, down = (law.loss(p | {n: p[n] + h}, x, at) for h in (1e-6, -1e-6))
        np.testing.assert_allclose(slope, (up - down) / 2e-6, rtol=1e-5, atol=1e-8)


def by_hand(law, p, params, tokens, replay, ptpp, role=""):
    """The papers' equations, one number at a time."""
    N, D, r, P = params, tokens, min(max(replay, 1e-9), 1 - 1e-9), ptpp
    size = p["A"] / N ** p["alpha"]
    if law == "chinchilla":
        return p["E"] + size + p["B"] / D ** p["beta"]
    if law == "skaling":
        k = p["kappa"]
        return p["E"] + (size ** (1 / k) + (p["B"] / D ** p["beta"]) ** (1 / k)) ** k
    beta = p["beta"]
    if law in ("form2", "form3"):
        # P^zeta / (1 + P^zeta), or its limit where P^zeta is beyond a double
        power = p["zeta"] * math.log(P)
        gate = P ** p["zeta"] / (1 + P ** p["zeta"]) if power < 700 else 1.0
        beta = max(beta * (1 - p["lambda_"] * gate), 1e-6)
    if law in ("form1n", "mixture"):
        share = (r if role == "source" else 1 - r) + p["s0"]
        loss = (
            p["E"]
            + size
            + p["B"] / (share ** p["nu"] * D**beta)
            + p["C"] / share ** p["gamma"]
        )
    else:
        loss = (
            p["E"]
            + size
            + p["B"] * r ** p["nu"] / D**beta
            + p["C"] / (r + 1e-5) ** p["gamma"]
        )
    by_size = N ** p["phi"] if law == "form1n" else 1
    return (
        loss + p["F"] / (P ** p["eta"] * by_size)
        if law.startswith(("form1", "form3"))
        else loss
    )


positive, exponent = st.floats(1e-3, 10), st.floats(0.01, 1.5)
parameters = st.fixed_dictionaries(
    dict.fromkeys(("E", "A", "B", "C", "F"), positive)
    | dict.fromkeys(("alpha", "beta", "nu", "gamma", "eta"), exponent)
    | {"lambda_": st.floats(0, 1), "zeta": st.floats(-3, 3)}
    | {
        "phi": st.floats(-0.3, 0.6),
        "kappa": st.floats(0.3, 3),
        "s0": st.floats(1e-4, 0.1),
    }
)
covariates = st.fixed_dictionaries(
    {
        "params": st.floats(1e6, 1e12),
        "tokens": st.floats(1e6, 1e13),
        "replay": st.sampled_from([0.0, 1.0]) | st.floats(0, 1),
        "ptpp": st.floats(0.1, 1e4),
    }
)


@pytest.mark.parametrize("name", LAWS)
@few
@given(p=parameters, x=covariates, role=st.sampled_from(["source", "target"]))
def test_the_papers_equations_in_both_coordinates(name, p, x, role):
    law = load_law(name)
    law = replace(law, role=role) if reads_share(law) else law
    loss = law.loss(p, Design(law, grid(**x)).x)[0]
    assert loss == pytest.approx(by_hand(name, p, **x, role=role), rel=1e-9)
    p = {n: p[n] for n in law.parameters} | ({"lambda_": 0.9 * p["lambda_"]})
    at = Design(law, grid(**x)).at
    q = law.to_reference(p, at)
    assert tuple(q) == law.coordinates
    assert q["L_ref"] == pytest.approx(law.loss(p, at), rel=1e-12)
    back = law.to_paper(q, at)
    assert tuple(back) == law.parameters
    for n in law.parameters:  # E is a difference of losses at the reference point
        assert back[n] == pytest.approx(
            p[n], rel=1e-9, abs=1e-9 * q["L_ref"] if n == "E" else 0
        )


@few
@given(p=parameters, x=covariates)
def test_without_adaptation_forgetting_is_the_pretrained_model(p, x):
    law, p, N = load_law("forgetting"), support.FORGETTING | p, x["params"]
    rows = grid(**x | {"tokens": 1e-12 * N})
    base = (
        p["E"]
        + p["A"] / N ** p["alpha"]
        + p["F"] / (N ** p["phi"] * x["ptpp"] ** p["eta"])
    )
    assert law.loss(p, Design(law, rows).x)[0] == pytest.approx(base, rel=1e-5)
    assert not law.terms[1].power_of("ptpp")  # of tokens seen
    assert Term("F", "slope_F", "-eta*log(P) - phi*log(N)").power_of("ptpp")


def test_the_effective_exponent_has_a_floor_as_in_the_paper():
    law, d = load_law("form2"), np.array([1e3, 1e12])
    p = {
        **support.truth_of(law.parameters),
        "lambda_": 1.0,
        "zeta": 1e3,
        "A": 0.0,
        "C": 0.0,
        "nu": 0.0,
    }
    loss = law.loss(p, Design(law, grid(params=1e9, tokens=d, replay=0.5, ptpp=31)).x)
    np.testing.assert_allclose(loss - p["E"], p["B"] * d**-1e-6, rtol=1e-12)


def test_the_role_of_a_table_says_what_the_share_of_its_own_text_is(tmp_path):
    mean, replay = (
        DESIGN["replay"].mean(),
        DESIGN["replay"].clip(REPLAY_CLIP, 1 - REPLAY_CLIP),
    )
    for role, own, there in (
        ("source", replay, mean),
        ("target", 1 - replay, 1 - mean),
    ):
        table = bl.from_frame(DESIGN.assign(loss=2.0, role=role))
        law = for_columns(load_law("form1n"), table)
        assert law.role == role
        x = shares(law, DESIGN["replay"].to_numpy())
        np.testing.assert_allclose(x["own"], np.log(own), rtol=1e-9)
        np.testing.assert_allclose(x["mixed"], np.log(own + 0.01), rtol=1e-9)
        np.testing.assert_allclose(x["rest"], np.log(1.01 - own), rtol=1e-9)
        assert Design(law, table).at["own"] == np.log(there)
        assert for_columns(load_law("form3"), table).role == ""
    losses = ["start_loss", "base_loss"]
    rows = support.stages().drop(columns="role")
    assert bl.from_frame(rows).role == "target"  # the bases' losses differ
    rows = rows.drop(columns=losses)
    for role in (None, "victim", [*["target", "source"] * 24]):
        given = bl.from_frame(rows if role is None else rows.assign(role=role))
        with pytest.raises(
            TableError, match="of the domain adapted to, or of the one pre-trained"
        ):
            bl.fit_huber("form1n", given)
    # A file that is its own source holds losses of the domain pre-trained on.
    rows = rows.assign(base=rows["base"].astype(str))
    bases = rows.drop_duplicates("base").assign(tokens=0, loss=3.0)
    a, b = tmp_path / "a.csv", tmp_path / "b.csv"
    pd.concat([rows, bases]).to_csv(a)
    pd.concat([rows, bases.assign(loss=2.5)]).to_csv(b)
    assert [bl.read_table(p, source=b).role for p in (a, b)] == ["target", "source"]


@pytest.mark.parametrize(
    "extra", ["min(1, D)", "sqrt(D)", "D**2/N", "exp(-D)", "log1p(D)", "2 - D"]
)
def test_formulas_are_what_python_computes(extra):
    log = f"-beta*log(N) + mu*({extra})*(1 - exp(-N)) + (-r)*D/(N*P)"
    values, p = {"N": 1.3, "D": 0.7, "P": 2.0, "r": 0.4}, {"beta": 0.3, "mu": -0.8}
    names = {"params": "N", "tokens": "D", "ptpp": "P", "replay": "r"}
    x = {covariate: np.log(values[letter]) for covariate, letter in names.items()}
    functions = {n: getattr(np, n) for n in ("log", "sqrt", "exp", "log1p", "tanh")}
    wanted = eval(
        log, {**functions, "min": np.minimum, "max": np.maximum, **values, **p}
    )
    term = Term("A", "slope_A", log)
    assert term.log_ratio(p, x, ORIGIN, np) == pytest.approx(wanted, rel=1e-14)
    for name, slope in term.slopes(p, x, ORIGIN).items():
        stepped = term.log_ratio({**p, name: p[name] + 1e-30j}, x, ORIGIN, np)
        assert slope == pytest.approx(stepped.imag / 1e-30, rel=1e-13)
    ends = ({**x, "params": x["params"] + h} for h in (1e-6, -1e-6))
    up, down = (term.log_ratio(p, end, ORIGIN, np) for end in ends)
    assert term.local_exponent(p, x, np) == pytest.approx((down - up) / 2e-6, rel=1e-6)


# -- columns: repeated tokens, checkpoints that are not annealed ----------------------------


def worth(tokens, unique, rate):
    """Muennighoff et al., equation (5), for one row."""
    unique = min(unique, tokens)
    repeats = tokens / unique - 1
    return unique + unique * rate * (1 - math.exp(-repeats / rate))


sizes = st.floats(1e6, 1e13)


@given(
    tokens=sizes,
    unique=sizes,
    replay=st.floats(0, 0.95),
    rate=st.floats(0.1, 300),
    falls=st.floats(0, 1),
    unit=st.sampled_from([1.0, 1e6, 1e9]),
)
@few
def test_worth_of_tokens(tokens, unique, replay, rate, falls, unit):
    row = {
        "params": [1e8],
        "tokens": [tokens],
        "replay": [replay],
        "unique_tokens": [unique],
    }
    law = replace(taking(load_law("dcpt"), Repetition), token_unit=unit)
    x = Design(law, pd.DataFrame(row)).x
    found = unit * np.exp(law.effective({"R_D": rate, "R_D_N": falls}, x)["tokens"])[0]
    # Of 20 new tokens per parameter the rate is R_D.
    distinct = min(unique / (1 - replay), tokens)
    rate *= (distinct / 2e9) ** falls
    assert found == pytest.approx(worth(tokens, distinct, rate), rel=1e-6)
    assert found <= tokens * (1 + 1e-9)
    assert found <= max(distinct, 1) * (1 + rate) * (1 + 1e-6)


COLUMNS = {"R_D": 15.4, "R_D_N": 0.4, "unannealed": 0.02, "unannealed_D": 0.006}
COLUMNS |= {"unannealed_N": -0.004}
COLUMNS |= {"unannealed_P": -0.003, "unannealed_r": -0.02}


@pytest.mark.parametrize("name", LAWS)
def test_columns_by_hand(name):
    """An offset counts tokens seen, the law what these are worth."""
    plain = load_law(name)
    law = taking(plain, Repetition, Offset)
    assert taking(law, Offset, Repetition) is law
    assert taking(plain, Offset, Repetition) == law
    assert law.without_discrepancy.parameters == law.parameters
    frame, place = DESIGN.sample(40, random_state=3), np.arange(40)
    frame = frame.assign(unique_tokens=3e9, annealed=place % 2)
    p = support.truth_of(plain.parameters) | {
        n: v for n, v in COLUMNS.items() if n in law.parameters
    }
    unique = 3e9 / (1 - frame["replay"])
    rates = 15.4 * (np.minimum(unique, frame["tokens"]) / (20 * frame["params"])) ** 0.4
    fewer = [worth(*row) for row in zip(frame["tokens"], unique, rates, strict=True)]
    by = {
        "N": np.log(frame["params"]),
        "D": np.log(frame["tokens"]),
        "P": np.log(frame["ptpp"]),
    }
    by["r"] = frame["replay"]
    hot = p["unannealed"] + sum(p.get(f"unannealed_{c}", 0) * v for c, v in by.items())
    wanted = plain.loss(p, Design(plain, frame.assign(tokens=fewer)).x)
    wanted = wanted * np.exp(hot * (1 - frame["annealed"]))
    x, at = Design(law, frame).x, Design(law, frame).at
    q = law.to_reference(p, at)
    for back, value in law.to_paper(q, at).items():
        assert value == pytest.approx(p[back], rel=1e-9, abs=1e-9)
    np.testing.assert_allclose(law.loss(p, x), wanted, rtol=1e-10)
    np.testing.assert_allclose(law.loss(law.amounts(q, at), x, at), wanted, rtol=1e-10)
    absent = Design(law, frame.drop(columns=["unique_tokens", "annealed"])).x
    wanted = plain.loss(p, Design(plain, frame).x)
    np.testing.assert_allclose(law.loss(p, absent), wanted, rtol=1e-12)
    np.testing.assert_allclose(
        law.loss(law.amounts(q, at), absent, at), wanted, rtol=1e-10
    )


def test_more_epochs_than_were_fitted_are_an_extrapolation():
    # To 8 epochs.
    rows = grid(params=[1e8, 1e9], tokens=[1e9, 1.6e10]).assign(unique_tokens=2e9)
    far = grid(params=1e9, tokens=1.6e10, replay=[0.0, 0.5, 0.0]).assign(
        unique_tokens=[1e9, 1e9, 4e9]
    )
    located = bl.locate(rows, far)
    assert located["beyond_epochs"].round(3).tolist() == [0.301, 0.0, 0.0]
    assert located["position"].tolist() == [
        "extrapolation",
        "interpolation",
        "interpolation",
    ]
    assert "beyond_epochs" not in bl.locate(rows.drop(columns="unique_tokens"), far)
    assert "beyond_epochs" not in bl.locate(rows, far[["params"]])
    verdict = judge(rows, far, ("params", "tokens"))
    assert "0.3 decades of epochs (bands were tested to 0.15)" in verdict.evidence


def test_fewer_epochs_than_were_fitted_are_none_beyond():
    """They are nearer to new data; and so are rows with more distinct tokens than they saw."""
    rows = grid(params=[1e8, 1e9], tokens=[1e9, 1.6e10])
    for times in ([4, 8, 16, 4], [8], [0.1], [0.1, 0.1, 0.1, 1]):
        seen = rows.assign(unique_tokens=rows["tokens"] / np.resize(times, 4))
        for fewer in (0.01, 0.5, 1.0):
            asked = rows.assign(unique_tokens=rows["tokens"] / fewer)
            located = bl.locate(seen, asked)
            assert located["beyond_epochs"].tolist() == [0] * 4
            assert (located["position"] == "interpolation").all()
    # That repeat nothing.
    assert bl.locate(seen, rows)["beyond_epochs"].tolist() == [0] * 4


def test_at_its_bound_of_zero_only_the_first_epoch_counts():
    law = taking(load_law("chinchilla"), Repetition)
    rows = grid(params=1e9, tokens=[1e9, 4e9]).assign(unique_tokens=2e9)
    p, x = CHINCHILLA | {"R_D": 0.0, "R_D_N": 0.0}, Design(law, rows).x
    first = load_law("chinchilla").covariates(rows.assign(tokens=[1e9, 2e9]))
    np.testing.assert_allclose(
        law.loss(p, x), load_law("chinchilla").loss(p, first), rtol=1e-10
    )
    # A little R counts as if that share of an epoch were new tokens.
    by = CHINCHILLA["B"] * CHINCHILLA["beta"] * 2e9 ** -CHINCHILLA["beta"]
    np.testing.assert_allclose(
        law.gradient(p, x)["R_D"], [0.0, -by], rtol=1e-6, atol=1e-12
    )


def test_a_table_has_the_columns_that_vary():
    law = load_law("chinchilla")
    mixed = saved("columns").table
    assert for_table(law, mixed).step(Offset)
    assert for_table(law, mixed.query("annealed == 1")).step(Offset) is None
    # The saved fit knows what was planted: 3 % of offset.
    rows = grid(params=6e8, tokens=1e10)
    usable = saved("columns").accepted("unconverged")
    hot, cold = (usable.predict(rows.assign(annealed=a)) for a in (0, 1))
    assert np.log(hot / cold) == pytest.approx(np.log(1.03), abs=0.004)


ROW = grid(params=1e9, tokens=5e10)
# Of each column a value that is what its absence stands for, and two others.
VALUES = {
    "unique_tokens": (1e13, 1e9, 3e9),
    "annealed": (1, 0, 0),
}


@cache
def point():
    return fit_huber("chinchilla", support.small())


USES = {
    "forecast": lambda fit, rows: fit.forecast(rows),
    "point fit": lambda _, rows: point().forecast(rows),
    "score": lambda fit, rows: bl.score(fit, bl.from_frame(rows.assign(loss=2.5))),
    "check": lambda fit, rows: bl.check(fit, rows.assign(loss=2.5)),
    "candidates": lambda fit, rows: bl.choose_anchors(fit, rows, ROW * 2, k=1),
    "targets": lambda fit, rows: bl.choose_anchors(fit, ROW * 2, rows, k=1),
    "exponents": bl.derive.local_exponents,
    "recipes": lambda fit, rows: bl.compare_recipes({"a": fit, "b": fit}, rows),
}


@pytest.mark.parametrize("column", VALUES)
def test_of_a_column_that_a_fit_does_not_know_only_what_its_absence_stands_for_passes(
    column,
):
    absent, other, _ = VALUES[column]
    for name, use in USES.items():
        with pytest.raises(
            TableError, match=rf"rows of {column} .*rows without {column}"
        ):
            use(saved("plain"), ROW.assign(**{column: other}))
        if name != "check":
            use(saved("plain"), ROW.assign(**{column: absent}))


def test_covariates_that_a_fit_does_not_know_are_named():
    """A law in N and D alone does without replay; that its table had no such column is said."""
    fit, rows = saved("plain"), ROW.assign(replay=0.3, ptpp=20.0)
    says = "The fit does not know replay and ptpp: the forecast is the same at any."
    assert says in " ".join(str(fit.forecast(rows)).split())
    table = replace(fit.table, frame=fit.table.frame.assign(replay=0.3))
    assert "does not know ptpp" in str(replace(fit, table=table).forecast(rows))
    assert "does not know" not in str(fit.forecast(ROW))


@pytest.mark.parametrize("column", ["annealed", "domain"])
def test_rows_that_state_no_kind_are_of_the_kind_of_the_fitted_ones(column, tmp_path):
    """Also when they are measured."""
    _, own, other = VALUES.get(column, (None, "french", "english"))
    other = 1 if column == "annealed" else other
    frame = saved("plain").table.frame.assign(**{column: own})
    fit = replace(saved("plain"), table=bl.from_frame(frame))
    made = fit.forecast(ROW)
    bl.register(made, path := tmp_path / "x.json")
    same, differs = (
        bl.from_frame(ROW.assign(loss=2.5, **{column: v})) for v in (own, other)
    )
    assert bl.verify(path, same).missing == ()
    bl.score(made, same)
    for use in (lambda: bl.verify(path, differs), lambda: bl.score(made, differs)):
        refused(TableError, column, use)
    if column == "domain":
        return
    for name in ("forecast", "score", "check"):
        with pytest.raises(
            TableError, match=f"rows of {column} .*{column} {own:g} alone"
        ):
            USES[name](fit, differs.frame.drop(columns="loss"))
    USES["forecast"](fit, ROW.assign(**{column: own}))


DIFFER = {
    "params": (1e9, 2e9), "tokens": (1e10, 5e10), "replay": (0.1, 0.2), "ptpp": (20.0, 40.0),
    "unique_tokens": (1e9, 2e9), "annealed": (0, 1), "seed": (0, 1),
    "start_loss": (3.0, 3.1), "base_loss": (3.0, 3.1), "domain": ("a", "b"), "base": ("a", "b"),
    "run": ("001", "1"),
}  # fmt: skip
"""Values of each column in which two rows differ."""


@pytest.mark.filterwarnings("ignore:.* 1 of these 2 rows were fitted")
@pytest.mark.parametrize("column", DIFFER)
def test_rows_that_differ_in_one_column_are_two(column, tmp_path):
    """In scores, in registered forecasts, and among candidates."""
    fit = saved("plain")
    rows = pd.concat([ROW, ROW], ignore_index=True).assign(**{column: DIFFER[column]})
    loss = fit.predict(ROW)[0]
    measured = rows.assign(loss=[loss, 1.1 * loss])
    seen = fit.table.frame.query("params != 1e9")
    seen = seen.assign(**{column: np.resize(DIFFER[column], len(seen))})
    table = replace(fit.table, frame=pd.concat([seen, measured[:1]], ignore_index=True))
    fit = replace(fit, table=table)
    spec = replace(fit.spec, effects=("seed",) * (column == "seed"))
    made = replace(fit.forecast(rows), fits={"": replace(fit, spec=spec)})
    turned = bl.from_frame(measured[::-1].reset_index(drop=True))
    bl.score(made, bl.from_frame(measured))
    refused(TableError, f"row 0: {column} is", bl.score, made, turned)
    if column not in (
        "start_loss",
        "base_loss",
    ):  # only laws that start from a base know them
        bl.register(made, path := tmp_path / "x.json")
        assert bl.verify(path, turned).frame["loss"].tolist() == [loss, 1.1 * loss]
    if column != "seed":  # which is a column of candidates only as an effect
        with pytest.warns(bl.TableWarning, match="1 of 2 are rows that were fitted"):
            bl.choose_anchors(fit, rows, ROW * 2, k=1)


# -- the law of transfer and its bases -------------------------------------------------------------


RISING = TRANSFER | {"c": 0.2}
"""Parameters of the law `transfer` on the domain of pre-training."""


@cache
def transfer(role="target"):
    """The law with the losses of these bases."""
    return for_table(load_law("transfer"), exact_transfer(role))


@pytest.mark.parametrize("role", ["target", "source"])
def test_transfer_by_hand(role):
    law, rows = transfer(role), exact_transfer(role).frame
    p = RISING if role == "source" else TRANSFER
    assert law.parameters == tuple(p)
    assert ("c" in law.priors) == ("c" in p)
    assert restored_law(json.loads(json.dumps(stored_law(law)))) == law
    n, d, r, budget = (
        rows[c].to_numpy() for c in ("params", "tokens", "replay", "ptpp")
    )
    core = p["E"] + p["A"] / n ** p["alpha"]
    core = core + p["F"] / n ** p["phi"] / (budget * n + p["rho"] * d) ** p["eta"]
    onset = np.exp(p["z"]) * n ** p["z_N"] * budget ** p["z_P"]
    g = (1 + (1 - r) ** p["v"] * d / onset) ** -p["beta"]
    of_base = law.step(Departure).bases.parameters["base_loss"]
    expected = of_base["E"] + of_base["A"] / n ** of_base["alpha"]
    expected = expected + of_base["B"] / (budget * n) ** of_base["beta"]
    core = core * (rows["base_loss"].to_numpy() / expected) ** p["k"]
    s = r if role == "source" else 1 - r
    # The loss of the base rises at once where a part of the text is of the other domain.
    start = rows["start_loss"].to_numpy() * np.exp(p.get("c", 0.0) * (1 - s))
    loss = core * ((s + 0.01) / 0.26) ** -p["gamma"] * (1 - g) + start * g
    np.testing.assert_allclose(law.loss(p, Design(law, rows).x), loss, rtol=1e-10)
    np.testing.assert_allclose(
        law.loss(p, Design(law, rows.assign(tokens=1e-6)).x), start, 1e-9
    )
    # The floor is what remains where terms and start loss have vanished: by base and replay.
    x = Design(law, rows.assign(params=1e60, tokens=1e200, ptpp=1e10)).x
    np.testing.assert_allclose(law.floor(p, x), law.loss(p, x), rtol=1e-9)
    assert np.ptp(law.floor(p, x)) > 0.01
    spread = replace(law.step(Departure).bases, spread=((1.0, 0.0), (0.0, 1.0)))
    other = law.with_steps(replace(law.step(Departure), bases=spread))
    assert identity(other) == identity(law)


@pytest.mark.parametrize("role", ["target", "source"])
def test_shares_of_start_and_core_are_derivatives_by_their_logs(role):
    """The start loss of a source has risen at once, by c in log where no text is its own."""
    law = FromBase().apply(taking(transfer(role), Offset))
    rows = exact_transfer(role).frame
    rows = rows.assign(annealed=np.arange(len(rows)) % 2)
    x, at = Design(law, rows).x, Design(law, rows).at
    p = RISING if role == "source" else TRANSFER
    p = p | dict.fromkeys(law.step(Offset).parameters, 0.01)
    p = law.amounts(
        law.to_reference(p | dict.fromkeys(law.discrepancy_parameters, 0.0), at), at
    )
    _, shares = law.stated(p, x, at, np)
    log_left = np.log(law.step(Departure).remaining(p, x, np))
    ends = [
        np.log(law.loss(p | {"beta": p["beta"] * (1 + h)}, x, at))
        for h in (1e-6, -1e-6)
    ]
    by = (ends[0] - ends[1]) / (2e-6 * log_left)
    np.testing.assert_allclose(shares[START], by, rtol=1e-4, atol=1e-9)
    core = ("E", *law.coefficients)
    ends = [
        np.log(law.loss(p | {name: p[name] * (1 + h) for name in core}, x, at))
        for h in (1e-6, -1e-6)
    ]
    np.testing.assert_allclose(shares[CORE], (ends[0] - ends[1]) / 2e-6, rtol=1e-6)


def test_products_without_the_share_vanish_where_the_loss_is_the_bases():
    rows = exact_transfer("source").frame.drop_duplicates("base").assign(tokens=1e-6)
    for kind, vanish in ((FromBase(), True), (Adaptation(), False)):
        law = kind.apply(transfer("source"))
        x, at = Design(law, rows).x, Design(law, exact_transfer("source")).at
        p = RISING | dict.fromkeys(law.discrepancy_parameters, 0.0)
        p = law.amounts(law.to_reference(p, at), at)
        for name in ("poly_NN", "poly_NP", "poly_PP", "poly_ND", "poly_PD"):
            moved = law.loss(p | {name: 0.02}, x, at) / law.loss(p, x, at)
            assert np.allclose(moved, 1, rtol=1e-6) == vanish


def test_mistakes_of_bases(tmp_path):
    frame = support.GOOD.assign(
        base=list("abab"), replay=0.5, ptpp=15, params=[1e8, 1e9] * 2
    )
    at_start = frame.head(2).assign(tokens=0, replay=1)
    target, source = tmp_path / "t.csv", tmp_path / "s.csv"

    def read(bases, **columns):
        pd.concat([frame, at_start]).assign(**columns).to_csv(target, index=False)
        pd.concat([frame, bases]).to_csv(source, index=False)
        return bl.read_table(target, where="replay < 1", source=source)

    def moved(column, value):
        return at_start.assign(**{column: [value, at_start[column].iloc[1]]})

    table = read(at_start)
    # Kept, though their replay is 1, and beside all splits.
    assert len(table.baselines) == 2
    train, _ = table.split("base == 'a'")
    assert len(base_table(train.frame, train.baselines, "t")) == 2
    twice, lower = pd.concat([at_start, moved("loss", 5.0)[:1]]), at_start["loss"] - 0.5
    other = at_start.assign(loss=lower)
    for bases, columns, says in (
        (at_start[1:], {}, "no row with tokens = 0 for the base a"),
        (twice, {}, "several losses at tokens = 0"),
        (
            moved("params", 2e9),
            {},
            "a has params 2e[+]09 at tokens = 0, and 1e[+]08 in .*t.csv",
        ),
        (
            moved("ptpp", 900),
            {},
            "base a has ptpp 900 at tokens = 0, and 15 in .*t.csv",
        ),
        (
            at_start.assign(role="target"),
            {},
            "s.csv: no row with tokens = 0 is of role 'source'",
        ),
        (other, {"role": "source"}, "says source, but the bases have other losses"),
        (at_start, {"role": "target"}, "says target, but the bases have equal losses"),
    ):
        refused(TableError, says, read, bases, **columns)
    frame.drop(columns="base").to_csv(target, index=False)
    refused(TableError, "column 'base'", bl.read_table, target, source=source)
    bare = bl.from_frame(exact_transfer().frame.drop(columns="base_loss"))
    refused(TableError, "source=", fit_huber, "transfer", bare)
    again = bl.from_frame(
        exact_transfer().frame.replace({"base": {"base 3": "base 4"}})
    )
    says = "base base 4 has several params, ptpp, start_loss or"
    refused(TableError, says, for_table, load_law("transfer"), again)


def test_which_bases_are_known():
    """By their label; without one a row has the only base of its size and budget."""
    bases = transfer().step(Departure).bases
    unlabelled = grid(params=1.6e9, ptpp=[279, 500])
    assert unknown_bases(bases, unlabelled.assign(base=["new", "base 3"])).tolist() == [
        True,
        False,
    ]
    assert unknown_bases(bases, unlabelled).tolist() == [False, True]
    known = exact_transfer().frame.query("params == 1.6e9 and ptpp == 279").iloc[0]
    assert np.exp(bases.logs(of_bases(bases, unlabelled))[0][0]) == pytest.approx(
        known["start_loss"]
    )
    # What a row says itself counts first, beside a label and without.
    own = unlabelled[:1].assign(start_loss=9.0)
    for rows in (own, own.assign(base="base 3")):
        assert np.exp(bases.logs(of_bases(bases, rows))[0][0]) == pytest.approx(9.0)
    twice = {**bases.known, "another": bases.known["base 24"]}
    assert unknown_bases(replace(bases, known=twice), unlabelled).all()
    # Labels that are numbers, beside a missing one, which turns the column into floats.
    numbered = exact_transfer().frame.assign(
        base=exact_transfer().frame["base"].str[5:].astype(int)
    )
    bases = (
        for_table(load_law("transfer"), bl.from_frame(numbered)).step(Departure).bases
    )
    ahead = grid(params=[1.6e9, 3.2e9], ptpp=[279, 500]).assign(
        base=[7, None, None, None]
    )
    assert unknown_bases(bases, ahead).tolist() == [False, True, True, True]
    known = numbered.query("base == 7").iloc[0]
    assert np.exp(bases.logs(of_bases(bases, ahead))[0][0]) == pytest.approx(
        known["start_loss"]
    )
    drawn = drawn_bases(bases, pd.concat([ahead, ahead], ignore_index=True), 5, [0])
    assert len(np.unique(drawn[0].round(12), axis=1).T) == 4
    # Rows of one N and P start alike.
    np.testing.assert_array_equal(drawn[..., :4], drawn[..., 4:])


def test_errors_and_spread_of_ten_bases_are_those_of_least_squares():
    """With five parameters, of ten bases five degrees of freedom are left."""
    rng, frame = (
        np.random.default_rng(1),
        grid(params=[1e8, 3e8, 1e9, 3e9, 1e10], ptpp=[15, 60]),
    )
    n, d = frame["params"].to_numpy(), (frame["params"] * frame["ptpp"]).to_numpy()
    exact = np.log(1.5 + 90 / n**0.3 + 300 / d**0.33)
    noise = 0.001 * rng.standard_normal((2, 10))  # far below the Huber threshold
    logs = dict(zip(("start_loss", "base_loss"), exact + noise, strict=True))
    frame = frame.assign(
        base=list("abcdefghij"), **{c: np.exp(v) for c, v in logs.items()}
    )
    bases = fit_bases(frame, "ten bases")

    def log_loss(_, e, a, alpha, b, beta):
        return np.log(np.exp(e) + np.exp(a) / n**alpha + np.exp(b) / d**beta)

    start, residuals = [np.log(1.5), np.log(90), 0.3, np.log(300), 0.33], {}
    new = grid(params=3e10, ptpp=[15, 60])
    slopes = log_slopes(
        bases.law,
        bases.parameters["base_loss"],
        total_tokens(new["params"].to_numpy(), new["ptpp"].to_numpy()),
    )
    for column, measured in logs.items():
        best, errors = curve_fit(log_loss, n, measured, start, xtol=1e-12, ftol=1e-12)
        residuals[column] = measured - log_loss(n, *best)
        by_log = np.array([np.exp(best[0]), np.exp(best[1]), 1.0, np.exp(best[3]), 1.0])
        own = slopes * by_log[:, None]
        found = slopes.T @ np.array(bases.errors[column]) @ slopes
        np.testing.assert_allclose(found, own.T @ errors @ own, rtol=0.01)
    both = np.array([residuals[c] for c in logs])
    np.testing.assert_allclose(bases.spread, both @ both.T / 5, rtol=1e-3)


def test_losses_of_new_bases_are_drawn_with_the_errors_of_their_law():
    """Alike in rows of one base; by the delta method, without variation between bases."""
    bases = transfer().step(Departure).bases
    ahead = grid(params=3.2e9, ptpp=279, replay=[0.1, 0.5]).assign(base="new")
    drawn, beside = (
        drawn_bases(bases, ahead.assign(base=b), 4000, [0])
        for b in ("new", ["other", "new"])
    )
    np.testing.assert_array_equal(drawn[..., 0], drawn[..., 1])
    np.testing.assert_array_equal(beside[..., 1], drawn[..., 1])
    assert (beside[..., 0] != drawn[..., 0]).all()
    deviation = bases.logs(of_bases(bases, ahead), drawn)[1][:, 0]
    assert deviation.std() == pytest.approx(0.01, rel=0.5)
    drawn = drawn_bases(
        replace(bases, spread=((0.0, 0.0), (0.0, 0.0))), ahead, 4000, [0]
    )[..., 0]
    x = {"params": np.log(3.2e9), "tokens": np.log(3.2e9 * 279)}
    for own, column in zip(drawn, ("start_loss", "base_loss"), strict=True):
        p, slopes = bases.parameters[column], []
        for name, value in p.items():
            step = 1e-6 * max(value, 0.1)
            ends = [
                np.log(bases.law.loss({**p, name: value + s}, x)) for s in (step, -step)
            ]
            slopes.append((ends[0] - ends[1]) / (2 * step))
        errors = np.array(bases.errors[column])
        assert own.std() == pytest.approx(
            np.sqrt(np.array(slopes) @ errors @ slopes), rel=0.05
        )
