# /// script
# requires-python = ">=3.11"
# dependencies = ["torch==2.13.0", "numpy", "pandas", "matplotlib"]
# ///
"""Measure continual pre-training of tiny byte-level GPTs, English to French or to Python.

README.md says what is measured and why; ``uv run tinycpt.py --help`` how to do it again.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import corpus
import tables
import torch
from lab import RECIPES, Lab, Unit

HERE = Path(__file__).parent
Where = tuple[str, Path, Path | None]  # recipe, work folder, text made elsewhere


@cache
def lab(recipe: str, work: Path, text: Path | None) -> Lab:
    """Lab of this process; a worker keeps its own, with the text in memory."""
    return Lab(RECIPES[recipe], work, text)


def _start_worker() -> None:
    """Hold a worker to one thread, and end it when the process that started it is gone."""
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _work(where: Where, unit: Unit) -> None:
    lab(*where).do(unit)


@contextmanager
def alone(here: Lab) -> Iterator[None]:
    """Hold the work folder for one process, one recipe; a line half written is cut off."""
    with (here.work / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"another process is at work in {here.work}") from None
        sizes = {
            name: replace(size, seeds=()) for name, size in here.recipe.sizes.items()
        }
        recipe = json.dumps(asdict(replace(here.recipe, sizes=sizes)), indent=1)
        stamp = (
            here.work / "recipe.json"
        )  # without seeds: more of them may be added any time
        if stamp.exists() and stamp.read_text() != recipe:
            raise SystemExit(
                f"{stamp} differs from this script's recipe: choose another --work"
            )
        stamp.write_text(recipe)
        here.ledger.mend()
        yield


def measure(where: Where, jobs: int) -> None:
    """Do all the work that is left, `jobs` units at a time, with progress on stderr."""
    here = lab(*where)
    units = here.recipe.units()
    left = [unit for unit in units if not here.finished(unit)]
    total, done = sum(map(here.cost, left)), 0.0
    started, spawn = time.monotonic(), multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_start_worker) as pool:
        running: dict[Future[None], Unit] = {}
        while left or running:
            ready = [unit for unit in left if here.ready(unit)]
            for unit in ready[: jobs - len(running)]:
                left.remove(unit)
                running[pool.submit(_work, where, unit)] = unit
            for finished in wait(running, return_when=FIRST_COMPLETED).done:
                unit = running.pop(finished)
                finished.result()
                done += here.cost(unit)
                minutes = (time.monotonic() - started) / 60
                print(
                    f"{time.strftime('%H:%M:%S')} {unit.name}: {len(left) + len(running)} of "
                    f"{len(units)} units left, {minutes:.0f} min gone, about "
                    f"{minutes / done * (total - done):.0f} to go",
                    file=sys.stderr,
                    flush=True,
                )


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--work", type=Path, help="default: a folder of the recipe in ~/.cache"
    )
    parser.add_argument(
        "--corpus", type=Path, help="text made elsewhere; none is downloaded"
    )
    parser.add_argument(
        "--recipe", choices=RECIPES, default="tinycpt", help="which table"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    sub = commands.add_parser(
        "measure", help="train and measure whatever is not measured yet"
    )
    sub.add_argument(
        "--jobs", type=int, default=2, help="processes, one thread each (default 2)"
    )
    sub = commands.add_parser(
        "train", help="one run at any budget and replay; prints its losses"
    )
    sub.add_argument("--size", required=True)
    sub.add_argument("--ptpp", type=int, required=True)
    sub.add_argument("--atpp", type=float, required=True)
    sub.add_argument("--replay", type=float, required=True)
    sub.add_argument("--seed", type=int, default=0)
    sub = commands.add_parser(
        "tables", help="write the CSV files and plots from what is measured"
    )
    sub.add_argument(
        "--out", type=Path, help="default: the recipe's folder beside this one"
    )
    sub = commands.add_parser(
        "summary", help="noise from repeated seeds, and where losses turn"
    )
    sub.add_argument("--out", type=Path, help="folder that holds the CSV files")
    options = parser.parse_args(arguments)
    recipe = RECIPES[options.recipe]
    options.work = options.work or Path.home() / ".cache" / options.recipe
    if options.command == "train":
        for name, known in (("size", recipe.sizes), ("ptpp", recipe.stages)):
            if (given := getattr(options, name)) not in known:
                parser.error(
                    f"--{name} {given}: choose from {', '.join(map(str, known))}"
                )
    if options.command in ("tables", "summary"):
        out, ledger = (
            options.out or HERE.parent / options.recipe,
            options.work / "rows.csv",
        )
        if options.command == "tables":
            tables.assemble(ledger, out, recipe.domains)
            if len(missing := tables.missing(ledger, recipe)):
                print("Rows not measured yet:", missing.to_string(), sep="\n")
        table = tables.read(out, recipe.domains)
        if options.command == "tables":
            tables.plot(table, out)
        else:
            print(tables.noise(table), tables.shapes(table), sep="\n\n")
        return
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    if options.corpus is None:
        corpus.prepare(options.work, recipe.domains)
    where = options.recipe, options.work, options.corpus
    with alone(here := lab(*where)):
        if options.command == "measure":
            measure(where, options.jobs)
        else:
            unit = Unit(options.size, options.seed, options.ptpp, options.replay)
            print(json.dumps(here.one(unit, options.atpp)))


if __name__ == "__main__":
    main()
