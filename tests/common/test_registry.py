"""Registries, and the entry points of installed packages."""

import pytest

from bayeslaw.common.errors import LawError
from bayeslaw.common.registry import Registry

WHOLE = """
from tests.common.test_registry import KINDS

@KINDS.register
class Whole:
    kind = "whole"
"""
MODULES = {
    "whole": WHOLE,
    "broken": "import no_such_module",
    "silent": "",
}
KINDS = Registry[object]("kind of thing", "bayeslaw.things")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package with three entry points."""
    info = tmp_path / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    points = "".join(f"{name} = outside_{name}\n" for name in MODULES)
    (info / "entry_points.txt").write_text(f"[bayeslaw.things]\n{points}")
    for name, text in MODULES.items():
        (tmp_path / f"outside_{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("package")
def test_an_entry_point_is_loaded_when_it_is_asked_for():
    assert "whole" not in list(KINDS)
    assert KINDS["whole"].kind == "whole"


@pytest.mark.usefixtures("package")
def test_an_unknown_name_lists_those_of_entry_points():
    with pytest.raises(LawError, match=r"kind of thing 'whale'; did you mean 'whole'.*silent"):
        KINDS["whale"]
    assert "whale" not in KINDS


@pytest.mark.usefixtures("package")
def test_a_broken_entry_point_names_its_package():
    with pytest.raises(LawError, match=r"package outside cannot be loaded.*'no_such_module'"):
        KINDS["broken"]
    with pytest.raises(LawError, match=r"package outside names it .*registers no class"):
        KINDS["silent"]
