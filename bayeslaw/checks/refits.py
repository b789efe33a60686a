"""What findings that refit have in common: forecasts of any rows, and how a refit converged."""

from bayeslaw.inference.forecast import Forecast
from bayeslaw.inference.pools import Pool
from bayeslaw.inference.posterior import Posterior
from bayeslaw.tables.table import LossTable


def forecast_of_any(fit: Posterior | Pool, rows: LossTable, seed: int) -> Forecast:
    """The forecast of any rows by any fit: other findings judge distance and convergence."""
    accepting = fit.accepted({"unconverged", "beyond-evidence"})
    return accepting.forecast(rows, seed=seed)


def converged_in_words(fit: Posterior | Pool) -> str:
    """What a refit fails to be, or that it converged."""
    return "; ".join(fit.convergence.failures) or "converged"
