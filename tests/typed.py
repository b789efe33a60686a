"""What a user's type checker sees of the public functions; mypy reads this file, nothing runs it.

An error that is expected is ignored by its code, and an ignored one that is gone is an error.
"""

from typing import assert_type

import bayeslaw as bl

table = bl.example_table()
fit = bl.fit("chinchilla", table)
assert_type(fit, bl.Posterior)
assert_type(bl.fit("chinchilla", table, draws=100), bl.Posterior)
assert_type(bl.fit_map("chinchilla", table, likelihood="huber"), bl.PointFit)
assert_type(bl.fit_pool(["chinchilla", "skaling"], table), bl.Pool)
assert_type(bl.fit_huber("chinchilla", table), bl.PointFit)
assert_type(fit.forecast(table), bl.Forecast)
assert_type(fit.table, bl.LossTable)
bl.plots.forecast(fit, table)
bl.fit_map("chinchilla", table, draws=100)  # type: ignore[call-arg]
bl.fit("chinchilla", table, drwas=100)  # type: ignore[call-arg]
