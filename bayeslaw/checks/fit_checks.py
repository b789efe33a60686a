"""Parts of a check about the fit alone: convergence, contraction and prediction of its rows."""

from scipy import stats

from bayeslaw.checks import identifiability, predictive
from bayeslaw.checks.part import NAMES, RARE, Part
from bayeslaw.evaluate.psis_loo import leave_out
from bayeslaw.inference.posterior import Posterior

CONTRACTED = 0.5
"""Coordinates whose variance the data contract by less are listed."""
UNRELIABLE = 0.1
"""Fraction of units with a large Pareto k beyond which the others do not represent the table."""


def convergence_part(fit: Posterior) -> Part:
    """Rank-normalised R-hat and ESS of every coordinate, divergences, E-BFMI."""
    gate = fit.convergence
    ess = min(gate.ess_bulk, gate.ess_tail)
    good = f"R-hat at most {gate.rhat:.3f}, ESS at least {ess:.0f}, no divergences, "
    good += f"E-BFMI {gate.bfmi:.2f}."
    bad = f"The sampler has not converged ({'; '.join(gate.failures)}), so the other findings are "
    bad += "not reliable: fit again with more tune and draws."
    frame = fit.summary()[["rhat", "ess_bulk", "ess_tail"]].rename_axis("name")
    facts = {"divergences": gate.divergences, "bfmi": gate.bfmi, "failures": list(gate.failures)}
    return Part(
        "convergence", "ok" if gate.ok else "refuse", (good if gate.ok else bad,), frame, facts
    )


def learning_part(fit: Posterior) -> Part:
    """Prior-to-posterior contraction of every coordinate."""
    frame = identifiability.contraction(fit)
    law = [n for n in frame.index if n in fit.law.coordinates]
    least = frame.loc[law, "contraction"].sort_values()
    least = least[least < CONTRACTED]
    listed = ", ".join(f"{n} ({100 * max(v, 0):.0f} %)" for n, v in least.items())
    words = f"Coordinates whose prior variance the data contract by less than half: {listed}."
    rest = "The data contract the prior variance of every coordinate of the law by half or more."
    return Part("learning", "ok", (words if len(least) else rest,), frame)


def cells_part(fit: Posterior, seed: int) -> Part:
    """Posterior predictive check by cell."""
    frame = predictive.cells(fit, seed)
    off = ~frame["p"].between(0.05, 0.95)
    rare = stats.binom.sf(off.sum() - 1, len(frame), 0.1) < RARE
    worst = frame.loc[(frame["p"] - 0.5).abs().sort_values().index[-1]]
    where = ", ".join(f"{NAMES[c]} {worst[c]:.4g}" for c in predictive.CELL if c in frame)
    words = (
        f"Of {len(frame)} cell means {off.sum()} lie outside their 90 % posterior predictive "
        f"intervals ({'more than' if rare else 'no more than'} chance explains); the most extreme, "
        f"at {where}, differs by {100 * worst['miss']:+.2f} % from its prediction."
    )
    return Part("cells", "caution" if rare else "ok", (words,), frame, {"outside": int(off.sum())})


def noise_part(fit: Posterior, seed: int) -> Part:
    """Whether the noise scale differs between groups more than the model expects."""
    frame = predictive.scales(fit, seed).rename_axis("level")
    if not len(frame):
        return Part("noise", "ok", ("No level has two groups of four rows to compare.",), frame)
    name, worst = next(frame.sort_values("p").iterrows())
    rare = worst["p"] * len(frame) < RARE
    words = (
        f"Residuals, in units of the fitted noise scale, differ in size by a factor of "
        f"{worst['ratio']:.2g} between the {worst['groups']} groups of {name}, "
        f"{'more than' if rare else 'no more than'} chance explains (p {worst['p']:.2g})"
        + (f"; they are largest in {worst['largest']}. Try noise='{name}'." if rare else ".")
    )
    return Part("noise", "caution" if rare else "ok", (words,), frame)


def left_out_part(fit: Posterior, seed: int) -> Part:
    """PIT values and Pareto k of runs, or rows, left out by importance sampling."""
    found = leave_out(fit, seed)
    p, bad, count = found.uniformity(), found.unreliable, len(found.pit)
    uneven = p < RARE
    text = f"The PIT values of {count} {found.unit}s, each predicted from the others, are "
    text += f"{'not ' if uneven else ''}compatible with calibrated bands (p = {p:.2g})."
    words = [text]
    if bad:
        words.append(
            f"For {bad} of them the estimate is unreliable (Pareto k above {found.good_k:.2g}): "
            "use bayeslaw.cross_validate, which refits without them."
        )
    facts = {"unit": found.unit, "p": p, "elpd": float(found.elpd.sum()), "unreliable": bad}
    return Part(
        "left out",
        "caution" if uneven or bad > UNRELIABLE * count else "ok",
        tuple(words),
        found.to_frame(),
        facts,
    )
