from bayeslaw.cli import decisions as decisions
from bayeslaw.cli import fits as fits
from bayeslaw.cli import forecasts as forecasts
from bayeslaw.cli import plans as plans
from bayeslaw.cli import scores as scores
from bayeslaw.cli.app import app as app
from bayeslaw.cli.app import main as main
