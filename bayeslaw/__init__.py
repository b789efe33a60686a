"""Bayesian scaling laws for continual pre-training, with bands that can be believed."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayeslaw import derive as derive
    from bayeslaw import plots as plots
    from bayeslaw.checks.checkup import Check as Check
    from bayeslaw.checks.checkup import check as check
    from bayeslaw.common.errors import BayeslawError as BayeslawError
    from bayeslaw.common.errors import FileError as FileError
    from bayeslaw.common.errors import FitError as FitError
    from bayeslaw.common.errors import FitWarning as FitWarning
    from bayeslaw.common.errors import LawError as LawError
    from bayeslaw.common.errors import NotConverged as NotConverged
    from bayeslaw.common.errors import TableError as TableError
    from bayeslaw.common.errors import TableWarning as TableWarning
    from bayeslaw.derive.recipes import Recipes as Recipes
    from bayeslaw.derive.recipes import compare_recipes as compare_recipes
    from bayeslaw.design.anchors import Anchors as Anchors
    from bayeslaw.design.anchors import choose_anchors as choose_anchors
    from bayeslaw.design.evsi import anchor_value as anchor_value
    from bayeslaw.evaluate.backtesting import Backtest as Backtest
    from bayeslaw.evaluate.backtesting import backtest as backtest
    from bayeslaw.evaluate.backtesting import read_backtest as read_backtest
    from bayeslaw.evaluate.coefficients import Coefficients as Coefficients
    from bayeslaw.evaluate.coefficients import read_coefficients as read_coefficients
    from bayeslaw.evaluate.coefficients import write_coefficients as write_coefficients
    from bayeslaw.evaluate.crossval import Elpd as Elpd
    from bayeslaw.evaluate.crossval import cross_validate as cross_validate
    from bayeslaw.evaluate.crossval import loo as loo
    from bayeslaw.evaluate.forecast import Forecast as Forecast
    from bayeslaw.evaluate.registration import Verification as Verification
    from bayeslaw.evaluate.registration import register as register
    from bayeslaw.evaluate.registration import verify as verify
    from bayeslaw.evaluate.scores import compare as compare
    from bayeslaw.evaluate.scores import score as score
    from bayeslaw.evaluate.stacking import Stack as Stack
    from bayeslaw.evaluate.stacking import StackedForecast as StackedForecast
    from bayeslaw.evaluate.stacking import stack as stack
    from bayeslaw.huber.point_fit import PointFit as PointFit
    from bayeslaw.huber.point_fit import fit_huber as fit_huber
    from bayeslaw.inference.fitting import fit as fit
    from bayeslaw.inference.joint_fitting import fit_joint as fit_joint
    from bayeslaw.inference.pools import Pool as Pool
    from bayeslaw.inference.posterior import Posterior as Posterior
    from bayeslaw.inference.storage import load as load
    from bayeslaw.laws.law import Law as Law
    from bayeslaw.laws.lawfiles import load_law as load_law
    from bayeslaw.laws.priors import Prior as Prior
    from bayeslaw.planning.choices import Choice as Choice
    from bayeslaw.planning.planner import plan as plan
    from bayeslaw.planning.planner import plan_example as plan_example
    from bayeslaw.planning.result import Plan as Plan
    from bayeslaw.reporting import Explorer as Explorer
    from bayeslaw.reporting import Report as Report
    from bayeslaw.reporting import explore as explore
    from bayeslaw.reporting import report as report
    from bayeslaw.simulation.calibration import Calibration as Calibration
    from bayeslaw.simulation.calibration import calibrate as calibrate
    from bayeslaw.simulation.worlds import paper_world as paper_world
    from bayeslaw.simulation.worlds import simulate as simulate
    from bayeslaw.studies.cases import Case as Case
    from bayeslaw.studies.cases import pool_cases as pool_cases
    from bayeslaw.studies.cases import world_cases as world_cases
    from bayeslaw.studies.study import study as study
    from bayeslaw.tables.hull import locate as locate
    from bayeslaw.tables.reading import example_table as example_table
    from bayeslaw.tables.reading import from_frame as from_frame
    from bayeslaw.tables.reading import read_table as read_table
    from bayeslaw.tables.table import LossTable as LossTable
    from bayeslaw.tables.table import grid as grid

__version__ = "0.1.0"

# Public name -> module. Imported on first use: PyMC and ArviZ take seconds to import. No module may
# be named like a public function, which it would hide once imported.
_HOME = {
    "anchor_value": "design.evsi",
    "Anchors": "design.anchors",
    "Backtest": "evaluate.backtesting",
    "backtest": "evaluate.backtesting",
    "BayeslawError": "common.errors",
    "calibrate": "simulation.calibration",
    "Calibration": "simulation.calibration",
    "Case": "studies.cases",
    "Check": "checks.checkup",
    "check": "checks.checkup",
    "Choice": "planning.choices",
    "choose_anchors": "design.anchors",
    "Coefficients": "evaluate.coefficients",
    "compare": "evaluate.scores",
    "compare_recipes": "derive.recipes",
    "cross_validate": "evaluate.crossval",
    "Elpd": "evaluate.crossval",
    "example_table": "tables.reading",
    "explore": "reporting",
    "Explorer": "reporting",
    "FileError": "common.errors",
    "fit": "inference.fitting",
    "fit_huber": "huber.point_fit",
    "fit_joint": "inference.joint_fitting",
    "FitError": "common.errors",
    "FitWarning": "common.errors",
    "Forecast": "evaluate.forecast",
    "from_frame": "tables.reading",
    "grid": "tables.table",
    "Law": "laws.law",
    "LawError": "common.errors",
    "load": "inference.storage",
    "load_law": "laws.lawfiles",
    "locate": "tables.hull",
    "loo": "evaluate.crossval",
    "LossTable": "tables.table",
    "NotConverged": "common.errors",
    "paper_world": "simulation.worlds",
    "Plan": "planning.result",
    "plan": "planning.planner",
    "plan_example": "planning.planner",
    "PointFit": "huber.point_fit",
    "Pool": "inference.pools",
    "pool_cases": "studies.cases",
    "Posterior": "inference.posterior",
    "Prior": "laws.priors",
    "read_backtest": "evaluate.backtesting",
    "read_coefficients": "evaluate.coefficients",
    "read_table": "tables.reading",
    "Recipes": "derive.recipes",
    "register": "evaluate.registration",
    "Report": "reporting",
    "report": "reporting",
    "score": "evaluate.scores",
    "simulate": "simulation.worlds",
    "Stack": "evaluate.stacking",
    "stack": "evaluate.stacking",
    "StackedForecast": "evaluate.stacking",
    "study": "studies.study",
    "TableError": "common.errors",
    "TableWarning": "common.errors",
    "Verification": "evaluate.registration",
    "verify": "evaluate.registration",
    "world_cases": "studies.cases",
    "write_coefficients": "evaluate.coefficients",
}
__all__ = [*sorted(_HOME), "__version__", "derive", "plots"]


def __getattr__(name: str) -> Any:
    if name in ("derive", "plots"):
        return import_module(f"bayeslaw.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'bayeslaw' has no attribute {name!r}")
    return getattr(import_module(f"bayeslaw.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
