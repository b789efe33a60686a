"""Bayesian scaling laws for continual pre-training, with bands that can be believed."""

import lazy_loader

# The public names stand in __init__.pyi. Their modules are imported on first use, because PyMC and
# ArviZ take seconds to import. No module may be named like a public function, which it would hide
# once imported.
__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
