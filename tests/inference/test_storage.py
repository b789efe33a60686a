import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import xarray as xr

from bayeslaw import FileError, LossTable, load
from bayeslaw.inference import storage
from tests.support import ROOT

CHILD = """
import sys
import numpy as np
from bayeslaw import grid, load
fit = load(sys.argv[1])
rows = grid(params=[2e9, 1e10], tokens=[2e11, 1e12])
np.save(sys.argv[2], fit.forecast(rows, seed=7).samples)
print(fit.table.sha256, fit.law.name, fit.settings["seed"], fit.convergence)
"""


@pytest.fixture
def saved(posterior, tmp_path):
    path = tmp_path / "pöstérior 中.nc"
    posterior.save(path)
    return path


def test_a_new_process_forecasts_bit_identically(posterior, saved, tmp_path):
    out = tmp_path / "draws.npy"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CHILD, str(saved), str(out)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = pd.DataFrame({"params": [2e9, 2e9, 1e10, 1e10], "tokens": [2e11, 1e12] * 2})
    np.testing.assert_array_equal(np.load(out), posterior.forecast(rows, seed=7).samples)
    table = posterior.table
    assert done.stdout.strip() == (
        f"{table.sha256} chinchilla {posterior.settings['seed']} {posterior.convergence}"
    )


def test_everything_comes_back(posterior, saved):
    back = load(saved)
    assert set(back.draws) == set(posterior.draws)
    for name, values in posterior.draws.data_vars.items():
        assert back.draws[name].dims == values.dims
        np.testing.assert_array_equal(back.draws[name], values)
    assert back.spec.identity == posterior.spec.identity
    assert dict(back.at) == dict(posterior.at)
    assert back.convergence == posterior.convergence
    assert dict(back.settings) == dict(posterior.settings)
    assert {"bayeslaw", "pymc", "nutpie"} <= set(back.settings["versions"])
    assert back.law == posterior.law
    assert back.law.token_unit == posterior.law.token_unit
    assert back.table.name == posterior.table.name
    pd.testing.assert_frame_equal(back.table.frame, posterior.table.frame, check_exact=True)
    assert len(back.table.query("6 * params * tokens > 0")) == len(back.table)
    assert back.predict(back.table).tolist() == posterior.predict(posterior.table).tolist()


def test_unicode_rows_and_baselines_come_back(posterior, tmp_path):
    frame = posterior.table.frame.assign(domain='français 中, "x"', run="NA")
    table = LossTable(frame, frame.iloc[:2].assign(tokens=0.0), "naïve Ω")
    replace(posterior, table=table).save(tmp_path / "x.nc")
    back = load(tmp_path / "x.nc").table
    assert back.name == "naïve Ω"
    pd.testing.assert_frame_equal(back.frame, table.frame, check_dtype=False)
    pd.testing.assert_frame_equal(back.baselines, table.baselines, check_dtype=False)
    assert back.sha256 == table.sha256


def test_labels_and_the_last_bit_of_floats_come_back(posterior, tmp_path):
    labels = ["", "007", "NA", "nan", "1e3", None]
    floats = [1e-300, 1e300, 0.1 + 0.2, 1 / 3, np.nextafter(1.0, 2.0), 5e-324]
    frame = posterior.table.frame.iloc[: len(labels)].assign(run=labels, weight=floats)
    table = replace(posterior.table, frame=frame)
    replace(posterior, table=table).save(tmp_path / "x.nc")
    assert load(tmp_path / "x.nc").table.frame["weight"].tolist() == floats
    back = load(tmp_path / "x.nc").table.frame["run"]
    assert back.iloc[:-1].tolist() == labels[:-1]
    assert back.isna().tolist() == [False] * 5 + [True]


def test_a_changed_token_unit_comes_back(posterior, tmp_path, small):
    law = replace(posterior.law, token_unit=1e9)
    changed = replace(posterior, spec=replace(posterior.spec, law=law))
    changed.save(tmp_path / "x.nc")
    back = load(tmp_path / "x.nc")
    assert back.law.token_unit == 1e9
    np.testing.assert_array_equal(back.latent(small), changed.latent(small))


def refuse(path, says):
    with pytest.raises(FileError, match=says) as error:
        load(path)
    assert "\n" not in str(error.value)
    assert path.name in str(error.value)


def test_a_truncated_file(saved):
    whole = saved.read_bytes()
    for share in (0, 0.01, 0.3, 0.6, 0.95):
        saved.write_bytes(whole[: int(share * len(whole))])
        refuse(saved, "not a readable posterior")


@pytest.mark.parametrize("place", [70, 98, 280, 469, 707])
def test_a_damaged_byte_near_the_start(place, tmp_path, capfd):
    damaged = bytearray((ROOT / "tests" / "data" / "delphi_chinchilla.nc").read_bytes())
    damaged[place] ^= 255
    (tmp_path / "fit.nc").write_bytes(damaged)
    refuse(tmp_path / "fit.nc", "not a readable posterior")
    assert capfd.readouterr().err == ""


def test_missing_and_foreign_files(tmp_path):
    refuse(tmp_path / "absent.nc", "no such file")
    refuse(tmp_path, "a folder, not a saved posterior")
    foreign = tmp_path / "foreign.nc"
    foreign.write_text("params,tokens,loss\n")
    refuse(foreign, "not a readable posterior")
    xr.Dataset({"x": ("y", [1.0])}).to_netcdf(foreign, engine="h5netcdf")
    refuse(foreign, "not a bayeslaw posterior")


def test_a_newer_schema(saved):
    with h5py.File(saved, "a") as file:
        file.attrs["schema"] = storage.SCHEMA + 1
    newer = storage.SCHEMA + 1
    refuse(saved, rf"schema {newer} is newer than this version reads .\d.; upgrade bayeslaw")


def test_an_older_schema(saved):
    with h5py.File(saved, "a") as file:
        file.attrs["schema"] = 1
    refuse(saved, rf"schema 1 is older than this version reads .{storage.SCHEMA}.; fit again")


@pytest.mark.parametrize("spoil", ["meta", "key", "group", "schema", "number", "row", "digest"])
def test_a_damaged_file(saved, spoil):
    with h5py.File(saved, "a") as file:
        if spoil == "meta":
            file.attrs["meta"] = "{"
        elif spoil == "key":
            meta = json.loads(file.attrs["meta"])
            del meta["likelihood"]
            file.attrs["meta"] = json.dumps(meta)
        elif spoil == "group":
            del file["table"]
        elif spoil == "number":
            file["posterior/L_ref"][0, 0] *= 1 + 1e-15
        elif spoil == "row":
            file["table/rows"][()] = file["table/rows"][()].replace(b"e", b"E", 1)
        elif spoil == "digest":
            del file.attrs["sha256"]
        else:
            del file.attrs["schema"]
    refuse(saved, "damaged")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt])
def test_an_interrupted_save_leaves_the_old_file(posterior, saved, monkeypatch, error):
    old = saved.read_bytes()

    def stop(*_):
        raise error

    monkeypatch.setattr(Path, "replace", stop)
    with pytest.raises((FileError, KeyboardInterrupt), match=r"No space left|^$"):
        posterior.save(saved)
    assert saved.read_bytes() == old
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_saving_where_nothing_can_be_written(posterior, tmp_path):
    with pytest.raises(FileError, match="cannot write"):
        posterior.save(tmp_path / "absent" / "x.nc")


def test_saving_over_a_file_replaces_it(posterior, unconverged, saved, small):
    unconverged.save(saved)
    back = load(saved)
    assert not back.convergence.ok
    assert back.convergence == unconverged.convergence
    assert back.forecast(small, allow_unconverged=True).convergence.failures
