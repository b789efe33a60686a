"""The README's picture: two larger bases forecast from smaller ones, with bands.

The default fit of the shipped table:

    python benchmarks/readme_picture.py docs/pictures/forecast.png
"""

import argparse
from pathlib import Path

from tables import SMOKE, arguments

import bayeslaw as bl


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("picture", type=Path, nargs="?", default=Path("forecast.png"))
    return found


def main() -> None:
    """Fit, draw and save."""
    args = parser().parse_args()
    train, test = bl.example_table().split(train="scale <= 3e20", test="scale >= 1e21")
    fit = bl.fit("chinchilla", train, **(SMOKE if args.smoke else {}))
    figure = fit.plot.forecast(test, allow_unconverged=args.smoke)
    figure.savefig(args.picture, dpi=110, bbox_inches="tight")
    print(args.picture)


if __name__ == "__main__":
    main()
