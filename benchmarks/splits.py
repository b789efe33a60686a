"""The shipped tables and their splits, as the experiments and docs use them."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

import bayeslaw as bl
from bayeslaw.tables.bases import starting

DATA = Path(__file__).parent.parent / "data"
CHINCHILLA = ("chinchilla",)
CPT = ("form1", "form1n", "form2", "form3", "dcpt", "transfer", "adaptation")
SHARES = ("dcpt", "mixture")
POOL = CPT[-1]
"""A pool of laws, which has no mode and no Huber fit."""

type Split = tuple[str, str, bl.LossTable, bl.LossTable, tuple[str, ...]]
"""Name, source, training rows, test rows, and laws."""


def benched(folder: Path | None) -> Iterator[Split]:
    """Splits of tables outside the project, as a file splits.json in a folder lists them."""
    if folder is None:
        return
    for each in json.loads((folder / "splits.json").read_text()):
        table = bl.read_table(folder.parent / each["file"])
        yield (
            each["name"],
            each["source"],
            *table.split(each["train"], each["test"]),
            CHINCHILLA,
        )


def shipped() -> Iterator[Split]:
    """Every split of a measured table that the project ships."""
    delphi = bl.read_table(DATA / "delphi/isotoken.csv")
    yield (
        "delphi",
        "delphi",
        *delphi.split("scale <= 3e20", "scale >= 1e21"),
        CHINCHILLA,
    )
    ladder = DATA / "olmo/ladder.csv"
    for domain in sorted(pd.read_csv(ladder)["domain"].unique()):
        table = bl.read_table(ladder, where=f"domain == '{domain}'")
        yield (
            f"olmo {domain}",
            "olmo",
            *table.split("ptpp < 50", "ptpp > 90"),
            CHINCHILLA,
        )
    for corpus in ("c4_original", "rpj", "rw_original"):
        where = f"domain == 'c4_val' and train_set == '{corpus}'"
        table = bl.read_table(DATA / "gadre/overtraining.csv", where=where)
        yield (
            f"gadre {corpus}",
            "gadre",
            *table.split("ptpp <= 40", "ptpp > 40"),
            CHINCHILLA,
        )
    measured = {"tinycpt": ("french", "english"), "tinycode": ("python", "english")}
    for source, domain in ((s, d) for s, domains in measured.items() for d in domains):
        path = DATA / source / f"{domain}.csv"
        if path.is_file():
            table = bl.read_table(
                path,
                where="annealed and replay < 1",
                source=path.parent / "english.csv",
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
                "middle replay": ("replay != 0.25", "replay == 0.25"),
                "high replay": ("replay < 0.5", "replay == 0.5"),
            }
            for name, (train, test) in parts.items():
                yield (
                    f"{source} {domain} {name}",
                    source,
                    *table.split(train, test),
                    CPT,
                )


def one_seed_tables(folder: Path | None) -> Iterator[tuple[str, bl.LossTable]]:
    """Sweeps of continual pre-training in which each size and budget has one base."""
    where = "annealed and replay < 1"
    for source, domain in (
        ("tinycpt", "french"),
        ("tinycpt", "english"),
        ("tinycode", "python"),
        ("tinycode", "english"),
    ):
        path = DATA / source / f"{domain}.csv"
        yield (
            f"{source} {domain}",
            bl.read_table(
                path, where=f"{where} and seed == 0", source=path.parent / "english.csv"
            ),
        )
    if folder is not None:
        path = folder / "en_de_source.csv"
        yield "third source", bl.read_table(path, where=where, source=path)


def adapted() -> Iterator[Split]:
    """Splits of tables of real models that are adapted, as the READMEs in data/ list them."""
    parts = {
        "scale": (
            "ladder == 'isotoken' and scale <= 3e20",
            "ladder == 'isotoken' and scale > 3e20",
        ),
        "base": (
            "ladder == 'isotoken' and scale <= 9e19",
            "ladder == 'isotoken' and scale > 9e19",
        ),
        "tokens": (
            "ladder == 'isotoken' and D <= 2e9",
            "ladder == 'isotoken' and D > 2e9",
        ),
        "k020": ("ladder == 'isotoken'", "ladder == 'k020'"),
    }
    sets = {"clean": "math_clean_seen_1e22", "contaminated": "math_4plus"}
    for which, domain in sets.items():
        table = bl.read_table(DATA / "delphi/clean.csv", where=f"domain == '{domain}'")
        for name, queries in parts.items():
            yield (
                f"{which} {name}",
                f"delphi {which}",
                *table.split(*queries),
                CHINCHILLA,
            )
    yield from _tuned()
    yield from _curves()


def ratios(folder: Path | None) -> Iterator[Split]:
    """Splits of tables along replay; those of a folder outside the project are mixtures."""
    parts = {
        "size": ("scale <= 2e20", "scale == 1e21"),
        "1e22": ("scale <= 2e20", "scale == 1e22"),
        "high": ("scale <= 1e21 and replay < .6", "scale <= 1e21 and replay > .6"),
        "middle": ("scale <= 1e21 and replay != .5", "scale <= 1e21 and replay == .5"),
        "low": ("scale <= 1e21 and replay > .4", "scale <= 1e21 and replay < .4"),
    }
    for rate in (0.67, 0.5, 0.83, 0.33):
        table = bl.read_table(DATA / "delphi/replay.csv", where=f"lr_factor == {rate}")
        for name, queries in parts.items():
            source = "delphi 1e22" if name == "1e22" else "delphi"
            yield f"delphi {name} lr{rate:g}", source, *table.split(*queries), SHARES
    code = "(1 - replay) * tokens + pretrain_code_share * pretrain_tokens"
    share = "pretrain_code_share"
    columns = {"loss": "code_bpb", "tokens": code, "replay": "replay"}
    table = bl.read_table(
        DATA / "starcoder/phases.csv",
        columns=columns,
        where="replay < 1",
        loss_unit="bits-per-byte",
        bytes_per_token=1,
    )
    for name, train, test in (
        ("low", f"{share} == 0 and r >= .6", f"{share} == 0 and r < .6"),
        ("high", f"{share} == 0 and r <= .75", f"{share} == 0 and r > .75"),
        ("phase", f"{share} <= .25", f"{share} > .25"),
    ):
        yield f"starcoder {name}", "starcoder", *table.split(train, test), SHARES
    if folder is not None:
        yield from _mixtures(folder / "mixlaw_redpajama.csv")


# Shares of a domain's text above the first are held out as high, below the second as low.
CUTS = {
    "arxiv": (0.2, 0.1),
    "books": (0.15, 0.05),
    "github": (0.2, 0.1),
    "stackexchange": (0.1, 0.05),
    "wikipedia": (0.12, 0.05),
}


def _mixtures(path: Path) -> Iterator[Split]:
    """Losses on five domains of models of five sizes on mixtures, at three budgets of a run."""
    frame = pd.read_csv(path).assign(role="target")
    frame = frame[frame["tokens"].isin([10485760000, 18874368000, 31457280000])]
    frame = frame[
        (frame["mix"] != 999)
        & (frame.groupby("mix")["params"].transform("nunique") > 3)
    ]
    frame = frame.drop_duplicates(["domain", "params", "tokens", "mix"])
    columns = ["params", "tokens", "loss", "replay", "run", "role"]
    for domain, (high, low) in CUTS.items():
        table = bl.from_frame(
            frame.loc[frame["domain"] == domain, columns], f"mixlaw {domain}"
        )
        for name, train, test in (
            ("low", f"replay > {1 - high}", f"replay <= {1 - high}"),
            ("high", f"replay < {1 - low}", f"replay >= {1 - low}"),
            ("size", "params < 2.5e8", "params > 2.5e8"),
        ):
            yield f"mixlaw {domain} {name}", "mixlaw", *table.split(train, test), SHARES


def _tuned() -> Iterator[Split]:
    """Splits of fine-tuned released models; D is in samples."""
    frame = pd.read_csv(DATA / "rectified/finetuning.csv").rename(
        columns={"samples": "tokens"}
    )
    frame = frame[~frame["base"].str.contains("mGPT")]
    few = "tokens <= 102400", "tokens > 102400"
    for domain, own in frame.groupby("domain"):
        for family in ("Cerebras", "OPT", "GPT2"):
            rows = own[own["family"] == family].drop(columns="pretrain_tokens")
            table = bl.from_frame(rows, "finetuning")
            largest = int(rows["params"].max())
            sizes = f"params < {largest}", f"params == {largest}"
            for name, queries in {"samples": few, "size": sizes}.items():
                label = f"rectified {domain} {family} {name}"
                yield label, f"rectified {name}", *table.split(*queries), CHINCHILLA
        rows = own[own["family"].isin(("Cerebras", "OPT"))]
        rows = rows.assign(ptpp=rows["pretrain_tokens"] / rows["params"], replay=0)
        table = bl.from_frame(rows, "finetuning")
        for name, queries in {
            "samples": few,
            "size": ("params < 2e9", "params > 2e9"),
        }.items():
            label = f"rectified {domain} both {name}"
            split = starting(table, table).split(*queries)
            yield label, f"rectified both {name}", *split, ("transfer",)


def _curves() -> Iterator[Split]:
    """Annealed ends of loss curves from un-annealed rows; D is in steps."""
    frame = pd.read_csv(DATA / "multipowerlaw/curves.csv").rename(
        columns={"step": "tokens"}
    )
    kept = frame["annealed"] == 1
    for _, run in frame[frame["schedule"].str.startswith("constant")].groupby("run"):
        steps = np.geomspace(3000, run["tokens"].max(), 8)
        kept[[(run["tokens"] - step).abs().idxmin() for step in steps]] = True
    table = bl.from_frame(frame[kept], "curves")
    for name, held in {"size": "params == 400e6", "length": "tokens > 30000"}.items():
        test = f"annealed == 1 and {held}"
        split = table.split(f"not ({test})", test)
        yield f"multipowerlaw {name}", "multipowerlaw", *split, CHINCHILLA


def synthetic(seed: int = 0) -> Iterator[Split]:
    """The same for the synthetic world."""
    for domain in ("french", "english_arabic"):
        table = bl.paper_world().table(domain, seed=seed)
        yield (
            f"synthetic {domain}",
            "synthetic",
            *table.split("ptpp <= 31", "ptpp == 279"),
            CPT,
        )
