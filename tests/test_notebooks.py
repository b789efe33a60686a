"""Every notebook prints what it shows when it runs from top to bottom, with the real sampler."""

import re
from html import unescape
from pathlib import Path

import pytest

from tests.pages import NUMBER, agree

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
NAMES = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))

NOT_SHIPPED = {"chinchilla": "svg_extracted_data.csv"}
"""The file without a licence that a notebook reads beside it."""

nbformat = pytest.importorskip("nbformat")


def read(name):
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def text(output):
    data = output.get("data", {})
    if 'class="bayeslaw"' in (html := data.get("text/html", "")):
        return unescape(re.sub(r"<style>.*?</style>|<[^>]*>", " ", html, flags=re.S))
    return output.get("text") or data.get("text/plain", "")


def shown(cell):
    """Text that a cell shows; of a figure, its size."""
    found = "\n".join(map(text, cell.outputs))
    # The table of the package is named by its path.
    return re.sub(r"\S*/(data/[\w/]+\.csv)", r"\1", found).strip()


@pytest.mark.parametrize("name", NAMES)
def test_it_is_kept_as_it_ran(name):
    notebook = read(name)
    nbformat.validate(notebook)
    cells = code(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    # A reader must be told what the data cannot say before a forecast or a plan.
    assert "check" in "".join(cell.source for cell in cells)


@pytest.mark.parametrize("name", NAMES)
def test_its_prose_quotes_no_number_that_a_cell_does_not_show(name):
    notebook = read(name)
    there = set()
    for cell in code(notebook):
        there |= {
            float(number) for number in NUMBER.findall(f"{cell.source}\n{shown(cell)}")
        }
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            prose = re.sub(r"\$.*?\$|`.*?`", "", cell.source, flags=re.S)
            for number, unit in re.findall(NUMBER.pattern + r"(B| %|)", prose):
                values = {
                    float(number),
                    float(number) * {"B": 1e9, " %": 0.01}.get(unit, 1),
                }
                assert values & there, (number, cell.source)


@pytest.mark.release
@pytest.mark.filterwarnings("default")  # Jupyter's own
@pytest.mark.parametrize("name", NAMES)
def test_it_prints_what_it_shows(name):
    client = pytest.importorskip("nbclient")
    file = NOT_SHIPPED.get(name)
    if file is not None and not (NOTEBOOKS / file).exists():
        pytest.skip(f"notebooks/{file} has no licence, so it is not shipped.")
    notebook, kept = read(name), read(name)
    path = {"metadata": {"path": str(NOTEBOOKS)}}
    client.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources=path
    ).execute()
    for now, before in zip(code(notebook), code(kept), strict=True):
        outputs = shown(now), shown(before)
        if "verdict" in before.metadata.get(
            "tags", ()
        ):  # its findings depend on the draws
            outputs = tuple(output.partition("\n")[0] for output in outputs)
        assert agree(*outputs), f"{before.source}\n{shown(now)}"
