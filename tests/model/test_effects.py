"""Random effects of sizes, bases and runs."""

import numpy as np
import pandas as pd
import pytest

from bayeslaw import LawError, LossTable, TableError, fit, from_frame, grid, load, simulate
from tests.inside import effects
from tests.support import CHINCHILLA, EFFECTS, grouped

SHORT = {"discrepancy": "none", "errors": "independent"}
SHORT |= {"draws": 500, "tune": 400, "chains": 2, "retry": False}


@pytest.fixture(scope="module")
def table() -> LossTable:
    return grouped(3)


@pytest.fixture(scope="module")
def fitted(table):
    return fit("chinchilla", table, seed=0, **SHORT | {"chains": 4})


def test_levels_are_chosen_from_the_columns(table):
    frame = table.frame
    assert effects.choose("auto", frame, "t") == ("base", "run")
    assert effects.choose("auto", frame.drop(columns="base"), "t") == ("run",)
    assert effects.choose("none", frame, "t") == ()
    assert effects.choose("run,base", frame, "t") == ("base", "run")
    single = frame.assign(run=np.arange(len(frame)))  # a row a run: that is the noise
    assert effects.choose("auto", single, "t") == ("base",)
    same = frame.assign(run=frame["base"])  # a run a base: one effect, not two
    assert effects.choose("auto", same, "t") == ("run",)
    two = frame.assign(run=np.where(frame["params"] < 5e8, "a", "b")).drop(columns="base")
    assert effects.choose("auto", two, "t") == ()


def test_a_level_is_left_out_for_equal_groups_and_not_for_an_equal_number_of_them():
    crossed = grid(params=[1e8, 2e8, 3e8, 4e8], base=range(4), tokens=[1e9, 1e10, 1e11])
    crossed["run"] = crossed.groupby(["params", "base"]).ngroup()
    assert effects.choose("auto", crossed, "t", discrepancy=True) == ("size", "base", "run")
    nested = crossed.assign(base=crossed["params"].astype(str))  # a base a size
    assert effects.choose("auto", nested, "t", discrepancy=True) == ("base", "run")
    alone = crossed.assign(run=crossed["params"].astype(str))  # a run a size
    assert effects.choose("auto", alone, "t", discrepancy=True) == ("base", "run")


def test_a_misspelt_effect_and_a_missing_column(table):
    with pytest.raises(LawError, match="did you mean 'run'"):
        effects.choose("runs", table.frame, "t")
    with pytest.raises(TableError, match="t: no column 'base'"):
        effects.choose(("base",), table.frame.drop(columns="base"), "t")


TAKEN = ("alpha", "E", "A", "L_ref", "sigma", "dof", "kappa", "walk_scale", "walk_AN", "tau_run")
TAKEN += ("chain", "draw", "row", "sample", "run_effect")


@pytest.mark.parametrize("column", [*TAKEN, "loss", "tokens"])
def test_an_effect_that_has_the_name_of_something_else(table, column):
    """It is refused before sampling: draws could not hold both."""
    says = "is no label, so no effect" if column in table.frame else "cannot be an effect.*rename"
    labels = table.frame.get(column, np.arange(len(table)) % 4)
    rows = from_frame(table.frame.assign(**{column: labels}))
    with pytest.raises(LawError, match=f"'{column}' {says}"):
        fit("chinchilla", rows, effects=("run", column), draws=10, tune=10)


def test_sizes_are_chosen_beside_a_discrepancy_and_from_four_on(table):
    frame = table.frame
    assert effects.choose("auto", frame, "t", discrepancy=True) == ("size", "base", "run")
    three = frame[frame["params"] > 1e8]
    assert effects.choose("auto", three, "t", discrepancy=True) == ("base", "run")
    assert effects.choose("size", three, "t") == ("size",)  # asked for
    assert effects.choose("auto", frame.drop(columns="params"), "t", discrepancy=True)[0] == "base"


def test_the_loss_knows_fitted_sizes_and_new_ones_are_drawn():
    design = grid(params=np.geomspace(1e8, 1e10, 6), tokens=np.geomspace(1e9, 1e11, 6))
    frame = simulate("chinchilla", CHINCHILLA, design, sigma=0.002, seed=0).frame
    sizes, index = np.unique(frame["params"], return_inverse=True)
    shift = 0.004 * np.array([1, -1, 1, -1, 1, -1])
    table = from_frame(frame.assign(loss=frame["loss"] * np.exp(shift[index])), "sized")
    fitted = fit("chinchilla", table, draws=400, tune=600, retry=False)
    assert fitted.spec.effects == ("size",)
    found = fitted.draws["size_effect"].mean(("chain", "draw"))
    assert [float(label) for label in found["size"].values] == sorted(sizes, key=str)
    order = np.argsort([float(label) for label in found["size"].values])
    assert np.corrcoef(found.values[order], shift)[0, 1] > 0.9
    np.testing.assert_allclose(
        np.log(fitted.predict(table, allow_unconverged=True) / table.loss), 0, atol=0.007
    )
    rng = np.random.default_rng(0)
    new = grid(params=sizes[2] * 1.3, tokens=[1e9, 1e11])
    drawn = effects.draw(fitted.draws, ("size",), new, rng)
    assert drawn[:, 0] == pytest.approx(drawn[:, 1])  # one size
    scale = np.sqrt((fitted.draws["tau_size"] ** 2).mean().item())
    assert drawn.std() == pytest.approx(scale, rel=0.1)
    assert not effects.draw(fitted.draws, ("size",), frame, rng).any()  # these are in the loss
    assert not effects.latent_effects(fitted.draws, ("size",), new).any()


def test_a_row_without_a_label_is_a_group_of_its_own():
    frame = pd.DataFrame({"run": ["a", None, "a", None]})
    assert len(set(effects.labels(frame, "run"))) == 3
    assert len(set(effects.labels(frame, "base"))) == 4
    one, two = (effects.labelled(frame, ["run"], name) for name in ("one", "two"))
    assert set(effects.labels(one, "run")) & set(effects.labels(two, "run")) == {"a"}
    assert set(effects.labels(frame, "run")) == {"a", "(row 1)", "(row 3)"}  # left as it was


def test_labels_of_runs_are_not_used_again(table):
    """A seed as the label would give the runs of all sizes one effect and one path of errors."""
    frame = table.frame.assign(run=table.frame["run"].str[-1]).drop(columns="base")
    for settings in ({"effects": "run"}, {"effects": "none", "errors": "run"}):
        rows = frame.assign(tokens=1e9 + np.arange(len(frame))) if "errors" in settings else frame
        with pytest.raises(TableError, match=r"'params' differs within a run \(run 0: 1e\+08 to"):
            fit("chinchilla", from_frame(rows), discrepancy="none", **settings)


def test_checkpoints_of_a_pre_training_run_differ_in_tokens_per_parameter(table):
    """Which a law of N and D does not contain."""
    ratio = np.arange(len(table.frame)) + 1.0
    frame = table.frame.assign(ptpp=ratio)
    effects.check_runs(frame, "rows", ("params", "tokens"))
    with pytest.raises(TableError, match="'ptpp' differs within a run"):
        effects.check_runs(frame, "rows", ("params", "tokens", "ptpp"))


def test_scales_are_recovered(fitted):
    for level, scale in EFFECTS.items():
        low, high = np.quantile(fitted.draws[f"tau_{level}"], [0.005, 0.995])
        assert low < scale < high
    assert fitted.draws["run_effect"].dims == ("chain", "draw", "run")
    assert fitted.draws.sizes["run"] == 24
    assert set(fitted.values()) == {"L_ref", "slope_N", "alpha", "slope_D", "beta", "sigma"} | {
        "dof_above_floor",
        "tau_base",
        "tau_run",
    }


def test_fitted_runs_keep_their_effect_and_new_ones_are_drawn(fitted, table):
    known = table.frame.head(6)
    new = known.assign(run=["x", "x", "y", "y", "z", "z"], base="new")
    seen = effects.draw(fitted.draws, fitted.spec.effects, known, np.random.default_rng(1))
    again = effects.draw(fitted.draws, fitted.spec.effects, known, np.random.default_rng(2))
    np.testing.assert_array_equal(seen, again)
    unseen = effects.draw(fitted.draws, fitted.spec.effects, new, np.random.default_rng(1))
    correlation = np.corrcoef(unseen.T)
    assert correlation[0, 1] == pytest.approx(1)  # one run
    tau = {level: (fitted.draws[f"tau_{level}"] ** 2).mean().item() for level in EFFECTS}
    expected = tau["base"] / (tau["base"] + tau["run"])  # one base, two runs
    assert correlation[0, 2] == pytest.approx(expected, abs=0.1)
    assert unseen.var() == pytest.approx(sum(tau.values()), rel=0.2)
    assert not effects.draw(fitted.draws, fitted.spec.effects, new, None).any()


def test_grouped_posteriors_load_as_they_were_saved(fitted, table, tmp_path):
    fitted.save(tmp_path / "grouped.nc")
    again = load(tmp_path / "grouped.nc")
    assert again.spec.effects == ("base", "run")
    one, two = (f.forecast(table, seed=5, allow_unconverged=True).samples for f in (fitted, again))
    np.testing.assert_array_equal(one, two)


@pytest.mark.slow
def test_bands_of_new_bases_hold_where_rows_alone_do_not():
    """A band for runs from new bases must carry what runs of one base share."""
    shared = {"base": 0.004, "run": 0.002}  # what the priors of effects hold to be likely
    rows, means = {"auto": [], "none": []}, {"auto": [], "none": []}
    for seed in (1, 2, 3):
        train, test = grouped(seed, shared), grouped(seed + 100, shared)
        new = test.frame.assign(base="new " + test.frame.base, run="new " + test.frame.run)
        base = np.unique(new["base"], return_inverse=True)[1]
        weights = (base[:, None] == np.arange(8)) / np.bincount(base)
        for given in ("auto", "none"):
            posterior = fit("chinchilla", train, effects=given, **SHORT)
            samples = np.log(posterior.forecast(from_frame(new), allow_unconverged=True).samples)
            for found, draws, truth in (
                (rows, samples, np.log(test.loss)),
                (means, samples @ weights, np.log(test.loss) @ weights),
            ):
                low, high = np.quantile(draws, [0.05, 0.95], axis=0)
                found[given].append(np.mean((truth >= low) & (truth <= high)))
    # 24 bases are about 24 independent trials: at .9 their share has a standard deviation of .06.
    assert np.mean(rows["auto"]) >= 0.78
    # Without effects the noise absorbs them row by row: bands of a base's mean are too narrow.
    assert np.mean(means["none"]) < 0.5 < 0.78 <= np.mean(means["auto"])
