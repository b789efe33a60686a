"""The README's pictures: forecasts that hold on one table, and some that do not on another.

Default fits of the shipped tables; FOLDER gets forecast.png (Delphi) and missed.png (OLMo, `ice`):

    python benchmarks/readme_picture.py docs/pictures
"""

import argparse
from pathlib import Path

from tables import DATA, SMOKE, arguments

import bayeslaw as bl


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__)
    found.add_argument("folder", type=Path, nargs="?", default=Path())
    return found


def main() -> None:
    """Fit, draw and save."""
    args = parser().parse_args()
    ice = bl.read_table(DATA / "olmo/ladder.csv", where="domain == 'ice'")
    splits = {
        "forecast": bl.example_table().split(train="scale <= 3e20", test="scale >= 1e21"),
        "missed": ice.split(train="ptpp < 50", test="ptpp > 90"),
    }
    for name, (train, test) in splits.items():
        fit = bl.fit("chinchilla", train, **(SMOKE if args.smoke else {}))
        figure = fit.plot.overview(test, allow_unconverged=args.smoke)
        path = args.folder / f"{name}.png"
        figure.savefig(path, dpi=110)
        print(path)


if __name__ == "__main__":
    main()
