"""Bayesian scaling laws for continual pre-training, with bands that can be believed."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayeslaw import plots as plots
    from bayeslaw.anchoring.anchors import Anchors as Anchors
    from bayeslaw.anchoring.anchors import choose_anchors as choose_anchors
    from bayeslaw.anchoring.worth import anchor_value as anchor_value
    from bayeslaw.averaging import Stack as Stack
    from bayeslaw.averaging import StackedForecast as StackedForecast
    from bayeslaw.averaging import stack as stack
    from bayeslaw.calibration import Calibration as Calibration
    from bayeslaw.calibration import calibrate as calibrate
    from bayeslaw.checking.checkup import Check as Check
    from bayeslaw.checking.checkup import check as check
    from bayeslaw.comparison import compare as compare
    from bayeslaw.crossval import Elpd as Elpd
    from bayeslaw.crossval import cross_validate as cross_validate
    from bayeslaw.crossval import loo as loo
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
    from bayeslaw.joint import fit_joint as fit_joint
    from bayeslaw.lawfiles import load_law as load_law
    from bayeslaw.laws import Law as Law
    from bayeslaw.planning.choices import Choice as Choice
    from bayeslaw.planning.paper_case import plan_example as plan_example
    from bayeslaw.planning.planner import plan as plan
    from bayeslaw.planning.result import Plan as Plan
    from bayeslaw.posterior import Posterior as Posterior
    from bayeslaw.priors import Prior as Prior
    from bayeslaw.reporting import Report as Report
    from bayeslaw.reporting import report as report
    from bayeslaw.scores import score as score
    from bayeslaw.simulation import paper_world as paper_world
    from bayeslaw.simulation import simulate as simulate
    from bayeslaw.storage import load as load
    from bayeslaw.studying.cases import Case as Case
    from bayeslaw.studying.cases import pool_cases as pool_cases
    from bayeslaw.studying.cases import world_cases as world_cases
    from bayeslaw.studying.studies import study as study
    from bayeslaw.tables import LossTable as LossTable
    from bayeslaw.tables import example_table as example_table
    from bayeslaw.tables import from_frame as from_frame
    from bayeslaw.tables import grid as grid
    from bayeslaw.tables import read_table as read_table

__version__ = "0.1.0"

# Public name -> module. Imported on first use: PyMC and ArviZ take seconds to import. No module may
# be named like a public function, which it would hide once imported.
_HOME = {
    "anchor_value": "anchoring.worth",
    "Anchors": "anchoring.anchors",
    "BayeslawError": "errors",
    "calibrate": "calibration",
    "Calibration": "calibration",
    "Case": "studying.cases",
    "Check": "checking.checkup",
    "check": "checking.checkup",
    "Choice": "planning.choices",
    "choose_anchors": "anchoring.anchors",
    "compare": "comparison",
    "cross_validate": "crossval",
    "Elpd": "crossval",
    "example_table": "tables",
    "FileError": "errors",
    "fit": "fitting",
    "fit_huber": "huber",
    "fit_joint": "joint",
    "FitError": "errors",
    "FitWarning": "errors",
    "Forecast": "forecast",
    "from_frame": "tables",
    "grid": "tables",
    "Law": "laws",
    "LawError": "errors",
    "load": "storage",
    "load_law": "lawfiles",
    "loo": "crossval",
    "LossTable": "tables",
    "NotConverged": "errors",
    "paper_world": "simulation",
    "Plan": "planning.result",
    "plan": "planning.planner",
    "plan_example": "planning.paper_case",
    "PointFit": "huber",
    "pool_cases": "studying.cases",
    "Posterior": "posterior",
    "Prior": "priors",
    "read_table": "tables",
    "Report": "reporting",
    "report": "reporting",
    "score": "scores",
    "simulate": "simulation",
    "Stack": "averaging",
    "stack": "averaging",
    "StackedForecast": "averaging",
    "study": "studying.studies",
    "TableError": "errors",
    "TableWarning": "errors",
    "world_cases": "studying.cases",
}
__all__ = [*sorted(_HOME), "__version__", "plots"]


def __getattr__(name: str) -> Any:
    if name == "plots":
        return import_module("bayeslaw.plots")
    if name not in _HOME:
        raise AttributeError(f"module 'bayeslaw' has no attribute {name!r}")
    return getattr(import_module(f"bayeslaw.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
