"""Covariates of a replay ratio: the shares of old and new text, and their logarithms."""

import numpy as np

from bayeslaw.common.arrays import Floats

REPLAY_CLIP = 1e-9
"""The paper clips r to [REPLAY_CLIP, 1 - REPLAY_CLIP]."""
EPSILON = 1e-5
"""The number in ``log(r + epsilon)`` where no term states another."""
SHARE_OFFSET = 0.01
"""Added to a share under the logarithms of the covariates ``mixed`` and ``rest``."""


def covariates_of_replay(
    replay: Floats, role: str, epsilon: float = EPSILON
) -> dict[str, Floats]:
    """The covariates of replay ratios, each of their shape.

    `role` says whether the domain's own text is the new one, ``"target"``, or the replayed one.
    """
    share = np.clip(replay, REPLAY_CLIP, 1 - REPLAY_CLIP)
    own = 1 - share if role == "target" else share
    return {
        "replay": np.log(share),
        "barrier": np.log(share + epsilon),
        "share": share,
        "fresh": np.log1p(-share),
        "own": np.log(own),
        "mixed": np.log(own + SHARE_OFFSET),
        "rest": np.log(1 - own + SHARE_OFFSET),
    }
