"""Synthetic worlds on the paper's grid in which a plan can be checked: eight families.

A world has a target and a source domain, measured on the same runs. Its laws are drawn around the
synthetic world of the paper's use case (`bayeslaw.paper_world`), with half the log standard
deviation of the default priors. The families:

- ``written``: Form 3 (target) and Form 1 (source), as the laws are written;
- ``stage``: their stage term times N^-phi, phi from .1 to .4;
- ``coupled``: their terms in N, D and P joined as ``(sum of T^(1 / kappa))^kappa``;
- ``drift``: exponents that drift with N and PTPP, so that the largest size at the last stage misses
  by 4 to 9 %, up or down, from the form that is fitted to all other cells without noise;
- ``undertuned``: all losses of the largest size raised by 1 to 4 %, of the second largest by half;
- ``heavy``: run effects from Student's t with 2 to 3 degrees of freedom;
- ``correlated``: errors of the two domains correlated .9;
- ``base``: the law `transfer`, in which adaptation starts from the base's own losses.

Measured log loss deviates from the law by an effect of the base, an effect of the run, and a
first-order autoregression along log D within the run. Together they have the noise of the paper's
domain as variance, in shares of `SHARES`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

import bayeslaw as bl
from bayeslaw import Law, Prior, from_frame, load_law
from bayeslaw.design.design import Design
from bayeslaw.laws.departure import Bases, Departure, total_tokens
from bayeslaw.laws.forms import of_role
from bayeslaw.laws.steps import KAPPA, Coupling
from bayeslaw.laws.symbols import ORIGIN
from bayeslaw.laws.terms import Term
from bayeslaw.tables.bases import starting

PAPER = bl.paper_world()
N, P = PAPER.limits["params"], PAPER.limits["ptpp"]
TARGET, SOURCE = PAPER.target, PAPER.source
SIZES, STAGES = PAPER.cells["params"], PAPER.cells["ptpp"]
FAMILIES = (
    "written",
    "stage",
    "coupled",
    "drift",
    "undertuned",
    "heavy",
    "correlated",
    "base",
)
ATPP = (0.5, 2.0, 8.0, 32.0)
"""Tokens per parameter at which a run is measured: four of the paper's seven."""
PILOTS = {"short": (0.06, 0.12, 0.24), "long": (0.06, 0.12, 0.24, 0.48, 0.96)}
"""Tokens per parameter at which the pilot of the planned base is measured."""
SHARES = {"base": 0.2, "run": 0.2, "path": 0.6}
"""Shares of the noise's variance: effect of the base, effect of the run, autoregression."""
LENGTH = 1.0
"""Correlation length of the autoregression, in e-folds of D."""
BASES_ALIKE = 0.7
"""Correlation of a base's effects on the two domains."""
BASE_SD = 0.005
"""Deviation of log losses of bases from their law, in the family ``base``."""
SPREAD = {
    "E": 0.2,
    "slope_N": 0.2,
    "alpha": 0.22,
    "slope_D": 0.45,
    "beta": 0.25,
    "beta_ref": 0.25,
}
SPREAD |= {
    "nu": 0.25,
    "slope_C": 0.4,
    "gamma": 0.25,
    "slope_F": 0.4,
    "eta": 0.18,
    "sigma": 0.35,
}
"""Log standard deviation of the parameters of Forms 1 and 3."""
RUNS = 20_000
"""Simulated runs of a plan, of which the share that violates a limit is counted."""
FACTOR, MORE, LIMITS = (0.95, 1.09), (0.002, 0.06), 100
"""Ranges of the limits, see `Truth.limits`; number of limits after which a world is drawn again."""
FEASIBLE = (5.0, 30.0)
"""ATPP between which the plan made with the true laws must lie; other limits are drawn again."""


def cells(sizes: Any, stages: Any, replay: Any, atpp: Any) -> pd.DataFrame:
    """Rows of runs without losses; a run is one trajectory of a base at one replay ratio."""
    rows = bl.grid(params=sizes, ptpp=stages, replay=replay, atpp=atpp)
    return labelled(rows.assign(tokens=rows["params"] * rows.pop("atpp")))


def labelled(rows: pd.DataFrame, run: str = "") -> pd.DataFrame:
    """Rows with the labels of their `base` and `run`."""
    pairs = zip(rows["params"], rows["ptpp"], strict=True)
    base = pd.Series([f"{n:.3g}-{p:g}" for n, p in pairs], index=rows.index)
    return rows.assign(
        base=base, run=base + "-" + rows["replay"].map("{:g}".format) + run
    )


GRID = cells(SIZES, STAGES, PAPER.cells["replay"], ATPP)
TRAIN = GRID.query("ptpp <= 31").reset_index(drop=True)
BASES = labelled(bl.grid(params=SIZES, ptpp=STAGES, replay=1.0, tokens=0.0))


def purchase(pilot: tuple[float, ...]) -> pd.DataFrame:
    """Rows that are bought at the planned stage before the plan is made.

    Twenty anchors of the two smallest sizes, and a run of the planned base with these ATPP. With
    the short pilot they cost as much as a run of the planned base of ATPP .4: 8 % of the least plan
    in `FEASIBLE`.
    """
    smallest = cells(SIZES[:1], [P], PAPER.cells["replay"], ATPP)[:-1]
    second = cells(SIZES[1:2], [P], PAPER.cells["replay"], ATPP[:-1])
    run = labelled(cells([N], [P], [0.25], pilot), "-pilot")
    return pd.concat([smallest, second, run], ignore_index=True)


def flops(rows: pd.DataFrame) -> float:
    """FLOPs of the runs that rows come from."""
    return float((6 * rows["params"] * rows["tokens"]).groupby(rows["run"]).max().sum())


@dataclass(frozen=True)
class Domain:
    """True loss of a domain.

    Parameters
    ----------
    law : Law
    p : mapping
        Its term sizes at the point `at`, and exponents.
    at : mapping
    sigma : float
        Standard deviation of measured log loss.
    drift : float
        Log factor of the exponents at the largest size and last stage, of which each cell has the
        part that its log N and log P give; see `exponents`.
    raised : float
        Log factor of the losses of the largest size; the second largest has half of it.
    """

    law: Law
    p: Mapping[str, Any]
    at: Mapping[str, float]
    sigma: float
    drift: float = 0.0
    raised: float = 0.0

    def log_loss(self, rows: pd.DataFrame) -> np.ndarray:
        """Log loss of each row without effects of base and run."""
        loss = self.law.loss(self.exponents(rows), Design(self.law, rows).x, self.at)
        largest = (
            rows["params"].map({SIZES[-1]: 1.0, SIZES[-2]: 0.5}).fillna(0.0).to_numpy()
        )
        return np.asarray(np.log(loss) + self.raised * largest)

    def exponents(self, rows: pd.DataFrame) -> dict[str, Any]:
        """The parameters, per row if they drift: alpha with P, eta with N, beta with both."""
        p = dict(self.p)
        if self.drift:
            n, s = (
                np.log(rows[name].to_numpy()) - self.at[name]
                for name in ("params", "ptpp")
            )
            n, s = (
                n / (np.log(N) - self.at["params"]),
                s / (np.log(P) - self.at["ptpp"]),
            )
            for name, along in {"alpha": s, "eta": n, "beta": (n + s) / 2}.items():
                p[name] = p[name] * np.exp(self.drift * along)
        return p


@dataclass(frozen=True)
class Truth:
    """One world.

    Parameters
    ----------
    family : str
    domains : tuple of Domain
        Target and source.
    effects : DataFrame
        Effects on the log loss of each base, columns 0 and 1 for target and source.
    starts : DataFrame
        Losses of each base before adaptation, columns 0 and 1.
    about : mapping
        What was drawn, for the row that is kept.
    """

    family: str
    domains: tuple[Domain, Domain]
    effects: pd.DataFrame
    starts: pd.DataFrame
    about: Mapping[str, float] = field(default_factory=dict)

    @property
    def alike(self) -> float:
        """Correlation of the errors of the two domains."""
        return 0.9 if self.family == "correlated" else 0.0

    def log_losses(self, rows: pd.DataFrame) -> np.ndarray:
        """Log loss of each row with the effect of its base, shape (2, rows)."""
        own = self.effects.loc[rows["base"]].to_numpy().T
        return np.asarray(np.stack([d.log_loss(rows) for d in self.domains]) + own)

    def errors(self, rows: pd.DataFrame, rng: np.random.Generator) -> np.ndarray:
        """Effects of runs, and autoregressions, shape (2, rows)."""
        run, log = (
            rows.groupby("run").ngroup().to_numpy(),
            np.log(rows["tokens"].to_numpy()),
        )
        if self.family == "heavy":
            effects = rng.standard_t(self.about["dof"], (2, run.max() + 1))
        else:
            effects = together(rng, self.alike, run.max() + 1)
        path, sequence = together(rng, self.alike, len(rows)), np.lexsort([log, run])
        for one, two in pairwise(sequence):
            if run[one] == run[two]:
                rho = math.exp(-(log[two] - log[one]) / LENGTH)
                path[:, two] = rho * path[:, one] + math.sqrt(1 - rho**2) * path[:, two]
        sigma = np.array([[domain.sigma] for domain in self.domains])
        run_part = math.sqrt(SHARES["run"]) * effects[:, run]
        return np.asarray(sigma * (run_part + math.sqrt(SHARES["path"]) * path))

    def tables(self, rows: list[pd.DataFrame], seed: list[int]) -> list[bl.LossTable]:
        """Measured tables of target and source; each part of the rows has errors of its own."""
        logs = []
        for i, part in enumerate(rows):
            rng = np.random.default_rng([*seed, i])
            logs.append(self.log_losses(part) + self.errors(part, rng))
        losses, every = (
            np.exp(np.concatenate(logs, axis=1)),
            pd.concat(rows, ignore_index=True),
        )
        tables = []
        for i, name in enumerate((TARGET, SOURCE)):
            before = BASES.assign(loss=self.starts.loc[BASES["base"], i].to_numpy())
            measured = pd.concat(
                [every.assign(loss=losses[i]), before], ignore_index=True
            )
            tables.append(from_frame(measured, f"synthetic {name}, {self.family}"))
        return [starting(table, tables[1]) for table in tables]

    def limits(self, rows: pd.DataFrame, losses: np.ndarray) -> dict[str, float]:
        """Limits from losses of the largest model at PTPP 31, ATPP 8 and replay .25.

        The limit of the target loss is that loss times `about["factor"]`, that of forgetting the
        rise there plus `about["more"]`. The baseline is the planned base's own loss.

        Parameters
        ----------
        rows : DataFrame
        losses : array, shape (2, rows)
        """
        at = (rows["base"] == f"{N:.3g}-31") & (rows["replay"] == 0.25)
        (i,) = np.flatnonzero(at & np.isclose(rows["tokens"], 8 * N))
        risen = losses[1, i] / self.starts[1][f"{N:.3g}-31"] - 1
        return {
            "max_loss": float(self.about["factor"] * losses[0, i]),
            "max_forgetting": float(risen + self.about["more"]),
            "baseline": float(self.starts[1][f"{N:.3g}-{P:g}"]),
        }

    @cached_property
    def new_runs(self) -> np.ndarray:
        """Errors of simulated new runs, shape (2, runs)."""
        rows = pd.DataFrame({"run": np.arange(RUNS), "tokens": 1.0})
        return self.errors(rows, np.random.default_rng(int(self.about["number"])))

    def margins(
        self, limits: Mapping[str, float], atpp: Any, replay: Any
    ) -> np.ndarray:
        """Log limits minus log losses of the planned base at budgets and ratios, shape (2, n)."""
        rows = pd.DataFrame(
            {"params": N, "ptpp": float(P), "replay": replay, "tokens": N * atpp}
        )
        most = limits["max_loss"], (1 + limits["max_forgetting"]) * limits["baseline"]
        return np.asarray(np.log(most)[:, None] - self.log_losses(labelled(rows)))

    def outcome(
        self, limits: Mapping[str, float], atpp: float, replay: float
    ) -> dict[str, float | int]:
        """Probability that a new run violates a limit, and whether the first one does."""
        broken = self.new_runs > self.margins(
            limits, np.array([atpp]), np.array([replay])
        )
        either = broken.any(0)
        return {
            "risk": float(either.mean()),
            "risk_target": float(broken[0].mean()),
            "risk_forgetting": float(broken[1].mean()),
            "violated": int(either[0]),
        }

    def oracle(self, limits: Mapping[str, float], confidence: float) -> float:
        """Smallest ATPP that meets both limits with the confidence, if the world is known."""
        atpp, replay = np.geomspace(0.2, 1000, 250), np.linspace(0.01, 0.99, 50)
        a, r = (axis.ravel() for axis in np.meshgrid(atpp, replay, indexing="ij"))
        margins, few = self.margins(limits, a, r), self.new_runs[:, :4000]
        alone = [
            np.sort(e).searchsorted(m, "right") / few.shape[1]
            for e, m in zip(few, margins, strict=True)
        ]
        for i in np.flatnonzero(
            np.min(alone, axis=0) >= confidence
        ):  # in order of ATPP
            if (few <= margins[:, i, None]).all(0).mean() >= confidence:
                return float(a[i])
        return math.inf


def together(rng: np.random.Generator, correlation: float, count: int) -> np.ndarray:
    """Pairs of standard Normal numbers with a correlation, shape (2, count)."""
    z = rng.standard_normal((2, count))
    return np.stack([z[0], correlation * z[0] + math.sqrt(1 - correlation**2) * z[1]])


def world(family: str, number: int) -> Truth:
    """A world whose plan of 90 %, with true laws and limits without noise, is in `FEASIBLE`."""
    rng = np.random.default_rng([11, FAMILIES.index(family), number])
    while True:
        try:
            found = drawn(family, number, rng)
        except bl.BayeslawError:  # exponents that do not drift as wanted
            continue
        for _ in range(LIMITS):
            ask = {"factor": rng.uniform(*FACTOR), "more": rng.uniform(*MORE)}
            found = replace(found, about={**found.about, **ask})
            limits = found.limits(TRAIN, np.exp(found.log_losses(TRAIN)))
            if FEASIBLE[0] <= found.oracle(limits, 0.9) <= FEASIBLE[1]:
                return found


def drawn(family: str, number: int, rng: np.random.Generator) -> Truth:
    """A world as drawn."""
    about: dict[str, float] = {"number": number}
    if family == "heavy":
        about["dof"] = rng.uniform(2, 3)
    names = BASES["base"].to_numpy()
    alike = 0.9 if family == "correlated" else BASES_ALIKE
    effects = math.sqrt(SHARES["base"]) * together(rng, alike, len(names)).T
    if family == "base":
        return from_bases(about, names, effects, rng)
    domains = [form(name, family, about, rng) for name in (TARGET, SOURCE)]
    frame = pd.DataFrame(effects * [domain.sigma for domain in domains], index=names)
    found = Truth(family, (domains[0], domains[1]), frame, frame, about)
    # The base on its own domain: the law after as many tokens of pure replay as it was trained on.
    # On the target domain: far above the first measured loss of adaptation.
    first = found.log_losses(BASES.assign(replay=0.5, tokens=0.5 * BASES["params"]))[0]
    itself = found.log_losses(BASES.assign(tokens=BASES["params"] * BASES["ptpp"]))[1]
    starts = pd.DataFrame({0: 1.2 * np.exp(first), 1: np.exp(itself)}, index=names)
    return replace(found, starts=starts)


def form(
    name: str, family: str, about: dict[str, float], rng: np.random.Generator
) -> Domain:
    """A domain with Form 3 or Form 1, changed as the family says."""
    law = PAPER.laws[name]
    at = Design(law, pd.concat([TRAIN, GRID.query(PAPER.anchors)])).at
    q = around(law, {**PAPER.truth[name], "sigma": PAPER.sigma[name]}, at, rng)
    plain = Domain(
        law, law.amounts(q | {"L_ref": 0.0}, at) | {"E": q["E"]}, at, q["sigma"]
    )
    if family == "stage":
        about[f"phi {name}"] = q["phi"] = rng.uniform(0.1, 0.4)
        stage = Term("F", "slope_F", "-eta*log(P) - phi*log(N)")
        law = replace(
            law, terms=(*(t for t in law.terms if t.coefficient != "F"), stage)
        )
    if family == "coupled":
        about[f"kappa {name}"] = q[KAPPA] = math.exp(
            rng.choice([-1, 1]) * rng.uniform(0.2, 0.5)
        )
        along = {term.coefficient: term.covariates for term in law.terms}
        law = law.with_steps(Coupling({name: along[name] for name in ("A", "B", "F")}))
    if law is not plain.law:
        p = law.amounts(q | {"L_ref": 0.0}, at) | {"E": q["E"]}
        return replace(plain, law=law, p=p)
    if family == "undertuned":
        about["raised"] = raised = about.get("raised") or rng.uniform(0.01, 0.04)
        return replace(plain, raised=math.log1p(raised))
    if family == "drift":
        sign = 1 if about["number"] % 2 else -1
        about[f"miss {name}"] = wanted = sign * rng.uniform(0.04, 0.09)
        return drifting(plain, wanted)
    return plain


def around(
    law: Law,
    centre: Mapping[str, float],
    at: Mapping[str, float],
    rng: np.random.Generator,
) -> dict[str, float]:
    """One draw of the reference coordinates around a centre in paper coordinates."""
    middle = {
        **law.to_reference(centre, at),
        "E": centre["E"],
        "sigma": centre["sigma"],
    }
    q = {
        name: float(value) * math.exp(SPREAD[name] * rng.standard_normal())
        for name, value in middle.items()
        if name in SPREAD
    }
    if "zeta" in middle:
        share = Prior.parse(f"Beta(mu={centre['lambda_']}, sigma=0.1)").kwargs
        weight = share["mu"] * (1 - share["mu"]) / share["sigma"] ** 2 - 1
        q["zeta"] = centre["zeta"] + 0.25 * rng.standard_normal()
        q["lambda_"] = float(rng.beta(share["mu"] * weight, (1 - share["mu"]) * weight))
    return q


def drifting(plain: Domain, wanted: float) -> Domain:
    """The domain with exponents that drift so far that the corner misses as wanted, by secants."""
    corner = ((GRID["params"] == N) & (GRID["ptpp"] == P)).to_numpy()

    def miss(drift: float) -> float:
        log = replace(plain, drift=drift).log_loss(GRID)
        rest = from_frame(
            GRID[~corner].assign(loss=np.exp(log[~corner])), "all but the corner"
        )
        fit = bl.fit_huber(plain.law, rest, delta=1e-2, starts=32, polish=2)
        return float(np.mean(log[corner] - np.log(fit.predict(GRID[corner]))))

    low, high, missed, goal = (
        0.0,
        -0.5 * math.copysign(1, wanted),
        0.0,
        math.log1p(wanted),
    )
    for _ in range(12):
        now = miss(high)
        if abs(now - goal) < 2e-3:
            return replace(plain, drift=high)
        step = (
            (goal - now) * (high - low) / (now - missed) if now != missed else math.nan
        )
        low, missed, high = high, now, high + float(np.clip(step, -0.5, 0.5))
        if not abs(high) < 3:
            break
    raise bl.BayeslawError("the corner does not miss as wanted.")


def from_bases(
    about: dict[str, float],
    names: np.ndarray,
    effects: np.ndarray,
    rng: np.random.Generator,
) -> Truth:
    """A world of the law `transfer`; the deviations of bases from their law act through it."""

    def near(value: float, spread: float) -> float:
        return float(value * math.exp(spread * rng.standard_normal()))

    def normal(mean: float, spread: float) -> float:
        return float(rng.normal(mean, spread))

    chinchilla, transfer = load_law("chinchilla"), load_law("transfer")
    own = {"E": near(1.72, 0.1), "A": near(188.6, 0.2), "alpha": normal(0.3, 0.01)}
    own |= {"B": near(600, 0.2), "beta": normal(0.3, 0.01)}
    start = {
        "E": near(1.7, 0.1),
        "A": near(500, 0.2),
        "alpha": 0.3,
        "B": near(1000, 0.2),
    }
    laws = [start | {"beta": 0.3}, own]
    x = chinchilla.covariates(
        total_tokens(BASES["params"].to_numpy(float), BASES["ptpp"].to_numpy(float))
    )
    losses = np.stack([chinchilla.loss(p, x) for p in laws]) * np.exp(
        BASE_SD * effects.T
    )
    domains = []
    for i, name in enumerate((TARGET, SOURCE)):
        columns = dict(zip(("start_loss", "base_loss"), (laws[i], own), strict=True))
        rows = zip(BASES["params"], BASES["ptpp"], losses[i], losses[1], strict=True)
        known = dict(zip(names, rows, strict=True))
        none = dict.fromkeys(columns, ((0.0,),))
        bases = Bases(known, chinchilla, columns, ((0.0, 0.0), (0.0, 0.0)), none)
        law = of_role(transfer, "target" if name == TARGET else "source")
        departure = law.step(Departure)
        assert departure
        departure = replace(departure, bases=bases)
        law = law.with_steps(departure)
        at = Design(law, TRAIN).at
        q = {"eta": normal(0.35, 0.05), "phi": normal(0, 0.1), "rho": near(1, 0.35)}
        q |= {"beta": near(0.33, 0.18), "v": normal(1, 0.15), "k": normal(0.7, 0.15)}
        q |= {"z_ref": normal(-4, 0.75), "z_N": normal(0, 0.1), "z_P": normal(0, 0.075)}
        q |= {"gamma": normal((-0.01, 0.025)[i], 0.0125)}
        if name == TARGET:
            q |= {
                "slope_N": near(0.1, 0.2),
                "alpha": near(0.3, 0.2),
                "slope_F": near(0.042, 0.4),
            }
            p = law.to_paper(q | {"L_ref": 0.0}, at) | {"E": near(1.3, 0.1)}
        else:  # Adaptation goes on where pre-training ended, but a floor's share stays forgotten.
            about["forgotten"] = rng.uniform(0.01, 0.03)
            q["c"] = near(0.15, 0.2)
            p = {
                n: q[local]
                for n, local in zip(departure.parameters, departure.local, strict=True)
            }
            p |= {"z": q["z_ref"] - departure.shift(q, at), "rho": q["rho"], "phi": 0.0}
            p |= {
                "A": own["A"],
                "alpha": own["alpha"],
                "F": own["B"],
                "eta": own["beta"],
            }
            p |= {"E": own["E"] * (1 + about["forgotten"])}
        sigma = near(PAPER.sigma[name], SPREAD["sigma"])
        domains.append(Domain(law, p, ORIGIN, sigma))
    frame = pd.DataFrame(np.zeros_like(effects), index=names)
    starts = pd.DataFrame(losses.T, index=names)
    return Truth("base", (domains[0], domains[1]), frame, starts, about)
