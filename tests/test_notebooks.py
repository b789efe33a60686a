"""Every notebook runs from top to bottom, with the real sampler, and is kept with its outputs."""

from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
NAMES = ["anchors", "forecast", "own_law", "paper_workflow", "plan"]

nbformat = pytest.importorskip("nbformat")


def test_these_are_all():
    assert sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_it_is_kept_as_it_ran(name):
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    # A reader must be told what the data cannot say before a forecast or a plan.
    assert "check" in "".join(cell.source for cell in code)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # Jupyter's own
@pytest.mark.parametrize("name", NAMES)
def test_it_runs(name):
    client = pytest.importorskip("nbclient")
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    path = {"metadata": {"path": str(NOTEBOOKS)}}
    client.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=path).execute()
