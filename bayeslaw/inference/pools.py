"""Pools: posteriors of several laws on one table, used as one."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import xarray as xr

from bayeslaw.common.arrays import Floats, Ints
from bayeslaw.common.errors import Acceptance, FileError, FitError, LawError
from bayeslaw.common.shown import Note, Showing, Shown
from bayeslaw.design.described import described, held_columns, units
from bayeslaw.design.fits import BaseFit
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference import storage
from bayeslaw.inference.convergence import Convergence
from bayeslaw.inference.forecast import Forecast
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.law import Law
from bayeslaw.tables.comparison import labels_of
from bayeslaw.tables.table import LossTable, Rows

JOINT = "joint"
"""Setting of posteriors of groups that were fitted together: the same text in all of them."""
POOLS = {"adaptation": ("form1n", "transfer")}
"""Names of pools and their laws."""


@dataclass(frozen=True, repr=False)
class Pool(Showing, BaseFit):
    """Posteriors of several laws given one table, as a mixture with fixed weights.

    A draw of the pool is a draw of one of its members, in proportion to their weights. Those of
    different members alternate in no order, and those of one member keep theirs.

    Parameters
    ----------
    members : mapping of label to Posterior
    weights : mapping of label to float
        They sum to 1.
    name : str
        What the pool is called in messages.
    """

    members: Mapping[str, Posterior]
    weights: Mapping[str, float] = field(default_factory=dict)
    name: str = "adaptation"

    def __post_init__(self) -> None:
        weights = dict(self.weights) or dict.fromkeys(self.members, 1.0)
        total = sum(weights.values())
        least = min(weights.values(), default=-1)
        if (
            weights.keys() != self.members.keys()
            or least < 0
            or not 0 < total < math.inf
        ):
            raise LawError(
                f"pool {self.name}: give each member a weight of 0 or more, not all 0."
            )
        if len({fit.table.sha256 for fit in self.members.values()}) > 1:
            raise LawError(
                f"pool {self.name}: its members are fits of different tables."
            )
        accepted = [fit.accepts for fit in self.members.values()]
        object.__setattr__(self, "accepts", frozenset.intersection(*accepted))
        shares = {name: float(weight / total) for name, weight in weights.items()}
        object.__setattr__(self, "weights", shares)

    def heading(self) -> Shown:
        """The weights, and each member's model and convergence, without the parameters."""
        percents = [f"{100 * w:.0f} % {name}" for name, w in self.weights.items()]
        title = f"Pool of {' and '.join(percents)}"
        first = self.first
        blocks = [*described(replace(first.law, held={}), first.table, first.at).blocks]
        heads = {}
        failures = []
        for name, member in self.members.items():
            heads[name] = member.heading().document
            note = held_columns(member.law)
            if note:
                blocks.append(Note(f"{name}: {note}", "caution"))
            state = member.convergence
            words = "; ".join([*member.how(), str(state)])
            blocks.append(Note(f"{name}: {words}", state.note.level))
            for failure in state.failures:
                failures.append(f"{name}: {failure}")
        document: dict[str, object] = {"law": self.name, "title": title}
        of_first = first.heading().document
        for key in ("table", "train", "rows_train", "synthetic", "seed"):
            if key in of_first:
                document[key] = of_first[key]
        document["weights"] = dict(self.weights)
        document["members"] = heads
        document["converged"] = not failures
        document["failures"] = failures
        return Shown(f"{self.name}: {title}", blocks, document)

    def shown(self) -> Shown:
        """The heading, and the parameters of each member."""
        whole = self.heading()
        documents = {}
        for name, member in self.members.items():
            # The pool's heading has said all that a member's says, but for its units.
            head = member.heading()
            parameters = member.parameters()
            blocks = [units(member.law, member.at), "", *parameters.blocks]
            whole += Shown(head.title, blocks, figures=parameters.figures)
            documents[name] = {**head.document, **parameters.document}
        return whole.adding(members=documents)

    @property
    def first(self) -> Posterior:
        """The member with the largest weight."""
        return self.members[max(self.weights, key=self.weights.__getitem__)]

    @property
    def table(self) -> LossTable:
        """The training table."""
        return self.first.table

    @property
    def laws(self) -> tuple[Law, ...]:
        return tuple(fit.law for fit in self.members.values())

    @property
    def settings(self) -> Mapping[str, Any]:
        """Seed, settings of the sampler, and versions, of the member with the largest weight."""
        return self.first.settings

    @property
    def convergence(self) -> Convergence:
        """Convergence of the member that mixed worst."""
        checks = [fit.convergence for fit in self.members.values()]
        # A failure counts before R-hat, as divergences fail with any R-hat.
        return max(checks, key=lambda check: (not check.ok, check.rhat))

    def require_converged(self) -> tuple[str, ...]:
        for fit in self.members.values():
            fit.require_converged()
        return tuple(
            f"{self.table.name}: {failure}" for failure in self.convergence.failures
        )

    def accepted(self, accepts: Acceptance | Collection[Acceptance]) -> Self:
        return self.with_members(
            {name: fit.accepted(accepts) for name, fit in self.members.items()}
        )

    def with_members(self, members: Mapping[str, Posterior]) -> Self:
        """The pool of other posteriors of the same laws, with the same weights."""
        return replace(self, members=members)

    @cached_property
    def _layout(self) -> tuple[list[Posterior], Ints, Ints]:
        """Members with weight; of each draw of the pool, its member and place among its draws."""
        used = {
            name: fit for name, fit in self.members.items() if self.weights[name] > 0
        }
        # The most draws of which no member gives one twice.
        total = min(fit.count / self.weights[name] for name, fit in used.items())
        # A fixed seed: a draw of the pool is the same one in every call and process.
        rng = np.random.default_rng(0)
        owner = []
        draw = []
        key = []
        for k, (name, fit) in enumerate(used.items()):
            count = round(total * self.weights[name])
            owner.append(np.full(count, k))
            draw.append(spread_draws(fit.count, count))
            # Members alternate at random. In equal parts of the pool, every n-th draw would be of
            # the larger member more often than its weight says.
            key.append(np.sort(rng.random(count)))
        order = np.argsort(np.concatenate(key), kind="stable")
        return (
            list(used.values()),
            np.concatenate(owner)[order],
            np.concatenate(draw)[order],
        )

    @property
    def count(self) -> int:
        return len(self._layout[1])

    def by_member(
        self, draws: Ints | None = None
    ) -> Iterator[tuple[Posterior, Ints, Ints]]:
        """Yield each member, its draws among those chosen, and where they stand among them."""
        fits, owner, draw = self._layout
        wanted = np.arange(self.count) if draws is None else draws
        for k, fit in enumerate(fits):
            places = np.flatnonzero(owner[wanted] == k)
            yield fit, draw[wanted[places]], places

    def losses(self, rows: Rows | pd.DataFrame, draws: Ints | None = None) -> Floats:
        rows = self._valid(rows)
        losses = np.empty((self.count if draws is None else len(draws), len(rows)))
        for fit, of_member, places in self.by_member(draws):
            losses[places] = fit.losses(rows, of_member)
        return losses

    def forecast(
        self, table: Rows | pd.DataFrame, *, kind: str = "predictive", seed: int = 0
    ) -> Forecast:
        """Forecast the loss of each row by the mixture of the members; see `Posterior.forecast`.

        The coordinate `law` of dimension `draw` is the label of a draw's member.
        """
        fits = self.members
        rows = self.rows(table, "grid")
        # Less than half a draw: a law that gets none need not converge, nor be forecast.
        least = 0.5 / min(fit.draws.sizes["draw"] for fit in fits.values())
        parts = {
            # Members would warn of the same rows; the pool warns once, below.
            name: fits[name]
            .accepted("beyond-evidence")
            .forecast(rows, kind=kind, seed=seed)
            for name, weight in self.weights.items()
            if weight > least
        }
        share = np.array([self.weights[name] for name in parts])
        share = share / share.sum()
        chains = min(part.draws.sizes["chain"] for part in parts.values())
        count = min(part.draws.sizes["draw"] for part in parts.values())
        edges = np.rint(np.cumsum(share) * count).astype(int)
        taken = []
        for (name, part), size in zip(
            parts.items(), np.diff(edges, prepend=0), strict=True
        ):
            # Spread over the chain, since neighbouring draws are alike.
            spaced = np.linspace(0, part.draws.sizes["draw"] - 1, size).astype(int)
            draws = part.draws.isel(chain=slice(chains), draw=spaced)
            draws = draws.drop_vars("draw", errors="ignore")
            taken.append(draws.assign_coords(law=("draw", [name] * size)))
        # One that failed, if any.
        first = min(parts.values(), key=lambda part: part.convergence.ok)
        self._warn_beyond(first.frame, rows.name)
        return Forecast(
            draws=xr.concat(
                taken, "draw", coords="minimal", compat="override", join="override"
            ),
            frame=first.frame,
            law=" + ".join(f"{w:.2f} {n}" for n, w in zip(parts, share, strict=True)),
            kind=kind,
            convergence=first.convergence,
            fits={name: fits[name] for name in parts},
            seed=seed,
            weights=dict(zip(parts, map(float, share), strict=True)),
        )

    def summary(self) -> pd.DataFrame:
        """`Posterior.summary` of each member, whose label is the first level of the index."""
        return pd.concat({name: fit.summary() for name, fit in self.members.items()})

    def to_datatree(self, *, seed: int = 0, prior: int = 1000) -> xr.DataTree:
        """The members' trees for ArviZ, by their labels."""
        fits = self.members.items()
        return xr.DataTree(
            children={n: f.to_datatree(seed=seed, prior=prior) for n, f in fits}
        )

    def save(self, path: str | Path, *, losses: bool = True) -> None:
        """Write the pool to one NetCDF file, which `bayeslaw.load` reads; see `Posterior.save`."""
        about = {"name": self.name, "weights": dict(self.weights)}
        storage.write(storage.pool_tree(self.members, about, losses), path)


def load(path: str | Path) -> Posterior | Pool:
    """Read a posterior or a pool that was saved; it forecasts bit for bit as the saved one.

    Raises
    ------
    FileError
        If the file is missing, damaged, edited, not a posterior, or written by a version with
        another layout.
    """
    stored, about = storage.read(path)
    fits = {label: Posterior(**arguments) for label, arguments in stored.items()}
    return Pool(fits, **about) if about else fits[""]


def load_posterior(path: str | Path) -> Posterior:
    """`load` for what needs the fit of one law; `FileError` if the file holds a pool."""
    fit = load(path)
    if len(fit.members) > 1:
        names = ", ".join(fit.members)
        raise FileError(
            f"{path}: a pool; this needs the fit of one of its laws alone: {names}."
        )
    return fit.first


type Fit = Posterior | Pool | PointFit
"""What a plan can be made from."""


def of_one_law(fit: Posterior | Pool, what: str) -> Posterior:
    """The fit, if it is the posterior of one law; `what` in the error names what needs one."""
    if len(with_draws(fit, what).members) > 1:
        names = ", ".join(fit.members)
        raise FitError(
            f"{what} needs the fit of one law, not a pool; take a member: {names}."
        )
    return fit.first


def with_draws[T](fit: T, what: str) -> T:
    """The fit, if it is a posterior or a pool; see `of_one_law`."""
    if not isinstance(fit, Posterior | Pool):
        kind = type(fit).__name__
        raise FitError(
            f"{what} needs a posterior, which bayeslaw.fit gives, not a {kind}."
        )
    return fit


def member_laws(law: object) -> Sequence[str | Path | Law] | None:
    """Laws of a pool by its name, or those of a sequence; None for a single law."""
    if isinstance(law, str):
        return POOLS.get(law)
    return law if isinstance(law, Sequence) else None


def role_of(fit: Fit) -> str:
    """Role of the domain of a fit's losses: "target" or "source"; empty if nothing says it."""
    roles: set[str] = set()
    if fit.table is not None:
        roles = labels_of(fit.table.frame, "role")
    if not roles:
        roles = {law.role for law in fit.laws if law.role}
    return roles.pop() if len(roles) == 1 else ""


def check_roles(target: Fit, source: Fit) -> None:
    """Raise `FitError` for fits of target and source whose losses are of the other domain."""
    swapped = role_of(target) == "source"
    alike = role_of(source) == "target"
    if swapped and alike:
        raise FitError(
            "target and source are swapped: the target's table is of the domain that its bases "
            "were pre-trained on, which may be forgotten; give its fit as the source."
        )
    says = "(column 'role', or the losses of its bases)"
    if swapped:
        raise FitError(
            f"the target's fit is of role source {says}; give a fit of the domain adapted to."
        )
    if alike:
        raise FitError(
            f"the source's fit is of role target {says}; give a fit of the domain pre-trained on."
        )


def spread_draws(count: int, most: int) -> Ints:
    """At most so many of some draws, evenly spread."""
    return np.linspace(0, count - 1, min(count, most)).round().astype(int)


def _sampled(fit: Posterior) -> int | str:
    """What draws that were sampled together have in common."""
    joint: str | None = fit.settings.get(JOINT)
    return id(fit.draws) if joint is None else joint


def pair_draws(fits: Sequence[Fit]) -> tuple[list[Ints], str]:
    """The draw of each fit in each pair, and how they were paired.

    Draws of one fit, given more than once, are paired with themselves, and so are those of groups
    that were fitted together. Separate fits are independent, so any pairing of their draws is
    valid; longer posteriors are thinned.
    """
    # Fits of the same draws, which a point fit has none of.
    draws_of: list[tuple[int | str, ...]] = []
    for fit in fits:
        draws_of.append(tuple(map(_sampled, fit.members.values())))
    posteriors = [ids for ids in dict.fromkeys(draws_of) if ids]
    draws = min((fit.count for fit in fits if fit.members), default=1)
    index = []
    for fit, ids in zip(fits, draws_of, strict=True):
        thinned = np.arange(draws) * fit.count // draws
        # Chains sampled with the same seed can be correlated between fits, so the draws of each
        # are shifted against those of the others; the one draw of a point fit is in every pair.
        shift = 0
        if ids:
            shift = posteriors.index(ids) * draws // len(posteriors)
        index.append(np.roll(thinned, shift))
    if not posteriors:
        return index, "no draws: all fits are point fits"
    if sum(map(bool, draws_of)) == 1:
        return index, "one posterior: the other fits are point fits"
    if len(posteriors) == 1:
        return index, "jointly: draw by draw of one fit"
    return index, f"independently: {len(posteriors)} fits, draws paired at random"
