"""Convert the public loss tables to the project's columns.

Usage: ``python data/convert.py SHARED_DIR``, where SHARED_DIR holds the source tables
``delphi_cpt_p33m67.csv``, ``delphi_cpt_replay_k020.csv``, ``olmo_ladder.csv``,
``gadre_overtraining.csv`` and ``data_constrained.csv``. Each result is checked, then written beside
this file.
"""

import sys
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
LAW = {"N": "params", "D": "tokens", "r": "replay"}
FIRST = ["params", "tokens", "replay", "ptpp", "loss", "run", "base", "domain"]
BUDGETS = {int(5e8): "500m", int(1e9): "1b", int(2e9): "2b", int(4e9): "4b", int(8e9): "8b"}
MIXES = {0.33: "p33m67", 0.5: "p50m50", 0.67: "p67m33"}


def delphi(source):
    """Name the bases and runs of a Delphi table."""
    table = source.rename(columns=LAW | {"D_pre": "pretrain_tokens"})
    table["base"] = [f"delphi-{scale:.0e}".replace("+", "") for scale in table["scale"]]
    budget = ("tok" + table["tokens"].map(BUDGETS)).where(table["ladder"] == "isotoken", "k0p20")
    rate = "lr" + (100 * table["lr_factor"]).round().astype(int).astype(str)
    table["run"] = table["base"] + "-" + table["replay"].map(MIXES) + "-" + budget + "-" + rate
    return table


def olmo(source):
    """Name the runs of the OLMo ladder, a rerun apart from the first run."""
    table = source.rename(columns=LAW | {"xC": "chinchilla_multiple"})
    suffix = table["rerun"].map({False: "", True: "-rerun"})
    table["run"] = table["size"] + table["chinchilla_multiple"].map("-{:g}xC".format) + suffix
    assert table["final"].all()
    return table.drop(columns=["size", "final"])


def gadre(source):
    """Rename the columns of the over-training testbed."""
    names = {
        "model": "run",
        "val_set": "domain",
        "chinchilla_multiplier": "chinchilla_multiple",
        "N_no_embed": "params_no_embed",
        "lo95": "loss_lo95",
        "hi95": "loss_hi95",
    }
    return source.rename(columns=LAW | names)


def datablations(source):
    """Name the runs with repeated data."""
    counts = source[["params", "unique_tokens", "tokens"]].astype(int).astype(str)
    source = source.assign(
        run=counts.agg("-".join, axis=1), domain="c4", ptpp=source["tokens"] / source["params"]
    )
    for column in ("params", "tokens", "unique_tokens"):
        source[column] = source[column].round().astype(int)
    return source


def write(table, name, rows):
    """Check a table and write it.

    Parameters
    ----------
    table : pandas.DataFrame
        Table in the project's columns, in any order.
    name : str
        Path below this folder.
    rows : int
        Number of rows expected.
    """
    for column in table.columns.intersection(["params", "tokens"]):
        assert (table[column] == table[column].round()).all(), column
        table = table.astype({column: int})
    first = [column for column in FIRST if column in table]
    table = table[first + [column for column in table if column not in first]]
    assert len(table) == rows, (name, len(table))
    assert table.notna().all(axis=None), name
    assert (table[["params", "tokens", "ptpp", "loss"]] > 0).all(axis=None), name
    assert not table.duplicated(["run", "domain"]).any(), name
    one = table.groupby("run")[["params", "tokens", "ptpp"]].nunique()
    assert (one == 1).all(axis=None), name
    order = [c for c in ("train_set", "params", "tokens", "run", "domain") if c in table]
    path = HERE / name
    path.parent.mkdir(exist_ok=True)
    table.sort_values(order).to_csv(path, index=False, lineterminator="\n")


def main(shared):
    """Convert every source table in the folder `shared`."""
    shared = Path(shared)
    ladders = delphi(pd.read_csv(shared / "delphi_cpt_p33m67.csv"))
    write(ladders[ladders["ladder"] == "isotoken"], "delphi/isotoken.csv", 45)
    write(ladders[ladders["ladder"] == "k020"], "delphi/k020.csv", 144)
    write(delphi(pd.read_csv(shared / "delphi_cpt_replay_k020.csv")), "delphi/replay.csv", 72)
    write(olmo(pd.read_csv(shared / "olmo_ladder.csv")), "olmo/ladder.csv", 330)
    write(gadre(pd.read_csv(shared / "gadre_overtraining.csv")), "gadre/overtraining.csv", 832)
    repeated = datablations(pd.read_csv(shared / "data_constrained.csv"))
    write(repeated, "datablations/c4.csv", 182)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
