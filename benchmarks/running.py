"""Final loss of a run that goes on, forecast from the first part of its curve and finished runs.

On the curves of MultiPowerLaw: every schedule that decays is the running run in its turn, seen up
to a tenth, a quarter and a half. Runs that begin with the same checkpoints count as one. Finished
runs are those of other sizes ("new size"), or of all sizes ("same size"). Rows of curves are those
before the learning rate decays ("plateau": .9 of its peak or more, from step 5,000), these from
step 2,000 ("early"), or from step 5,000 also those after it, as not annealed ("all").

Ways: the law fitted to finished runs ("others"), and to the rows of the running run ("running");
L = E + B D^-beta fitted by Huber to the running run alone ("curve"), also corrected by its mean
error on finished runs ("corrected"); the last loss so far ("last"). What is forecast is annealed.

    OMP_NUM_THREADS=1 python benchmarks/running.py [--show]

Fits are one run of 500 draws a chain, scored converged or not. Rows are kept in running.csv beside
this file; an interrupted run continues when it is started again. --show prints the table from it.
"""

import argparse
import warnings
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares
from tables import DATA, SMOKE, arguments

import bayeslaw as bl

OUT, PARTS = Path(__file__).with_suffix(".csv"), (0.1, 0.25, 0.5)
ENDS = ("cosine_72000", "cosine_24000", "wsd_20000_24000", "wsdld_20000_24000")
CASES = [("new size", "plateau"), ("same size", "plateau")]
CASES += [("new size", "early"), ("new size", "all")]
KEY = ["finished", "rows", "size", "schedule", "part", "way"]
SCORES = ["coverage_50", "coverage_90", "width_90", "crps"]
COLUMNS = ["params", "tokens", "loss", "run", "annealed"]


def curves() -> pd.DataFrame:
    """All rows, with a label of the checkpoints that the run began with, and D in steps."""
    frame = pd.read_csv(DATA / "multipowerlaw/curves.csv")
    first = frame.groupby("run")["loss"].transform("first").astype(str)
    frame["cosine"] = frame["schedule"].str.startswith("cosine")
    trunk = frame["params"].astype(str) + frame["schedule"].where(frame["cosine"], "") + first
    plateau = (frame["lr"] >= 0.9 * frame["lr"].max()) & (frame["annealed"] == 0)
    return frame.assign(tokens=frame["step"], plateau=plateau, trunk=trunk)


def used(frame: pd.DataFrame, rows: str) -> pd.DataFrame:
    """Rows of curves to fit: one in .2 e-folds of D, and checkpoints of two runs once."""
    frame = frame[(frame["annealed"] == 0) & (frame["step"] >= (2e3 if rows == "early" else 5e3))]
    frame["run"] = frame["trunk"].where(frame["cosine"] | frame["plateau"], frame["run"])
    found = frame[frame["plateau"] | (rows == "all")].drop_duplicates(["run", "step"])
    found["place"] = (np.log(found["tokens"] / 5e3) // 0.2).astype(int)
    return found.drop_duplicates(["run", "place"])


def power_law(frame: pd.DataFrame, tokens: float) -> float:
    """Log loss at some tokens, by a power law fitted to one curve by Huber on log loss."""
    x, y = np.log(frame["tokens"] / tokens).to_numpy(), np.log(frame["loss"]).to_numpy()

    def law(q: np.ndarray, at: np.ndarray) -> np.ndarray:
        return np.logaddexp(q[0], q[1] - np.exp(q[2]) * at)

    starts = [[y[-1] - 0.1, y[-1] - 2, np.log(b)] for b in (0.2, 0.5, 1.0)] if len(x) > 3 else []
    fits = [least_squares(lambda q: law(q, x) - y, s, loss="huber", f_scale=1e-3) for s in starts]
    best = min(fits, key=lambda fit: fit.cost, default=None)
    return float(y[-1] if best is None else law(best.x, np.zeros(1))[0])


def rivals(frame: pd.DataFrame, finished: str) -> pd.DataFrame:
    """Errors of the ways without a posterior, for every end and part."""
    found = []
    for (_, end), part in product(frame[frame["annealed"] == 1].iterrows(), PARTS):
        curve = frame[(frame["run"] == end["run"]) & (frame["step"] <= part * end["step"])]
        ways = {"curve": power_law(curve, end["tokens"]), "last": np.log(curve["loss"].iloc[-1])}
        case = {"size": end["params"], "schedule": end["schedule"], "part": part}
        case |= {"trunk": end["trunk"], "finished": finished, "rows": "any"}
        found += [case | {"way": w, "error": v - np.log(end["loss"])} for w, v in ways.items()]
    rows = pd.DataFrame(found)
    law = rows[rows["way"] == "curve"]
    group = "size" if finished == "new size" else "trunk"
    parts = dict(list(law.groupby("part")))
    pairs = [(parts[part], own) for part, own in zip(law["part"], law[group], strict=True)]
    means = [alike.loc[alike[group] != own, "error"].mean() for alike, own in pairs]
    return pd.concat([rows, law.assign(way="corrected", error=law["error"] - means)])


def fits(frame: pd.DataFrame, finished: str, rows: str, done: set, how: dict) -> Iterator[dict]:
    """Scores of fits, one row for each end; parts that add no row share a fit."""
    ends = frame[frame["annealed"] == 1]
    # Two ends of one run would be two errors of its path at equal tokens.
    labelled = ends.assign(run=ends["trunk"].where(ends["schedule"] != ENDS[3], ends["run"]))
    cache: dict[tuple, bl.Posterior] = {}
    for size, group in product(
        sorted(set(ends["params"]), reverse=True), (ENDS[:1], ENDS[1:2], ENDS[2:])
    ):
        tests = ends[(ends["params"] == size) & ends["schedule"].isin(group)]
        same = frame["params"] == size
        out = frame.index[same if finished == "new size" else frame["trunk"].isin(tests["trunk"])]
        others = pd.concat([t[~t.index.isin(out)] for t in (used(frame, rows), labelled)])
        for part in (0.0, *PARTS):
            way = "running" if part else "others"
            keys = [(finished, rows, size, schedule, part, way) for schedule in group]
            if all(key in done for key in keys):
                continue
            seen = same & (frame["step"] <= part * tests["step"].max())
            seen &= frame["run"] == tests["run"].iloc[0]
            own = used(frame[seen], rows).assign(run="running")
            train = pd.concat([others, own])[COLUMNS]
            if (index := tuple(train.index)) not in cache:
                cache[index] = bl.fit("chinchilla", bl.from_frame(train), seed=0, **how)
            fit = cache[index]
            gate = "; ".join(fit.convergence.failures)
            for i, key in enumerate(keys):
                end = bl.from_frame(tests.iloc[[i]][COLUMNS].assign(run="running"), "end")
                forecast = fit.forecast(end, allow_unconverged=True)
                error = np.log(np.median(forecast.samples) / end.loss[0])
                score = bl.score(forecast, end)[SCORES].to_dict()
                case = dict(zip(KEY, key, strict=True))
                yield case | {"own": len(own), "error": error, **score, "gate": gate or "passed"}


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("--show", action="store_true", help="only print the table")
    return found


def main() -> None:
    """Run what is missing, then print the table."""
    args = parser().parse_args()
    warnings.simplefilter("ignore")
    settings = SMOKE if args.smoke else {"draws": 500, "retry": False}
    frame, rows = curves(), pd.read_csv(OUT) if OUT.is_file() and not args.smoke else pd.DataFrame()
    done = set(rows[KEY].itertuples(index=False, name=None)) if len(rows) else set()
    for case in [] if args.show else CASES:
        for row in fits(frame, *case, done, settings):
            rows = pd.concat([rows, pd.DataFrame([row])], ignore_index=True)
            print(*row.values(), flush=True)
            if args.smoke:
                return
            rows.to_csv(OUT, index=False, float_format="%.5g")
    rows = pd.concat([rows, *(rivals(frame, finished) for finished in ("new size", "same size"))])
    rows["absolute"] = rows["error"].abs()
    rows["crps"] = rows["crps"].fillna(rows["absolute"])
    groups = rows.groupby(["finished", "rows", "way", "part"])
    found = groups[[*SCORES, "error", "absolute"]].mean().assign(ends=groups.size())
    print(found.round(4).reset_index().to_markdown(index=False))


if __name__ == "__main__":
    main()
