"""What `fit` fits to a table: the specification that its settings and columns call for."""

import warnings
from dataclasses import replace
from pathlib import Path

import pandas as pd

from bayeslaw.common.errors import TableWarning, argument
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.settings import FitKeywords, FitSettings, make_settings
from bayeslaw.laws.departure import Departure
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.laws.priors import FLOORS
from bayeslaw.laws.steps import Repetition
from bayeslaw.model import effects, noise
from bayeslaw.model.discrepancy import NoDiscrepancy, make_discrepancy
from bayeslaw.model.spec import Spec, make_spec
from bayeslaw.model.training import for_table
from bayeslaw.tables.hull import MANY_EPOCHS, epochs
from bayeslaw.tables.table import LossTable
from bayeslaw.tables.validation import row_numbers

AS_STATED: FitKeywords = {"discrepancy": "none"}
"""Settings of the fit of a law as stated."""


def specify(law: str | Path | Law, table: LossTable, settings: FitSettings) -> Spec:
    """The spec that `fit` fits to a table, with the random effects that its columns allow."""
    law = for_table(load_law(law), table)
    if "replay" in law.columns:
        _warn_of_controls(law, table.frame, table.name)
    return _spec_for(law, table, settings)


def _spec_for(law: Law, table: LossTable, settings: FitSettings) -> Spec:
    """The spec of `specify`, of a law that has what the columns of the table call for."""
    frame = table.frame
    repeated = law.step(Repetition) is not None and bool(
        (epochs(frame) > MANY_EPOCHS).any()
    )
    plain = law.without_discrepancy
    discrepancy = make_discrepancy(settings.discrepancy, plain, repeated=repeated)
    # Without a discrepancy, the law is taken as exact for every size.
    with_sizes = discrepancy.size_effects
    columns = (*law.columns, *law.held)
    levels, drawn = effects.choose(
        settings.effects, frame, table.name, columns=columns, discrepancy=with_sizes
    )
    exact = isinstance(discrepancy, NoDiscrepancy)
    own = effects.coinciding("run", frame, columns) if exact and "run" in frame else ()
    alone = own[0] if len(own) == 1 else None
    errors = noise.choose_errors(settings.errors, frame, table.name, own=alone)
    # A label that stands for runs of several models would join their effects and errors.
    if "run" in (*levels, errors):
        effects.check_runs(frame, table.name, columns)
    return make_spec(
        law,
        priors=settings.priors,
        likelihood=settings.likelihood,
        delta=settings.delta,
        discrepancy=discrepancy,
        effects=levels,
        drawn=drawn,
        # A list replaces the default: without sizes in it, new ones have no effect either.
        new_sizes=settings.effects == "auto",
        errors=errors,
    )


def _warn_of_controls(law: Law, frame: pd.DataFrame, name: str) -> None:
    """Warn of runs of pure replay beside others, and say what they do to the fit."""
    control = (frame["replay"] == 1) & (frame["tokens"] > 0)
    if control.any() and not control.all():
        starts = law.step(Departure) is not None
        effect = "stays at the base's loss, so they bias how replay slows adaptation"
        effect = effect if starts else "is far from its other rows, so chains mix badly"
        warnings.warn(
            f"{name}: {control.sum()} rows have replay 1 and tokens > 0 ({row_numbers(control)}): "
            f"without new text the loss of {law.name} {effect}; leave them out with "
            f"{argument('where', 'replay < 1 or tokens == 0')}.",
            TableWarning,
            stacklevel=3,
        )


def spec_as_stated(posterior: Posterior) -> Spec:
    """The spec of the same law on the same rows without discrepancy.

    Likelihood and priors are those of the posterior. Effects and errors are those that ``"auto"``
    chooses for a law that is taken as exact.
    """
    fitted = posterior.spec
    table = posterior.table
    law = fitted.law.without_discrepancy
    settings = replace(make_settings(AS_STATED, 0), likelihood=fitted.likelihood)
    spec = _spec_for(law, table, settings)
    # Only what was asked for: a discrepancy has defaults of its own for the spread of effects.
    changed = {
        name: prior
        for name, prior in fitted.priors.items()
        if prior != fitted.default_priors.get(name)
    }
    valid = {*spec.priors, *FLOORS}
    changed = {name: prior for name, prior in changed.items() if name in valid}
    if not changed:
        return spec
    return _spec_for(law, table, replace(settings, priors=changed))
