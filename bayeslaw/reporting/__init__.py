"""Reports of a fit and its forecast, as one self-contained HTML page."""

from bayeslaw.reporting.assembly import report
from bayeslaw.reporting.pages import Report

__all__ = ["Report", "report"]
