"""Pages of HTML that need no network: a report of a fit, and a plan to explore."""

from bayeslaw.reporting.assembly import report
from bayeslaw.reporting.explorer import Explorer, explore
from bayeslaw.reporting.pages import Report

__all__ = ["Explorer", "Report", "explore", "report"]
