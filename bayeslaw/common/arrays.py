"""Types of arrays, and aliases for classes of libraries that ship no types."""

from typing import Any

import numpy as np
import numpy.typing as npt

type Floats = npt.NDArray[np.float64]
type Ints = npt.NDArray[np.int64]
type Bools = npt.NDArray[np.bool_]
type Strings = npt.NDArray[np.str_]
type Tensor = Any
"""A PyTensor variable or a PyMC random variable."""
type Model = Any
"""A ``pm.Model``."""
type Namespace = Any
"""An array namespace: NumPy or ``pytensor.tensor``."""
