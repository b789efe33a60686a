"""Make the posteriors of tests/data: `python -m tests.make_data [NAME ...]`.

Each is short, of a table that `tests.support` makes or that is shipped. With another sampler or
processor the draws change, and so do the recorded results that depend on them (tests/recorded.py).
"""

import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

import bayeslaw as bl
from tests import support
from tests.support import SAVED

PLAIN = {"discrepancy": "none", "effects": "none", "errors": "independent"}
SHORT: dict[str, Any] = {"chains": 2, "draws": 100, "tune": 200, "retry": False}


def short(law: Any, frame: pd.DataFrame, **settings: Any) -> Any:
    """A fit of a law, or of several, of 200 draws without discrepancy, by default."""
    chosen = SHORT | {"discrepancy": "none"} | settings
    fit = bl.fit_pool if isinstance(law, list) else bl.fit
    return fit(law, bl.from_frame(frame, "table"), seed=0, **chosen)


def skewed() -> Any:
    """Losses that are too high where runs are badly tuned."""
    frame = support.small().frame
    extra = np.random.default_rng(2).exponential(0.01, len(frame))
    return short(
        "chinchilla", frame.assign(loss=frame.loss * np.exp(extra)), likelihood="skewed"
    )


def groups() -> Any:
    """Correlated errors, three levels of effects, numeric labels of which some are missing."""
    frame = support.grouped(0).frame
    for column in ("base", "run"):
        frame[column] = frame[column].factorize()[0]
    frame.loc[[0, 40], ["base", "run"]] = np.nan
    return short("chinchilla", frame, errors="run", effects="size,base,run")


def columns() -> Any:
    """Repeated data, and checkpoints that are not annealed."""
    frame = support.small().frame.loc[np.repeat(range(20), 2)].reset_index(drop=True)
    place = np.arange(len(frame))
    frame = frame.assign(
        annealed=place % 2,
        unique_tokens=np.where(place % 3 == 0, 5e9, 1e13),
        loss=frame["loss"] * np.where(place % 2 == 0, 1.03, 1.0),
    )
    return short("chinchilla", frame)


def rates() -> Any:
    """Three learning rates, and rows at their best one."""
    frame = support.small().frame.loc[np.repeat(range(20), 3)].reset_index(drop=True)
    rate = np.tile([1e-4, 3e-4, 1e-3], 20)
    off = np.log(rate / 4e-4) + 0.2 * np.log(frame["params"] / 6e8)
    frame = frame.assign(loss=frame["loss"] * np.exp(0.03 * off**2), rate=rate)
    return short(
        "chinchilla", pd.concat([frame, support.small().frame[::3]], ignore_index=True)
    )


def of_bases(law: str, **settings: Any) -> Any:
    """Runs of eight bases with numeric labels; the last row has none."""
    frame = support.stages()
    labels = {name: frame[name].where(frame.index != 47) for name in ("base", "run")}
    return short(law, frame.assign(**labels), **settings)


def domain() -> Any:
    """One domain of a table of two, with losses of their bases at tokens = 0."""
    rows = support.stages().assign(
        domain="french", base=support.stages()["base"].astype(str)
    )
    bases = rows.drop_duplicates("base").assign(tokens=0.0, replay=1.0)
    french = pd.concat(
        [rows, bases.assign(loss=bases["start_loss"])], ignore_index=True
    )
    english = french.assign(loss=1.05 * french["loss"], domain="english")
    table = bl.from_frame(pd.concat([english, french], ignore_index=True), "table")
    return bl.fit("form1", table.query("domain == 'french'"), seed=0, **SHORT | PLAIN)


def world(domain: str, law: str) -> Any:
    rows = bl.paper_world().table(domain, seed=0).query("ptpp <= 31")
    return bl.fit(law, rows, seed=1, discrepancy="none", effects="none", **SHORT)


DELPHI = replace(support.delphi(), name="delphi/isotoken.csv").query("scale <= 3e20")
TINYCPT = "annealed and replay < 1 and ptpp <= 31 and params < 1e5 and seed == 0"

FITS: dict[str, Callable[[], Any]] = {
    # Four chains that pass the check; 40 draws that do not.
    "plain": lambda: bl.fit(
        "chinchilla", support.small(), seed=0, discrepancy="none", draws=500, tune=1000
    ),
    "unconverged": lambda: short(
        "chinchilla", support.small().frame, draws=20, tune=30
    ),
    # Discrepancies.
    "walk": lambda: short("chinchilla", support.small().frame, discrepancy="walk"),
    "curvature": lambda: short(
        "chinchilla",
        support.small().frame.query("params < 2e9").reset_index(drop=True),
        discrepancy="curvature",
    ),
    # Noise, priors, effects, columns.
    "runs": lambda: short(
        "chinchilla",
        support.grouped(0).frame.drop(columns="base"),
        errors="independent",
    ),
    "skewed": skewed,
    "floor_in_nats": lambda: short(
        "chinchilla",
        support.small().frame,
        priors={"E": "LogNormal(median=1.2, sigma=0.6)"},
    ),
    "groups": groups,
    "columns": columns,
    "rates": rates,
    # Laws of adaptation.
    "form1n": lambda: of_bases("form1n", discrepancy="auto"),
    "transfer": lambda: of_bases("transfer", effects="size", errors="independent"),
    "one_base": lambda: short(
        ["form1n", "transfer"],
        support.stages().query("base == 3").reset_index(drop=True),
        **PLAIN | {"discrepancy": "auto"},
    ),
    "domain": domain,
    "two_stages": lambda: bl.fit(
        "form1", support.paper_rows(), seed=0, discrepancy="none", draws=500, tune=1000
    ),
    "world_form3": lambda: world("french", "form3"),
    "world_source_form1": lambda: world("english_arabic", "form1"),
    # Measured losses.
    "delphi_chinchilla": lambda: bl.fit("chinchilla", DELPHI, seed=1, **SHORT),
    "tinycpt_form1": lambda: bl.fit(
        "form1",
        replace(
            bl.read_table(support.DATA / "tinycpt" / "french.csv"),
            name="tinycpt/french.csv",
        ).query(TINYCPT),
        seed=1,
        **SHORT | {"draws": 60},
    ),
}
"""What makes each posterior."""


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    for name in names or FITS:
        FITS[name]().save(SAVED / f"{name}.nc")


if __name__ == "__main__":
    main(sys.argv[1:])
