"""Fit laws to tables: posteriors, modes, and refits for simulations."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import pandas as pd
import xarray as xr

from bayeslaw.common.arrays import Model
from bayeslaw.common.defaults import DELTA
from bayeslaw.common.errors import (
    FitError,
    FitWarning,
    LawError,
    unknown,
)
from bayeslaw.huber.doubts import examine
from bayeslaw.huber.point_fit import PointFit
from bayeslaw.inference.mixture import mixed
from bayeslaw.inference.pools import POOLS, Pool, member_laws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.residuals import overruled
from bayeslaw.inference.sampling import Sampled, sample
from bayeslaw.inference.settings import (
    FitKeywords,
    FitSettings,
    make_settings,
    shows_settings,
)
from bayeslaw.inference.specification import AS_STATED, spec_as_stated, specify
from bayeslaw.laws.law import Law
from bayeslaw.laws.lawfiles import load_law
from bayeslaw.laws.priors import PriorLike
from bayeslaw.model import effects
from bayeslaw.model.building import build
from bayeslaw.model.noise import Huber, Likelihood
from bayeslaw.model.spec import Spec, make_spec
from bayeslaw.model.training import Data, for_table, make_data
from bayeslaw.tables.comparison import check_domain, completed, labels_of
from bayeslaw.tables.guessing import Losses, table_of
from bayeslaw.tables.table import LossTable

SHORT_REFIT: FitKeywords = {
    "chains": 2,
    "draws": 300,
    "tune": 300,
    "target_accept": 0.9,
    "discrepancy": "none",
    "effects": "none",
}
"""Settings of a refit in a simulation. They are too short for a fit that is used by itself."""


@shows_settings()
def fit(
    law: str | Path | Law,
    table: Losses,
    *,
    seed: int = 0,
    **settings: Unpack[FitKeywords],
) -> Posterior:
    """Posterior of a law given a table of losses.

    Parameters
    ----------
    law : str, path or Law
        Name of a shipped law, such as ``"form3"`` or ``"chinchilla"``, or path of a TOML file.
    table : LossTable, DataFrame or path
        Training rows. Of a frame or a file with other names, columns, units and annealing are
        guessed as by `forecast`, and a warning says what was guessed.
    likelihood : {"studentt", "skewed", "normal", "huber"} or Likelihood
        Noise on log loss. ``"skewed"`` is for tables of which some runs are badly tuned: the law
        is that of well-tuned runs.
    priors : {"default", "flat"}, mapping of name to prior, or path of a TOML file
        Priors, or a TOML file with some of them. Names are those of the reference coordinates, and
        ``floor``, the floor's share of the loss at the reference point, or ``E``, the floor in
        nats; ``sigma``, ``dof``. ``"flat"`` is flat in E. A prior is a `bayeslaw.Prior`, its text,
        or a PreliZ distribution.
    delta : float
        Threshold of the ``huber`` likelihood, in log loss.
    seed : int
        The same seed gives the same numbers on the same machine. Other processors differ in the
        last digits.
    discrepancy : {"auto", "none", "walk", "curvature", "adaptation", "from_base"}
        How the true loss may deviate from the law. A `Discrepancy` can be given, too.
        ``"auto"`` is walking exponents for laws in N and D alone, ``"from_base"`` for those that
        start from the base's loss, ``"adaptation"`` for others with a power led by D, and
        ``"curvature"`` for the rest. In a third of the draws with ``"from_base"`` the law is
        exact; see `Discrepancy`.
    effects : str or sequence of str
        Random effects on log loss: ``"auto"``, ``"none"``, or levels such as ``"size,base,run"``.
        ``"auto"`` gives one to each `run` and each `base`, where the
        table has these columns and their labels repeat, and with a discrepancy to each model size
        if most sizes have several rows. Effects are not fitted where each run or base has values of
        its own of covariates that the law reads, such as one run for each size, and not for fewer
        than four sizes. Forecasts of new runs, bases or sizes then draw their effects from the
        prior. Any other column of labels may be named.
    errors : {"independent", "run", "auto"}
        Whether measured losses deviate from the law independently, or with a correlation within a
        `run` that falls with the distance in log tokens. ``"auto"`` is ``"run"`` where runs have
        rows at several D, but not without a discrepancy if each run has a value of its own of a
        covariate that the law reads, such as one run for each size.
    chains : int
        Number of chains; 4 by default.
    draws : int, optional
        Draws of each chain; by default 600 to 8000, as many as the convergence check needs.
    tune : int
        Tuning steps of each chain; 300 by default.
    target_accept : float
        Target acceptance of NUTS, between 0 and 1; .95 by default.
    cores : int, optional
        Processes or threads; by default all, but at most one per chain.
    progress : bool, optional
        Say what is done: on one bar on a terminal or in a notebook, and in lines on stderr
        elsewhere. By default only on a terminal or in a notebook.
    retry : bool, optional
        Whether to sample again if the convergence check fails, however long it takes; otherwise
        for about five minutes of one idle core, and what is left out is said. That limit counts
        gradients, so a busy machine decides as an idle one. It is with more draws unless `draws` is
        given, and with smaller steps after too many divergent transitions. ``False`` keeps the
        steps.

    Returns
    -------
    Posterior

    Raises
    ------
    TableError
        If the table lacks what the law needs.
    LawError
        If the law, a prior or the likelihood is unknown.
    FitError
        If a setting is unknown, or rows are too few.

    Warns
    -----
    TableWarning
        If something was guessed. Before sampling, if rows lie far from a Huber fit of the law, with
        the query that leaves them out, or if columns seem to be in other units or swapped; and of
        effects that are named and coincide with a covariate.
    FitWarning
        If the fit has not converged and a retry would take, or took, too long, or if random effects
        explain what the law should explain.

    Examples
    --------
    >>> table = bl.example_table()
    >>> fit = bl.fit("chinchilla", table, seed=0)  # doctest: +SKIP
    >>> fit.forecast(bl.grid(params=1e10, tokens=8e9)).bands((0.9,))  # doctest: +SKIP
    """
    if member_laws(law) is not None:
        raise LawError(
            f"{law!r} is several laws; their pool is bayeslaw.fit_pool(laws, table)."
        )
    chosen = make_settings(settings, seed)
    loaded = load_law(law)
    table = table_of(table)
    return _examined({"": specify(loaded, table, chosen)}, table, chosen)[""]


def fit_map(
    law: str | Path | Law,
    table: LossTable,
    *,
    likelihood: str | Likelihood = "studentt",
    priors: str | Path | Mapping[str, PriorLike] = "default",
    delta: float = DELTA,
    seed: int = 0,
) -> PointFit:
    """Mode of the posterior density, of the law without discrepancy and random effects.

    With ``likelihood="huber", priors="flat"`` it is that of ``fit_huber(..., bounds="prior")``, and
    so the paper's Huber fit wherever that lies within the bounds of the priors.

    Parameters
    ----------
    law, table, likelihood, priors, delta
        As for `fit`.
    seed : int
        Of the starts.

    Returns
    -------
    PointFit

    Raises
    ------
    TableError, LawError, FitError
        As for `fit`.

    Examples
    --------
    >>> import bayeslaw as bl
    >>> design = bl.grid(params=[1e8, 3e8, 1e9], tokens=[1e9, 3e9, 1e10])
    >>> truth = {"E": 1.7, "A": 400, "alpha": 0.34, "B": 410, "beta": 0.28}
    >>> table = bl.simulate("chinchilla", truth, design)
    >>> mode = bl.fit_map("chinchilla", table, likelihood="huber", priors="flat")
    >>> round(mode.parameters["alpha"], 3)
    0.34
    """
    if member_laws(law) is not None:
        raise FitError("a pool has no mode; fit its laws alone.")
    # Checks them.
    make_settings({"priors": priors, "likelihood": likelihood, "delta": delta}, seed)
    law = for_table(load_law(law), table)
    spec = make_spec(law, priors=priors, likelihood=likelihood, delta=delta)
    # A Huber likelihood given as an object has a threshold of its own.
    threshold = spec.likelihood.delta if isinstance(spec.likelihood, Huber) else delta
    from bayeslaw.inference.modes import mode_of  # with Numba

    return mode_of(spec, table, delta=threshold, seed=seed)


@shows_settings("priors")
def fit_pool(
    laws: str | Sequence[str | Path | Law],
    table: Losses,
    *,
    seed: int = 0,
    **settings: Unpack[FitKeywords],
) -> Pool:
    """Posteriors of several laws, as a mixture of equal weights.

    Parameters
    ----------
    laws : sequence of str, path or Law, or "adaptation"
        ``"adaptation"`` is `form1n` and `transfer`. Laws have priors of their own.
    table, seed, **settings
        As for `fit`, without `priors`.

    Returns
    -------
    Pool

    Raises
    ------
    TableError, LawError, FitError
        As for `fit`; `LawError` if a law is given twice.

    Examples
    --------
    >>> pool = bl.fit_pool(["form1n", "transfer"], train, seed=0)  # doctest: +SKIP
    """
    members = member_laws(laws)
    if members is None:
        raise LawError(unknown("pool", str(laws), POOLS))
    # The command line gives all settings, also those that are the default.
    if settings.pop("priors", FitSettings.priors) != FitSettings.priors:
        raise FitError(
            "laws of a pool have priors of their own; fit_pool takes no priors."
        )
    chosen = make_settings(settings, seed)
    name = (
        laws
        if isinstance(laws, str)
        else " + ".join(Path(str(law)).stem for law in members)
    )
    loaded = [load_law(law) for law in members]
    names = [law.name for law in loaded]
    if len({*names}) < len(names):
        raise LawError(f"pool {name}: a law is in it twice: {', '.join(names)}.")
    table = table_of(table)
    specs = {law.name: specify(law, table, chosen) for law in loaded}
    return Pool(_examined(specs, table, chosen), name=name)


def _examined(
    specs: Mapping[str, Spec], table: LossTable, settings: FitSettings
) -> dict[str, Posterior]:
    """Posteriors of specs, once the table has been examined, by the law of the first."""
    # Before the first fit, so that nobody waits for the error of the last.
    data = {of: make_data(spec, table) for of, spec in specs.items()}
    first = next(iter(specs.values()))
    law = first.law.without_discrepancy
    huber = examine(law, table, skewed=first.likelihood.kind == "skewed")
    fits = {}
    for of, spec in specs.items():
        fits[of] = _sampled(data[of], table, settings)
        if words := overruled(fits[of], huber if spec is first else None):
            warnings.warn(
                f"{spec.law.name} on {table.name}: {words}", FitWarning, stacklevel=3
            )
    return fits


@shows_settings()
def pymc_model(
    law: str | Path | Law, table: LossTable, **settings: Unpack[FitKeywords]
) -> Model:
    """The PyMC model that `fit` samples, without a fit.

    Its variables are the reference coordinates, the noise, ``{level}_z``, random effects over their
    standard deviation, and ``walk_*``, steps of walking exponents. Dimensions are ``row``, the
    levels of the effects, with their labels, and ``walk_*_knot``. `fit` samples the same density in
    other coordinates, which mix better (`bayeslaw.model.coordinates`).

    Parameters
    ----------
    law, table, **settings
        As for `fit`; settings of the sampler are not used.

    Returns
    -------
    pymc.Model
        For ``pm.sample``, ``pm.sample_prior_predictive``, ``pm.model_to_graphviz``. With errors
        that are correlated in runs, a row's density is that given the row before, so its prior
        predictive draws are not of a new table; `Posterior.to_datatree` has those.

    Raises
    ------
    TableError, LawError, FitError
        As `fit`.

    Examples
    --------
    >>> import bayeslaw as bl
    >>> model = bl.pymc_model("chinchilla", bl.example_table().query("scale <= 3e20"))
    >>> {name: len(labels) for name, labels in model.coords.items() if "knot" not in name}
    {'row': 28, 'size': 7}
    """
    # Settings of the sampler are checked, but nothing is drawn: any seed does.
    chosen = make_settings(settings, 0)
    spec = specify(law, table, chosen)
    return build(make_data(spec, table))


def fit_as_stated(posterior: Posterior) -> Posterior:
    """Posterior of `spec_as_stated`, sampled with the seed of the posterior.

    It is that of ``fit(law, table, discrepancy="none")`` with the same likelihood and priors.
    """
    seed = int(posterior.settings.get("seed", 0))
    spec = spec_as_stated(posterior)
    fitted = fit_spec(spec, posterior.table, make_settings(AS_STATED, seed))
    if words := overruled(fitted, None):
        name = f"{spec.law.name} without discrepancy on {posterior.table.name}"
        warnings.warn(f"{name}: {words}", FitWarning, stacklevel=2)
    return fitted


def fit_spec(spec: Spec, table: LossTable, settings: FitSettings) -> Posterior:
    """Posterior of a spec; of the settings, those of the sampler are used."""
    return _sampled(make_data(spec, table), table, settings)


def _sampled(data: Data, table: LossTable, settings: FitSettings) -> Posterior:
    sampled = _drawn(data, settings)
    spec = data.spec
    if data.law.discrepancy_parameters and spec.discrepancy.exact > 0:
        exact = _drawn(make_data(spec.exact, table, at=data.at), settings)
        sampled = mixed(sampled, exact, spec.discrepancy.exact, settings)
    return Posterior(
        spec=spec,
        table=table,
        at=data.at,
        draws=effects.not_fitted(spec.drawn, spec.priors, table.frame, sampled.draws),
        stats=sampled.stats,
        convergence=sampled.convergence,
        settings=sampled.settings,
    )


def _drawn(data: Data, settings: FitSettings) -> Sampled:
    sampled = sample(data, settings)
    return replace(sampled, draws=labelled_draws(data, sampled.draws))


@shows_settings("cores", "retry", **SHORT_REFIT)
def refit(
    law: str | Path | Law | Spec,
    table: LossTable,
    seed: int,
    **settings: Unpack[FitKeywords],
) -> Posterior:
    """Posterior by one short run on one core, whether or not it passes the convergence check.

    Settings are those of `bayeslaw.fit`, by default `SHORT_REFIT`. A spec, such as that of a
    posterior to be updated, has its own discrepancy and random effects.
    """
    # Simulations run in several processes, so each refit keeps to one core.
    chosen = make_settings(
        {**SHORT_REFIT, **settings, "cores": 1, "retry": False}, seed
    )
    spec = law if isinstance(law, Spec) else specify(law, table, chosen)
    return fit_spec(spec, table, chosen)


def joined(table: LossTable, rows: LossTable | None) -> LossTable:
    """A table with further measured rows; by default annealed, tuned, and without repeats."""
    if rows is None or not len(rows):
        return table
    check_domain(rows.frame, rows.name, table.frame)
    # A column that only one of them has would be missing in the rows of the other.
    frames = completed([table.frame, rows.frame])
    if any("role" in frame for frame in frames):
        roles = set.union(*(labels_of(frame, "role") for frame in frames))
        role = roles.pop() if len(roles) == 1 else None
        frames = [
            frame if "role" in frame else frame.assign(role=role) for frame in frames
        ]
    frame = pd.concat(frames, ignore_index=True)
    return LossTable(frame, table.name, table.baselines)


def labelled_draws(data: Data, draws: xr.Dataset) -> xr.Dataset:
    """The draws with labels of groups and knots, and effects in place of standardised effects."""
    for walk in data.law.walks:
        assert walk.knots
        (dim,) = set(draws[walk.steps].dims) - {"chain", "draw"}
        knot = f"{walk.steps}_knot"
        draws = draws.rename({dim: knot}).assign_coords({knot: walk.knots.positions})
    for level, labels in data.groups.items():
        z = draws[f"{level}_z"]
        (dim,) = set(z.dims) - {"chain", "draw"}
        # Effects in log loss, of which a forecast needs the sum; z alone is the sampler's.
        effect = (draws[f"tau_{level}"] * z).rename({dim: level})
        draws = draws.drop_dims(str(dim)).assign({f"{level}_effect": effect})
        draws = draws.assign_coords({level: labels})
    return draws
