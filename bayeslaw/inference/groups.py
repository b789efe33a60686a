"""Several groups of rows fitted together, and the posterior of each of them."""

import warnings
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import numpy as np

from bayeslaw.common.errors import FitWarning, LawError, TableError
from bayeslaw.common.files import digest
from bayeslaw.huber.doubts import examine
from bayeslaw.inference.fitted import EXTENSION
from bayeslaw.inference.fitting import labelled_draws
from bayeslaw.inference.pools import JOINT, member_laws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.residuals import overruled
from bayeslaw.inference.sampling import Sampled, sample
from bayeslaw.inference.settings import FitKeywords, make_settings, shows_settings
from bayeslaw.inference.specification import specify
from bayeslaw.laws.departure import Departure
from bayeslaw.laws.deviations import Knots, Spread
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.laws.priors import Prior
from bayeslaw.model import effects
from bayeslaw.model.groups import GROUPS_SCALE, OWN, Grouped, OfGroup, own_walks
from bayeslaw.model.spec import Spec
from bayeslaw.model.training import Data, make_data
from bayeslaw.tables.table import LossTable, of_domains
from bayeslaw.tables.validation import NUMBERS, label_texts

PAIR = "pair"
"""Column of labels that rows of several groups have in common, and the level of their effect."""
DOMAINS = "of_domain"
"""Column of the domains of rows, where these are the groups."""
FEWEST_PAIRS = 3
"""Labels that several groups must have, or these have no effect: its scale would be the prior's."""


@shows_settings()
def fit_groups(
    law: str | Path | Law,
    table: LossTable,
    by: str,
    *,
    seed: int = 0,
    **settings: Unpack[FitKeywords],
) -> dict[str, Posterior]:
    """Posteriors of several groups of rows, such as optimizers or data mixes, fitted together.

    The groups have a law in common, with its discrepancy, noise and random effects. Each has level,
    coefficients and exponents of its own around the common ones, and learned scales say how far
    groups differ. Rows of several groups with equal covariates have a random effect in common, so
    what they share cancels in the difference of the groups.

    Fit groups together for their difference: the losses themselves are forecast no better than by
    separate fits (docs/howto/recipes.md).

    Parameters
    ----------
    law : str, path or Law
        As for `fit`, but not one that starts from the losses of bases.
    table : LossTable
        Training rows of all groups. A column `pair` says which rows have an effect in common; by
        default those that are equal in the covariates of the law.
    by : str
        Column of the groups' names, such as ``"optimizer"``. A group of few rows is fitted too.
    seed, **settings
        As for `fit`.

    Returns
    -------
    dict of str to Posterior
        The posterior of each group, by name, with the rows of this group. Their draws belong
        together, draw by draw, also once they are saved and loaded: `compare_recipes` and whatever
        else compares fits pairs them.

    Raises
    ------
    TableError
        If the table has no such column, fewer than two groups, or what `fit` refuses.
    LawError
        If the law starts from the losses of bases.
    FitError
        As for `fit`.

    Examples
    --------
    >>> fits = bl.fit_groups("chinchilla", table, "optimizer")  # doctest: +SKIP
    >>> bl.compare_recipes(fits, bl.grid(params=1e9, tokens=2e10))  # doctest: +SKIP
    """
    if member_laws(law) is not None:
        raise LawError(f"{law!r} is several laws; groups are fitted by one.")
    chosen = make_settings(settings, seed)
    joint = _joint(table, by)
    column = DOMAINS if by == "domain" else by
    common = specify(load_law(law), joint, chosen)
    if common.law.step(Departure) is not None:
        raise LawError(
            f"law {common.law.name} starts from the losses of bases, of which each group has its "
            "own; fit the groups with another law, or each of them alone."
        )
    joint = _paired(joint, common.law)
    labels = joint.frame.groupby(PAIR)[column].nunique()
    has_pairs = chosen.effects != "none" and (labels > 1).sum() >= FEWEST_PAIRS
    spec = grouped(common, column, _names(joint, column), pairs=bool(has_pairs))
    data = make_data(spec, joint)
    tables = {}
    for group in _names(joint, column):
        tables[group] = _of_group(table, joint, column, group)
    huber = {}
    for group, rows in tables.items():
        # A group may have fewer rows than a law of its own could be fitted to.
        if len(rows) >= len(common.law.without_discrepancy.parameters):
            skewed = common.likelihood.kind == "skewed"
            law_alone = common.law.without_discrepancy
            huber[group] = examine(law_alone, rows, skewed=skewed)
    fits = _members(common, data, joint, tables, sample(data, chosen))
    for group, fit in fits.items():
        if words := overruled(fit, huber.get(group)):
            warnings.warn(f"{group}: {words}", FitWarning, stacklevel=2)
    return fits


def _joint(table: LossTable, by: str) -> LossTable:
    """The table with labels by which its groups can be fitted together.

    Raises
    ------
    TableError
        If it has no such groups.
    """
    frame = table.frame
    if by not in frame:
        columns = ", ".join(map(str, frame.columns))
        raise TableError(
            f"{table.name}: no column {by!r} for the groups; name one of {columns}."
        )
    if by in NUMBERS:
        raise TableError(
            f"{table.name}: {by!r} is a number that laws read, no name of groups; copy it to "
            "another column to fit each of its values as a group."
        )
    names = label_texts(frame[by])
    if names.isna().any() or names.nunique() < 2:
        raise TableError(
            f"{table.name}: the column {by!r} must name a group in each row, and two or more."
        )
    if "role" in frame and frame["role"].nunique() > 1:
        roles = " and ".join(sorted(map(str, frame["role"].unique())))
        raise TableError(
            f"{table.name}: rows of role {roles} have no law in common; fit each role alone."
        )
    frame = frame.assign(**{by: names})
    if "run" in frame and (frame.groupby("run")[by].nunique() > 1).any():
        # Errors within a run are one path along its tokens; each group has a path of its own.
        frame = frame.assign(run=names + " " + label_texts(frame["run"]))
    if by == "domain":
        # The law of all groups has no domain; the posterior of each has its own.
        frame = frame.drop(columns="domain").assign(**{DOMAINS: names})
    return replace(table, frame=frame)


def _paired(table: LossTable, law: Law) -> LossTable:
    """The table with labels that rows with equal covariates have in common, unless it has some."""
    frame = table.frame
    if PAIR in frame:
        return table
    columns = [c for c in frame if c in (*NUMBERS, *law.declared) and c != "loss"]
    texts = []
    for values in frame[columns].to_numpy(float):
        texts.append(" ".join(f"{value:.6g}" for value in values))
    return replace(table, frame=frame.assign(**{PAIR: texts}))


def _names(table: LossTable, column: str) -> tuple[str, ...]:
    """Names of the groups, in the order of the table."""
    return tuple(map(str, table.frame[column].unique()))


def _of_group(table: LossTable, joint: LossTable, column: str, group: str) -> LossTable:
    """The rows of one group, with the labels that the joint fit has."""
    frame = joint.frame[joint.frame[column] == group].reset_index(drop=True)
    if column == DOMAINS:
        frame = frame.rename(columns={DOMAINS: "domain"})
    query = f"{'domain' if column == DOMAINS else column} == {group!r}"
    selection = f"({table.selection}) and {query}" if table.selection else query
    return replace(
        table,
        frame=frame,
        baselines=of_domains(table.baselines, frame),
        selection=selection,
    )


def grouped(common: Spec, by: str, groups: tuple[str, ...], *, pairs: bool) -> Spec:
    """The spec of all groups, from that of a law that they have in common."""
    inner = replace(common.discrepancy, exact=0.0)
    discrepancy = Grouped(common=inner, by=by, groups=groups)
    law = discrepancy.apply(common.law.without_discrepancy)
    priors = dict(common.priors)
    for deviation in law.deviations:
        if isinstance(deviation, Spread):
            priors[deviation.scale] = GROUPS_SCALE
    levels = common.effects
    if pairs and PAIR not in levels:
        levels = (*levels, PAIR)
        priors[f"tau_{PAIR}"] = effects.level(PAIR).prior
    return replace(
        common, law=law, discrepancy=discrepancy, priors=priors, effects=levels
    )


def _members(
    common: Spec,
    data: Data,
    joint: LossTable,
    tables: Mapping[str, LossTable],
    sampled: Sampled,
) -> dict[str, Posterior]:
    """The posterior of each group, with draws that belong together."""
    discrepancy = data.spec.discrepancy
    assert isinstance(discrepancy, Grouped)
    whole = labelled_draws(data, sampled.draws)
    drawn = {str(name): values.values for name, values in whole.data_vars.items()}
    scales = [d for d in data.law.deviations if isinstance(d, Spread)]
    own_names = [name for d in scales for name in (d.scale, d.steps)]
    shared = whole.drop_vars(own_names)
    shared = shared.drop_dims([f"{d.steps}_0" for d in scales], errors="ignore")
    seed = int(sampled.settings["seed"])
    settings = {
        **sampled.settings,
        JOINT: digest({"spec": common.identity, "table": joint.sha256, "seed": seed}),
        # Steps of walks beyond the rows are the same ones for all groups.
        EXTENSION: zlib.crc32(joint.loss.tobytes()) + seed,
    }
    fits = {}
    for group, table in tables.items():
        of_group = OfGroup.of(discrepancy, group, data.law, data.x, data.at)
        law = of_group.apply(common.law.without_discrepancy)
        priors = {**common.priors, **_own_priors(law)}
        if PAIR in data.spec.effects:
            priors[f"tau_{PAIR}"] = data.spec.priors[f"tau_{PAIR}"]
        spec = replace(data.spec, law=law, priors=priors, discrepancy=of_group)
        own = discrepancy.coefficients(data.law, group, drawn)
        variables = {name: (("chain", "draw"), values) for name, values in own.items()}
        draws = shared.assign(variables)
        for walk in own_walks(data.law, of_group.place):
            knots = Knots(*of_group.knots[walk.steps])
            # None among the rows: a forecast beyond them draws the steps from there on.
            steps = np.zeros((*sampled.stats["diverging"].shape, len(knots.positions)))
            knot = f"{walk.steps}_knot"
            draws = draws.assign({walk.steps: (("chain", "draw", knot), steps)})
            draws = draws.assign_coords({knot: knots.positions})
        fits[group] = Posterior(
            spec=spec,
            table=table,
            at=data.at,
            draws=effects.not_fitted(spec.drawn, spec.priors, joint.frame, draws),
            stats=sampled.stats,
            convergence=sampled.convergence,
            settings=settings,
        )
    return fits


def _own_priors(law: Law) -> dict[str, Prior]:
    """Priors of a group's coefficients."""
    return {name: prior for name, prior in law.priors.items() if name.startswith(OWN)}
