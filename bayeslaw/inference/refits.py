"""Short refits for simulations, on one core; equal specifications are compiled once a process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Unpack

import pandas as pd

from bayeslaw.common.defaults import DELTA
from bayeslaw.inference.fitting import fit_spec, specify
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.settings import ModelSettings, PosteriorSettings, filled, run_settings
from bayeslaw.laws.law import Law
from bayeslaw.laws.priors import PriorLike
from bayeslaw.model.likelihoods import Likelihood
from bayeslaw.model.spec import Spec
from bayeslaw.tables.table import LossTable

SHORT: PosteriorSettings = {
    "chains": 2,
    "draws": 300,
    "tune": 300,
    "target_accept": 0.9,
    "sampler": "nutpie",
    "discrepancy": "none",
    "effects": "none",
}
"""Settings of a refit in a simulation. They are too short for a fit that is used by itself."""


class RefitSettings(ModelSettings, total=False):
    """Settings of a refit."""

    priors: str | Path | Mapping[str, PriorLike]
    likelihood: str | Likelihood
    delta: float


def refit(
    law: str | Path | Law | Spec, table: LossTable, seed: int, **settings: Unpack[RefitSettings]
) -> Posterior:
    """Posterior by one short run of the sampler, on one core.

    Parameters
    ----------
    law : str, path, Law or Spec
        A spec, such as that of the posterior to be updated, is used without changes.
    table, seed
        As for `bayeslaw.fit`.
    **settings
        Of `bayeslaw.fit`; by default two chains of 300 draws after 300, no discrepancy and no
        random effects. A posterior that fails the gate is returned too; its `convergence` has the
        failure.
    """
    priors = settings.pop("priors", "default")
    likelihood, delta = settings.pop("likelihood", "studentt"), settings.pop("delta", DELTA)
    rest: ModelSettings = settings
    chosen = filled({**SHORT, **rest})
    spec = (
        law
        if isinstance(law, Spec)
        else specify(law, table, chosen, priors=priors, likelihood=likelihood, delta=delta)
    )
    return fit_spec(spec, table, run_settings(chosen, seed), cores=1, retry=False)


def joined(table: LossTable, rows: LossTable | None) -> LossTable:
    """A table with further measured rows."""
    if rows is None or not len(rows):
        return table
    frame = pd.concat([table.frame, rows.frame], ignore_index=True)
    return LossTable(frame, table.baselines, table.name)
