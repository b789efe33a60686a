"""A posterior and its log likelihood as an ArviZ tree."""

import arviz as az

from bayeslaw.inference.residuals import log_likelihood


def tree(fitted):
    sizes = fitted.draws.sizes
    shape = sizes["chain"], sizes["draw"], len(fitted.table)
    return az.from_dict(
        {
            "posterior": {name: v.values for name, v in fitted.draws.data_vars.items()},
            "log_likelihood": {"log_loss": log_likelihood(fitted).reshape(shape)},
        }
    )
