"""The command that writes a first analysis to start from: ``init``."""

import json as jsonlib
import shutil
from pathlib import Path
from typing import Annotated

import typer

from bayeslaw.cli.app import command, show
from bayeslaw.cli.options import Json
from bayeslaw.common.errors import FileError
from bayeslaw.common.files import atomic_write

TEMPLATE = Path(__file__).parent.parent / "templates" / "analysis.txt"
MARK, TEXT = "# %%", "# %% [markdown]"
"""Lines that start a cell, and a cell of text."""
NAMES = ("losses.csv", "analysis.py", "analysis.ipynb")


@command("bayeslaw init first", "bayeslaw init .")
def init(
    *,
    folder: Annotated[
        Path, typer.Argument(help="Folder; made if it is not there.", show_default=False)
    ],
    json: Json = False,
) -> None:
    """Write a sample table, a commented script and the same as a notebook.

    The files are losses.csv, analysis.py and analysis.ipynb; both analyses run as they are. None is
    overwritten.
    """
    from bayeslaw.cli.terminal import Rendered
    from bayeslaw.tables.reading import example_file

    if there := [name for name in NAMES if (folder / name).exists()]:
        raise FileError(f"{folder / there[0]} exists; name another folder, or move it.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{folder}: cannot write: {error.strerror or error}.") from error
    text = TEMPLATE.read_text(encoding="utf-8")
    notebook = jsonlib.dumps(as_notebook(text), indent=1) + "\n"
    with atomic_write(folder / NAMES[0]) as temporary:
        shutil.copyfile(example_file(), temporary)
    for name, content in zip(NAMES[1:], (text, notebook), strict=True):
        with atomic_write(folder / name) as temporary:
            temporary.write_text(content, encoding="utf-8")
    files = [str(folder / name) for name in NAMES]
    lines = [f"wrote {', '.join(files)}", f"next: cd {folder} && python analysis.py"]
    show(json, "init", Rendered({"files": files}, list(lines)), {})


def as_notebook(text: str) -> dict[str, object]:
    r"""Notebook (nbformat 4.5) of a script in cells.

    Examples
    --------
    >>> cells = as_notebook("# %% [markdown]\n# Sum\n\n# %%\n1 + 1\n")["cells"]
    >>> [(cell["cell_type"], cell["source"]) for cell in cells]
    [('markdown', 'Sum'), ('code', '1 + 1')]
    """
    cells: list[dict[str, object]] = []
    for part in ("\n" + text).split("\n" + MARK)[1:]:
        head, _, body = part.partition("\n")
        about: dict[str, object] = {"id": f"cell-{len(cells)}", "metadata": {}}
        if MARK + head == TEXT:
            lines = [line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines()]
            cells.append(about | {"cell_type": "markdown", "source": "\n".join(lines)})
        else:
            code = {"cell_type": "code", "source": body.strip()}
            cells.append(about | code | {"execution_count": None, "outputs": []})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
