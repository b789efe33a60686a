"""Bayesian scaling laws for continual pre-training, with bands that can be believed."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayeslaw.comparison import compare as compare
    from bayeslaw.errors import BayeslawError as BayeslawError
    from bayeslaw.errors import FileError as FileError
    from bayeslaw.errors import FitError as FitError
    from bayeslaw.errors import FitWarning as FitWarning
    from bayeslaw.errors import LawError as LawError
    from bayeslaw.errors import NotConverged as NotConverged
    from bayeslaw.errors import TableError as TableError
    from bayeslaw.errors import TableWarning as TableWarning
    from bayeslaw.fitting import fit as fit
    from bayeslaw.forecast import Forecast as Forecast
    from bayeslaw.huber import PointFit as PointFit
    from bayeslaw.huber import fit_huber as fit_huber
    from bayeslaw.laws import Law as Law
    from bayeslaw.laws import load_law as load_law
    from bayeslaw.paper_case import plan_example as plan_example
    from bayeslaw.planner import Plan as Plan
    from bayeslaw.planner import plan as plan
    from bayeslaw.posterior import Posterior as Posterior
    from bayeslaw.priors import Prior as Prior
    from bayeslaw.scores import score as score
    from bayeslaw.simulation import paper_world as paper_world
    from bayeslaw.simulation import simulate as simulate
    from bayeslaw.storage import load as load
    from bayeslaw.tables import LossTable as LossTable
    from bayeslaw.tables import example_table as example_table
    from bayeslaw.tables import from_frame as from_frame
    from bayeslaw.tables import grid as grid
    from bayeslaw.tables import read_table as read_table

__version__ = "0.1.0"

# Public name -> module. Imported on first use: PyMC and ArviZ take seconds to import. No module may
# be named like a public function, which it would hide once imported.
_HOME = {
    "BayeslawError": "errors",
    "FileError": "errors",
    "FitError": "errors",
    "FitWarning": "errors",
    "Forecast": "forecast",
    "Law": "laws",
    "LawError": "errors",
    "LossTable": "tables",
    "NotConverged": "errors",
    "PointFit": "huber",
    "Posterior": "posterior",
    "Prior": "priors",
    "TableError": "errors",
    "TableWarning": "errors",
    "compare": "comparison",
    "example_table": "tables",
    "fit": "fitting",
    "fit_huber": "huber",
    "from_frame": "tables",
    "grid": "tables",
    "load": "storage",
    "load_law": "laws",
    "Plan": "planner",
    "plan": "planner",
    "plan_example": "paper_case",
    "paper_world": "simulation",
    "read_table": "tables",
    "score": "scores",
    "simulate": "simulation",
}
__all__ = [*sorted(_HOME), "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'bayeslaw' has no attribute {name!r}")
    return getattr(import_module(f"bayeslaw.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
