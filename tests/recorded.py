"""What commands print and figures show, as recorded in tests/data.

    python -m tests.recorded [documents] [figures]

records them again, after a change that is meant: ``documents.json`` has the document of each
command of `tests.test_cli.COMMANDS`, ``figures.json`` what `tests.test_figures.figures` show.
"""

import contextlib
import json
import math
import re
import sys
import tempfile
import warnings
from decimal import Decimal
from functools import partial

import numpy as np

import bayeslaw as bl
from tests.support import SAVED, saved

NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?")
POINTS = 7
"""Places at which a long line is recorded."""


def recorded(kind):
    """What is recorded, by name: documents or figures."""
    return json.loads((SAVED / f"{kind}.json").read_text())


def differences(new, old, where, relative, values=True):
    """Where a tree differs from the one recorded: in keys, kinds, lengths, words or numbers.

    A number in a text may also differ by one in its last digit. Without `values` only keys count.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        found = (
            []
            if new.keys() == old.keys()
            else [f"{where}: {list(new)} for {list(old)}"]
        )
        for key in old.keys() & new.keys():
            found += differences(new[key], old[key], f"{where}.{key}", relative, values)
        return found
    if isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            return [f"{where}: {len(new)} for {len(old)}"] if values else []
        pairs = enumerate(zip(new, old, strict=True))
        return [
            d
            for i, p in pairs
            for d in differences(*p, f"{where}[{i}]", relative, values)
        ]
    same = not values or new == old or alike(new, old, relative)
    return [] if same else [f"{where}: {new!r} for {old!r}"]


def alike(new, old, relative):
    close = partial(math.isclose, rel_tol=relative, abs_tol=1e-3 * relative)
    if {type(new), type(old)} <= {int, float}:
        return close(new, old)
    if {type(new), type(old)} != {str}:
        return False
    try:
        return close(float(new), float(old))
    except ValueError:
        pairs = zip(NUMBER.findall(new), NUMBER.findall(old), strict=False)
        ends = [
            (float(a), float(b), 10.0 ** Decimal(b).as_tuple().exponent)
            for a, b in pairs
        ]
        near = all(close(a, b) or abs(a - b) < 1.01 * unit for a, b, unit in ends)
        return near and NUMBER.sub("0", new) == NUMBER.sub("0", old)


# -- figures ---------------------------------------------------------------------------------------


def some(values):
    """Numbers of an array at evenly spaced places, to four digits."""
    flat = np.ma.filled(np.ma.asarray(values, float), np.nan).ravel()
    places = (
        np.unique(np.linspace(0, len(flat) - 1, POINTS).astype(int))
        if len(flat)
        else []
    )
    return [len(flat), *(f"{flat[i]:.4g}" for i in places)]


def paths_of(collection):
    offsets = collection.get_offsets()
    shapes = (
        [offsets]
        if len(offsets) > 1
        else [path.vertices for path in collection.get_paths()]
    )
    points = [np.asarray(v, float) for v in shapes if len(v)]
    return np.concatenate(points) if points else np.empty((0, 2))


def data_of(figure):
    """What a figure shows, by panel: coordinates in data units, and texts."""
    figure.draw_without_rendering()
    panels = []
    for ax in figure.axes:
        drawn = [paths_of(collection) for collection in ax.collections]
        drawn += [np.transpose(line.get_data(orig=False)) for line in ax.lines]
        drawn = [points for points in drawn if len(points)]
        boxes = [
            patch.get_extents().transformed(ax.transData.inverted())
            for patch in ax.patches
        ]
        named = [
            ax.get_title(),
            ax.get_title(loc="left"),
            ax.get_xlabel(),
            ax.get_ylabel(),
        ]
        panels.append(
            {
                "x": [some(points[:, 0]) for points in drawn],
                "y": [some(points[:, 1]) for points in drawn],
                "patches": [some([*box.intervalx, *box.intervaly]) for box in boxes],
                "limits": some([*ax.get_xlim(), *ax.get_ylim()]),
                "texts": [text for text in named if text]
                + [t.get_text() for t in ax.texts],
            }
        )
    legends = [
        text.get_text() for legend in figure.legends for text in legend.get_texts()
    ]
    return {"panels": panels, "legend": legends, "title": figure.get_suptitle()}


def plan(**limits):
    """A plan of the paper's use case; its short fits have not converged."""
    world = bl.paper_world()
    fits = {"target": saved("world_form3"), "source": saved("world_source_form1")}
    asked = {n: f.accepted({"unconverged", "beyond-evidence"}) for n, f in fits.items()}
    return bl.plan(**asked | {**world.limits, "baseline": world.baseline(), **limits})


def main(kinds):
    """Record documents, figures or both."""
    from tests import test_cli, test_figures

    warnings.simplefilter("ignore")
    for kind in kinds or ("documents", "figures"):
        if kind == "figures":
            found = {
                name: data_of(draw()) for name, draw in test_figures.figures().items()
            }
        else:
            with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
                test_cli.prepare()
                found = {name: test_cli.document(name)[0] for name in test_cli.COMMANDS}
        lines = (
            f"{json.dumps(name)}: {json.dumps(each)}" for name, each in found.items()
        )
        (SAVED / f"{kind}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
