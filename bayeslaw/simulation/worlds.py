"""Synthetic loss tables of any law, and a synthetic world of the paper's use case.

Noise is Normal on log loss and independent between rows. The name of every table starts with
"synthetic", and its column `synthetic` is True.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.common.defaults import DELTA
from bayeslaw.common.errors import BayeslawError, LawError, unknown
from bayeslaw.common.files import models_dir
from bayeslaw.design.design import Design
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.laws.symbols import ORIGIN
from bayeslaw.model.training import for_table
from bayeslaw.tables.reading import from_frame
from bayeslaw.tables.table import LossTable, Rows, check_role, grid, rows_of


def simulate(
    law: str | Law,
    truth: Mapping[str, float],
    design: pd.DataFrame,
    *,
    role: str | None = None,
    sigma: float = 0.0,
    seed: int | Sequence[int] | np.random.Generator = 0,
    name: str = "",
) -> LossTable:
    """Simulate the losses of a law with known parameters.

    Parameters
    ----------
    law : str, path or Law
    truth : mapping
        Value of every parameter of the law, in paper coordinates, with D in the law's token unit.
    design : DataFrame
        The law's covariates, with ``tokens > 0``; see `bayeslaw.grid`. Other columns are preserved.
    role : {"target", "source"}, optional
        Column `role` of the table: whether the losses are of the domain adapted to, or of the one
        pre-trained on. Laws that read the share of the domain's own text need it, here or in the
        design.
    sigma : float
        Standard deviation of the Normal noise on log loss; 0 gives the exact losses of the law.
    seed : int, sequence of int or numpy Generator
        The same seed gives the same losses.
    name : str
        Name of the table, to which "synthetic" is prefixed; by default that of the law.

    Returns
    -------
    LossTable
        The design with `loss` in nats per token and ``synthetic = True``.

    Examples
    --------
    >>> design = grid(params=[1e8, 1e9], tokens=[1e9, 1e10])
    >>> truth = {"E": 1.7, "A": 400, "alpha": 0.34, "B": 410, "beta": 0.28}
    >>> simulate("chinchilla", truth, design).loss.round(3).tolist()
    [3.7, 3.112, 3.287, 2.698]
    """
    if role is not None:
        check_role(role)
        design = design.assign(role=role)
    rows = rows_of(design, "design")
    law = for_table(load_law(law), LossTable(rows.frame, rows.name), whole=True)
    if not 0 <= sigma < np.inf:
        raise BayeslawError(
            f"sigma={sigma:g}: give a standard deviation of log loss, 0 or more."
        )
    for parameter in truth:
        if parameter not in law.parameters:
            raise LawError(unknown("parameter", parameter, law.parameters))
    missing = [name for name in law.parameters if name not in truth]
    if missing:
        raise LawError(f"law {law.name}: no value for {', '.join(missing)}.")
    with np.errstate(all="ignore"):
        x = Design(law, rows).x
        loss = law.loss(truth, x)
    positive = np.isfinite(loss) & (loss > 0)
    if not positive.all():
        raise LawError(
            f"law {law.name}: these parameters give a loss that is not positive and finite."
        )
    # The same draws for every sigma: tables of one seed differ in the size of the noise alone.
    rng = np.random.default_rng(seed)
    noise = sigma * rng.standard_normal(len(design))
    frame = design.assign(loss=loss * np.exp(noise), synthetic=True)
    return from_frame(frame, f"synthetic {name or law.name}", loss_unit="nats")


class UseCase(TypedDict):
    """The model to adapt and the limits of its losses; see `World.limits`."""

    params: float
    ptpp: float
    max_loss: float
    max_forgetting: float


@dataclass(frozen=True)
class World:
    """Domains with known true laws, and a planning problem for them."""

    title: str
    target: str
    source: str  # the domain that may be forgotten
    laws: Mapping[str, Law]  # by domain, as are truth and sigma
    # Paper coordinates, D in the law's token unit.
    truth: Mapping[str, Mapping[str, float]]
    sigma: Mapping[str, float]  # standard deviation of the noise on log loss
    # Values of params, ptpp, replay and atpp, D/N; the tables have one row per combination.
    cells: Mapping[str, Sequence[float]]
    # The model, max_loss of the target in nats per token, and max_forgetting of the source,
    # relative to its `baseline`.
    limits: UseCase
    # Query for the paper's anchors: a few inexpensive rows at the evaluation stage.
    anchors: str

    def design(self) -> pd.DataFrame:
        """Covariates of every row of the grid, without losses."""
        cells = grid(**self.cells)
        cells["tokens"] = cells["params"] * cells.pop("atpp")
        return cells

    def loss(self, domain: str, rows: Rows | pd.DataFrame) -> Floats:
        """True loss of a domain per row, nats per token."""
        if domain not in self.laws:
            raise BayeslawError(unknown("domain", domain, self.laws))
        law = self.laws[domain]
        loss: Floats = law.loss(self.truth[domain], Design(law, rows).x)
        return loss

    def baseline(self, params: float | None = None, ptpp: float | None = None) -> float:
        """Source loss of the pre-trained model before adaptation, nats per token.

        The law diverges at D = 0, so the baseline is defined otherwise. The pre-trained model was
        trained on PTPP x N source tokens, and its loss is that of the law for as many tokens of
        pure replay. By default N and PTPP are those of `limits`.
        """
        n = self.limits["params"] if params is None else params
        p = self.limits["ptpp"] if ptpp is None else ptpp
        pretraining = grid(params=n, ptpp=p, replay=1.0, tokens=p * n)
        (loss,) = self.loss(self.source, pretraining)
        return float(loss)

    def table(
        self, domain: str | None = None, *, seed: int = 0, noise: bool | float = True
    ) -> LossTable:
        """Simulate losses on the whole grid, of both domains or of one.

        The column `domain` tells them apart; a domain has the same losses alone and in the table
        of both. Those of the source domain before adaptation are the table's `baselines`. `noise`
        is True for the world's, False for none, or a standard deviation of log loss.

        Examples
        --------
        >>> table = paper_world().table("french", seed=0)
        >>> len(table), table.frame["ptpp"].unique().tolist()
        (252, [15.0, 31.0, 279.0])
        """
        frames = []
        for i, (name, law) in enumerate(self.laws.items()):
            if domain not in (None, name):
                continue
            role = "source" if name == self.source else "target"
            labels = {"domain": name, "role": role}
            rows = self.design().assign(**labels)
            truth = self.truth[name]
            sigma = self.sigma[name] if noise is True else float(noise)
            losses = simulate(law, truth, rows, sigma=sigma, seed=[seed, i])
            frames.append(losses.frame)
            if name == self.source:
                frames.append(self._baselines().assign(**labels, synthetic=True))
        if not frames:
            raise BayeslawError(unknown("domain", str(domain), self.laws))
        domains = domain or " and ".join(self.laws)
        name = f"synthetic {domains}, {self.title} (seed {seed})"
        return from_frame(pd.concat(frames, ignore_index=True), name)

    def _baselines(self) -> pd.DataFrame:
        """Source losses of the pre-trained models before adaptation, one row per model."""
        params = self.cells["params"]
        bases = grid(params=params, ptpp=self.cells["ptpp"], tokens=0.0)
        # Without noise, since forgetting is relative to the measured value.
        losses = []
        for n, p in zip(bases["params"], bases["ptpp"], strict=True):
            losses.append(self.baseline(n, p))
        return bases.assign(replay=1.0, loss=losses)


def paper_world() -> World:
    """Read the synthetic world of the paper's grid and use case.

    Its parameters are calibrated to the results that the paper reports
    (``benchmarks/calibrate_world.py`` of commit b042428): the smallest budget that meets both
    limits is 8.9 adaptation tokens per parameter at 34 % replay.

    Examples
    --------
    >>> world = paper_world()
    >>> world.limits["params"], world.limits["ptpp"], round(world.baseline(), 2)
    (8100000000.0, 279, 2.05)
    """
    path = models_dir() / "worlds" / "paper.toml"
    spec = tomllib.loads(path.read_text(encoding="utf-8"))
    laws = {}
    truth = {}
    sigma = {}
    for domain, about in spec.pop("domains").items():
        laws[domain] = load_law(about["law"])
        truth[domain] = about["truth"]
        sigma[domain] = about["sigma"]
    cells = spec.pop("grid")
    return World(laws=laws, truth=truth, sigma=sigma, cells=cells, **spec)


def true_fits(world: World) -> list[PointFit]:
    """The true laws of a world's target and source domain, as point fits."""
    fits = []
    for domain in (world.target, world.source):
        point = PointFit(
            law=world.laws[domain],
            parameters=world.truth[domain],
            at=ORIGIN,
            objective=0.0,
            delta=DELTA,
            starts=0,
            polished=0,
            agreeing=1.0,
        )
        fits.append(point)
    return fits
