"""What checkpoints that are not annealed add to a forecast of annealed runs of the largest size.

Fitted three ways: to annealed rows of smaller sizes; to these and rows that are not annealed of all
sizes, with the offset that the column `annealed` gives; and to the same without the column, as if
all were alike. On Gemstones also with errors correlated within runs ("offset run").

    OMP_NUM_THREADS=1 python benchmarks/annealing.py [--bench FOLDER]

FOLDER holds the Gemstones tables, which the project does not ship. Rows are kept in annealing.csv
beside this file; an interrupted run continues when it is started again.
"""

import argparse
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from tables import DATA, SMOKE, arguments, earlier, scored

import bayeslaw as bl

SCORES = ["rmse_log", "coverage_50", "coverage_90", "width_90", "crps"]
ROWS = "0 < replay < 1 and seed == 0"


def tables(bench: Path | None) -> Iterator[tuple[str, str, bl.LossTable, float]]:
    """Name, law, rows of both kinds, and the size from which runs are held out."""
    for source, domain in (("tinycpt", "french"), ("tinycpt", "english"), ("tinycode", "python")):
        table = bl.read_table(DATA / source / f"{domain}.csv", where=ROWS)
        yield f"{source} {domain}", "form1n", table, table.frame["params"].max()
    if bench:
        both = [pd.read_csv(bench / f"gemstones_{kind}.csv") for kind in ("hot", "cool")]
        frame = pd.concat([each.assign(annealed=i) for i, each in enumerate(both)])
        columns = ["params", "tokens", "loss", "run", "annealed"]
        frame = frame[columns].drop_duplicates().assign(run=lambda f: f["run"].astype(str))
        table = bl.from_frame(frame, "gemstones")
        yield "gemstones", "chinchilla", table, 1e9


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__, __file__)
    found.add_argument("--bench", type=Path, help="folder of the Gemstones tables")
    return found


def main() -> None:
    """Run what is missing and print the scores."""
    args = parser().parse_args()
    warnings.simplefilter("ignore")
    settings = SMOKE if args.smoke else {}
    rows = earlier(args)
    for name, law, table, size in tables(args.bench):
        test = table.query(f"annealed == 1 and params >= {size}")
        few = table.query(f"annealed == 1 and params < {size}")
        all_ = table.query(f"annealed == 0 or params < {size}")
        alike = bl.from_frame(all_.frame.drop(columns="annealed"), table.name)
        ways = [("annealed only", few), ("offset", all_), ("alike", alike)]
        ways += [("offset run", all_)] if law == "chinchilla" else []
        for way, train in ways:
            if len(rows) and ((rows["table"] == name) & (rows["way"] == way)).any():
                continue
            start = time.perf_counter()
            run = law != "chinchilla" or way == "offset run"
            own = {"errors": "auto" if run else "independent"}
            fit = bl.fit(law, train, **settings, **own)
            new = {"table": name, "law": law, "way": way, "train": len(train), "test": len(test)}
            new |= scored(fit, test, SCORES) | {"seconds": time.perf_counter() - start}
            rows = pd.concat([rows, pd.DataFrame([new])], ignore_index=True)
            print(new, flush=True)
            if args.smoke:
                return
            rows.to_csv(args.out, index=False, float_format="%.5g")
    print(rows.round(4).to_markdown(index=False))


if __name__ == "__main__":
    main()
