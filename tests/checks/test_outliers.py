"""Outliers are named, and the forecast without them is shown."""

import numpy as np
import pytest

import bayeslaw as bl
from bayeslaw.checks.outliers import outliers_part
from bayeslaw.inference.fitting import refit
from tests.support import CHINCHILLA

SHAPES = [
    "256x10",
    "256x40",
    "512x12",
    "768x3",
    "512x25",
    "768x20",
    "1024x15",
    "1024x28",
    "1536x18",
]


@pytest.fixture(scope="module")
def shaped():
    """Runs of nine shapes; the one of three layers lies 5 % above the law."""
    sizes = dict(zip(SHAPES, np.geomspace(1e8, 1.3e9, 9), strict=True))
    design = bl.grid(params=list(sizes.values()), tokens=[1e10, 3e10, 1e11])
    frame = bl.simulate("chinchilla", CHINCHILLA, design, sigma=0.002, seed=1).frame
    frame["run"] = frame["params"].map({n: shape for shape, n in sizes.items()})
    effect = dict(zip(SHAPES, np.random.default_rng(0).normal(0, 0.002, 9), strict=True))
    effect["768x3"] = 0.05
    loss = frame["loss"] * np.exp(frame["run"].map(effect))
    return refit("chinchilla", bl.from_frame(frame.assign(loss=loss)), 0, effects="auto")


def test_a_run_far_from_the_others_is_named(shaped):
    part = outliers_part(shaped, bl.grid(params=3e9, tokens=1e11))
    assert part.frame["label"].tolist() == ["768x3"]
    assert "run 768x3 (+4" in part.words[0]
    assert part.facts["half_width_without"] < part.facts["half_width"] / 2
    assert f"± {part.facts['half_width_without']:.2g} % instead of" in part.words[1]
    assert part.level == "ok"  # the wide band allows for the move


def test_a_row_far_from_the_others_is_named(posterior):
    frame = posterior.table.frame.copy()
    frame.loc[7, "loss"] *= 1.1
    again = refit(posterior.spec, bl.from_frame(frame), 0)
    part = outliers_part(again, None)
    assert part.frame["label"].tolist() == [7]
    assert part.words[0].startswith(
        "Farthest from the others, in loss: the row at params 300M, tokens 10B (+9"
    )
    assert outliers_part(posterior, None).frame.empty
