"""Time of gradients and fits, beside a reference checkout in the same run.

    git worktree add --detach REFERENCE e6d23c6 && (cd REFERENCE && uv sync --locked)
    OMP_NUM_THREADS=1 python benchmarks/speed.py --reference REFERENCE [--seeds 5] [--only TEXT]

Each case is one process per checkout. It compiles with a run of a few draws that is not timed, then
fits seed by seed as its parent asks; the two take turns. Without `--reference` only this checkout
is measured. Rows go to standard output as CSV.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, TextIO

from tables import arguments

HERE = Path(__file__).resolve()
DATA = HERE.parents[1] / "data"
TINYCPT = "tinycpt/french.csv", "annealed and replay < 1 and ptpp <= 124"
OLMO = "olmo/ladder.csv", "domain == 'c4_en'"
GADRE = "gadre/overtraining.csv", "domain == 'c4_val' and train_set == 'rpj'"
DELPHI = "delphi/isotoken.csv", "scale <= 3e20"
CASES: dict[str, tuple[str, str, str, str]] = {
    "form1, 576 rows": ("form1", *TINYCPT, "curvature"),
    "form3, 576 rows": ("form3", *TINYCPT, "curvature"),
    "OLMo, curvature": ("chinchilla", *OLMO, "curvature"),
    "Gadre, curvature": ("chinchilla", *GADRE, "curvature"),
    "Delphi, curvature": ("chinchilla", *DELPHI, "curvature"),
    "OLMo, walk": ("chinchilla", *OLMO, "walk"),
    "Gadre, walk": ("chinchilla", *GADRE, "walk"),
    "Delphi, walk": ("chinchilla", *DELPHI, "walk"),
}
"""Law, file, rows and discrepancy; walking exponents are not in the reference."""


def worker(case: str) -> None:
    """Fit the seeds that standard input names, and print what each took, as JSON lines."""
    import bayeslaw as bl

    law, csv, where, kind = CASES[case]
    table = bl.read_table(DATA / csv, where=where)
    bl.fit(law, table, discrepancy=kind, seed=0, draws=10, tune=10, chains=2, retry=False)
    found = gradient(law, table, kind)
    print(json.dumps({"rows": len(table), "microseconds": found}), flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        fit = bl.fit(law, table, discrepancy=kind, seed=int(line))
        seconds = time.perf_counter() - start
        draws = fit.draws.sizes["chain"] * fit.draws.sizes["draw"]
        found = {
            "seconds": seconds,
            "ok": fit.convergence.ok,
            "rhat": fit.convergence.rhat,
            "ess": min(fit.convergence.ess_bulk, fit.convergence.ess_tail),
            "steps": float(fit.stats["n_steps"].mean()),
            "draws": draws,
            "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        print(json.dumps(found), flush=True)


def gradient(law: str, table: Any, kind: str = "curvature") -> float:
    """Least of ten mean times of a gradient, by the function that nutpie calls, microseconds."""
    import ctypes

    import numpy as np

    address, size, point, data, kept = density(law, table, kind)
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_uint64, *[ctypes.c_void_p] * 4)
    call, by, value = kind(address), np.zeros(size), np.zeros(1)
    arguments = (size, *(a.ctypes.data for a in (point, by, value, data)))
    means = []
    for _ in range(10):
        start = time.perf_counter()
        for _ in range(1000):
            call(*arguments)
        means.append((time.perf_counter() - start) / 1000)
    assert np.isfinite(value[0]), kept
    return 1e6 * min(means)


def density(law: str, table: Any, discrepancy: str) -> tuple[int, int, Any, Any, object]:
    """Address of the compiled density, number of coordinates, a point, and the table of data."""
    import numpy as np

    try:  # this checkout
        from bayeslaw.inference import metric, sampling
        from bayeslaw.inference.programs import Density, program
        from bayeslaw.laws.lawfiles import load_law
        from bayeslaw.model.data import make_data
        from bayeslaw.model.random_effects import choose
        from bayeslaw.model.spec import make_discrepancy, make_spec
    except ImportError:  # e6d23c6
        from bayeslaw.effects import choose
        from bayeslaw.model import data, make_spec
        from bayeslaw.sampling import with_data

        levels = choose("auto", table.frame, table.name, discrepancy)
        spec = make_spec(law, discrepancy=discrepancy, effects=levels)
        model = with_data(spec, data(spec, table))
        point = model.initial_point_func(1)
        address = model.compiled_logp_func.address
        return address, model.n_dim, point, model.user_data, model
    sizes = make_discrepancy(discrepancy, load_law(law)).size_effects
    levels = choose("auto", table.frame, table.name, discrepancy=sizes)
    spec = make_spec(law, discrepancy=discrepancy, effects=levels)
    values = make_data(spec, table).arrays
    found = Density(program(spec, values), values)
    point = sampling._start(found, spec, values)(1)
    # As sampled: in the coordinates of a linear map, dense unless there are many.
    factor = np.eye(found.size) if found.size <= metric.LARGEST else np.ones((found.size, 1))
    model = found.mapped(point, factor, lambda seed: point)
    return found._address, found.size, np.zeros(found.size), model.table.words, model


def start(python: Path, case: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    """A worker in a checkout, and its first line."""
    command = [str(python), str(HERE), "--worker", case]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    return process, read(process.stdout)


def read(stream: TextIO | None) -> dict[str, Any]:
    """One line of JSON from a worker."""
    assert stream is not None
    found: dict[str, Any] = json.loads(stream.readline())
    return found


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("--reference", type=Path)
    found.add_argument("--seeds", type=int, default=5)
    found.add_argument("--only", default="")
    found.add_argument("--worker", help=argparse.SUPPRESS)
    return found


def main() -> None:
    """Print a row per fit, and a summary per case on standard error."""
    args = parser().parse_args()
    if args.smoke:
        args.seeds, args.only = 1, "Delphi, curvature"
    if args.worker:
        return worker(args.worker)
    pythons = {"here": Path(sys.executable)}
    if args.reference:
        pythons["reference"] = args.reference / ".venv/bin/python"
    print("case,checkout,rows,gradient_us,seed,seconds,ok,rhat,ess,steps,draws,megabytes")
    for case in [name for name in CASES if args.only in name]:
        known = {w: p for w, p in pythons.items() if w == "here" or "walk" not in case}
        workers = {where: start(python, case) for where, python in known.items()}
        seconds: dict[str, list[float]] = {where: [] for where in workers}
        for seed in range(args.seeds):
            for where, (process, first) in workers.items():
                assert process.stdin is not None
                process.stdin.write(f"{seed}\n")
                process.stdin.flush()
                found = read(process.stdout)
                seconds[where].append(found["seconds"])
                cells = [f"{v:.4g}" if isinstance(v, float) else str(v) for v in found.values()]
                head = f'"{case}",{where},{first["rows"]},{first["microseconds"]:.1f},{seed}'
                print(",".join([head, *cells]), flush=True)
        for where, (process, first) in workers.items():
            process.communicate()
            times = seconds[where]
            print(
                f"{case} {where}: gradient {first['microseconds']:.1f} us, fit median "
                f"{median(times):.1f} s, worst {max(times):.1f} s",
                file=sys.stderr,
            )
    return None


if __name__ == "__main__":
    main()
