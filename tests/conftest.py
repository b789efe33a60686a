from pathlib import Path

import pytest

from bayeslaw.inference.fitting import fit
from bayeslaw.inference.posterior import Posterior
from bayeslaw.simulation.worlds import paper_world, simulate
from bayeslaw.tables.reading import read_table
from bayeslaw.tables.table import LossTable, grid

DATA = Path(__file__).parent.parent / "data"
LAWS = ("form1", "form2", "form3", "dcpt", "chinchilla")
TRUTH = {
    "E": 1.5,
    "A": 170.0,
    "alpha": 0.3,
    "B": 53.0,
    "beta": 0.25,
    "nu": 0.4,
    "C": 0.05,
    "gamma": 0.3,
    "F": 0.16,
    "eta": 0.33,
    "lambda_": 0.3,
    "zeta": -0.3,
}
DESIGN = grid(
    params=[241e6, 517e6, 1.4e9, 8.1e9],
    ptpp=[15, 31, 80, 279],
    replay=[0.1, 0.25, 0.5],
    tokens=[2e8, 1e9, 5e9, 2.5e10, 1e11],
)


# Numba runs the random draws of the Huber density as plain Python and says so.
object_mode = pytest.mark.filterwarnings("ignore:Numba will use object mode:UserWarning")
on_bound = pytest.mark.filterwarnings("ignore::bayeslaw.common.errors.FitWarning")


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def truth_of(parameters):
    return {name: TRUTH[name] for name in parameters}


@pytest.fixture(scope="session")
def small() -> LossTable:
    """Twenty noisy rows of a Chinchilla law."""
    design = grid(params=[1e8, 3e8, 1e9, 3e9], tokens=[1e9, 3e9, 1e10, 3e10, 1e11])
    truth = {"E": 1.7, "A": 400.0, "alpha": 0.34, "B": 410.0, "beta": 0.28}
    return simulate("chinchilla", truth, design, sigma=0.003, seed=1)


@pytest.fixture(scope="session")
def posterior(small) -> Posterior:
    return fit("chinchilla", small, seed=0, discrepancy="none", draws=500, tune=500)


@pytest.fixture(scope="session")
def unconverged(small) -> Posterior:
    return fit("chinchilla", small, seed=0, discrepancy="none", chains=2, draws=20, tune=5)


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
    return fit("form1", paper_rows, seed=0, discrepancy="none", draws=500, tune=500)
