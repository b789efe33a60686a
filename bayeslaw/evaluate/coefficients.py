"""Coefficients of a fit in a JSON file: for readers, other programs, and forecasts."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from bayeslaw.common.arrays import Floats
from bayeslaw.common.errors import BayeslawError, FileError, LawError, argument
from bayeslaw.common.files import read_json, write_json
from bayeslaw.inference.convergence import Convergence
from bayeslaw.inference.datatree import with_units
from bayeslaw.inference.pools import of_one_law
from bayeslaw.inference.posterior import Forecast, Posterior
from bayeslaw.inference.residuals import LAST_ERROR, last_errors, too_few_sizes
from bayeslaw.inference.storage import restored_spec, stored_spec
from bayeslaw.laws.knots import Knots
from bayeslaw.laws.law import Law
from bayeslaw.tables.reading import is_synthetic
from bayeslaw.tables.table import LossTable

FORMAT = "bayeslaw coefficients"
SCHEMA = 1
"""Version of the file's layout; a file with a larger one is refused."""
QUANTILES = {"median": 0.5, "q05": 0.05, "q25": 0.25, "q75": 0.75, "q95": 0.95}
INFINITE = {"Infinity": math.inf, "-Infinity": -math.inf}
"""Bounds that JSON has no numbers for, by the texts that stand for them."""
NUMBERS = ("rhat", "ess_bulk", "ess_tail", "bfmi")
"""Convergence checks that may be NaN, for which a file has a text."""


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
    _posterior: "_FilePosterior | None" = field(repr=False)
    _medians: "_FilePosterior" = field(repr=False)

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
        coordinates, with the steps of random walks that go with these, by `Posterior.medians`.
        Beyond the training rows walks keep their last exponent.

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
        fc = self._drawn.forecast(rows, kind=kind, seed=seed, allow_unconverged=allow_unconverged)
        return dataclasses.replace(fc, fits={})

    @property
    def _drawn(self) -> "_FilePosterior":
        if self._posterior is None:
            raise BayeslawError(
                "these coefficients have no draws, so no bands: export them with draws, or use "
                "predict for a point forecast."
            )
        return self._posterior


def write_coefficients(
    fit: Posterior, path: str | Path, *, draws: int = 0, allow_unconverged: bool = False
) -> None:
    """Write the coefficients of a fit to a JSON file, without the training losses.

    With draws of a fit with errors correlated within runs it also has the residuals of the last row
    of each run, from which forecasts of these runs go on.

    The file states for each parameter, by its symbol in the paper, a point, the median, the 50 and
    90 % intervals and the unit, with the law, the reference point, the hash of the training table,
    the sampler and the versions. `read_coefficients` forecasts from it: a point from the medians of
    the reference coordinates, and bands from draws.

    Parameters
    ----------
    fit : Posterior
    path : str or Path
    draws : int
        Number of joint draws of parameters and random effects to include, evenly spaced among those
        of the fit. With all of them, the forecasts equal those of the fit.
    allow_unconverged : bool
        Whether to write a posterior that failed the convergence checks. The file says so.

    Raises
    ------
    NotConverged
        If the posterior failed the convergence checks and `allow_unconverged` is false.
    BayeslawError
        If `draws` is negative, or draws alone cannot give the fit's forecasts: with a discrepancy
        and two or three model sizes these depend on the training losses.
    LawError
        If a file cannot name the class of a term, the likelihood or the discrepancy.
    FileError
        If the file cannot be written.

    Examples
    --------
    See `read_coefficients`.
    """
    one = of_one_law(fit, "write_coefficients")
    one.require_converged(allow_unconverged, parameters=True)
    if draws < 0:
        raise BayeslawError(f"draws={draws}: give the number of draws to include, 0 or more.")
    if draws and too_few_sizes(fit):
        raise BayeslawError(
            f"{fit.law.name} on {fit.table.name}: with so few model sizes, forecasts of others "
            "depend on the training losses, which draws do not contain; export without draws, "
            f"save the fit itself, or fit with {argument('effects', 'none')}."
        )
    flat = _flat(fit.draws)
    drawn = flat
    if fit.spec.errors == "run":  # runs go on from their last residuals
        drawn = _flat(fit.draws.assign({LAST_ERROR: last_errors(fit)}))
    spaced = np.linspace(0, flat.sizes["draw"] - 1, min(draws, flat.sizes["draw"])).astype(int)
    law, table = fit.law, fit.table
    medians = flat.median("draw").expand_dims(draw=1, axis=1)
    centre = fit.medians(fit.law_with_knots, fit.values() | fit.steps())
    medians = medians.assign({n: medians[n].copy(data=centre[n]) for n in fit.steps()})
    point = law.to_paper({n: medians[n].item() for n in law.coordinates}, fit.at)
    paper = _summary(fit.paper, fit)
    knots = {walk.steps: walk.knots for walk in fit.law_with_knots.walks if walk.knots}
    scalars = fit.draws.drop_dims(set(fit.draws.dims) - {"chain", "draw"})
    others = [str(name) for name in scalars.data_vars if name not in law.parameters]
    document = {
        "format": FORMAT,
        "schema": SCHEMA,
        "bayeslaw": version("bayeslaw"),
        "law": {
            "name": law.name,
            "title": law.title,
            "reference": law.reference,
            "formula": law.without_discrepancy.latex(),
            "token_unit": law.token_unit,
            "discrepancy": fit.spec.discrepancy.words,
        },
        "parameters": {n: {"point": float(point[n]), **paper[n]} for n in law.parameters},
        "reference_point": law.point(fit.at),
        "reference": _summary(scalars[others], fit),
        "training": {
            "name": table.name,
            "rows": len(table),
            "sha256": table.sha256,
            "synthetic": is_synthetic(table),
        },
        "settings": dict(fit.settings),
        "convergence": dataclasses.asdict(fit.convergence),
        "rebuild": {
            "identity": fit.spec.identity,
            "specification": stored_spec(fit.spec),
            "at": dict(fit.at),
            "knots": {name: dataclasses.asdict(each) for name, each in knots.items()},
            "extension_seed": fit.extension_seed,
            "medians": medians.to_dict(),
            "draws": drawn.isel(draw=spaced).to_dict() if draws else None,
        },
    }
    write_json(_as_text(document), path)


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
    try:
        return _restored(as_numbers(read_json(path, FORMAT, SCHEMA, "coefficients")))
    except LawError as error:
        raise FileError(f"{path}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileError(f"{path}: not coefficients of bayeslaw, or damaged ({error}).") from error


@dataclass(frozen=True)
class _FilePosterior(Posterior):
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
        raise LawError(
            "its law, priors or likelihood are not those that were exported: it was edited, or "
            "written by another version of bayeslaw; export the fit again."
        )
    no_rows = pd.DataFrame(columns=[*spec.law.columns, "loss"], dtype=float)
    common: dict[str, Any] = {
        "spec": dataclasses.replace(spec, new_sizes=False),  # where needed, it is not exported
        "table": LossTable(no_rows, no_rows, document["training"]["name"]),
        "at": stored["at"],
        "stats": xr.Dataset(),
        "convergence": Convergence(
            **checks
            | {name: float(checks[name]) for name in NUMBERS}
            | {"slow": tuple(checks["slow"])}
        ),
        "settings": document["settings"],
        "knots": {name: Knots(**each) for name, each in stored["knots"].items()},
        "seed": stored["extension_seed"],
    }
    medians = xr.Dataset.from_dict(stored["medians"])
    if lacking := sorted(set(spec.law.coordinates) - set(medians.data_vars)):
        raise ValueError(f"it lacks {', '.join(lacking)}")
    drawn = stored["draws"] and xr.Dataset.from_dict(stored["draws"])
    if drawn and spec.errors == "run" and LAST_ERROR not in drawn:
        raise ValueError("it lacks the last residuals of runs; export again")
    return Coefficients(
        law=spec.law,
        parameters=pd.DataFrame(document["parameters"]).T.infer_objects(),
        document=document,
        _posterior=None if drawn is None else _FilePosterior(draws=drawn, **common),
        _medians=_FilePosterior(draws=medians, **common, extends=False),
    )


def as_numbers(value: Any) -> Any:
    """Inverse of `_as_text`: plain data in which the texts of `INFINITE` are numbers again."""
    if isinstance(value, dict):
        return {name: as_numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [as_numbers(each) for each in value]
    return INFINITE.get(value, value) if isinstance(value, str) else value


def _flat(draws: xr.Dataset) -> xr.Dataset:
    """The draws of all chains, one after the other, as a single chain."""
    flat = draws.stack(sample=("chain", "draw"), create_index=False)
    flat = flat.drop_vars(["chain", "draw"], errors="ignore").rename(sample="draw")
    return flat.expand_dims("chain").transpose("chain", "draw", ...)


def _summary(draws: xr.Dataset, fit: Posterior) -> dict[str, dict[str, float | str]]:
    """Quantiles and unit of each variable."""
    return {
        str(name): {key: float(values.quantile(q)) for key, q in QUANTILES.items()}
        | {"unit": str(values.attrs.get("units", "dimensionless"))}
        for name, values in with_units(draws, fit).data_vars.items()
    }


def _as_text(value: Any) -> Any:
    """Plain data with texts in place of numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {str(name): _as_text(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_as_text(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
