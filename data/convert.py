"""Convert the public loss tables to the project's columns.

Usage: ``python data/convert.py SHARED_DIR``, where SHARED_DIR holds the source tables
``delphi_cpt_p33m67.csv``, ``delphi_cpt_replay_k020.csv``, ``delphi_replay_large.csv``,
``delphi_clean_isotoken.csv``, ``olmo_ladder.csv``, ``gadre_overtraining.csv``,
``data_constrained.csv``, ``finetuning_rectified.csv``, ``multipowerlaw_curves.csv``,
``starcoder_two_phase.csv``, ``optimizers.csv`` and ``routing_moe_final.csv``. Each result is
checked, then written beside this file.
"""

import sys
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
LAW = {"N": "params", "D": "tokens", "r": "replay"}
FIRST = [
    "params", "tokens", "samples", "replay", "ptpp", "loss", "code_bpb", "run", "base", "domain",
    "role",
]  # fmt: skip
LOSSES = ["run", "domain"]
"""Columns that identify a row, where a run has one loss on each domain."""
EARLY, EVERY = 8192, 4
"""Steps up to which every row of a loss curve is kept; beyond, one in so many."""
BUDGETS = {
    int(5e8): "500m",
    int(1e9): "1b",
    int(2e9): "2b",
    int(4e9): "4b",
    int(8e9): "8b",
}
MIXES = {0.33: "p33m67", 0.5: "p50m50", 0.67: "p67m33"}


def delphi(source):
    """Name the bases and runs of a Delphi table."""
    table = source.rename(columns=LAW | {"D_pre": "pretrain_tokens"})
    table["base"] = [f"delphi-{scale:.0e}".replace("+", "") for scale in table["scale"]]
    budget = ("tok" + table["tokens"].map(BUDGETS)).where(
        table["ladder"] == "isotoken", "k0p20"
    )
    rate = "lr" + (100 * table["lr_factor"]).round().astype(int).astype(str)
    table["run"] = (
        table["base"] + "-" + table["replay"].map(MIXES) + "-" + budget + "-" + rate
    )
    return table


def olmo(source):
    """Name the runs of the OLMo ladder, a rerun apart from the first run."""
    table = source.rename(columns=LAW | {"xC": "chinchilla_multiple"})
    suffix = table["rerun"].map({False: "", True: "-rerun"})
    table["run"] = (
        table["size"] + table["chinchilla_multiple"].map("-{:g}xC".format) + suffix
    )
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
        run=counts.agg("-".join, axis=1),
        domain="c4",
        ptpp=source["tokens"] / source["params"],
    )
    for column in ("params", "tokens", "unique_tokens"):
        source[column] = source[column].round().astype(int)
    return source


def rectified(source):
    """The fine-tuned decoder-only models; samples are not tokens, and keep their name."""
    table = source[source["decoder_only"]].drop(columns="decoder_only")
    table["pretrain_tokens"] = table["pretrain_tokens"].astype("Int64")
    return table


def curves(source):
    """Loss curves with fewer late rows; the first and last of each run are kept."""
    place = source.groupby("run").cumcount()
    last = ~source.duplicated("run", keep="last")
    return source[(source["step"] <= EARLY) | (place % EVERY == 0) | last]


def starcoder(source):
    """The second phase as adaptation of the model of the first."""
    names = {
        "params_nominal": "params",
        "phase1_tokens": "tokens",
        "phase0_tokens": "pretrain_tokens",
        "phase0_code_share": "pretrain_code_share",
    }
    table = source.rename(columns=names).drop(columns="phase1_code_share")
    return table.assign(ptpp=(table["pretrain_tokens"] / table["params"]).round(4))


def optimizers(source):
    """Name the runs of the optimizer sweep."""
    table = source.rename(columns={"chinchilla": "chinchilla_multiple"}).drop(
        columns="flops"
    )
    names = (
        table["scale"],
        table["optimizer"],
        table["chinchilla_multiple"].astype(str) + "x",
    )
    return table.assign(run=names[0] + "-" + names[1] + "-" + names[2])


def routing(source):
    """Final losses of routed models; ``params`` is the active count."""
    assert (source["params_total"] == source["params_total"].round()).all()
    table = source.drop(columns=["flops", "hyper_id", "ptpp"])
    return table.astype({"params_total": "int64"})


def write(table, name, rows, key=LOSSES):
    """Check a table and write it.

    Parameters
    ----------
    table : pandas.DataFrame
        Table in the project's columns, in any order.
    name : str
        Path below this folder.
    rows : int
        Number of rows expected.
    key : list of str
        Columns that identify a row.
    """
    for column in table.columns.intersection(["params", "tokens"]):
        assert (table[column] == table[column].round()).all(), column
        table = table.astype({column: int})
    first = [column for column in FIRST if column in table]
    table = table[first + [column for column in table if column not in first]]
    assert len(table) == rows, (name, len(table))
    complete = table.drop(columns="pretrain_tokens", errors="ignore")
    assert complete.notna().all(axis=None), name
    counts = ["params", "tokens", "step", "ptpp", "loss", "code_bpb"]
    assert (table[table.columns.intersection(counts)] > 0).all(axis=None), name
    assert not table.duplicated(key).any(), name
    if key == LOSSES:
        known = table.columns.intersection(["params", "tokens", "ptpp"])
        one = table.groupby("run")[list(known)].nunique()
        assert (one == 1).all(axis=None), name
    order = [c for c in ("train_set", "params", "tokens", *key) if c in table]
    path = HERE / name
    path.parent.mkdir(exist_ok=True)
    table.sort_values(order).to_csv(path, index=False, lineterminator="\n")


def main(shared):
    """Convert every source table in the folder `shared`."""
    shared = Path(shared)
    ladders = delphi(pd.read_csv(shared / "delphi_cpt_p33m67.csv"))
    write(ladders[ladders["ladder"] == "isotoken"], "delphi/isotoken.csv", 45)
    write(ladders[ladders["ladder"] == "k020"], "delphi/k020.csv", 144)
    mixes = delphi(pd.read_csv(shared / "delphi_cpt_replay_k020.csv"))
    mixes = pd.concat([mixes, pd.read_csv(shared / "delphi_replay_large.csv")])
    write(mixes.assign(role="target"), "delphi/replay.csv", 95)
    clean = pd.read_csv(shared / "delphi_clean_isotoken.csv")
    write(clean, "delphi/clean.csv", 90)
    own = clean.query("domain == 'math_clean_seen_1e22' and ladder == 'isotoken'")
    write(own, "delphi/example.csv", 36)
    write(olmo(pd.read_csv(shared / "olmo_ladder.csv")), "olmo/ladder.csv", 330)
    write(
        gadre(pd.read_csv(shared / "gadre_overtraining.csv")),
        "gadre/overtraining.csv",
        832,
    )
    repeated = datablations(pd.read_csv(shared / "data_constrained.csv"))
    write(repeated, "datablations/c4.csv", 182)
    tuned = rectified(pd.read_csv(shared / "finetuning_rectified.csv"))
    write(tuned, "rectified/finetuning.csv", 810, ["base", "domain", "samples"])
    thinned = curves(pd.read_csv(shared / "multipowerlaw_curves.csv"))
    write(thinned, "multipowerlaw/curves.csv", 2571, ["run", "step"])
    phases = starcoder(pd.read_csv(shared / "starcoder_two_phase.csv"))
    write(phases.assign(role="target"), "starcoder/phases.csv", 143, ["run"])
    write(
        optimizers(pd.read_csv(shared / "optimizers.csv")), "optimizers/losses.csv", 96
    )
    write(
        routing(pd.read_csv(shared / "routing_moe_final.csv")),
        "routing_moe/final.csv",
        223,
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
