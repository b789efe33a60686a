"""Where the numbers of a page come from."""

from dataclasses import replace
from pathlib import Path

from bayeslaw import fit_huber, grid, read_table
from bayeslaw.reporting.provenance import UNKNOWN, beyond, checklist, cost, licence, ranges
from tests.reporting.reading import section

DATA = Path(__file__).parents[2] / "data"


def test_the_licence_is_that_of_the_readme_beside_the_table(tmp_path, delphi, small):
    assert licence(delphi).startswith("Apache-2.0, Copyright The Marin Authors.")
    assert licence(read_table(DATA / "gadre/overtraining.csv")).startswith("MIT, Copyright")
    tiny = licence(read_table(DATA / "tinycpt/french.csv"))
    assert "Apache-2.0" in tiny
    assert "simulated" in licence(small)
    delphi.frame.to_csv(tmp_path / "own.csv", index=False)
    assert licence(read_table(tmp_path / "own.csv")) == UNKNOWN
    (tmp_path / "README.md").write_text("# Mine\n\nNothing on terms of use.\n")
    assert licence(read_table(tmp_path / "own.csv")) == UNKNOWN


def test_checkpoints_cost_their_longest_run():
    frame = grid(params=[1e8], tokens=[1e9, 2e9, 4e9]).assign(run=["a", "a", "b"])
    assert cost(frame).startswith(f"{6e8 * 6e9:.2g} ")
    assert cost(frame.drop(columns="run")).startswith(f"{6e8 * 7e9:.2g} ")
    assert cost(frame.assign(run=["a", None, None])).startswith(f"{6e8 * 7e9:.2g} ")


def test_how_far_beyond():
    seen = grid(params=[1e8, 1e9], tokens=1.0)["params"]
    assert beyond(seen, seen) == "inside"
    assert beyond(seen, 4 * seen) == "4 × the largest"
    assert beyond(seen, seen / 4) == "0.25 × the smallest"
    wide = grid(params=[2.5e7, 4e9], tokens=1.0)["params"]
    assert beyond(seen, wide) == "4 × the largest; 0.25 × the smallest"
    assert beyond(seen, 0 * seen) == "down to 0"


def test_half_a_percent_counts_as_rounding():
    seen = grid(params=[1e8, 1e9], tokens=1.0)["params"]
    assert beyond(seen, 1.0049 * seen) == beyond(seen, 0.9951 * seen) == "inside"
    assert beyond(seen, 1.0051 * seen) == "1.01 × the largest"
    assert beyond(seen, 0.9949 * seen) == "0.99 × the smallest"


def test_a_covariate_that_the_law_lacks_is_no_extrapolation(posterior):
    frame = grid(params=[1e8, 1e9], tokens=1e9, ptpp=[20.0, 40.0])
    rows = frame.assign(params=4 * frame["params"], ptpp=2 * frame["ptpp"])
    reach = {row[0]: row[-1] for row in ranges(posterior.law, frame, rows)}
    assert reach["N, parameters"] == "4 × the largest"
    assert reach["PTPP, pre-training tokens per parameter"] == "not in the law"


def test_the_checklist_names_what_is_unknown(page, posterior, new_rows, delphi):
    asked = {row[0]: row[1] for row in section(page, "checklist").parts[0].rows if len(row) == 2}
    assert asked["runs"].startswith(UNKNOWN)
    assert asked["tokenizer and training text"] == UNKNOWN
    assert asked["extrapolation"].startswith("params 4 × the largest; 6 extrapolations (up to")
    point = fit_huber("chinchilla", posterior.table)
    delphis = checklist(replace(posterior, table=delphi), new_rows.frame, point, None, None)
    known = {row[0]: row[1] for row in delphis.parts[0].rows if len(row) == 2}
    assert known["runs"] == "45"
    assert known["pre-trained bases"] == "9"
    assert "lr_factor" in known["architecture, optimiser, schedule"]


def test_provenance_repeats_the_page(page, posterior):
    known = {row[0]: row[1] for row in section(page, "provenance").parts[0].rows}
    assert known["command"] == "bayeslaw report x.csv"
    assert posterior.table.sha256 in known["training rows"]
    assert "pymc 6" in known["versions"]
    assert known["token unit"] == "D in units of 1 token"
