"""What only internals can show: densities and numerical kernels, for tests that reach inside."""

from bayeslaw.checks._check import at_most as at_most
from bayeslaw.checks._check import cuts as cuts
from bayeslaw.checks._check import grouped as grouped
from bayeslaw.checks._check import judge_cells as judge_cells
from bayeslaw.checks._check import judge_outliers as judge_outliers
from bayeslaw.checks.extrapolation import MEASURED as MEASURED
from bayeslaw.checks.extrapolation import evidence as evidence
from bayeslaw.checks.extrapolation import stage_bounds as stage_bounds
from bayeslaw.checks.extrapolation import stage_shape as stage_shape
from bayeslaw.checks.findings import target as target
from bayeslaw.checks.identifiability import QUANTILES as QUANTILES
from bayeslaw.checks.identifiability import Directions as Directions
from bayeslaw.checks.identifiability import directions as directions
from bayeslaw.checks.identifiability import explained as explained
from bayeslaw.checks.identifiability import judge_curvature as judge_curvature
from bayeslaw.checks.identifiability import spread as spread
from bayeslaw.checks.identifiability import swing as swing
from bayeslaw.cli.terminal import dumps as dumps
from bayeslaw.inference.datatree import prior_draws as prior_draws
from bayeslaw.inference.fitting import refit as refit
from bayeslaw.inference.residuals import covariance as covariance
