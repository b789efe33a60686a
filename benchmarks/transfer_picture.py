"""The picture that explains the transfer law: start loss, core and losses of one run.

python benchmarks/transfer_picture.py docs/pictures/transfer.png
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from tables import DATA, arguments

import bayeslaw as bl
from bayeslaw.plots.style import COLOURS, INK, style

SIZE, STAGE, REPLAY = 147816, 279, 0.25
"""The run that is drawn: N, PTPP and r."""


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("picture", type=Path, nargs="?", default=Path("transfer.png"))
    return found


def main() -> None:
    """Fit, draw and save."""
    args = parser().parse_args()
    folder = DATA / "tinycpt"
    table = bl.read_table(
        folder / "french.csv", where="annealed and replay < 1", source=folder / "english.csv"
    )
    train, test = table.split(f"ptpp < {STAGE}")
    rows = test.query(f"params == {SIZE} and ptpp == {STAGE} and replay == {REPLAY}").frame
    fit = bl.fit_huber("transfer", train, starts=64 if args.smoke else None)
    law, p = fit.law, fit.parameters
    tokens = np.geomspace(rows["tokens"].min() / 300, rows["tokens"].max(), 200)
    frame = pd.DataFrame({**rows.iloc[0].to_dict(), "tokens": tokens})
    x = law.covariates(frame)
    loss, start = law.loss(p, x), frame["start_loss"].iloc[0]
    gap = law.departure.remaining(p, x, np)
    core = (loss - start * gap) / (1 - gap)
    with style():
        figure, ax = plt.subplots(figsize=(6.6, 3.4))
        ax.axhline(start, color=INK, lw=1, ls=":", label="start loss: the base, before adaptation")
        ax.plot(tokens, core, color=COLOURS[1], ls="--", label="core: where adaptation leads")
        ax.plot(tokens, loss, color=COLOURS[0], label="loss = core (1 - g) + start loss × g")
        ax.plot(rows["tokens"], rows["loss"], "o", color=INK, ms=4, label="measured, not fitted")
        here = int(np.searchsorted(tokens, rows["tokens"].min() / 8))
        ends = {"xy": (tokens[here], loss[here]), "xytext": (tokens[here], core[here])}
        ax.annotate("", **ends, arrowprops={"arrowstyle": "<->", "lw": 0.8})
        middle = tokens[here] * 1.1, 0.3 * loss[here] + 0.7 * core[here]
        ax.text(*middle, f"g = {gap[here]:.2f} of the way", va="center", fontsize=8)
        ax.set(xscale="log", xlabel="adaptation tokens D (bytes)", ylabel="loss, nats per token")
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2)}
        ax.legend(**below, ncols=2, fontsize=8, frameon=False)
        figure.savefig(args.picture, dpi=150, bbox_inches="tight")
    print(args.picture)


if __name__ == "__main__":
    main()
