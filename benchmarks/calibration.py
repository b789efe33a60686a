"""Simulation-based calibration."""

from argparse import Namespace
from functools import partial
from typing import Any

import pandas as pd

from bayeslaw.laws.lawfiles import models_dir
from benchmarks.runner import SMOKE, Jobs, experiment
from benchmarks.sbc import Calibration, calibrate

LAWS = sorted(path.stem for path in models_dir().glob("*.toml"))
PLAIN = {"discrepancy": "none", "effects": "none"}
SETTINGS: list[dict[str, Any]] = [
    *({"law": law} for law in LAWS),
    *({"law": law, **PLAIN} for law in LAWS),
    {"law": "transfer", "role": "source"},
    {"law": "chinchilla", "discrepancy": "curvature"},
    {"law": "form1", "discrepancy": "adaptation"},
    {"law": "chinchilla", **PLAIN, "effects": ("base",)},
    {"law": "chinchilla", **PLAIN, "errors": "run"},
    *(
        {"law": "chinchilla", **PLAIN, "likelihood": each}
        for each in ("skewed", "normal", "huber")
    ),
]
"""Settings of `benchmarks.sbc.calibrate`; the first are the default model of each law."""


def ranks(
    setting: dict[str, Any], simulations: int, seeds: int, sampler: dict
) -> dict[str, Any]:
    """Quantities whose ranks stay in their simultaneous 95 % envelope; 1 in 20 leaves it by chance.

    `spread` is the variance of new losses' ranks over that of uniform ones: above 1, bands are too
    narrow. Ranks of several seeds are pooled.
    """
    parts = [
        calibrate(**setting, simulations=simulations, seed=seed, **sampler)
        for seed in range(seeds)
    ]
    every = pd.concat([part.ranks for part in parts], ignore_index=True)
    divergent = [share for part in parts for share in part.divergent]
    found = Calibration(every, sum(part.failed for part in parts), divergent)
    table = found.envelope()
    return {
        "simulations": len(found.ranks),
        "left out": found.failed,
        "diverging": sum(share > 0 for share in divergent),
        "above .1 %": sum(share > 0.001 for share in divergent),
        "quantities": len(table),
        "inside": int(table["inside"].sum()),
        "largest excess": table["excess"].max(),
        "spread": table["spread"].filter(like="loss ").mean(),
        "outside": " ".join(table.index[~table["inside"]]),
    }


@experiment(simulations=100, seeds=1, draws=0)
def calibration(options: Namespace) -> Jobs:
    """Simulation-based calibration of every law, and of options with the law of Chinchilla."""
    sampler = {"draws": options.draws, "retry": False} if options.draws else {}
    settings = SETTINGS
    if options.smoke:
        settings, sampler = (
            [{"law": "chinchilla", **PLAIN}],
            SMOKE | {"draws": 300, "tune": 300},
        )
    for setting in settings:
        words = [
            f"{k}={'+'.join(v) if isinstance(v, tuple) else v}"
            for k, v in setting.items()
        ]
        name = " ".join(words).removeprefix("law=")
        many = 3 if options.smoke else options.simulations
        yield {"setting": name}, partial(ranks, setting, many, options.seeds, sampler)
