"""Saved posteriors and tables."""

import pytest

from bayeslaw import LossTable


@pytest.fixture(scope="session")
def saved(posterior, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("cli") / "fit.nc"
    posterior.save(path)
    return str(path)


@pytest.fixture(scope="session")
def failed(unconverged, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("cli") / "failed.nc"
    unconverged.save(path)
    return str(path)


@pytest.fixture(scope="session")
def staged(two_stages, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("cli") / "two.nc"
    two_stages.save(path)
    return str(path)


@pytest.fixture(scope="session")
def measured(small: LossTable, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("cli") / "small.csv"
    small.frame.to_csv(path, index=False)
    return str(path)
