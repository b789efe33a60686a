"""The shipped tables and their splits, as the benchmarks and docs use them."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

import bayeslaw as bl

DATA = Path(__file__).parent.parent / "data"
CPT = ("form1", "form2", "form3", "dcpt")


def splits() -> Iterator[tuple[str, bl.LossTable, bl.LossTable, tuple[str, ...]]]:
    """Name, training rows, test rows, and laws of every split of a measured table."""
    delphi = bl.read_table(DATA / "delphi/isotoken.csv")
    yield "delphi", *delphi.split("scale <= 3e20", "scale >= 1e21"), ("chinchilla",)
    ladder = DATA / "olmo/ladder.csv"
    for domain in sorted(pd.read_csv(ladder)["domain"].unique()):
        table = bl.read_table(ladder, where=f"domain == '{domain}'")
        yield f"olmo {domain}", *table.split("ptpp < 50", "ptpp > 90"), ("chinchilla",)
    for corpus in ("c4_original", "rpj", "rw_original"):
        where = f"domain == 'c4_val' and train_set == '{corpus}'"
        table = bl.read_table(DATA / "gadre/overtraining.csv", where=where)
        yield f"gadre {corpus}", *table.split("ptpp <= 40", "ptpp > 40"), ("chinchilla",)
    for domain in ("french", "english"):
        path = DATA / f"tinycpt/{domain}.csv"
        if path.is_file():
            table = bl.read_table(path, where="annealed and replay < 1")
            for train in ("ptpp <= 31", "ptpp <= 124"):
                yield f"tinycpt {domain} {train}", *table.split(train, "ptpp == 279"), CPT
            largest = table.frame["params"].max()
            sizes = table.split(f"params < {largest}", f"params == {largest}")
            yield f"tinycpt {domain} largest size", *sizes, CPT


def synthetic(seed: int = 0) -> Iterator[tuple[str, bl.LossTable, bl.LossTable, tuple[str, ...]]]:
    """The same for the synthetic world."""
    for domain in ("french", "english_arabic"):
        table = bl.paper_world().table(domain, seed=seed)
        yield f"synthetic {domain}", *table.split("ptpp <= 31", "ptpp == 279"), CPT
