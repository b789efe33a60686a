"""The sampler's density is the PyMC model's in other coordinates, which is as recorded."""

from dataclasses import dataclass, replace

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

import bayeslaw as bl
from bayeslaw import Prior
from bayeslaw.inference.settings import make_settings
from bayeslaw.inference.specification import specify
from bayeslaw.laws.deviations import WHOLE, Deviation
from bayeslaw.laws.lawfiles import parse_law
from bayeslaw.model.building import build
from bayeslaw.model.density import make_density
from bayeslaw.model.discrepancy import Discrepancy
from bayeslaw.model.spec import make_spec
from bayeslaw.model.training import make_data
from tests import support
from tests.plugin import DataWalk, SkewNormal
from tests.support import DATA, DESIGN, truth_of

STEP = 1e-4
# No compiler and no rewrites: half a second a model.
PLAIN = Mode(linker="py", optimizer=None)
ROWS = DESIGN.query("ptpp in [15, 279] and replay != 0.25")
REPEATED = {"unique_tokens": 2e9}
HOT = {"annealed": np.arange(len(ROWS)) % 3 > 0}
BASE, STAGE = "params == 147816 and ptpp == 62", "ptpp == 62 and replay < .5"
GROUPS = {"cluster": np.arange(len(ROWS)) % 4}
LEVELS = {
    n: np.arange(len(ROWS)) % k
    for n, k in {"cluster": 50, "node": 45, "day": 42}.items()
}
PRIORS = {
    "cross_BN": "StudentT(nu=4, mu=0, sigma=.1)",
    "slope_D": "InverseGamma(alpha=3, beta=.2)",
}


@dataclass(frozen=True)
class Steps(Deviation):
    """A deviation that is not linear in its parameter: a smooth step along a covariate."""

    along: str
    of: str = WHOLE
    parameters = ("step",)

    @property
    def covariates_of(self):
        return {"step": (self.along,)}

    def value(self, p, x, at, xp):
        return xp.tanh(p["step"] * (x[self.along] - at[self.along]))


@dataclass(frozen=True)
class Stepped(Discrepancy):
    """The discrepancy of `Steps`."""

    along: str

    def apply(self, law):
        priors = {"step": Prior("Normal", mu=0, sigma=0.01)}
        return law.deviating((Steps(self.along),), priors)


def simulated(law, rows=ROWS, truth=None, seed=1, **columns):
    """A table of a law, with labels and columns."""
    truth = truth or truth_of(bl.load_law(law).parameters)
    frame = bl.simulate(law, truth, rows, sigma=0.004, seed=seed).frame
    labels = {"base": ["params", "ptpp"], "run": ["params", "ptpp", "replay"]}
    groups = {
        n: frame.groupby(along).ngroup().astype(str) for n, along in labels.items()
    }
    numbers = {name: np.asarray(value, float) for name, value in columns.items()}
    return bl.from_frame(frame.assign(**groups, **numbers), "simulated")


def measured(rows="tokens <= 8 * params and replay in [0, .1, .5]", **columns):
    """Rows of tinycpt, with the losses of their bases."""
    path = DATA / "tinycpt" / "french.csv"
    where = f"{'' if columns else 'annealed and '}seed == 0 and replay < 1 and {rows}"
    table = bl.read_table(path, where=where, source=path.parent / "english.csv")
    return replace(table, frame=table.frame.assign(**columns))


def one(law, table=None, columns=None, **settings):
    """Data of a fit of a law; by default to simulated rows."""

    def make():
        rows = (
            simulated(law, **columns or {}) if table is None else table(**columns or {})
        )
        spec = specify(law, rows, make_settings(settings, 0))
        return make_data(spec, rows)

    return make


def on_design(law):
    """Data of a law on some rows of its design."""
    truth, design = support.STATED[law]
    rows = design.iloc[::5]
    return one(
        law, lambda: simulated(law, rows.assign(replay=rows.get("replay", 0.1)), truth)
    )


CASES = {
    "chinchilla": one("chinchilla"),
    "no discrepancy": one("chinchilla", discrepancy="none"),
    "normal": one("chinchilla", likelihood="normal"),
    "huber": one("chinchilla", likelihood="huber", delta=0.01),
    "skewed": one("chinchilla", likelihood="skewed"),
    "errors": one("chinchilla", errors="run"),
    "curvature": one("form1", discrepancy="curvature"),
    "gate": one("form3"),
    "form2": one("form2"),
    "skaling": one("skaling"),
    "liew_kato": on_design("liew_kato"),
    "forgetting": on_design("forgetting"),
    "form1n": one("form1n", measured),
    "transfer": one("transfer", measured),
    "form3 of one base": one("form3", measured, {"rows": BASE}),
    "transfer of one base": one("transfer", measured, {"rows": BASE}),
    "transfer of one ratio": one(
        "transfer", measured, {"rows": f"{BASE} and replay == .1"}
    ),
    "curvature at one stage": one(
        "forgetting", measured, {"rows": STAGE}, discrepancy="curvature"
    ),
    "repeats": one("chinchilla", columns=REPEATED),
    "repeats, no columns": one(
        "chinchilla", columns=REPEATED, discrepancy=Stepped("tokens")
    ),
    "annealing": one("dcpt", columns=HOT),
    "repeats and annealing of a law in N and D": one(
        "chinchilla", columns=HOT | REPEATED
    ),
    "repeats and annealing": one("transfer", measured, REPEATED, errors="run"),
    "priors": one("chinchilla", priors=PRIORS),
    "flat priors": one("dcpt", priors="flat"),
    "of one's own": one("dcpt", likelihood=SkewNormal(), discrepancy=DataWalk()),
    "effects": one("chinchilla", columns=GROUPS, effects="cluster"),
    "effects that are not whitened": one(  # of all levels but the first
        "chinchilla", columns=LEVELS, effects=",".join(LEVELS), discrepancy="none"
    ),
    "no columns": one("chinchilla", discrepancy=Stepped("params")),
}

POSITIVE = (
    "LogNormal(median=.3, sigma=.5)", "HalfNormal(sigma=.5)", "HalfStudentT(nu=3, sigma=.5)",
    "Gamma(mu=.3, sigma=.1)", "InverseGamma(alpha=3, beta=.6)", "Exponential(scale=.5)",
    "HalfFlat()", "Beta(alpha=2, beta=5)", "Uniform(lower=.2, upper=.5)",
    "Uniform(lower=0, upper=.7)",
)  # fmt: skip
QUANTITIES = ("E", "alpha", "beta", "slope_N", "sigma", "dof", "kappa", "walk_scale")
FEW = DESIGN.query("ptpp == 15 and replay == .1 and tokens < 1e11")
LEAST, MOST = "Uniform(lower=.1, upper=.4)", "Uniform(lower=0, upper=.3)"
GATED = {
    "beta_ref": LEAST,
    "lambda_": "Uniform(lower=.1, upper=.6)",
    "nu": "Beta(mu=.3, sigma=.1)",
}
TERMS = {
    "A": "-alpha*log(N) - c*log(N)**2/100",
    "B": "-sqrt(beta)*log(D)",
    "C": "-gamma*log(P)",
    "F": "-gamma*log(r + .1)",
    "G": "-eta*log(N*D)",
}
MEDIANS = {
    "alpha": 0.3,
    "beta": 0.1,
    "gamma": 0.4,
    "eta": 0.3,
    "slope_A": 0.1,
    "slope_B": 0.1,
}
MEDIANS |= dict.fromkeys(("slope_C", "slope_F", "slope_G"), 0.05)
OWN = "\n".join(  # a curved exponent, a root of one, and exponents in common
    [
        'title = "Own"\nreference = "none"',
        *(
            f'[[term]]\ncoefficient="{c}"\nslope="slope_{c}"\nlog="{log}"'
            for c, log in TERMS.items()
        ),
        '[bounds]\nc = [-inf, inf]\n[priors]\nfloor = "Beta(alpha=2, beta=2)"',
        'c = "Normal(mu=0, sigma=.2)"',
        *(f'{name} = "LogNormal(median={m}, sigma=.3)"' for name, m in MEDIANS.items()),
    ]
)
NOTHING_DIVIDED = OWN.replace("-eta*log(N*D)", "-eta*log(N) - c*log(N)**2/100")


def stated(law, rows=FEW, **priors):
    """Data of a fit with some priors; the law may be a text."""

    def make():
        own = parse_law(law, "own") if "[[term]]" in law else bl.load_law(law)
        table = simulated("form1" if own.name == "own" else law, rows)
        how = {"discrepancy": "walk" if "walk_scale" in priors else "none"}
        how |= {"effects": "none", "errors": "independent"}
        spec = specify(own, table, make_settings(how | {"priors": priors}, 0))
        return make_data(spec, table)

    return make


def turned(k):
    """Priors of all quantities; over all k each quantity has each distribution."""
    return {
        name: POSITIVE[(k + j) % len(POSITIVE)] for j, name in enumerate(QUANTITIES)
    }


BOUNDED = {
    f"E {prior}": stated("chinchilla", **turned(k)) for k, prior in enumerate(POSITIVE)
}
BOUNDED |= {
    "E above the losses": stated("chinchilla", E="Uniform(lower=5, upper=6)"),
    "all bounded": stated(
        "chinchilla", E="Uniform(lower=1, upper=2)", alpha=LEAST, beta=LEAST
    ),
    "share": stated("chinchilla", floor=LEAST, alpha=MOST),
    "share, all bounded": stated("chinchilla", floor=LEAST, alpha=LEAST, beta=LEAST),
    "share, from 0": stated("chinchilla", floor=MOST, alpha=MOST, beta=LEAST),
    "bounded gate": stated("form3", ROWS, **GATED, zeta="Uniform(lower=-1, upper=.5)"),
    "gate, any rate": stated(
        "form3", ROWS, lambda_=MOST, zeta="StudentT(nu=4, sigma=.3)"
    ),
    "own": stated(OWN, ROWS),
    "own, bounded": stated(OWN, ROWS, floor=MOST, alpha=LEAST, gamma=LEAST, eta=LEAST),
    "own, E bounded": stated(OWN, ROWS, E="Uniform(lower=.5, upper=2)", eta=MOST),
    "own, nothing divided": stated(
        NOTHING_DIVIDED, ROWS, E="Uniform(lower=.5, upper=2)"
    ),
}


@pytest.fixture(
    params=CASES | BOUNDED, scope="module", ids=lambda name: name.replace(" ", "_")
)
def both(request):
    data = (CASES | BOUNDED)[request.param]()
    density = make_density(data)
    rng = np.random.default_rng(0)
    point = np.concatenate([density.start, np.zeros(density.size - len(density.start))])
    return data, density, point + 0.05 * rng.normal(size=density.size)


def test_the_gradient_is_exact(both):
    *_, density, point = both
    value, gradient = density(point)
    assert np.isfinite(value)
    for k in range(density.size):
        step = STEP * np.eye(density.size)[k]
        far, near = (
            density(point + h)[0] - density(point - h)[0] for h in (2 * step, step)
        )
        difference = (8 * near - far) / (12 * STEP)  # the loss curves much along L_ref
        assert gradient[k] == pytest.approx(difference, rel=1e-4, abs=1e-3), k


def test_it_is_the_density_of_the_pymc_model(both):
    """Up to a constant: of its parameters as they are, and the Jacobian of the coordinates."""
    data, density, point = both
    model = build(data)
    model.rvs_to_transforms.update(dict.fromkeys(model.free_RVs))
    free = [model.rvs_to_values[rv] for rv in model.free_RVs]
    logp = model.logp(jacobian=False, sum=False)
    evaluate = pytensor.function(free, logp, mode=PLAIN, on_unused_input="ignore")

    def values(points):
        found = density.variables(np.array([[density.expand(z) for z in points]]))
        return [np.asarray(found[rv.name])[0] for rv in model.free_RVs]

    def of_model(z):
        steps = 1e-6 * np.eye(len(z))
        moved = np.hstack(
            [v.reshape(2 * len(z), -1) for v in values([*(z + steps), *(z - steps)])]
        )
        jacobian = (moved[: len(z)] - moved[len(z) :]) / 2e-6
        jacobian = jacobian[np.abs(jacobian).max(1) > 0]
        jacobian = jacobian[:, np.abs(jacobian).max(0) > 0]
        parts = evaluate(*(value[0] for value in values([z])))
        return sum(map(np.sum, parts)) + np.linalg.slogdet(jacobian)[1]

    other = point + 0.1 * np.random.default_rng(1).normal(size=len(point))
    found, wanted = (f(other) - f(point) for f in (lambda z: density(z)[0], of_model))
    assert found == pytest.approx(wanted, rel=1e-5, abs=5e-3)


@pytest.mark.parametrize("name", BOUNDED)
def test_no_draw_lies_outside_its_prior(name):
    data = BOUNDED[name]()
    density = make_density(data)
    rng, size = np.random.default_rng(0), len(density.names)
    points = np.concatenate([density.start, np.zeros(density.size - size)])
    points = (
        points
        + rng.normal(size=(400, density.size)) * np.geomspace(0.05, 5, 400)[:, None]
    )
    points = points[[density(point)[0] > -np.inf for point in points]]
    assert len(points) > 100
    found = {n: np.squeeze(v, 0) for n, v in density.variables(points[None]).items()}
    found |= data.law.amounts(
        {n: v[:, None] for n, v in found.items() if v.ndim == 1}, data.at
    )
    found = {n: np.reshape(v, (len(points), -1))[:, 0] for n, v in found.items()}
    found |= {"floor": found["E"] / found["L_ref"], "dof": found["dof_above_floor"]}
    assert (
        min(found["E"].min(), *(found[c].min() for c in data.law.coefficients)) > -1e-9
    )
    for quantity, prior in data.spec.priors.items():
        low, high = prior.support
        if quantity in found:
            assert found[quantity].min() >= low - 1e-9, quantity
            assert found[quantity].max() <= high + 1e-9, quantity


# -- densities as recorded ------------------------------------------------------------------------

# Priors of E when they were recorded.
FLOORS = {"forgetting": "LogNormal(median=1.3, sigma=0.4)"}


@pytest.mark.parametrize(
    "case",
    support.goldens()["density"],
    ids=lambda case: f"{case['law']}{case['index']}",
)
def test_log_densities_are_as_recorded(case):
    """Of the PyMC model at 20 points of commit e6d23c6, about a start, in its own coordinates."""
    table = support.golden_table(case["table"])
    priors = {"E": FLOORS.get(case["law"], "LogNormal(median=1.2, sigma=0.6)")}
    spec = make_spec(case["law"], likelihood=case["likelihood"], priors=priors)
    model = build(make_data(spec, table))
    free, start = list(model.value_vars), case["start"]
    assert sorted(v.name for v in free) == sorted(start)
    total = pt.add(*[part.sum() for part in model.logp(sum=False)])
    evaluate = pytensor.function(free, total, mode=PLAIN, on_unused_input="ignore")
    found = []
    for i in range(len(case["logp"])):
        rng = np.random.default_rng([case["index"], i])
        scale = case.get("nearer", {}).get(str(i), 0.1)
        point = {n: np.array(start[n] + scale * rng.standard_normal()) for n in start}
        with np.errstate(all="ignore"):
            found.append(float(evaluate(*(point[v.name] for v in free))))
    np.testing.assert_allclose(found, case["logp"], rtol=1e-10, atol=1e-10)
