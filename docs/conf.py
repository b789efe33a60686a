"""Sphinx: ``sphinx-build -W -b html docs docs/_build/html``. Needs no network."""

import shutil
import sys
from importlib.resources import files
from pathlib import Path

import bayeslaw

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

# Notebooks and the tables' READMEs live beside the code; Sphinx reads only below its own folder.
for folder in ("notebooks", "data"):
    skip = shutil.ignore_patterns("*.csv", "*.parquet", "*.py", "__pycache__", ".ipynb_checkpoints")
    shutil.copytree(HERE.parent / folder, HERE / folder, ignore=skip, dirs_exist_ok=True)

project = "bayeslaw"
author = "bayeslaw contributors"
copyright = f"2026, {author}"
release = version = bayeslaw.__version__

extensions = ["myst_nb", "numpydoc", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "from_code"]
exclude_patterns = ["_build"]
# Headings get anchors, so that pages can link to each other's sections.
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
# Notebooks keep the outputs they were executed with; tests/test_notebooks.py runs them.
nb_execution_mode = "off"
html_math_renderer = "mathml"

default_role = "py:obj"
autodoc_typehints = "none"  # the docstrings give types
autodoc_member_order = "bysource"
autosummary_generate = False
numpydoc_show_class_members = False

html_theme = "furo"
html_title = f"bayeslaw {release}"
# Formulas are MathML; the font that a browser needs to set them well comes with ziamath.
FONT = files("ziamath") / "fonts" / "STIXTwoMath-Regular.ttf"
html_static_path = ["_static", str(FONT)]
html_css_files = ["site.css"]
html_copy_source = False
