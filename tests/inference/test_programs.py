"""Compiled models: one for any data, kept on disk, and never trusted when damaged."""

import os
import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pymc as pm
import pytest

from bayeslaw.inference import programs
from bayeslaw.inference.compiling import compile_program
from bayeslaw.inference.metric import learn
from bayeslaw.inference.modes import unconstrain
from bayeslaw.inference.programs import Density, program
from bayeslaw.model.building import build
from bayeslaw.model.data import make_data
from bayeslaw.model.spec import make_spec
from bayeslaw.simulation.worlds import simulate
from tests.support import CHINCHILLA, DESIGN

SPEC = make_spec("chinchilla", discrepancy="curvature", effects=("base",))


def values_of(rows, bases):
    """Data of a simulated table with so many rows and bases."""
    return labelled([f"b{i % bases}" for i in range(rows)])


def labelled(bases):
    """Data of a simulated table with these bases, one a row."""
    rows = DESIGN.sample(len(bases), random_state=0)
    table = simulate("chinchilla", CHINCHILLA, rows, sigma=0.01, seed=0)
    return make_data(SPEC, replace(table, frame=table.frame.assign(base=bases))).arrays


@pytest.fixture(scope="module")
def compiled():
    return program(SPEC, values_of(24, 4))


@pytest.fixture
def cached(compiled, tmp_path, monkeypatch):
    """An empty cache on disk, and nothing in the process; compiling gives what is compiled."""
    count = []
    monkeypatch.setenv("BAYESLAW_CACHE", str(tmp_path / "programs"))
    monkeypatch.setattr(programs, "_programs", {})
    monkeypatch.setattr(programs, "compile_program", lambda model: count.append(0) or compiled)
    return count, tmp_path / "programs"


@pytest.mark.parametrize(("rows", "bases"), [(24, 4), (30, 7)])
def test_one_program_has_the_density_of_pymc_for_any_rows_and_groups(compiled, rows, bases):
    values = values_of(rows, bases)
    density = Density(compiled, values)
    assert program(SPEC, values) is compiled
    model = build(SPEC, values, for_sampling=True)
    reference, by = model.compile_logp(), model.compile_dlogp()
    rng = np.random.default_rng(0)
    for _ in range(5):
        point = density.start + rng.uniform(-0.3, 0.3, density.size)
        named = dict(zip(density.places, density.places.values(), strict=True))
        start = {}
        for variable in model.free_RVs:
            value = model.rvs_to_values[variable]
            part = point[named[variable.name]]
            start[value.name] = part if value.ndim else part[0]
        found, gradient = density.gradient(point)
        assert found == pytest.approx(float(reference(start)), rel=1e-12)
        order = np.concatenate([np.arange(density.size)[named[v.name]] for v in model.free_RVs])
        np.testing.assert_allclose(gradient[order], by(start), rtol=1e-9, atol=1e-9)


def test_centring_changes_coordinates_and_nothing_else(compiled):
    """A coordinate is z tau^power, so the log density differs by the log of the Jacobian."""
    values = values_of(24, 4)
    first = Density(compiled, values | {"base_groups": np.zeros(4)})
    effects, tau = first.places["base_z"], first.places["tau_base"]
    point = first.start + np.random.default_rng(0).uniform(-0.3, 0.3, first.size)
    point[tau] = unconstrain(SPEC, "tau_base", 0.02)
    for power in (np.ones(4), np.array([0.0, 0.25, 0.5, 1.0])):
        density = Density(compiled, values | {"base_groups": power})
        moved = point.copy()
        moved[effects] *= 0.02**power
        there = density.gradient(moved)[0] + power.sum() * np.log(0.02)
        assert there == pytest.approx(first.gradient(point)[0], rel=1e-10)
        drawn = density.variables(moved[None])
        np.testing.assert_allclose(drawn["base_z"][0], point[effects], rtol=1e-10)


def test_the_width_of_an_effect_hardly_depends_on_tau_in_the_samplers_coordinates(compiled):
    """Few rows leave the standardised effect as wide as its prior; many rows fix the effect.

    The posterior of the effect b of n rows with noise sigma has the variance
    ``1 / (1 / tau^2 + n / sigma^2)``. In the coordinate ``b tau^(power - 1)`` a factor of five in
    tau changes the width by up to five, unless the power fits n.
    """
    values = labelled(["few"] * 4 + ["many"] * 160)
    sigma, rows = 1.0, np.array([4, 160])  # far above the residuals, so that no row is an outlier

    def widths(power, tau):
        density = Density(compiled, values | {"base_groups": power})
        point, step = density.start.copy(), 1e-4
        for name, value in (("sigma", sigma), ("tau_base", tau), ("dof_above_floor", 1e4)):
            point[density.places[name]] = unconstrain(SPEC, name, value)
        found = []
        for place in range(density.size)[density.places["base_z"]]:
            ends = np.array([point, point])
            ends[:, place] += step, -step
            up, down = (density.gradient(end)[1][place] for end in ends)
            found.append((2 * step / (down - up)) ** 0.5)
        return np.array(found)

    def change(power):
        return widths(power, 0.5 * sigma) / widths(power, 0.1 * sigma)

    exact = [(1 / tau**2 + rows / sigma**2) ** -0.5 / tau for tau in (0.1, 0.5)]
    np.testing.assert_allclose(change(np.zeros(2)), exact[1] / exact[0], rtol=0.01)
    chosen, other = change(values["base_groups"]), change(1 - values["base_groups"])
    assert (abs(np.log(chosen)) < np.log(1.5)).all()
    assert (abs(np.log(other)) > np.log(3)).all()


def test_a_linear_map_changes_coordinates_and_nothing_else(compiled):
    density = Density(compiled, values_of(24, 4))
    points = density.start + np.random.default_rng(0).normal(0, 0.1, (30, density.size))
    shift, factor = learn(density, points)
    np.testing.assert_array_equal(factor, np.tril(factor))
    mapped = density.mapped(shift, factor, lambda seed: np.zeros(density.size))
    sampled = np.random.default_rng(1).normal(0, 0.1, density.size)
    value, gradient = np.zeros(1), np.zeros(density.size)
    assert not density._evaluate(mapped.table, sampled, gradient, value)
    there, by = density.gradient(shift + factor @ sampled)
    assert value[0] == pytest.approx(there, rel=1e-12)
    np.testing.assert_allclose(gradient, factor.T @ by, rtol=1e-9, atol=1e-9)
    drawn = density.variables(points)
    assert drawn["base_z"].shape == (30, 4)
    assert drawn["alpha"].shape == (30,)
    assert (drawn["alpha"] > 0).all()


def test_a_program_on_disk_is_used(cached):
    count, folder = cached
    first = program(SPEC, values_of(24, 4))
    (file,) = folder.iterdir()
    programs._programs.clear()
    again = program(SPEC, values_of(24, 4))
    assert len(count) == 1
    assert again.code == first.code
    assert file.suffix == ".program"


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "foreign"])
def test_a_damaged_program_is_compiled_again(cached, damage):
    count, folder = cached
    program(SPEC, values_of(24, 4))
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    damaged = {
        "cut": whole[: len(whole) // 2],
        "changed": whole[:-20] + bytes(20),
        "empty": b"",
        "foreign": b"not a program\n",
    }
    file.write_bytes(damaged[damage])
    programs._programs.clear()
    program(SPEC, values_of(24, 4))
    assert len(count) == 2
    assert file.read_bytes() == whole


def test_a_program_that_does_not_load_is_compiled_again(cached):
    count, folder = cached
    whole = program(SPEC, values_of(24, 4))
    (file,) = folder.iterdir()
    programs._write(file, replace(whole, code=pickle.dumps("of another version")))
    programs._programs.clear()
    program(SPEC, values_of(24, 4))
    assert len(count) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="no modes of files")
def test_a_program_that_others_may_write_is_not_read(cached):
    count, folder = cached
    program(SPEC, values_of(24, 4))
    (file,) = folder.iterdir()
    for path in (file, folder):
        mode = path.stat().st_mode
        path.chmod(mode | 0o002)
        programs._programs.clear()
        program(SPEC, values_of(24, 4))
        path.chmod(mode)
    assert len(count) == 3


LOAD = """
import pickle, sys
from bayeslaw.inference.compiling import load
code = open(sys.argv[1], "rb").read()
first, again = load(code), load(code)
other = load(pickle.dumps(pickle.loads(code), protocol=2))
assert first is again and first[1] != other[1]
assert "bayeslaw.inference.programs" not in sys.modules
"""


def test_code_is_loaded_once_in_a_process_that_imports_nothing_else(compiled, tmp_path):
    (tmp_path / "code").write_bytes(compiled.code)
    command = [sys.executable, "-c", LOAD, str(tmp_path / "code")]
    subprocess.run(command, check=True, timeout=120)


NO_FOLDER = """
from numba.core.caching import CacheImpl
CacheImpl._locator_classes = []  # as where no folder can be written to
import bayeslaw as bl
table = bl.simulate("chinchilla", %r, bl.grid(params=[1e8, 3e8, 1e9], tokens=[1e9, 1e10, 1e11]))
bl.fit("chinchilla", table, discrepancy="none", chains=2, draws=20, tune=20, retry=False)
"""


def test_a_fit_needs_no_folder_to_write_to():
    command = [sys.executable, "-c", NO_FOLDER % CHINCHILLA]
    subprocess.run(command, check=True, timeout=300, env=os.environ | {"BAYESLAW_CACHE": "off"})


def test_points_and_data_of_another_shape_are_refused(compiled):
    values = values_of(24, 4)
    density = Density(compiled, values)
    with pytest.raises(ValueError, match="a point has shape"):
        density.gradient(density.start[:-1])
    value, _ = density.gradient(density.start)
    assert density.gradient(np.repeat(density.start, 2)[::2])[0] == value
    name = next(n for n, _, dimensions in compiled.data if dimensions == 1)
    with pytest.raises(ValueError, match=f"{name!r} have 2 dimensions, not 1"):
        Density(compiled, {**values, name: values[name][None]})


def test_another_version_has_another_file(cached, monkeypatch):
    count, folder = cached
    program(SPEC, values_of(24, 4))
    monkeypatch.setattr(programs, "version", lambda name: "0")
    programs._programs.clear()
    program(SPEC, values_of(24, 4))
    assert len(count) == len(list(folder.iterdir())) == 2


def test_a_folder_that_cannot_be_written_to_is_no_error(cached, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BAYESLAW_CACHE", str(tmp_path / "file"))
    assert program(SPEC, values_of(24, 4)).variables


def test_kinds_from_outside_the_package_are_not_kept(cached):
    _, folder = cached
    outside = type("Outside", (type(SPEC.likelihood),), {"__module__": "elsewhere"})()
    program(make_spec("chinchilla", likelihood=outside), values_of(24, 4))
    assert not folder.exists()


def test_only_the_newest_files_are_kept(cached, monkeypatch):
    _, folder = cached
    monkeypatch.setattr(programs, "MOST", 2)
    for name in ("0", "1", "2"):
        monkeypatch.setattr(programs, "version", lambda _, name=name: name)
        programs._programs.clear()
        program(SPEC, values_of(24, 4))
    assert len(list(folder.iterdir())) == 2


def test_data_may_be_single_numbers():
    """A term's `given` may be one number; its place in the table of addresses has no length."""
    with pm.Model() as model:
        slope, y = pm.Data("slope", np.asarray(2.0)), pm.Data("y", np.arange(5.0))
        pm.Potential("misfit", -0.5 * ((y - slope * pm.Normal("x")) ** 2).sum())
    density = Density(compile_program(model), {"slope": np.asarray(3.0), "y": np.arange(5.0)})
    residual = np.arange(5) - 3 * 0.7
    want = -0.5 * residual @ residual - 0.5 * 0.7**2 - 0.5 * np.log(2 * np.pi)
    found, gradient = density.gradient(np.array([0.7]))
    assert found == pytest.approx(want, rel=1e-12)
    assert gradient[0] == pytest.approx(3 * residual.sum() - 0.7, rel=1e-12)
