"""Coefficients of a fit, read from a JSON file, and forecasts from them."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import BayeslawError, FileError, LawError
from bayeslaw.evaluate.exporting import FORMAT, SCHEMA, as_numbers
from bayeslaw.evaluate.forecast import Forecast
from bayeslaw.evaluate.forecast import forecast as forecast_of
from bayeslaw.inference.convergence import Convergence
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.storage import restored_spec
from bayeslaw.laws.knots import Knots
from bayeslaw.laws.law import Law
from bayeslaw.tables.table import LossTable


@dataclass(frozen=True)
class Coefficients:
    """Coefficients of a fit, read from a file; they forecast without the training losses.

    Parameters
    ----------
    law : Law
        The law that was fitted, with its discrepancy.
    parameters : DataFrame
        `point`, `median`, `q05`, `q25`, `q75`, `q95` and `unit` of each parameter, by its symbol in
        the paper. The points together give one curve, that of `predict` without draws. The medians
        are those of each parameter by itself, and together give another curve.
    document : mapping
        The content of the file: besides these the reference point, medians of the reference
        coordinates and of the noise, hash of the training table, settings and versions.
    """

    law: Law
    parameters: pd.DataFrame
    document: Mapping[str, Any] = field(repr=False)
    _posterior: "_Travelled | None" = field(repr=False)
    _medians: "_Travelled" = field(repr=False)

    @property
    def convergence(self) -> Convergence:
        """Convergence checks of the fit."""
        return self._medians.convergence

    @property
    def draws(self) -> int:
        """Number of draws in the file."""
        return self._posterior.draws.sizes["draw"] if self._posterior else 0

    def latent(self, rows: LossTable | pd.DataFrame) -> Floats:
        """Noise-free loss per draw and row, nats per token; see `Posterior.latent`.

        Raises
        ------
        BayeslawError
            If the file has no draws.
        """
        return self._drawn.latent(rows)

    def predict(self, rows: LossTable | pd.DataFrame, *, allow_unconverged: bool = False) -> Floats:
        """Central loss per row, nats per token.

        The median of the latent loss; without draws, the loss at the medians of the reference
        coordinates, where random walks keep their last exponent beyond the training rows.

        Raises
        ------
        NotConverged
            If the fit failed its convergence checks and `allow_unconverged` is false.
        """
        source = self._posterior or self._medians
        return source.predict(rows, allow_unconverged=allow_unconverged)

    def forecast(
        self,
        rows: LossTable | pd.DataFrame,
        *,
        kind: str = "predictive",
        seed: int = 0,
        allow_unconverged: bool = False,
    ) -> Forecast:
        """Forecast the loss of each row; see `Posterior.forecast`.

        Raises
        ------
        BayeslawError
            If the file has no draws.
        """
        fc = forecast_of(
            self._drawn, rows, kind=kind, seed=seed, allow_unconverged=allow_unconverged
        )
        return dataclasses.replace(fc, fits={})

    @property
    def _drawn(self) -> "_Travelled":
        if self._posterior is None:
            raise BayeslawError(
                "these coefficients have no draws, so no bands: export them with draws, or use "
                "predict for a point forecast."
            )
        return self._posterior


def read_coefficients(path: str | Path) -> Coefficients:
    """Read coefficients written by `write_coefficients` or ``bayeslaw export``.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    Coefficients

    Raises
    ------
    FileError
        If the file is missing, damaged, of a newer version, or needs a term, likelihood,
        discrepancy or level of random effects that is not registered as it was.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> train, test = bl.example_table().split("scale <= 3e20", "scale >= 1e21")
    >>> fit = bl.fit("chinchilla", train, discrepancy="none", effects="none", draws=500)
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "coefficients.json"
    ...     bl.write_coefficients(fit, path, draws=2000)
    ...     coefficients = bl.read_coefficients(path)
    >>> coefficients.parameters.loc["E", "unit"]
    'nats per token'
    >>> bool((coefficients.latent(test) == fit.latent(test)).all())
    True
    """
    path = Path(path)
    if not path.is_file():
        raise FileError(f"{path}: no such file.")
    try:
        document = as_numbers(json.loads(path.read_text(encoding="utf-8")))
        if document["format"] != FORMAT:
            raise FileError(f"{path}: not coefficients of bayeslaw.")
        if document["schema"] > SCHEMA:
            raise FileError(
                f"{path}: schema {document['schema']} is newer than this version reads ({SCHEMA}); "
                "upgrade bayeslaw."
            )
        return _restored(document)
    except LawError as error:
        raise FileError(
            f"{path}: {error} If the class is defined elsewhere, import its module before reading."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileError(f"{path}: not coefficients of bayeslaw, or damaged ({error}).") from error


NUMBERS = ("rhat", "ess_bulk", "ess_tail", "bfmi")
"""Convergence checks that may be NaN, for which a file has a text."""


@dataclass(frozen=True)
class _Travelled(Posterior):
    """A posterior read from a file. It has no rows; knots and extension seed come from the file."""

    knots: Mapping[str, Knots] = field(default_factory=dict)
    seed: int = 0
    extends: bool = True

    @cached_property
    def law_with_knots(self) -> Law:
        """The law with the knots that it had at the training rows."""
        return self.law.with_knots(self.knots)

    @property
    def extension_seed(self) -> int:
        """Seed of discrepancy parameters beyond the training rows."""
        return self.seed

    def extended(self, frame: pd.DataFrame) -> tuple[Law, dict[str, Floats]]:
        """The law and its values; for medians, without parameters that only `frame` needs."""
        if self.extends:
            return super().extended(frame)
        return self.law_with_knots, self.values() | self.steps()


def _restored(document: dict[str, Any]) -> Coefficients:
    stored, checks = document["rebuild"], document["convergence"]
    spec = restored_spec(stored["specification"])
    if spec.identity != stored["identity"]:
        raise LawError("its law, priors or likelihood are not those that were exported.")
    no_rows = pd.DataFrame(columns=[*spec.law.columns, "loss"], dtype=float)
    common: dict[str, Any] = {
        "spec": dataclasses.replace(spec, new_sizes=False),  # where needed, it is not exported
        "table": LossTable(no_rows, no_rows, document["training"]["name"]),
        "at": stored["at"],
        "stats": xr.Dataset(),
        "convergence": Convergence(**checks | {name: float(checks[name]) for name in NUMBERS}),
        "settings": document["settings"],
        "knots": {name: Knots(**each) for name, each in stored["knots"].items()},
        "seed": stored["extension_seed"],
    }
    medians = xr.Dataset.from_dict(stored["medians"])
    if lacking := sorted(set(spec.law.coordinates) - set(medians.data_vars)):
        raise ValueError(f"it lacks {', '.join(lacking)}")
    drawn = stored["draws"] and xr.Dataset.from_dict(stored["draws"])
    return Coefficients(
        law=spec.law,
        parameters=pd.DataFrame(document["parameters"]).T.infer_objects(),
        document=document,
        _posterior=None if drawn is None else _Travelled(draws=drawn, **common),
        _medians=_Travelled(draws=medians, **common, extends=False),
    )
