"""Parts of a check that ask whether the posterior is sound and describes the rows fitted."""

from scipy import stats

from bayeslaw.checks import identifiability, predictive
from bayeslaw.checks.part import NAMES, RARE, Part
from bayeslaw.evaluate.left_out import leave_out
from bayeslaw.inference.posterior import Posterior

CONTRACTED = 0.5
"""Coordinates whose variance the data contract by less are listed."""
UNRELIABLE = 0.1
"""Share of units with a large Pareto k beyond which the rest no longer stand for the table."""


def convergence(fit: Posterior) -> Part:
    """Rank-normalised R-hat and ESS of every coordinate, divergences, E-BFMI."""
    gate = fit.convergence
    ess = min(gate.ess_bulk, gate.ess_tail)
    good = f"R-hat at most {gate.rhat:.3f}, ESS at least {ess:.0f}, no divergences, "
    good += f"E-BFMI {gate.bfmi:.2f}."
    bad = f"The sampler has not converged ({'; '.join(gate.failures)}): fit again with more tune "
    bad += "and draws; nothing below can be trusted before."
    frame = fit.summary()[["rhat", "ess_bulk", "ess_tail"]].rename_axis("name")
    facts = {"divergences": gate.divergences, "bfmi": gate.bfmi, "failures": list(gate.failures)}
    return Part(
        "convergence", "ok" if gate.ok else "refuse", (good if gate.ok else bad,), frame, facts
    )


def learning(fit: Posterior) -> Part:
    """Prior-to-posterior contraction of every coordinate."""
    frame = identifiability.contraction(fit)
    law = [n for n in frame.index if n in fit.law.coordinates]
    least = frame.loc[law, "contraction"].sort_values()
    least = least[least < CONTRACTED]
    listed = ", ".join(f"{n} ({100 * max(v, 0):.0f} %)" for n, v in least.items())
    words = f"Learnt least from the data, by contraction of the variance: {listed}."
    rest = "The data have contracted the variance of every coordinate of the law by half or more."
    return Part("learning", "ok", (words if len(least) else rest,), frame)


def cell_means(fit: Posterior, seed: int) -> Part:
    """Posterior predictive check by cell."""
    frame = predictive.cells(fit, seed)
    off = ~frame["p"].between(0.05, 0.95)
    rare = stats.binom.sf(off.sum() - 1, len(frame), 0.1) < RARE
    worst = frame.loc[(frame["p"] - 0.5).abs().sort_values().index[-1]]
    where = ", ".join(f"{NAMES[c]} {worst[c]:.4g}" for c in predictive.CELL if c in frame)
    words = (
        f"Of {len(frame)} cell means {off.sum()} lie outside their 90 % predictive intervals "
        f"({'too many' if rare else 'no more than chance allows'}); the farthest, at {where}, is "
        f"{100 * worst['miss']:+.2f} % off."
    )
    return Part("cells", "caution" if rare else "ok", (words,), frame, {"outside": int(off.sum())})


def left_out(fit: Posterior, seed: int) -> Part:
    """PIT values and Pareto k of runs, or rows, left out."""
    found = leave_out(fit, seed)
    p, bad, count = found.uniformity(), found.unreliable, len(found.pit)
    uneven = p < RARE
    text = f"{count} {found.unit}s, each predicted from the others: their PIT values are "
    text += f"{'not ' if uneven else ''}compatible with calibrated bands (p = {p:.2g})."
    words = [text]
    if bad:
        words.append(
            f"For {bad} of them the estimate is unreliable (Pareto k above {found.good_k:.2g}); "
            "bayeslaw.cross_validate refits without them."
        )
    facts = {"unit": found.unit, "p": p, "elpd": float(found.elpd.sum()), "unreliable": bad}
    return Part(
        "left out",
        "caution" if uneven or bad > UNRELIABLE * count else "ok",
        tuple(words),
        found.to_frame(),
        facts,
    )
