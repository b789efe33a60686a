"""One loop for every experiment: jobs that are not in the CSV file yet are run, and tables printed.

An experiment is a generator of jobs. A job has a key, the columns that name it, and a function that
returns its rows: a mapping, or a data frame. Rows are kept in ``benchmarks/NAME.csv`` after each
job, so an interrupted run goes on when it is started again.

    OMP_NUM_THREADS=1 python -m benchmarks NAME [--only TEXT] [--smoke] [--show]
"""

import argparse
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd

FOLDER = Path(__file__).parent
SMOKE: dict[str, Any] = {"chains": 2, "draws": 20, "tune": 20, "retry": False}
"""Settings of a fit under ``--smoke``."""

type Rows = Mapping[str, Any] | pd.DataFrame
type Jobs = Iterator[tuple[dict[str, Any], Callable[[], Rows]]]
type Tables = Mapping[str, pd.DataFrame]


@dataclass(frozen=True)
class Experiment:
    """Jobs, and the tables that are made of their rows."""

    name: str
    jobs: Callable[[argparse.Namespace], Jobs]
    tables: Callable[[pd.DataFrame], Tables]
    options: Mapping[str, Any] = field(default_factory=dict)
    keep: bool = True

    def parser(self) -> argparse.ArgumentParser:
        """Options: those of every experiment, and the experiment's own with their defaults."""
        text = (self.jobs.__doc__ or "").partition("\n")[0]
        found = argparse.ArgumentParser(
            prog=f"python -m benchmarks {self.name}", description=text
        )
        found.add_argument("--only", default="", help="part of a job's name")
        found.add_argument(
            "--smoke", action="store_true", help="one job; numbers mean nothing"
        )
        found.add_argument("--show", action="store_true", help="only print the tables")
        found.add_argument("--out", type=Path, default=FOLDER / f"{self.name}.csv")
        for name, default in self.options.items():
            kind = Path if default is None else type(default)
            found.add_argument(f"--{name}", type=kind, default=default)
        return found

    def run(self, words: list[str]) -> None:
        """Run what is missing, keep it, and print the tables."""
        options = self.parser().parse_args(words)
        options.settings = SMOKE if options.smoke else {}
        warnings.simplefilter("ignore")
        keep = self.keep and not options.smoke
        rows = (
            pd.read_csv(options.out)
            if keep and options.out.is_file()
            else pd.DataFrame()
        )
        jobs = (
            job
            for job in self.jobs(options)
            if options.only in " ".join(map(str, job[0].values()))
        )
        for key, job in (
            [] if options.show else islice(jobs, 1 if options.smoke else None)
        ):
            if len(rows) and (rows[list(key)] == key).all(axis=1).any():
                continue
            start = time.process_time()
            found = job()
            new = found if isinstance(found, pd.DataFrame) else pd.DataFrame([found])
            new = new.assign(
                **{name: value for name, value in key.items() if name not in new}
            )
            new = new[[*key, *(name for name in new if name not in key)]]
            rows = pd.concat([rows, new], ignore_index=True)
            print(
                *key.values(),
                f"{time.process_time() - start:.0f} CPU s",
                sep=", ",
                flush=True,
            )
            if keep:
                rows.to_csv(options.out, index=False, float_format="%.6g")
        for title, table in self.tables(rows).items():
            flat = table if table.index.names == [None] else table.reset_index()
            print(
                f"\n{title}\n\n{flat.to_markdown(index=flat is table, floatfmt='.4g')}"
            )


EXPERIMENTS: dict[str, Experiment] = {}


def experiment(
    tables: Callable[[pd.DataFrame], Tables] = lambda rows: {"rows": rows},
    *,
    keep: bool = True,
    **options: Any,
) -> Callable[[Callable[[argparse.Namespace], Jobs]], Experiment]:
    """Make a generator of jobs an experiment of the same name; `keep` its rows in a CSV file."""

    def made(jobs: Callable[[argparse.Namespace], Jobs]) -> Experiment:
        name = jobs.__name__
        EXPERIMENTS[name] = Experiment(name, jobs, tables, options, keep)
        return EXPERIMENTS[name]

    return made


def main(words: list[str] | None = None) -> None:
    """Run the experiment that is named."""
    names = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, add_help=False
    )
    names.add_argument("name", choices=EXPERIMENTS)
    chosen, rest = names.parse_known_args(words)
    EXPERIMENTS[chosen.name].run(rest)
