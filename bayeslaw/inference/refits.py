"""Refits for simulation: short, compiled once per process, never repeated; and how far many are."""

from typing import Any

import pandas as pd

from bayeslaw.inference.fitting import fit_spec
from bayeslaw.inference.posterior import Posterior
from bayeslaw.laws.law import Law
from bayeslaw.model.random_effects import choose
from bayeslaw.model.spec import Spec, make_spec
from bayeslaw.tables.table import LossTable

SHORT: dict[str, Any] = {
    "chains": 2,
    "draws": 300,
    "tune": 300,
    "target_accept": 0.9,
    "sampler": "nutpie",
}
"""Sampler settings of a simulation; a fit that somebody uses needs those of `bayeslaw.fit`."""
MODEL = ("priors", "likelihood", "delta", "discrepancy", "noise")


def refit(law: str | Law | Spec, table: LossTable, seed: int, **settings: Any) -> Posterior:
    """Posterior by one short run of the sampler, on one core.

    Parameters
    ----------
    law : str, Law or Spec
        A spec is fitted as it is, such as that of the posterior to be updated.
    table, seed
        As for `bayeslaw.fit`.
    **settings
        Of `bayeslaw.fit`; by default two chains of 300 draws after 300, no discrepancy and no
        effects. A posterior that fails the gate is returned as it is: look at its `convergence`.
    """
    settings = SHORT | settings
    if isinstance(law, Spec):
        spec = law
    else:
        model = {"discrepancy": "none"} | {n: settings.pop(n) for n in MODEL if n in settings}
        groups = choose(settings.pop("effects", "none"), table.frame, table.name)
        spec = make_spec(law, **model, effects=groups)
    return fit_spec(spec, table, {"seed": seed, **settings}, cores=1, retry=False)


def joined(table: LossTable, rows: LossTable | None) -> LossTable:
    """A table with further measured rows."""
    if rows is None or not len(rows):
        return table
    frame = pd.concat([table.frame, rows.frame], ignore_index=True)
    return LossTable(frame, table.baselines, table.name)
