"""Posterior standard deviations at targets, predicted without a refit for rows to measure."""

import numpy as np
import pandas as pd

from bayeslaw.common.arrays import Floats
from bayeslaw.design.posterior_moments import (
    candidate_rows,
    frame_of,
    joint_gaussian,
    new_size_effects,
)
from bayeslaw.inference.posterior import Posterior
from bayeslaw.model.random_effects import labels
from bayeslaw.tables.table import LossTable


def predicted_sd(
    posterior: Posterior, rows: LossTable | pd.DataFrame, targets: LossTable | pd.DataFrame
) -> Floats:
    """Predicted standard deviation of log loss at the targets once `rows` are measured.

    The random effect of a target's size is included if the size has no training rows.

    Parameters
    ----------
    posterior : Posterior
    rows : LossTable or DataFrame
        Rows to measure. Without any, the result is the posterior's own standard deviation.
    targets : LossTable or DataFrame

    Returns
    -------
    array, shape (targets,)
    """
    aim = frame_of(targets)
    if not len(rows):
        log_loss = np.log(posterior.latent(aim)) + new_size_effects(posterior, aim, None, 0)
        return np.asarray(log_loss.std(0, ddof=1))
    frame = candidate_rows(posterior, rows)
    run = np.unique(labels(frame, "run"), return_inverse=True)[1]
    joint, _ = joint_gaussian([posterior], frame, run, aim)
    return np.sqrt(joint.update(list(frame.index)).variance)
