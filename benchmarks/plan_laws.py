"""One planning problem under every law of adaptation, each with its default model.

Fits each law, and the pool, to losses of data/tinycpt at PTPP 15 to 124 (ATPP 1, 4 and 16, one
seed, annealed), on both domains, and plans the largest model at PTPP 279 from its measured base.
Prints for each: whether the fits converged, the plan for measured and for latent losses, that of
the point fits with its probability of failure, and the seconds of the plan. Draws P(both) of all in
one figure.

    OMP_NUM_THREADS=1 python benchmarks/plan_laws.py --fits DIR docs/pictures/plans.png

Posteriors in DIR are used again. D-CPT has no PTPP: it forecasts every stage alike. With
`forgetting` the source's law is that one and the target's is form1n.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from tables import DATA, SMOKE, arguments

import bayeslaw as bl
from bayeslaw import LossTable, Plan
from bayeslaw.plots.style import COLOURS, style

LAWS = ("dcpt", "form1", "form2", "form3", "form1n", "forgetting", "transfer", "adaptation")
LIMITS = {"params": 147816, "ptpp": 279, "max_loss": 1.6, "max_forgetting": 0.15}
ROWS = "(annealed or tokens == 0) and seed == 0 and atpp in [0, 1, 4, 16] and (r < 1 or atpp == 0)"


def rows(domain: str) -> LossTable:
    """Training rows."""
    folder = DATA / "tinycpt"
    table = bl.read_table(
        folder / f"{domain}.csv",
        where=ROWS.replace("r < 1", "replay < 1"),
        source=folder / "english.csv",
    )
    return table.split("ptpp < 279")[0]


def fitted(law: str, domain: str, folder: Path | None, smoke: bool) -> bl.Posterior | bl.Pool:
    """The posterior of a law, from the folder if it is there."""
    path = folder / f"{law}-{domain}.nc" if folder else None
    if path and path.exists():
        return bl.load(path)
    found = bl.fit(law, rows(domain), **(SMOKE if smoke else {}))
    if path:
        found.save(path)
    return found


def planned(law: str, folder: Path | None, smoke: bool) -> tuple[Plan, float]:
    """The plan of a law, and its seconds."""
    laws = ("form1n", law) if law == "forgetting" else (law, law)
    fits = [
        fitted(each, d, folder, smoke) for each, d in zip(laws, ("french", "english"), strict=True)
    ]
    started = time.perf_counter()
    plan = bl.plan(
        target=fits[0], source=fits[1], **LIMITS, allow_unconverged=True, beyond_evidence=True
    )
    return plan, time.perf_counter() - started


def row(law: str, plan: Plan, seconds: float) -> str:
    """One line of the table."""
    certain, latent = plan.deterministic, plan.latent
    shown = plan.chosen
    cells = [
        f"{law:10s}",
        "failed" if plan.unconverged else "passed",
        f"{plan.status:10s}",
        f"{shown.atpp:7.3g} {100 * shown.replay:5.1f} {shown.p_both:6.3f}" if shown else "none",
        f"{latent.p_both:6.3f}" if latent else "",
        f"{certain.atpp:7.3g} {certain.p_failure:6.2f}",
        f"{seconds:6.1f}",
    ]
    return "  ".join(cells)


def draw(plans: dict[str, Plan], path: Path) -> None:
    """P(both) over replay and budget, one panel per law."""
    import matplotlib.pyplot as plt

    atpp, replay = np.geomspace(1, 100, 41), np.linspace(0.05, 0.95, 31)
    with style():
        figure, axes = plt.subplots(
            2, 4, figsize=(9.6, 4.8), sharex=True, sharey=True, layout="constrained"
        )
        for ax, (law, plan) in zip(axes.flat, plans.items(), strict=False):
            chance = plan.surface(atpp, replay).to_numpy()
            levels = np.linspace(0, 1, 11)
            filled = ax.contourf(100 * replay, atpp, chance, levels, cmap="Blues")
            ax.contour(100 * replay, atpp, chance, [plan.confidence], colors=COLOURS[1])
            if (shown := plan.chosen) is not None:
                ax.plot(100 * shown.replay, shown.atpp, "*", ms=11, mfc="#F0E442", mec="black")
            best = "" if plan.best is None else f", at most {plan.chosen.p_both:.2f}"
            ax.set(yscale="log", title=f"{law}{best}", xlim=(5, 95), ylim=(1, 100))
        figure.supxlabel("replay (%)", fontsize=9)
        figure.supylabel("budget, ATPP", fontsize=9)
        figure.colorbar(filled, ax=axes, label="P(both), measured losses", shrink=0.8)
        figure.savefig(path, dpi=130)


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("picture", type=Path, nargs="?", default=Path("plans.png"))
    found.add_argument("--fits", type=Path)
    return found


def main() -> None:
    """Fit, plan, print and draw."""
    args = parser().parse_args()
    print("law         gate    status         ATPP  replay P(both)  latent  point fits  seconds")
    plans = {}
    for law in LAWS[4:6] if args.smoke else LAWS:
        plans[law], seconds = planned(law, args.fits, args.smoke)
        print(row(law, plans[law], seconds), flush=True)
    draw(plans, args.picture)


if __name__ == "__main__":
    main()
