from bayeslaw.cli import decisions as decisions
from bayeslaw.cli import fits as fits
from bayeslaw.cli import forecasts as forecasts
from bayeslaw.cli.app import app as app
from bayeslaw.cli.app import main as main
