"""The sampler's density is the PyMC model's in other coordinates, and its gradient is exact."""

import numpy as np
import pytensor
import pytest
from pytensor.compile.mode import Mode

import bayeslaw as bl
from bayeslaw.inference.fitting import specify
from bayeslaw.inference.settings import make_settings
from bayeslaw.model.building import build
from bayeslaw.model.data import make_data
from bayeslaw.model.density import make_density
from tests.support import DATA, DESIGN, truth_of

STEP = 1e-4
ROWS = DESIGN.query("ptpp in [15, 279] and replay != 0.25")


def simulated(law, **columns):
    """A table of a law, with labels and columns."""
    table = bl.simulate(law, truth_of(bl.load_law(law).parameters), ROWS, sigma=0.004, seed=1)
    frame = table.frame
    frame = frame.assign(
        base=frame["params"].astype(str) + frame["ptpp"].astype(str),
        run=frame.groupby(["params", "ptpp", "replay"]).ngroup().astype(str),
        **columns,
    )
    return bl.from_frame(frame, "simulated")


def measured():
    """Rows of tinycpt, with the losses of their bases."""
    path = DATA / "tinycpt" / "french.csv"
    table = bl.read_table(path, where="annealed and replay < 1", source=path.parent / "english.csv")
    return table.query("seed == 0 and tokens <= 8 * params and replay in [0, .1, .5]")


CASES = {
    "chinchilla": ("chinchilla", lambda: simulated("chinchilla"), {}),
    "no discrepancy": ("chinchilla", lambda: simulated("chinchilla"), {"discrepancy": "none"}),
    "normal": ("chinchilla", lambda: simulated("chinchilla"), {"likelihood": "normal"}),
    "huber": (
        "chinchilla",
        lambda: simulated("chinchilla"),
        {"likelihood": "huber", "delta": 0.01},
    ),
    "errors": ("chinchilla", lambda: simulated("chinchilla"), {"errors": "run"}),
    "curvature": ("form1", lambda: simulated("form1"), {"discrepancy": "curvature"}),
    "gate": ("form3", lambda: simulated("form3"), {}),
    "form1n": ("form1n", measured, {}),
    "transfer": ("transfer", measured, {}),
    "repeats": (
        "chinchilla",
        lambda: simulated("chinchilla", unique_tokens=2e9),
        {},
    ),
    "annealing": (
        "dcpt",
        lambda: simulated("dcpt", annealed=(np.arange(len(ROWS)) % 3 > 0).astype(int)),
        {},
    ),
    "undertuned": (
        "chinchilla",
        lambda: simulated("chinchilla", undertuned=(np.arange(len(ROWS)) % 8 == 0).astype(int)),
        {},
    ),
    "priors": (
        "chinchilla",
        lambda: simulated("chinchilla"),
        {
            "priors": {
                "alpha": "Uniform(lower=.1, upper=.9)",
                "cross_BN": "StudentT(nu=4, mu=0, sigma=.1)",
            }
        },
    ),
}


@pytest.fixture(params=CASES, scope="module")
def both(request):
    law, table, settings = CASES[request.param]
    others = {n: settings.pop(n) for n in ("likelihood", "delta", "priors") if n in settings}
    table = table()
    spec = specify(law, table, make_settings(settings, seed=0, **others))
    data = make_data(spec, table)
    density = make_density(spec, data.arrays)
    rng = np.random.default_rng(0)
    point = np.concatenate([density.start, np.zeros(density.size - len(density.start))])
    return spec, data, density, point + 0.05 * rng.normal(size=density.size)


def test_the_gradient_is_exact(both):
    *_, density, point = both
    value, gradient = density(point)
    assert np.isfinite(value)
    for k in range(density.size):
        step = STEP * np.eye(density.size)[k]
        difference = (density(point + step)[0] - density(point - step)[0]) / (2 * STEP)
        assert gradient[k] == pytest.approx(difference, rel=1e-4, abs=1e-3), k


def test_it_is_the_density_of_the_pymc_model(both):
    spec, data, density, point = both
    model = build(spec, data.arrays)
    variables = [model.rvs_to_values[rv] for rv in model.free_RVs]
    mode = Mode(linker="py", optimizer=None)
    evaluate = pytensor.function(
        variables, model.logp(jacobian=False, sum=False), mode=mode, on_unused_input="ignore"
    )
    names = [rv.name for rv in model.free_RVs]

    def values(z):
        found = density.variables(density.unwhitened(z)[None, None])
        return [np.asarray(found[name])[0, 0] for name in names]

    def on_the_line(z):
        pairs = zip(model.free_RVs, values(z), strict=True)
        through = [(model.rvs_to_transforms[rv], value) for rv, value in pairs]
        return [
            to.forward(value, *rv.owner.inputs).eval() if to else value
            for rv, (to, value) in zip(model.free_RVs, through, strict=True)
        ]

    def flat(z):
        return np.concatenate([np.atleast_1d(v) for v in values(z)])

    def of_model(z):
        rows = [(flat(z + h) - flat(z - h)) / 2e-6 for h in 1e-6 * np.eye(len(z))]
        jacobian = np.array([row for row in rows if np.abs(row).max() > 0])
        moving = np.abs(jacobian).max(0) > 0
        return (
            sum(map(np.sum, evaluate(*on_the_line(z)))) + np.linalg.slogdet(jacobian[:, moving])[1]
        )

    other = point + 0.1 * np.random.default_rng(1).normal(size=len(point))
    assert density(other)[0] - density(point)[0] == pytest.approx(
        of_model(other) - of_model(point), rel=1e-5, abs=5e-3
    )
