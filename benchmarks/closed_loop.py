"""Plans on measured runs: fit early stages of data/tinycpt, plan the last, compare with its losses.

French (target) and English (source) losses of annealed runs are fitted on PTPP 15 to 124, and
separately with the smaller sizes at PTPP 279 as anchors. The largest model is planned for PTPP 279
at several confidences. Its limits come from its own runs at PTPP 124, so from training rows only:
the French loss at ATPP 8 and replay .25, and the rise of the English loss over pure replay for the
same tokens there (`baseline="matched"`; at PTPP 279 no replay ratio below 1 returns to the loss of
the measured base, see the data's README). Limits are on measured losses (`noise="predictive"`).

The plan is scored against the measured table of that model and stage, interpolated in log D and r
(log loss, piecewise linear). Replay is searched where it was measured, .1 to .5.

    OMP_NUM_THREADS=1 python benchmarks/closed_loop.py [--source-law form1] [--fits DIR]

`--fits` saves the posteriors, so that a second run only plans. `--at ATPP REPLAY FRENCH ENGLISH
CONTROL` scores an actual run, trained with data/tinycpt/tinycpt.py, instead of the table.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from scipy.interpolate import RegularGridInterpolator
from tables import SMOKE, arguments

import bayeslaw as bl
from bayeslaw.planning.choices import Choice
from bayeslaw.tables.table import LossTable

DATA = Path(__file__).parent.parent / "data" / "tinycpt"
SPLITS = {"stages before 279": "ptpp <= 124", "and anchors at 279": "ptpp <= 124 or params < 1e5"}
CONFIDENCES = (0.5, 0.8, 0.9)
FIT = {"chains": int, "draws": int, "tune": int, "effects": str, "discrepancy": str}
STAGE, LAST = 124, 279


def rows(domain: str) -> LossTable:
    """Annealed runs; pure replay only for the source."""
    table = bl.read_table(DATA / f"{domain}.csv", where="annealed or tokens == 0")
    return table.query("replay < 1") if domain == "french" else table


def measured(table: LossTable, params: float, ptpp: float) -> RegularGridInterpolator:
    """Log loss of one model at one stage over (log ATPP, replay)."""
    frame = table.frame.query(f"params == {params} and ptpp == {ptpp}")
    grid = frame.pivot_table(index="atpp", columns="replay", values="loss")
    axes = (np.log(grid.index.to_numpy(float)), grid.columns.to_numpy(float))
    return RegularGridInterpolator(axes, np.log(grid.to_numpy()), bounds_error=False)


def losses(french: Any, english: Any, atpp: Any, replay: Any) -> tuple[Any, Any]:
    """French loss, and rise of the English loss over pure replay."""
    u = np.log(atpp)
    rise = np.exp(english((u, replay)) - english((u, np.ones_like(u)))) - 1
    return np.exp(french((u, replay))), rise


def oracle(french: Any, english: Any, most: float, rise: float) -> tuple[float, float]:
    """Smallest measured (interpolated) budget that meets both limits, and its replay ratio."""
    atpp, replay = np.meshgrid(
        np.geomspace(0.5, 20, 1000), np.linspace(0.1, 0.5, 81), indexing="ij"
    )
    loss, risen = losses(french, english, atpp, replay)
    good = np.flatnonzero((loss <= most) & (risen <= rise))
    if not len(good):
        return float("inf"), float("nan")
    return float(atpp.flat[good[0]]), float(replay.flat[good[0]])


def fitted(law: str, table: LossTable, path: Path | None, settings: dict[str, Any]) -> Any:
    """A posterior, saved to a file or loaded from it."""
    if path is not None and path.exists():
        return bl.load(path)
    posterior = bl.fit(law, table, **settings)
    if path is not None:
        posterior.save(path)
    return posterior


def print_row(
    name: str, choice: Choice, outcome: tuple[float, float], limits: dict[str, float]
) -> None:
    """Render a plan and the losses measured at it as one line."""
    loss, rise = outcome
    missed = ["the target"] * bool(loss > limits["max_loss"])
    missed += ["forgetting"] * bool(rise > limits["max_forgetting"])
    verdict = f"missed {' and '.join(missed)}" if missed else "inside both"
    if np.isnan(loss) or np.isnan(rise):
        verdict = "outside the measured grid"
    print(
        f"  {name:14s} ATPP {choice.atpp:7.2f}  replay {choice.replay:.3f}  "
        f"P(target, forgetting, both) {choice.p_target:.2f} {choice.p_forgetting:.2f} "
        f"{choice.p_both:.2f}  measured: French {loss:.4f} (expected {choice.losses[0]:.4f}), "
        f"rise {100 * rise:.1f} % (expected {100 * choice.forgetting:.1f}): {verdict}"
    )


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("--target-law", default="form3")
    found.add_argument("--source-law", default="form1")
    for name, kind in FIT.items():
        found.add_argument(f"--{name}", type=kind, help="of the fits; else the library's default")
    found.add_argument("--fits", type=Path)
    found.add_argument("--at", type=float, nargs=5, metavar=("ATPP", "R", "FR", "EN", "EN1"))
    return found


def main() -> None:
    """Print the plans and their scores."""
    args = parser().parse_args()
    given = {name: getattr(args, name) for name in FIT}
    settings = {name: value for name, value in given.items() if value is not None}
    splits, confidences = list(SPLITS.items()), CONFIDENCES
    if args.smoke:
        settings = {**SMOKE, "effects": "none", **settings}
        splits, confidences = splits[:1], CONFIDENCES[:1]
    tables = {domain: rows(domain) for domain in ("french", "english")}
    params = float(tables["french"].frame["params"].max())
    before, after = (
        [measured(tables[d], params, stage) for d in ("french", "english")]
        for stage in (STAGE, LAST)
    )
    max_loss, rise = (float(value) for value in losses(*before, 8, 0.25))
    limits = {"params": params, "ptpp": LAST, "max_loss": max_loss, "max_forgetting": rise}
    print(f"N {params:.0f}, PTPP {LAST}: French at most {max_loss:.4f}, English at most ", end="")
    print(f"{100 * rise:.1f} % over pure replay; measured optimum: ", end="")
    print("ATPP {:.2f} at replay {:.3f}".format(*oracle(*after, max_loss, rise)))
    if args.at:
        atpp, replay, french, adapted, control = args.at
        print(f"run at ATPP {atpp:g}, replay {replay:g}: French {french:.4f}, rise ", end="")
        print(f"{100 * (adapted / control - 1):.1f} %; table there: ", end="")
        print("French {:.4f}, rise {:.4f}".format(*losses(*after, atpp, replay)))
    for split, train in splits:
        fits = {}
        for domain, law in (("french", args.target_law), ("english", args.source_law)):
            path = args.fits and args.fits / f"{domain}-{law}-{'anchors' * ('or' in train)}.nc"
            fits[domain] = fitted(law, tables[domain].query(train), path, settings)
        asked = {"target": fits["french"], "source": fits["english"], **limits}
        asked |= {"baseline": "matched", "noise": "predictive", "allow_unconverged": True}
        print(f"{split} ({train}): {args.target_law} and {args.source_law}")
        for confidence in confidences:
            plan = bl.plan(**asked, confidence=confidence, replay_grid=np.linspace(0.1, 0.5, 81))
            if plan.status == "infeasible":
                print(f"  {confidence:g}: infeasible; {plan.binds}")
                chosen, name = plan.best, "likeliest"
            else:
                chosen, name = plan, f"plan {100 * confidence:g} %"
            print_row(name, chosen, losses(*after, chosen.atpp, chosen.replay), limits)
        certain = plan.deterministic
        if np.isfinite(certain.atpp):
            print_row(
                "deterministic", certain, losses(*after, certain.atpp, certain.replay), limits
            )
        else:
            print("  deterministic: infeasible")
        for text in (*plan.outside, *plan.unconverged):
            print(f"  note: {text}")


if __name__ == "__main__":
    main()
