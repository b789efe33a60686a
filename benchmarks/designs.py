"""Which runs to buy: designs at equal FLOPs on measured tables, with the law `form1n`.

A trial is a domain of a table (tinycpt or tinycode) and a last stage that was measured. `form1n`,
with the default discrepancy and errors, is fitted to annealed runs of seed 0 up to that stage, at
ATPP 1, 4 and 16. The largest model at PTPP 279 is to be forecast at ATPP 4 and more. For sale are
runs of the smaller sizes at PTPP 279 up to ATPP 8 (`--sale smaller`), and pilots of the largest up
to ATPP 2 as well (`pilots`), with their losses from ATPP 1, or from ATPP .5, which no fitted row
has (`early`). Each design has FLOPs worth a run of the largest of ATPP 1.6. What it buys is looked
up in the table, and the law is fitted again.

The designs are `none`; `random`, whole runs, several times; `cheapest`; `smallest`, the smallest
size alone; `doptimal` and `variance` of `bl.choose_anchors`; and `active-sl` (`active_sl.py`).

    OMP_NUM_THREADS=1 python benchmarks/designs.py [--sale smaller]
    python benchmarks/designs.py --show

A row is a design in a trial: `sd` is the posterior standard deviation of log loss at the targets
(root mean square), the others are scores of the forecast of measured losses. An interrupted run
continues when it is started again.
"""

import argparse
import warnings
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import active_sl
import numpy as np
import pandas as pd
from scipy.stats import t as student
from tables import DATA, SMOKE, arguments

import bayeslaw as bl
from bayeslaw import LossTable
from bayeslaw.design.search import costs
from bayeslaw.design.study import buy
from bayeslaw.inference.fitting import joined

DOMAINS = {"tinycpt": ("french", "english"), "tinycode": ("python", "english")}
STAGES = (124, 31, 62)
DESIGNS = ("none", "random", "cheapest", "smallest", "doptimal", "variance", "active-sl")
NAMES = {"smallest": "grid"}
"""Designs that the package calls otherwise."""
RANDOM = 4
LAW, N, P = "form1n", 147_816, 279
WORTH = 6 * N * N * 1.6
FIT: dict[str, Any] = {"chains": 2, "cores": 1, "retry": False}
WHERE = "(annealed or tokens == 0) and seed == 0 and (replay < 1 or tokens == 0)"
FITTED = "ptpp <= {} and atpp in (1, 4, 16)"
SMALLER = f"params < {N} and atpp <= 8"
SALES = {
    "smaller": f"atpp >= 1 and {SMALLER}",
    "pilots": f"atpp >= 1 and ({SMALLER} or atpp <= 2)",
    "early": f"{SMALLER} or atpp <= 2",
}
"""Rows at the last stage that can be bought."""
AIM = f"ptpp == {P} and params == {N} and atpp >= 4"
KEYS = ["sale", "table", "domain", "stage", "design", "number"]


class Trial:
    """Rows of a table: fitted, for sale, and to be forecast."""

    def __init__(self, sale: str, table: str, domain: str, stage: int) -> None:
        path = DATA / table
        every = bl.read_table(path / f"{domain}.csv", where=WHERE, source=path / "english.csv")
        self.about = dict(zip(KEYS[:4], (sale, table, domain, stage), strict=True))
        self.train = every.training(FITTED.format(stage))
        self.sale, self.aim = every.query(f"ptpp == {P} and ({SALES[sale]})"), every.query(AIM)

    def fit(self, rows: list[int], seed: int, settings: dict[str, Any]) -> bl.Posterior:
        """The posterior with some of the rows for sale."""
        bought = LossTable(self.sale.frame.loc[rows], self.sale.baselines, self.sale.name)
        found: bl.Posterior = bl.fit(LAW, joined(self.train, bought), seed=seed, **settings)
        return found

    def buy(self, design: str, number: int, first: bl.Posterior) -> list[int]:
        """Rows that a design buys."""
        sale, law = self.sale, first.law.without_discrepancy
        price = costs(sale.frame, law.columns, cost="adaptation", fitted=self.train)
        if design == "active-sl":
            train, aim = self.train.frame, self.aim.frame
            rng = np.random.default_rng(number)
            picks = active_sl.choose(law, train, sale.frame, aim, price, WORTH, rng)
            return price.measured(picks)
        case = bl.Case(name="", seed=0, law=law, train=self.train, pool=sale, targets=self.aim)
        return buy(NAMES.get(design, design), case, price, WORTH, first, seed=number)

    def row(self, design: str, number: int, fit: bl.Posterior, rows: list[int]) -> dict[str, Any]:
        """Scores of the forecast."""
        frame = self.sale.frame.loc[rows]
        runs = (6 * frame["params"] * frame["tokens"]).groupby(frame["run"]).max()
        latent = fit.forecast(self.aim, kind="latent", allow_unconverged=True)
        predicted = fit.forecast(self.aim, allow_unconverged=True)
        return {
            **self.about,
            **{"design": design, "number": number, "runs": len(runs), "rows": len(rows)},
            **{"spent": runs.sum() / WORTH, "sd": np.sqrt(np.log(latent.samples).var(0).mean())},
            **bl.score(predicted, self.aim)[["coverage_90", "width_90", "crps", "rmse_log"]],
            "gate": "; ".join(fit.convergence.failures) or "passed",
        }


def measure(
    trial: Trial, designs: Sequence[str], out: Path | None, settings: dict[str, Any]
) -> None:
    """Run the designs of a trial that are missing, and add their rows to the file."""
    rows = pd.read_csv(out) if out and out.is_file() else pd.DataFrame()
    done = set(rows[KEYS].itertuples(index=False, name=None)) if len(rows) else set()
    every = [(d, i) for d in designs for i in range(RANDOM if d == "random" else 1)]
    todo = [each for each in every if (*trial.about.values(), *each) not in done]
    first = trial.fit([], 0, settings) if todo else None
    for design, number in todo:
        assert first is not None
        bought = trial.buy(design, number, first)
        fit = trial.fit(bought, number, settings) if bought else first
        new = pd.DataFrame([trial.row(design, number, fit, bought)])
        print(*new[[*KEYS, "runs", "sd", "crps", "gate"]].iloc[0], flush=True)
        rows = pd.concat([rows, new], ignore_index=True)
        if out:
            rows.to_csv(out, index=False, float_format="%.5g")


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """Each design's log sd and log CRPS over the mean of random ones, with 95 % intervals.

    Of the trials in which all designs were run.
    """
    made = rows.groupby(KEYS[:4])["design"].transform("nunique")
    rows = rows[made == made.max()]
    rows = rows.assign(sd=np.log(rows["sd"]), crps=np.log(rows["crps"]))
    means = rows.groupby([*KEYS[:4], "design"])[["sd", "crps", "coverage_90", "runs"]].mean()
    random, found = means.xs("random", level="design"), []
    for design, own in means.groupby("design"):
        own = own.droplevel("design")
        row = {"design": design, "trials": len(own), "runs": own["runs"].mean()}
        for name in ("sd", "crps"):
            ratio = (own[name] - random[name]).dropna()
            half = student.ppf(0.975, max(len(ratio) - 1, 1)) * ratio.sem()
            row[f"log {name}"] = "0" if design == "random" else f"{ratio.mean():+.2f} ± {half:.2f}"
        below = int((own["coverage_90"] < 0.9).sum())
        found.append(row | {"90 % band holds": own["coverage_90"].mean(), "trials below": below})
    return (
        pd.DataFrame(found)
        .set_index("design")
        .loc[[d for d in DESIGNS if d in rows["design"].values]]
    )


def parser() -> argparse.ArgumentParser:
    """Options."""
    found = arguments(__doc__, __file__)
    found.add_argument("--sale", choices=SALES, default="smaller", help="what can be bought")
    found.add_argument("--show", action="store_true", help="print the table of --out")
    return found


def main() -> None:
    """Run what is missing, then print the table."""
    args = parser().parse_args()
    warnings.simplefilter("ignore")
    if args.smoke:
        active_sl.STARTS = 2
        measure(
            Trial("pilots", "tinycpt", "french", 31), ("cheapest", "active-sl"), None, FIT | SMOKE
        )
        return
    if not args.show:
        for stage, (name, domains) in product(STAGES, DOMAINS.items()):
            for domain in domains:
                measure(Trial(args.sale, name, domain, stage), DESIGNS, args.out, FIT)
    every = pd.read_csv(args.out)
    for sale, rows in (*every.groupby("sale"), ("all of these", every)):
        print(f"\nfor sale: {sale}\n\n{table(rows).round(2).to_markdown()}")


if __name__ == "__main__":
    main()
