# Public names and their modules, which are imported on first use: see __init__.py.

from . import derive as derive, plots as plots
from .checks._check import check as check
from .checks.findings import Check as Check
from .common.errors import (
    BayeslawError as BayeslawError,
    FileError as FileError,
    FitError as FitError,
    FitWarning as FitWarning,
    LawError as LawError,
    NotConverged as NotConverged,
    TableError as TableError,
    TableWarning as TableWarning,
)
from .derive.recipes import Recipes as Recipes, compare_recipes as compare_recipes
from .anchors.choice import Anchors as Anchors, choose_anchors as choose_anchors
from .anchors.study import study as study
from .evaluate._backtest import (
    Backtest as Backtest,
    backtest as backtest,
    read_backtest as read_backtest,
)
from .evaluate.registered import register as register
from .evaluate.verification import Verification as Verification, verify as verify
from .evaluate.scores import compare as compare, score as score
from .huber.point_fit import PointFit as PointFit
from .inference.fitting import fit as fit, fit_map as fit_map, fit_pool as fit_pool
from .inference.fitting import pymc_model as pymc_model
from .inference.groups import fit_groups as fit_groups
from .inference.points import fit_huber as fit_huber
from .inference.pools import Pool as Pool, load as load
from .inference.posterior import Posterior as Posterior
from .inference.forecast import Forecast as Forecast
from .laws.law import Law as Law
from .laws.lawfiles import load_law as load_law
from .laws.priors import Prior as Prior
from .planning.planner import plan as plan
from .planning.choices import Choice as Choice
from .planning.result import Plan as Plan
from .reporting._forecast import TableForecast as TableForecast, forecast as forecast
from .reporting._report import Report as Report, report as report
from .reporting.pages import Explorer as Explorer, explore as explore
from .simulation.example import plan_example as plan_example
from .simulation.worlds import paper_world as paper_world, simulate as simulate
from .tables.exports import (
    read_domains as read_domains,
    read_tensorboard as read_tensorboard,
    read_trainer as read_trainer,
    read_wandb as read_wandb,
)
from .tables.hull import locate as locate
from .tables.reading import (
    example_table as example_table,
    from_frame as from_frame,
    read_table as read_table,
)
from .tables.table import LossTable as LossTable, grid as grid

__version__: str
