"""The sampler's density is the PyMC model's in other coordinates, and its gradient is exact."""

from dataclasses import dataclass, replace

import numpy as np
import pymc as pm
import pytensor
import pytest
import xarray as xr
from pytensor.compile.mode import Mode
from scipy import stats

import bayeslaw as bl
from bayeslaw import Prior
from tests.extending.plugin import DataWalk, SkewNormal
from tests.inside import (
    AGREE,
    WHOLE,
    Deviation,
    Discrepancy,
    _factors,
    build,
    fitting,
    make_data,
    make_density,
    make_settings,
    make_spec,
    parse_law,
    specify,
)
from tests.laws import test_forgetting, test_laws
from tests.support import DATA, DESIGN, grouped, object_mode, truth_of

STEP = 1e-4
ROWS = DESIGN.query("ptpp in [15, 279] and replay != 0.25")
RATES = {"rate": np.array([1, 2, 4, np.nan])[np.arange(len(ROWS)) % 4]}
REPEATED = {"unique_tokens": 2e9}
BASE, STAGE = "params == 147816 and ptpp == 62", "ptpp == 62 and replay < .5"
LEVELS = {"cluster": 50, "node": 45, "day": 42}
HOT = {"annealed": np.arange(len(ROWS)) % 3 > 0}
PRIORS = {
    "E": "LogNormal(median=1.2, sigma=0.6)",
    "slope_N": "Gamma(mu=0.1, sigma=0.05)",
    "slope_D": "InverseGamma(alpha=3, beta=0.2)",
    "alpha": "Uniform(lower=.1, upper=.9)",
    "beta": "Exponential(lam=3)",
    "cross_BN": "StudentT(nu=4, mu=0, sigma=.1)",
    "sigma": "HalfStudentT(nu=3, sigma=0.01)",
    "walk_scale": "HalfNormal(sigma=1)",
    "kappa": "Gamma(alpha=4, beta=4)",
}


@dataclass(frozen=True)
class Steps(Deviation):
    """A deviation that is not linear in its parameter: a smooth step along a covariate."""

    along: str
    of: str = WHOLE

    @property
    def parameters(self):
        return ("step",)

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
        priors = law.priors | {"step": Prior("Normal", mu=0, sigma=0.01)}
        bounds = law.bounds | {"step": (-np.inf, np.inf)}
        return replace(law, deviations=(Steps(self.along),), priors=priors, bounds=bounds)


def simulated(law, rows=ROWS, truth=None, seed=1, **columns):
    """A table of a law, with labels and columns."""
    truth = truth or truth_of(bl.load_law(law).parameters)
    frame = bl.simulate(law, truth, rows, sigma=0.004, seed=seed).frame
    labels = {"base": ["params", "ptpp"], "run": ["params", "ptpp", "replay"]}
    groups = {n: frame.groupby(along).ngroup().astype(str) for n, along in labels.items()}
    numbers = {name: np.asarray(value, float) for name, value in columns.items()}
    return bl.from_frame(frame.assign(**groups, **numbers), "simulated")


def measured(rows="tokens <= 8 * params and replay in [0, .1, .5]", **columns):
    """Rows of tinycpt, with the losses of their bases."""
    path = DATA / "tinycpt" / "french.csv"
    where = f"{'' if columns else 'annealed and '}seed == 0 and replay < 1 and {rows}"
    table = bl.read_table(path, where=where, source=path.parent / "english.csv")
    return replace(table, frame=table.frame.assign(**columns))


def one(law, table=simulated, columns=None, **settings):
    """Data of a fit of a law."""

    def make():
        others = {n: settings.pop(n) for n in ("likelihood", "delta", "priors") if n in settings}
        rows = table(**(columns or {})) if table is measured else table(law, **(columns or {}))
        spec = specify(law, rows, make_settings(settings, seed=0, **others))
        return {"": make_data(spec, rows)}

    return make


def several(count, effects="auto"):
    """Data of a joint fit of domains."""

    def make():
        class Given(Exception):
            pass

        def stop(*given):
            raise Given(given[0])

        tables = {f"domain {k}": simulated("dcpt", seed=k) for k in range(count)}
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(fitting, "sample", stop)
            with pytest.raises(Given) as caught:
                bl.fit_joint(dict.fromkeys(tables, "dcpt"), tables, effects=effects)
        return caught.value.args[0]

    return make


def on_design(law, design, truth):
    """Data of a law on the design of its tests."""
    rows = design.iloc[::5]
    return one(
        law, lambda name: simulated(name, rows.assign(replay=rows.get("replay", 0.1)), truth)
    )


CASES = {
    "chinchilla": one("chinchilla"),
    "no discrepancy": one("chinchilla", discrepancy="none"),
    "trend": one("chinchilla", discrepancy="trend"),
    "normal": one("chinchilla", likelihood="normal"),
    "huber": one("chinchilla", likelihood="huber", delta=0.01),
    "skewed": one("chinchilla", likelihood="skewed"),
    "errors": one("chinchilla", errors="run"),
    "curvature": one("form1", discrepancy="curvature"),
    "gate": one("form3"),
    "form2": one("form2"),
    "skaling": one("skaling"),
    "liew_kato": on_design("liew_kato", test_laws.GRID, test_laws.KATO),
    "forgetting": on_design("forgetting", test_forgetting.DESIGN, test_forgetting.TRUTH),
    "form1n": one("form1n", measured),
    "transfer": one("transfer", measured),
    "form3 of one base": one("form3", measured, {"rows": BASE}),
    "transfer of one base": one("transfer", measured, {"rows": BASE}),
    "transfer of one ratio": one("transfer", measured, {"rows": f"{BASE} and replay == .1"}),
    "curvature at one stage": one("forgetting", measured, {"rows": STAGE}, discrepancy="curvature"),
    "repeats": one("chinchilla", columns=REPEATED),
    "repeats, no columns": one("chinchilla", columns=REPEATED, discrepancy=Stepped("tokens")),
    "annealing": one("dcpt", columns=HOT),
    "rates": one("dcpt", columns=RATES),
    "rates, repeats and annealing": one("chinchilla", columns=RATES | HOT | REPEATED),
    "repeats and annealing": one("transfer", measured, REPEATED, errors="run"),
    "priors": one("chinchilla", priors=PRIORS),
    "flat priors": one("dcpt", priors="flat"),
    "several": several(3),
    "two": several(2),
    "two, no effects": several(2, effects="none"),
    "likelihood and columns of one's own": one(
        "dcpt", likelihood=SkewNormal(), discrepancy=DataWalk()
    ),
    "effects": one("chinchilla", columns={"cluster": np.arange(len(ROWS)) % 4}, effects="cluster"),
    "effects that are not whitened": one(  # of all levels but the first
        "chinchilla",
        columns={name: np.arange(len(ROWS)) % count for name, count in LEVELS.items()},
        effects=",".join(LEVELS),
        discrepancy="none",
    ),
    "no columns": one("chinchilla", discrepancy=Stepped("params")),
}


POSITIVE = (
    "LogNormal(median=.3, sigma=.5)",
    "HalfNormal(sigma=.5)",
    "HalfStudentT(nu=3, sigma=.5)",
    "Gamma(mu=.3, sigma=.1)",
    "InverseGamma(alpha=3, beta=.6)",
    "Exponential(scale=.5)",
    "HalfFlat()",
    "Beta(alpha=2, beta=5)",
    "Uniform(lower=.2, upper=.5)",
    "Uniform(lower=0, upper=.7)",
)
QUANTITIES = ("E", "alpha", "beta", "slope_N", "sigma", "dof", "kappa", "walk_scale")
FEW = DESIGN.query("ptpp == 15 and replay == .1 and tokens < 1e11")
LEAST, MOST = "Uniform(lower=.1, upper=.4)", "Uniform(lower=0, upper=.3)"
GATED = {"beta_ref": LEAST, "lambda_": "Uniform(lower=.1, upper=.6)", "nu": "Beta(mu=.3, sigma=.1)"}
OWN = """
title = "A curved exponent, a root of one, and exponents in common"
reference = "none"
[[term]]
coefficient = "A"
slope = "slope_A"
log = "-alpha*log(N) - c*log(N)**2/100"
[[term]]
coefficient = "B"
slope = "slope_B"
log = "-sqrt(beta)*log(D)"
[[term]]
coefficient = "C"
slope = "slope_C"
log = "-gamma*log(P)"
[[term]]
coefficient = "F"
slope = "slope_F"
log = "-gamma*log(r + .1)"
[[term]]
coefficient = "G"
slope = "slope_G"
log = "-eta*log(N*D)"
[bounds]
c = [-inf, inf]
[priors]
floor = "Beta(alpha=2, beta=2)"
alpha = "LogNormal(median=.3, sigma=.3)"
beta = "LogNormal(median=.1, sigma=.3)"
gamma = "LogNormal(median=.4, sigma=.3)"
eta = "LogNormal(median=.3, sigma=.3)"
c = "Normal(mu=0, sigma=.2)"
slope_A = "LogNormal(median=.1, sigma=.3)"
slope_B = "LogNormal(median=.1, sigma=.3)"
slope_C = "LogNormal(median=.05, sigma=.3)"
slope_F = "LogNormal(median=.05, sigma=.3)"
slope_G = "LogNormal(median=.05, sigma=.3)"
"""


def stated(law, rows=FEW, **priors):
    """Data of a fit with some priors; the law may be a text."""

    def make():
        own = parse_law(law, "own") if "[[term]]" in law else bl.load_law(law)
        table = simulated("form1" if own.name == "own" else law, rows)
        discrepancy = "walk" if "walk_scale" in priors else "none"
        chosen = make_settings(
            {"discrepancy": discrepancy, "effects": "none", "errors": "independent"},
            seed=0,
            priors=priors,
        )
        return {"": make_data(specify(own, table, chosen), table)}

    return make


# Each quantity has each distribution in one of these.
BOUNDED = {
    f"E {POSITIVE[k]}": stated(
        "chinchilla",
        **{name: POSITIVE[(k + j) % len(POSITIVE)] for j, name in enumerate(QUANTITIES)},
    )
    for k in range(len(POSITIVE))
}
BOUNDED |= {
    "E above the losses": stated("chinchilla", E="Uniform(lower=5, upper=6)"),
    "all bounded": stated("chinchilla", E="Uniform(lower=1, upper=2)", alpha=LEAST, beta=LEAST),
    "share": stated("chinchilla", floor=LEAST, alpha=MOST),
    "share, all bounded": stated("chinchilla", floor=LEAST, alpha=LEAST, beta=LEAST),
    "share, from 0": stated("chinchilla", floor=MOST, alpha=MOST, beta=LEAST),
    "bounded gate": stated("form3", ROWS, **GATED, zeta="Uniform(lower=-1, upper=.5)"),
    "gate, any rate": stated("form3", ROWS, lambda_=MOST, zeta="StudentT(nu=4, sigma=.3)"),
    "own": stated(OWN, ROWS),
    "own, bounded": stated(OWN, ROWS, floor=MOST, alpha=LEAST, gamma=LEAST, eta=LEAST),
    "own, E bounded": stated(OWN, ROWS, E="Uniform(lower=.5, upper=2)", eta=MOST),
    "own, nothing divided": stated(
        OWN.replace("-eta*log(N*D)", "-eta*log(N) - c*log(N)**2/100"),
        ROWS,
        E="Uniform(lower=.5, upper=2)",
    ),
}
CASES |= BOUNDED


@pytest.fixture(params=CASES, scope="module")
def both(request):
    domains = CASES[request.param]()
    density = make_density(domains)
    rng = np.random.default_rng(0)
    point = np.concatenate([density.start, np.zeros(density.size - len(density.start))])
    return domains, density, point + 0.05 * rng.normal(size=density.size)


def test_the_gradient_is_exact(both):
    *_, density, point = both
    value, gradient = density(point)
    assert np.isfinite(value)
    for k in range(density.size):
        step = STEP * np.eye(density.size)[k]
        far, near = (density(point + h)[0] - density(point - h)[0] for h in (2 * step, step))
        difference = (8 * near - far) / (12 * STEP)  # the loss curves much along L_ref
        assert gradient[k] == pytest.approx(difference, rel=1e-4, abs=1e-3), k


def test_it_is_the_density_of_the_pymc_model(both):
    domains, density, point = both
    model = build(domains)
    variables = [model.rvs_to_values[rv] for rv in model.free_RVs]
    mode = Mode(linker="py", optimizer=None)
    evaluate = pytensor.function(
        variables, model.logp(jacobian=False, sum=False), mode=mode, on_unused_input="ignore"
    )
    names = [rv.name for rv in model.free_RVs]

    def values(z):
        found = density.variables(density.expand(z)[None, None])
        return [np.asarray(found[name])[0, 0] for name in names]

    def on_the_line(z):
        pairs = zip(model.free_RVs, values(z), strict=True)
        through = [(model.rvs_to_transforms[rv], value) for rv, value in pairs]
        return [
            to.forward(value, *rv.owner.inputs).eval() if to else value
            for rv, (to, value) in zip(model.free_RVs, through, strict=True)
        ]

    def flat(z):
        return np.concatenate([np.ravel(v) for v in values(z)])

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


@pytest.mark.parametrize("name", BOUNDED)
def test_no_draw_lies_outside_its_prior(name):
    domains = BOUNDED[name]()
    density, (data,) = make_density(domains), domains.values()
    rng, size = np.random.default_rng(0), len(density.names)
    points = np.concatenate([density.start, np.zeros(density.size - size)])
    points = points + rng.normal(size=(400, density.size)) * np.geomspace(0.05, 5, 400)[:, None]
    points = points[[density(point)[0] > -np.inf for point in points]]
    assert len(points) > 100
    found = {n: np.squeeze(v, 0) for n, v in density.variables(points[None]).items()}
    found |= data.law.amounts({n: v[:, None] for n, v in found.items() if v.ndim == 1}, data.at)
    found = {n: np.reshape(v, (len(points), -1))[:, 0] for n, v in found.items()}
    found |= {"floor": found["E"] / found["L_ref"], "dof": found["dof_above_floor"]}
    assert min(found["E"].min(), *(found[c].min() for c in data.law.coefficients)) > -1e-9
    for quantity, prior in data.spec.priors.items():
        low, high = prior.support
        if quantity in found:
            assert found[quantity].min() >= low - 1e-9, quantity
            assert found[quantity].max() <= high + 1e-9, quantity


@pytest.mark.parametrize("name", ["form3", "chinchilla"])  # the density of others is compared above
def test_prior_predictive_sees_every_prior(name, paper_rows):
    spec = make_spec(name)
    model = build({"": make_data(spec, paper_rows)})
    quick = {"mode": "FAST_COMPILE"}
    tree = pm.sample_prior_predictive(4000, model=model, random_seed=1, compile_kwargs=quick)
    draws = tree["prior"].dataset
    flat = {n: v.values.ravel() for n, v in draws.data_vars.items() if v.ndim == 2}
    sampled = {n: flat[n] for n in sorted({*spec.sampled} - {"L_ref", "dof"})}
    sampled |= {"dof": flat["dof"] - 2, "floor": flat["E"] / flat["L_ref"]}
    for n, values in sampled.items():
        same = pm.draw(spec.priors[n].dist(), 20_000, random_seed=2, mode="FAST_COMPILE")
        assert stats.ks_2samp(values, same).pvalue > 1e-4, n
    # E is what is left of the reference loss, draw by draw.
    at = spec.law.reference_point(paper_rows.frame)
    p = spec.law.amounts({n: flat[n] for n in spec.law.coordinates}, at)
    np.testing.assert_allclose(p["E"], flat["E"], rtol=1e-9)
    sizes = sum(p[c] for c in spec.law.coefficients)
    np.testing.assert_allclose(flat["L_ref"] - sizes, flat["E"], rtol=1e-9)


@object_mode
@pytest.mark.parametrize("likelihood", ["studentt", "normal", "huber"])
def test_log_likelihood_is_there_row_by_row(likelihood, small):
    spec = make_spec("chinchilla", likelihood=likelihood)
    model = build({"": make_data(spec, small)})
    prior = pm.sample_prior_predictive(20, model=model, random_seed=1)
    assert prior["prior_predictive"]["log_loss"].shape == (1, 20, len(small))
    prior["posterior"] = prior["prior"]
    tree = pm.compute_log_likelihood(prior, model=model, progressbar=False)
    got = tree["log_likelihood"]["log_loss"].values[0]
    draws = {str(n): v.values[0] for n, v in prior["prior"].data_vars.items()}
    at = spec.law.reference_point(small.frame)
    q = {n: draws[n][:, None] for n in spec.law.coordinates}
    mu = np.log(spec.law.loss(spec.law.amounts(q, at), spec.law.covariates(small.frame), at))
    r, s = np.log(small.loss) - mu, draws["sigma"][:, None]
    if likelihood == "studentt":
        want = stats.t(draws["dof"][:, None]).logpdf(r / s) - np.log(s)
    elif likelihood == "normal":
        want = stats.norm(0, s).logpdf(r)
    else:
        k, a = 0.02 / s, np.abs(r)
        z = np.sqrt(2 * np.pi) * (2 * stats.norm.cdf(k) - 1) + 2 / k * np.exp(-(k**2) / 2)
        loss = np.where(a <= 0.02, a**2 / 2, 0.02 * (a - 0.01))
        want = -loss / s**2 - np.log(s * z)
    np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("count", [2, 3])
def test_correlations_are_lkj(count):
    """Under LKJ(eta) of K domains each (rho + 1) / 2 is Beta(b, b), b = eta + (K - 2) / 2."""
    table, domains = grouped(0), [f"domain {k}" for k in range(count)]
    spec = make_spec("chinchilla", discrepancy="none", effects=["run"])
    data = make_data(spec, table)
    model = build({f"{domain}::": data for domain in domains})
    drawn = pm.draw(model["run_partial"], draws=4000, random_seed=1, mode="FAST_COMPILE")
    draws = xr.Dataset({"run_partial": (("chain", "draw", "pair"), drawn[None])})
    factor = _factors(draws, "run", count)[0]
    correlation = factor @ factor.swapaxes(-1, -2)
    np.testing.assert_allclose(np.einsum("dkk->dk", correlation), 1)
    b = AGREE + (count - 2) / 2
    for i in range(count):
        for j in range(i):
            rho = correlation[:, i, j]
            assert stats.kstest((rho + 1) / 2, stats.beta(b, b).cdf).pvalue > 1e-3
