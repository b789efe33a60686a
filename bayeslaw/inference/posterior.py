"""A posterior: draws of a law's parameters, what is shown of them, and its forecasts."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from bayeslaw.common.arrays import Model
from bayeslaw.common.errors import FitError, LawError, unknown
from bayeslaw.common.shown import Block, Showing, Shown, Table
from bayeslaw.design.described import described, units
from bayeslaw.inference import storage
from bayeslaw.inference.fitted import FittedLaw
from bayeslaw.inference.forecast import KINDS, Forecast
from bayeslaw.inference.residuals import (
    residual_draws,
    too_few_sizes,
    warn_of_lost_ends,
)
from bayeslaw.inference.storage import to_datatree
from bayeslaw.laws.priors import FLOORS, NOISE
from bayeslaw.model import effects
from bayeslaw.model.building import build
from bayeslaw.model.groups import OfGroup
from bayeslaw.model.training import make_data
from bayeslaw.tables.table import Rows
from bayeslaw.tables.units import check_units
from bayeslaw.tables.validation import COLUMNS


@dataclass(frozen=True, repr=False)
class Posterior(Showing, FittedLaw):
    """Draws of a law's parameters given a table.

    Parameters
    ----------
    spec : Spec
        Law, priors and likelihood.
    table : LossTable
        The training table.
    at : mapping
        Logarithms of the covariates at the reference point.
    draws : Dataset
        Reference coordinates and noise parameters as sampled, dims (chain, draw), and random
        effects on log loss, such as ``run_effect``, dims (chain, draw, level). The parameters of
        the formula, such as E, are in `paper`.
    stats : Dataset
        Sampler statistics, dims (chain, draw).
    convergence : Convergence
    settings : mapping
        Seed, settings of the sampler, and versions.
    """

    @cached_property
    def model(self) -> Model:
        """The ``pm.Model`` that was sampled, in other coordinates; see `bayeslaw.pymc_model`.

        `FitError` for a group of `bayeslaw.fit_groups`, whose model is of all groups.
        """
        if isinstance(self.spec.discrepancy, OfGroup):
            raise FitError(
                f"{self.table.name}: the model that was sampled is of all groups; this group has "
                "no model of its own. Go on from its draws, `to_datatree`."
            )
        return build(make_data(self.spec, self.table, at=self.at))

    def with_members(self, members: "Mapping[str, Posterior]") -> "Posterior":
        """The only one of some `members`."""
        (fit,) = members.values()
        return fit

    def forecast(
        self, table: Rows | pd.DataFrame, *, kind: str = "predictive", seed: int = 0
    ) -> Forecast:
        """Forecast the loss of each row of a table or grid.

        Parameters
        ----------
        table : LossTable or DataFrame
            Rows with the law's covariates; a loss is not needed.
        kind : {"predictive", "latent"}
            ``latent`` is the loss of the law. ``predictive`` adds noise and random effects: it is
            the posterior predictive distribution of a new measured loss.
        seed : int
            Seed of the noise and of the random effects of new groups.

        Raises
        ------
        NotConverged
            If the posterior failed the convergence checks, unless that is `accepted`; the
            forecast is then marked as unconverged.
        TableError
            If a covariate is missing, invalid or in another unit than that of the fitted rows, or
            rows are of a domain or a kind that the fit does not know.

        Warns
        -----
        TableWarning
            If rows lie so far out that the command line refuses them, unless that is `accepted`.
            If rows go on fitted runs of a fit that was saved without its losses.

        Notes
        -----
        A forecast takes 32 bytes of memory for each row and draw while it is made, and 8 bytes
        afterwards: 100,000 rows under 2,000 draws take 6.4 GB. Forecast more rows in parts.
        """
        if kind not in KINDS:
            raise LawError(unknown("kind of forecast", kind, KINDS))
        self.require_converged()
        rows = self.rows(table, "grid")
        frame = rows.frame
        name = rows.name
        check_units(frame, name, self.table.frame)
        loss = self.losses(rows)
        if kind == "predictive":
            warn_of_lost_ends(self, frame, name)
            residuals = residual_draws(self, frame, np.random.default_rng(seed))
            with np.errstate(
                over="ignore"
            ):  # infinite under a posterior that the data do not hold
                loss *= np.exp(residuals, out=residuals)
        named = dict.fromkeys((*COLUMNS, *self.columns))
        coords = {
            c: ("row", frame[c].to_numpy()) for c in named if c in frame and c != "loss"
        }
        draws = xr.DataArray(
            loss.reshape(self.draws.sizes["chain"], self.draws.sizes["draw"], -1),
            dims=("chain", "draw", "row"),
            coords={"row": np.arange(len(frame)), **coords},
            name="loss",
            attrs={"units": "nats per token", "kind": kind, "law": self.law.name},
        )
        self._warn_beyond(frame, name)
        return Forecast(
            draws, frame, self.law.name, kind, self.convergence,
            fits={self.law.name: self}, seed=seed,
        )  # fmt: skip

    def summary(self) -> pd.DataFrame:
        """Median, 5 and 95 % quantiles, mean, sd, R-hat and ESS of every parameter.

        The parameters of the formula and those at the reference point, and the noise. Mean and sd
        of coefficients such as A say little: their posteriors have long tails.
        """
        # Imported here, so that the command line starts fast.
        import arviz_stats as azs

        # Exponents are in both, with the same draws.
        merged = xr.merge([self.scalars, self.paper], compat="override")
        columns = {
            "median": merged.median(),
            "q05": merged.quantile(0.05),
            "q95": merged.quantile(0.95),
            "mean": merged.mean(),
            "sd": merged.std(),
            "rhat": azs.rhat(merged),
            "ess_bulk": azs.ess(merged, method="bulk"),
            "ess_tail": azs.ess(merged, method="tail"),
        }
        numbers = {
            n: {str(v): float(x) for v, x in c.items()} for n, c in columns.items()
        }
        return pd.DataFrame(numbers)

    def how(self) -> tuple[str, str]:
        """The model and the sampler, in words."""
        spec = self.spec
        run = self.settings
        # A discrepancy has no parameters where the law holds all that it would vary along.
        discrepancy = (
            spec.discrepancy.words if self.law.discrepancy_parameters else "no"
        )
        alone = spec.discrepancy.exact if self.law.discrepancy_parameters else 0.0
        model = {
            f"{spec.likelihood.kind} likelihood": True,
            f"{self._prior} priors": True,
            f"{discrepancy} discrepancy": True,
            f"the law alone in {100 * alone:.0f} % of draws": alone > 0,
            f"random effects of {' and '.join(spec.fitted_effects)}": spec.fitted_effects,
            f"effects of new {'s and '.join(spec.drawn)}s from the prior": spec.drawn,
            # Too few sizes to be fitted, so not among the effects of the spec.
            "size effects propagated to new sizes": too_few_sizes(self),
            self._one_size: self._one_size,
            **{step.words: step.words for step in reversed(self.law.steps)},
            "errors correlated within runs": spec.errors == "run",
        }
        sampler = (
            f"{run.get('chains')} chains of {run.get('draws')} draws (nutpie, seed "
        )
        words = ", ".join(words for words, applies in model.items() if applies)
        return words, f"{sampler}{run.get('seed')})"

    def heading(self) -> Shown:
        """The law, its training rows, the model and convergence, without the parameters."""
        spec = self.spec
        state = self.convergence
        shown = described(self.law, self.table, self.at)
        gate = state.note
        blocks: list[Block] = [
            *shown.blocks,
            *self.how(),
            units(self.law, self.at),
            gate,
        ]
        return replace(shown, blocks=blocks).adding(
            likelihood=spec.likelihood.kind,
            discrepancy=spec.discrepancy.kind,
            effects=list(spec.effects),
            errors=spec.errors,
            prior=self._prior,
            **{
                name: value
                for name, value in self.settings.items()
                if name != "versions"
            },
            converged=state.ok,
            failures=list(state.failures),
            convergence=asdict(state),
        )

    def shown(self) -> Shown:
        """The heading, and median and 90 % interval of every parameter."""
        return self.heading() + self.parameters()

    def parameters(self) -> Shown:
        """Median and 90 % interval of every parameter, and the priors."""
        summary = self.summary()
        law = self.law
        spec = self.spec
        added = law.discrepancy_parameters
        of_law = {*law.parameters, *law.coordinates}
        groups = {
            "parameters of the formula": [n for n in law.parameters if n not in added],
            "discrepancy": [n for n in law.parameters if n in added],
            "at the reference point": [
                n for n in law.coordinates if n not in law.parameters
            ],
            "noise and random effects" if spec.effects else "noise on log loss": [
                n for n in summary.index if n not in of_law
            ],
        }
        pairs = [(group, name) for group, names in groups.items() for name in names]
        rows = summary.loc[[name for _, name in pairs]]
        # Both must reach the limit, so the smaller one is shown.
        ess = rows[["ess_bulk", "ess_tail"]].min(axis=1)
        columns = {"median": "median", "q05": "5 %", "q95": "95 %", "rhat": "R-hat"}
        frame = rows[list(columns)].rename(columns=columns).assign(ESS=ess)
        frame.index = pd.MultiIndex.from_tuples(pairs, names=["", ""])
        changed = {n: p for n, p in spec.priors.items() if p != law.priors.get(n, p)}
        words = "".join(f"{n} ~ {p}, " for n, p in changed.items())
        document = {
            "parameters": summary.rename_axis("name").reset_index().to_dict("records"),
            "priors": {name: str(prior) for name, prior in spec.priors.items()},
        }
        priors = f"Priors: {words}others by default." if changed else "Default priors."
        table = Table(frame, formats={"R-hat": ".3f", "ESS": ".0f"})
        return Shown("", [table, priors], document)

    @property
    def _one_size(self) -> str:
        """How many sizes are one for random effects, in words; empty if none are."""
        frame = self.table.frame
        distinct = frame["params"].nunique() if "params" in frame else 0
        groups = len(np.unique(effects.labels(frame, "size")))
        if (
            not ("size" in self.spec.effects or too_few_sizes(self))
            or groups >= distinct
        ):
            return ""
        share = f"{100 * effects.SAME_SIZE:.0f} %"
        return f"{distinct} sizes as {groups}, since those within {share} are one"

    @property
    def _prior(self) -> str:
        spec = self.spec
        if spec.priors == spec.default_priors:
            return "default"
        # The noise keeps its priors under `flat`.
        of_law = {*spec.law.priors, *FLOORS} - {*NOISE}
        shapes = {prior.name for name, prior in spec.priors.items() if name in of_law}
        return "flat" if shapes <= {"Flat", "HalfFlat", "Uniform"} else "own"

    def to_datatree(self, *, seed: int = 0, prior: int = 1000) -> xr.DataTree:
        """The posterior, its data and its predictions, for ArviZ.

        Parameters
        ----------
        seed : int
            Of the predictive draws and the prior's.
        prior : int
            Number of draws of the prior.

        Returns
        -------
        DataTree
            ``posterior`` (reference coordinates, the paper's parameters, noise, random effects),
            ``sample_stats``, ``log_likelihood``, ``posterior_predictive`` and ``observed_data`` of
            the training rows, ``constant_data`` (their covariates and groups), ``prior`` and
            ``prior_predictive``; the last two are left out if a prior is flat and improper, which
            ``attrs["prior"]`` states. The observed variable is ``log_loss``, dims (chain, draw,
            row); ``attrs["units"]`` states the unit of most variables.
        """
        return to_datatree(self, seed=seed, prior=prior)

    def save(self, path: str | Path, *, losses: bool = True) -> None:
        """Write the posterior to one NetCDF file; an interrupted save leaves an earlier one.

        A file of that name is replaced, as by pandas; the command line asks for ``--force``.

        Parameters
        ----------
        path : str or Path
        losses : bool
            Whether the file has the training losses. Without them it forecasts and plans as before,
            with a stated baseline, and refuses what compares the fit with its losses, and a
            compute-optimal rule, for which the law is fitted to them again. It then has no column
            that the law, its effects and the matching of rows do not read. Nor has it the errors at
            the ends of runs, which would give back the last losses: further rows of a fitted run
            are forecast as those of another run of its settings, with a warning. A law that starts
            from its bases' losses keeps these.

        Raises
        ------
        FileError
            If the file cannot be written; `LawError` if it cannot name the class of the likelihood
            or the discrepancy, or hold one of its fields.
        """
        columns = None if losses else storage.columns_read(self)
        storage.write(storage.tree_of(self, columns), path)
