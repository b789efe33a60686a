"""The shipped tables and their splits, as the benchmarks and docs use them; their common option."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

import bayeslaw as bl

DATA = Path(__file__).parent.parent / "data"
CHINCHILLA = ("chinchilla",)
CPT = ("form1", "form1n", "form2", "form3", "dcpt", "transfer", "adaptation")
POOL = CPT[-1]
"""A pool of laws, which has no mode and no Huber fit."""
SMOKE = {"chains": 2, "draws": 20, "tune": 20, "retry": False}
"""Settings of a fit under ``--smoke``."""


type Split = tuple[str, str, bl.LossTable, bl.LossTable, tuple[str, ...]]
"""Name, source, training rows, test rows, and laws."""


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """Parser of a benchmark: its docstring's first line, and the option ``--smoke``."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument(
        "--smoke", action="store_true", help="run in seconds; the numbers mean nothing"
    )
    return parser


def benched(folder: Path) -> Iterator[Split]:
    """Splits of tables outside the project, as a file splits.json in a folder lists them."""
    for each in json.loads((folder / "splits.json").read_text()):
        table = bl.read_table(folder.parent / each["file"])
        yield each["name"], each["source"], *table.split(each["train"], each["test"]), CHINCHILLA


def splits() -> Iterator[Split]:
    """Every split of a measured table that the project ships."""
    delphi = bl.read_table(DATA / "delphi/isotoken.csv")
    yield "delphi", "delphi", *delphi.split("scale <= 3e20", "scale >= 1e21"), CHINCHILLA
    ladder = DATA / "olmo/ladder.csv"
    for domain in sorted(pd.read_csv(ladder)["domain"].unique()):
        table = bl.read_table(ladder, where=f"domain == '{domain}'")
        yield f"olmo {domain}", "olmo", *table.split("ptpp < 50", "ptpp > 90"), CHINCHILLA
    for corpus in ("c4_original", "rpj", "rw_original"):
        where = f"domain == 'c4_val' and train_set == '{corpus}'"
        table = bl.read_table(DATA / "gadre/overtraining.csv", where=where)
        yield f"gadre {corpus}", "gadre", *table.split("ptpp <= 40", "ptpp > 40"), CHINCHILLA
    measured = {"tinycpt": ("french", "english"), "tinycode": ("python", "english")}
    for source, domain in ((s, d) for s, domains in measured.items() for d in domains):
        path = DATA / source / f"{domain}.csv"
        if path.is_file():
            table = bl.read_table(
                path, where="annealed and replay < 1", source=path.parent / "english.csv"
            )
            largest, last = table.frame["params"].max(), table.frame["ptpp"].max()
            parts = {
                "stage from two": ("ptpp <= 31", "ptpp == 279"),
                "stage from four": ("ptpp <= 124", "ptpp == 279"),
                "size": (f"params < {largest}", f"params == {largest}"),
                "corner": (
                    f"not (params == {largest} and ptpp == {last})",
                    f"params == {largest} and ptpp == {last}",
                ),
                "longer": ("tokens <= 8 * params", "tokens > 8 * params"),
                "low replay": ("replay > 0.1", "replay <= 0.1"),
            }
            for name, (train, test) in parts.items():
                yield f"{source} {domain} {name}", source, *table.split(train, test), CPT


def synthetic(seed: int = 0) -> Iterator[Split]:
    """The same for the synthetic world."""
    for domain in ("french", "english_arabic"):
        table = bl.paper_world().table(domain, seed=seed)
        yield f"synthetic {domain}", "synthetic", *table.split("ptpp <= 31", "ptpp == 279"), CPT
