import pytest

from bayeslaw import (
    Law,
    LossTable,
    Posterior,
    fit,
    grid,
    load_law,
    paper_world,
    read_table,
    simulate,
)
from bayeslaw.huber.point_fit import for_table
from bayeslaw.reporting.pages import Picture
from tests.support import CHINCHILLA, DATA, TRANSFER, transfer_design


@pytest.fixture(scope="session")
def small() -> LossTable:
    """Twenty noisy rows of a Chinchilla law."""
    design = grid(params=[1e8, 3e8, 1e9, 3e9], tokens=[1e9, 3e9, 1e10, 3e10, 1e11])
    return simulate("chinchilla", CHINCHILLA, design, sigma=0.003, seed=1)


@pytest.fixture(scope="session")
def posterior(small) -> Posterior:
    return fit("chinchilla", small, seed=0, discrepancy="none", draws=1000)


@pytest.fixture(scope="session")
def unconverged(small) -> Posterior:
    return fit("chinchilla", small, seed=0, discrepancy="none", chains=2, draws=20, tune=30)


@pytest.fixture(scope="session")
def olmo() -> LossTable:
    return read_table(DATA / "olmo" / "ladder.csv", where="domain == 'c4_en'")


@pytest.fixture(scope="session")
def delphi() -> LossTable:
    return read_table(DATA / "delphi" / "isotoken.csv")


@pytest.fixture(scope="session")
def paper_rows() -> LossTable:
    """The synthetic world's 168 French rows at the paper's two training stages."""
    return paper_world().table("french", seed=0).query("ptpp <= 31")


@pytest.fixture(scope="session")
def two_stages(paper_rows) -> Posterior:
    """Form 1 as written on these rows, which leave eta to its prior."""
    return fit("form1", paper_rows, seed=0, discrepancy="none")


@pytest.fixture(scope="session")
def transfer_table() -> LossTable:
    """Runs from 25 bases, which follow the law `transfer` exactly."""
    return simulate("transfer", TRANSFER, transfer_design(), sigma=0.0)


@pytest.fixture(scope="session")
def transfer_law(transfer_table) -> Law:
    """The law `transfer`, with the losses of these bases."""
    return for_table(load_law("transfer"), transfer_table)


@pytest.fixture
def undrawn(monkeypatch):
    """Figures are made, and not rendered: tests of text."""
    dot = Picture("data:image/png;base64,", "", "", 1)
    monkeypatch.setattr("bayeslaw.reporting._report.picture", lambda *_: dot)
    monkeypatch.setattr("bayeslaw.reporting._report.formula", lambda _: dot)


LONGEST = ("pairs", "notebooks", "calibration", "benchmarks", "fitting", "first_pages", "density")
LONGEST += ("beyond", "report", "docs", "residuals", "designs", "fits", "plans", "golden", "types")
"""Files that take a minute or more: workers start with them, so that they end at one time."""


def pytest_collection_modifyitems(items):
    places = {f"test_{name}.py": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(LONGEST)))
