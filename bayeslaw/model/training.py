"""How a table becomes what a law can be fitted to.

A `LossTable` was validated once, where it was read. Here a law takes the steps that its columns
call for (`for_columns`) and, if it starts from the losses of bases, learns these (`for_table`);
then `make_data` makes arrays of the rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from bayeslaw.common.arrays import Floats, Ints, Strings
from bayeslaw.common.errors import TableError
from bayeslaw.design.design import Design, law_for, needs, valid_rows
from bayeslaw.huber.bases import base_table, fit_bases
from bayeslaw.laws.departure import Departure
from bayeslaw.laws.forms import of_role, reads_share, taking, with_terms
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import able_laws
from bayeslaw.laws.steps import STEPS
from bayeslaw.model.effects import labels
from bayeslaw.model.noise import Order, order
from bayeslaw.model.spec import Spec
from bayeslaw.tables.table import LossTable, require_table
from bayeslaw.tables.validation import missing_columns

SAME_BASE = 1e-9
"""Largest difference, in log loss, of bases' deviations that are the same."""


def for_table(law: Law, table: LossTable, *, whole: bool = False) -> Law:
    """The law of `for_columns`, with the bases of the table if it starts from these."""
    law = for_columns(law, table, whole=whole)
    departure = law.step(Departure)
    if departure is None or departure.bases is not None:
        return law
    bases = fit_bases(base_table(table.frame, table.baselines, table.name), table.name)
    law = law.with_steps(replace(departure, bases=bases))
    if whole or np.ptp(Design(law, table).x["deviation"]) > SAME_BASE:
        return law
    return with_terms(law, law.terms, ["base_loss"])


def for_columns(law: Law, table: LossTable, *, whole: bool = False) -> Law:
    """The law with the steps that the columns of a table call for.

    With `unique_tokens` it has a worth of repeated tokens, with rows that are `annealed` and others
    that are not, an offset of the latter. If it reads the share of the domain's own text, it has
    the `LossTable.role` of the table. Unless it is to be `whole`, it is without what rows that
    agree in a column do not determine.
    """
    require_table(table)
    if not {*law.columns} <= {*table.frame}:
        lacking = missing_columns(table.frame, needs(law))
        raise TableError(f"{table.name}: {lacking} {able_laws({*table.frame})}")
    frame = valid_rows(law, table).frame
    # The role matters to a law that starts from bases with one ratio too.
    starts = law.step(Departure) is not None
    if reads_share(law) and (starts or frame["replay"].nunique() > 1):
        law = of_role(law, table.role)
    law = law if whole else law_for(law, frame, table.name)
    called = [step for step in STEPS if step.called_by in frame]
    return taking(
        law, *(s for s in called if frame[s.called_by].nunique() >= s.distinct)
    )


@dataclass(frozen=True)
class Data:
    """A spec with the data that it is fitted to.

    The law has knots of its random walks that cover the rows. Covariates are logarithms, observed
    are log losses. Groups are sorted labels by level, and `index` has each row's place in them.
    """

    spec: Spec
    law: Law
    x: Mapping[str, Floats]
    at: Mapping[str, float]
    observed: Floats
    groups: Mapping[str, Strings]
    index: Mapping[str, Ints]
    order: Order | None

    def __len__(self) -> int:
        return len(self.observed)


def make_data(
    spec: Spec, table: LossTable, *, at: Mapping[str, float] | None = None
) -> Data:
    of_rows = {name: labels(table.frame, name) for name in spec.fitted_effects}
    groups = {name: np.unique(names) for name, names in of_rows.items()}
    design = Design(spec.law, table, at=at)
    design.require_variation()
    return Data(
        spec=spec,
        law=design.law_with_knots,
        x=design.x | spec.discrepancy.marks(table.frame),
        at=design.at,
        observed=np.log(table.loss),
        groups=groups,
        index={
            name: np.searchsorted(groups[name], names)
            for name, names in of_rows.items()
        },
        order=order(table.frame) if spec.errors == "run" else None,
    )
