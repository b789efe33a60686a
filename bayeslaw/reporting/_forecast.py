"""One call from a table, an export or a saved fit to a forecast, its check and its figure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack, cast

import pandas as pd
from matplotlib.figure import Figure

from bayeslaw import plots
from bayeslaw.checks._check import check
from bayeslaw.checks.findings import Check
from bayeslaw.common.errors import Acceptance, TableError, acceptances, argument
from bayeslaw.common.files import is_hdf5
from bayeslaw.common.formatting import listed
from bayeslaw.common.shown import Block, Note, Severity, Showing, Shown
from bayeslaw.inference.asked_rows import Need, checked, laws_of
from bayeslaw.inference.fitting import fit, fit_pool
from bayeslaw.inference.forecast import Forecast
from bayeslaw.inference.pools import Pool, load, member_laws
from bayeslaw.inference.posterior import Posterior
from bayeslaw.inference.settings import FitKeywords, check_names, shows_settings
from bayeslaw.laws.law import Law
from bayeslaw.reporting.pages import picture
from bayeslaw.tables.assignments import covariates
from bayeslaw.tables.comparison import require_one_domain
from bayeslaw.tables.guessing import Losses, guess_table
from bayeslaw.tables.table import LossTable, Role, Rows, grid, rows_of
from bayeslaw.tables.validation import BASE_LOSSES, COVARIATES

type Target = str | Mapping[str, Any] | pd.DataFrame | Rows
"""Rows to forecast: text, values of covariates, or rows."""
NAMED = 8
"""Columns without a meaning that are named."""


@dataclass(frozen=True)
class TableForecast(Showing):
    """A forecast from a table, with how the table was read, its fit and its check.

    ``print`` shows what was guessed, then the forecast and the verdict of the check.

    Parameters
    ----------
    guesses : tuple of str
        How the table was read and which law was fitted, in sentences.
    fit : Posterior or Pool
        ``result.fit.save("fit.nc")`` saves it.
    rows : LossTable
        The rows to forecast.
    check : Check
        Findings about the fit and its forecast of the rows; ``result.check.level`` is the worst.
    seed : int
        Of the predictive noise.
    """

    guesses: tuple[str, ...]
    fit: Posterior | Pool = field(repr=False)
    rows: LossTable = field(repr=False)
    check: Check = field(repr=False)
    seed: int = 0

    @cached_property
    def forecast(self) -> Forecast:
        """The forecast of the rows; `NotConverged` if the fit is not, unless that is accepted."""
        return self.fit.forecast(self.rows, seed=self.seed)

    def figure(self) -> Figure:
        """Fitted runs, the law and the forecast with its bands: `bayeslaw.plots.overview`."""
        return plots.overview(self.fit, self.rows, seed=self.seed)

    def shown(
        self, levels: Sequence[float] = (0.5, 0.9), *, why: bool = False
    ) -> Shown:
        """What was guessed, the forecast, and the verdict of the check.

        Parameters
        ----------
        levels, why
            As for `Forecast.shown`.
        """
        state = self.fit.convergence
        blocks: list[Block] = [list(self.guesses), ""]
        if state.enough:
            blocks.append(str(state))
        elif not self._usable:  # the forecast says it otherwise
            blocks.append(state.note)
        document = {"guesses": list(self.guesses), "law": self.fit.name}
        shown = Shown("How it was read and fitted", blocks, document, ("overview",))
        if self._usable:
            shown += self.forecast.shown(levels, why=why)
        return shown + self._check_shown()

    @property
    def _usable(self) -> bool:
        return self.fit.convergence.enough or "unconverged" in self.fit.accepts

    def _check_shown(self) -> Shown:
        """The verdict of the check, and the words of its worst findings."""
        level = self.check.level
        blocks: list[Block] = [Note(self.check.verdict, cast("Severity", level))]
        if level != "ok":
            for finding in self.check.parts:
                if finding.level == level:
                    blocks.append(list(finding.words))
        return Shown("Check", blocks, {"check": self.check.to_dict()})

    def _repr_html_(self) -> str:
        html = super()._repr_html_()
        if not self._usable:
            return html
        drawn = picture(self.figure(), "Fitted runs, the law, and the forecast")
        return f'{html}\n<img alt="{drawn.alt}" src="{drawn.source}">'


@shows_settings()
def forecast(
    losses: Losses | Posterior | Pool,
    target: Target,
    *,
    law: str | Path | Law | Sequence[str | Path | Law] | None = None,
    columns: Mapping[str, str] | None = None,
    where: str | None = None,
    source: str | Path | pd.DataFrame | None = None,
    role: Role | None = None,
    loss_unit: str | None = None,
    bytes_per_token: float | None = None,
    accepts: Acceptance | Collection[Acceptance] = (),
    seed: int = 0,
    **settings: Unpack[FitKeywords],
) -> TableForecast:
    """Forecast the loss of a run from a table as it is: read, fit, check and forecast in one call.

    Columns, units, annealing and the law are guessed where they are not given, and the result says
    what was guessed. What cannot be guessed is refused in one line that says what to write.

    Parameters
    ----------
    losses : LossTable, DataFrame, path, Posterior or Pool
        Measured losses: a table, a frame, or the path of a file. Of a posterior, or the path of a
        saved one, nothing is guessed.
    target : str, mapping, DataFrame or LossTable
        The run to forecast, such as ``"params=7e9 tokens=2e12"`` (parameters and tokens), or rows.
    law : str, path or Law, or sequence of these, optional
        As for `fit` and `fit_pool`. By default `chinchilla`, if sizes and tokens alone vary;
        `mixture` if replay varies; `form1n` if pre-training tokens per parameter vary as well, or
        `transfer` if the losses of the bases are known; `ladder` of a table of `flops` and losses.
    columns, where, source, role, loss_unit, bytes_per_token
        As for `read_table`; what is given is not guessed.
    accepts : {"unconverged", "beyond-evidence"} or a set of them
        As for `Posterior.accepted`.
    seed : int
        Same seed, same numbers on one machine.
    **settings
        Those of `fit`.

    Returns
    -------
    TableForecast
        ``print`` shows it, `figure` draws it. The fit, the check and the forecast are its fields.

    Raises
    ------
    TableError
        If a column, a unit, the domain or the law cannot be guessed; if the target lacks a
        covariate, or lies twice as far from the fitted rows as bands were ever tested. All before
        the fit.
    LawError, FitError
        As `fit`.

    Examples
    --------
    >>> result = bl.forecast("runs.csv", "params=7e9 tokens=2e12")  # doctest: +SKIP
    >>> print(result)  # doctest: +SKIP
    >>> result.figure().savefig("forecast.png")  # doctest: +SKIP
    """
    check_names(settings)
    accepted = acceptances(accepts)
    rows = _rows_of(target)
    need: Need = "any" if "beyond-evidence" in accepted else "near"
    reading: dict[str, Any] = {
        "columns": columns,
        "where": where,
        "source": source,
        "role": role,
        "loss_unit": loss_unit,
        "bytes_per_token": bytes_per_token,
    }
    if isinstance(losses, Posterior | Pool) or _is_saved(losses):
        _refuse_beside_fit({"law": law, **reading, **settings})
        fitted = losses if isinstance(losses, Posterior | Pool) else load(str(losses))
        rows = checked(rows, fitted.laws, fitted.table, need)
        guesses = [f"The fit of {fitted.name} to {fitted.table} is used as it is."]
    else:
        guessed = guess_table(losses, **reading)
        table = guessed.table
        require_one_domain(table.frame, table.name)
        chosen, why = (law, "as given") if law is not None else guess_law(table)
        laws = laws_of(chosen, table)
        _refuse_unread(rows, table, laws)
        rows = checked(rows, laws, table, need)
        names = " + ".join(each.name for each in laws)
        guesses = [f"{table}.", *guessed.words, *guessed.assumed]
        guesses.append(f"The law is {names}, {why}.")
        guesses += _unread_words(guessed.unread, laws)
        fitted = _fitted(chosen, table, seed, settings)
    # Rows too far out were refused above.
    usable = fitted.accepted({*accepted, "beyond-evidence"})
    judged = fitted.accepted(accepted)
    found = check(judged, rows, seed=seed)
    return TableForecast(tuple(guesses), usable, rows, found, seed)


def _fitted(
    law: str | Path | Law | Sequence[str | Path | Law],
    table: LossTable,
    seed: int,
    settings: FitKeywords,
) -> Posterior | Pool:
    members = member_laws(law)
    if members is None:
        assert isinstance(law, str | Path | Law)
        return fit(law, table, seed=seed, **settings)
    assert not isinstance(law, Path | Law)
    return fit_pool(law, table, seed=seed, **settings)


def _is_saved(losses: object) -> bool:
    """Whether this is the path of a saved posterior."""
    if not isinstance(losses, str | Path):
        return False
    path = Path(losses)
    return path.suffix == ".nc" or is_hdf5(path)


def _refuse_beside_fit(options: Mapping[str, object]) -> None:
    for name, value in options.items():
        if value is not None:
            raise TableError(f"{name} has no effect on a fit that was made; drop it.")


def _rows_of(target: Target) -> LossTable:
    """The rows to forecast, validated."""
    if isinstance(target, LossTable):
        return target
    if isinstance(target, str):
        target = covariates(target, "target")
    if isinstance(target, Mapping):
        target = grid(**target)
    rows = rows_of(target, "target")
    return LossTable(rows.frame, rows.name)


def _refuse_unread(rows: LossTable, table: LossTable, laws: Sequence[Law]) -> None:
    """Refuse a covariate of the target that no law reads, unless all fitted rows have its value."""
    read = {column for law in laws for column in (*law.columns, *law.held)}
    for column in COVARIATES:
        if column not in rows.frame or column in read:
            continue
        if column not in table.frame:
            raise TableError(
                f"{rows.name}: {table.name} has no {column!r}, so the forecast is the same at any; "
                "drop it."
            )
        fitted = table.frame[column].unique()
        if len(fitted) > 1 or (rows.frame[column] != fitted[0]).any():
            names = listed([law.name for law in laws])
            raise TableError(
                f"{rows.name}: {names} does not read {column!r}, and rows of "
                f"{', '.join(f'{value:g}' for value in fitted[:5])} are fitted; drop it, or give a "
                f"law that reads it, such as {argument('law', 'form1n')}."
            )


# -- the law --------------------------------------------------------------------------------------


def guess_law(table: LossTable) -> tuple[str, str]:
    """The law for the columns of a table that vary, and why.

    Raises
    ------
    TableError
        If the columns call for none, or the law needs the role of the domain.
    """
    frame = table.frame
    if "params" not in frame:
        return "ladder", "since training compute alone is known"
    if _varies_within_sizes(frame, "ptpp"):
        if "replay" not in frame:
            raise TableError(
                f"{table.name}: pre-training tokens per parameter vary, and there is no 'replay' "
                f"(a fraction): add it, or give {argument('law', 'liew_kato')}, which reads none."
            )
        if {*BASE_LOSSES} <= {*frame}:
            return "transfer", "since ptpp varies and the losses of the bases are known"
        return "form1n", "since sizes, tokens and ptpp vary"
    if "replay" in frame and frame["replay"].nunique() > 1:
        _ = table.role  # raises with what to write
        return "mixture", "since sizes, tokens and replay vary"
    return "chinchilla", "since sizes and tokens alone vary"


def _varies_within_sizes(frame: pd.DataFrame, column: str) -> bool:
    """Whether models of one size have several values, which size does not explain."""
    if column not in frame:
        return False
    return bool((frame.groupby("params")[column].nunique() > 1).any())


def _unread_words(unread: Sequence[str], laws: Sequence[Law]) -> list[str]:
    """Columns that vary and that no law reads, in words."""
    read = {column for law in laws for column in law.columns}
    others = [column for column in unread if column not in read]
    if not others:
        return []
    more = len(others) - NAMED
    names = others[:NAMED] + ([f"{more} more"] if more > 0 else [])
    return [f"Columns that vary and are not read: {listed(names)}."]
