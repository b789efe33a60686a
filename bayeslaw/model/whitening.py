"""The log density of a model whose deviations are linear in standard normal weights.

Given the law's parameters and the scales, the weights are nearly normal, with precision
``Lambda = 1 + S C W C' S``: C are the columns, one row of C for each weight, S their scales and W
the information of a row. The sampler sees eps in

    b = Lambda^-1 S C W r + M^-T eps,    Lambda = M M',    log Jacobian = -log det M,

with r the measured log loss less that of the law. Random effects of one level come first: each row
is in one group, so their part of Lambda is diagonal, and M is as sparse. Where errors are
correlated, C and the correlation are taken at one point, so ``C W C'`` is computed once: such
tables have many rows. The density is exact whatever matrix is used; the nearer it is, the more
independent is eps of the rest.
"""

import math

import numpy as np
from numba import njit
from numba.extending import overload
from numba.types import Array

from bayeslaw.laws.tape import (
    ADD,
    CONSTANT,
    DIVIDE,
    ERF,
    EXP,
    EXPM1,
    LGAMMA,
    LOG,
    LOG1P,
    MAXIMUM,
    MULTIPLY,
    SPREAD,
    SUBTRACT,
    SUM,
    TANH,
)


@njit(cache=True, nogil=True, error_model="numpy")
def digamma(x):
    """Derivative of the log of the gamma function, for x > 0."""
    total = 0.0
    while x < 10.0:
        total -= 1.0 / x
        x += 1.0
    y = 1.0 / (x * x)
    series = y * (1 / 12 - y * (1 / 120 - y * (1 / 252 - y * (1 / 240 - y / 132))))
    return total + math.log(x) - 0.5 / x - series


@njit(cache=True, nogil=True, error_model="numpy")
def evaluate(code, constants, first, last, v, s):
    """Run the operations from `first` to before `last`, on rows `v` and scalars `s`.

    `v` has shape (rows of values, rows of the table), `s` has shape (scalars,).
    """
    for k in range(first, last):
        kind, x, y, out, row = code[k, 0], code[k, 1], code[k, 2], code[k, 3], code[k, 4]
        if kind == CONSTANT:
            s[out] = constants[k]
        elif kind == SUM:
            total = 0.0
            for value in v[x]:
                total += value
            s[out] = total
        elif kind == SPREAD:
            v[out] = s[x]
        elif kind >= EXP:
            if row:
                _function_row(kind, v[x], v[out])
            else:
                s[out] = _function(kind, s[x])
        elif not row:
            s[out] = _operator(kind, s[x], s[y])
        elif not code[k, 5]:
            _operator_row(kind, s[x], v[y], v[out])
        elif not code[k, 6]:
            _operator_row(kind, v[x], s[y], v[out])
        else:
            _operator_row(kind, v[x], v[y], v[out])


@njit(cache=True, nogil=True, error_model="numpy")
def _function(kind, x):
    if kind == EXP:
        return math.exp(x)
    if kind == LOG:
        return math.log(x)
    if kind == LOG1P:
        return math.log1p(x)
    if kind == TANH:
        return math.tanh(x)
    if kind == EXPM1:
        return math.expm1(x)
    if kind == ERF:
        return math.erf(x)
    return math.lgamma(x) if kind == LGAMMA else digamma(x)


@njit(cache=True, nogil=True, error_model="numpy")
def _function_row(kind, x, out):
    if kind == EXP:
        for i in range(x.size):
            out[i] = math.exp(x[i])
    elif kind == LOG:
        for i in range(x.size):
            out[i] = math.log(x[i])
    else:
        for i in range(x.size):
            out[i] = _function(kind, x[i])


@njit(cache=True, nogil=True, error_model="numpy")
def _operator(kind, x, y):
    if kind == ADD:
        return x + y
    if kind == SUBTRACT:
        return x - y
    if kind == MULTIPLY:
        return x * y
    if kind == DIVIDE:
        return x / y
    if kind == MAXIMUM:
        return max(x, y)
    return 1.0 if x > y else 0.0


def _item(x, i):
    """Element of a row, or the scalar."""


@overload(_item)
def _item_of(x, i):
    return (lambda x, i: x[i]) if isinstance(x, Array) else (lambda x, i: x)


@njit(cache=True, nogil=True, error_model="numpy")
def _operator_row(kind, x, y, out):
    # One loop for each kind: a branch inside the loop would keep it from being vectorised.
    if kind == ADD:
        for i in range(out.size):
            out[i] = _item(x, i) + _item(y, i)
    elif kind == SUBTRACT:
        for i in range(out.size):
            out[i] = _item(x, i) - _item(y, i)
    elif kind == MULTIPLY:
        for i in range(out.size):
            out[i] = _item(x, i) * _item(y, i)
    elif kind == DIVIDE:
        for i in range(out.size):
            out[i] = _item(x, i) / _item(y, i)
    else:
        for i in range(out.size):
            out[i] = _operator(kind, _item(x, i), _item(y, i))


@njit(cache=True, nogil=True, error_model="numpy")
def inverse(lower):
    k = lower.shape[0]
    found = np.zeros((k, k))
    for i in range(k):
        found[i, i] = 1.0 / lower[i, i]
        for j in range(i):
            factor = -found[i, i] * lower[i, j]
            for m in range(j + 1):
                found[i, m] += factor * found[j, m]
    return found


@njit(cache=True, nogil=True, error_model="numpy")
def density(
    z, y, code, constants, sizes, ends, places, derivatives, inputs, block, level, effects, before
):
    """Log density at z = (parameters, eps, eps of groups, effects), its gradient, and the weights.

    `y` are measured log losses. `code`, `constants` and `sizes` are those of a `Program`, whose
    operations end before `ends`: the inputs, what the block needs, the likelihood, the gradient.
    `places` are those of the log loss, the information of a row, the correlation with the row
    before, the shares, the scales, and the effects' factors; of the likelihood's value and its
    derivatives by the errors; of the inputs: the errors and the first cotangent that is a row.
    Those of scalars come after the parameters. `derivatives` are places of the derivatives by the
    parameters, `inputs` those that are rows of data.

    `block` has columns (weights, rows), the share and the scale of each weight; ``S^-1 C`` at the
    fixed point with correlated errors taken out, and its Gram matrix; and what makes of a share its
    mean over a column, relative to the fixed point. `level` has the group of each row, or -1, and
    the place of the scale of effects that are whitened; and of their columns at the fixed point the
    values, norms, and products with others. `effects` (levels, rows) are places of each row's
    effect, or -1, `before` the row before each row in its run; it is empty if errors are
    independent.
    """
    (
        log_loss,
        information,
        correlation,
        shares,
        scales,
        factors,
        value,
        by_error,
        errors,
        cotangents,
    ) = places
    columns, of_share, of_scale, fixed, gram, mean = block
    group, of_tau, group_fixed, norms, cross = level
    k, n = columns.shape
    size = norms.size
    exact = before.size == 0
    p, levels = derivatives.size, effects.shape[0]
    v, s = np.empty((sizes[0], n)), np.empty(sizes[1])
    gradient, weights = np.zeros(z.size), np.zeros(k + size)
    for i in range(p):
        s[i] = z[i]
    v[: inputs.shape[0]] = inputs
    evaluate(code, constants, ends[0], ends[1], v, s)
    w = s[information]
    z_effects = z[p + k + size :]
    r = y - v[log_loss]
    for j in range(levels):
        h = v[factors[j]]
        for i in range(n):
            if effects[j, i] >= 0:
                r[i] -= h[i] * z_effects[effects[j, i]]
    tau = s[scales[of_tau]]
    scale, check = np.empty(k), w + r.sum() + tau
    for j in range(k):
        scale[j] = s[scales[of_scale[j]]]
        check += scale[j]
    if not (math.isfinite(check) and 0.0 <= w < 1e16):
        return -np.inf, gradient, weights
    if exact:
        fixed = columns.copy()
        for j in range(k):
            if of_share[j] >= 0:
                h = v[shares[of_share[j]]]
                for i in range(n):
                    fixed[j, i] *= h[i]
        gram = np.dot(fixed, fixed.T)
        cross = np.zeros((size, k))
        for i in range(n if size else 0):
            if group[i] >= 0:
                for j in range(k):
                    cross[group[i], j] += fixed[j, i]
    # Scale of a weight as it is whitened: a fixed column moves with the mean of its share.
    typical, ahead = np.ones(k), np.empty(k)
    for j in range(k):
        if not exact and of_share[j] >= 0:
            typical[j] = np.dot(mean[j], v[shares[of_share[j]]])
        ahead[j] = scale[j] * typical[j]
    # The groups first: the inverse of their diagonal part, and its products with the rest.
    variance, common = np.empty(size), np.empty((size, k))
    gr, rhs = np.zeros(size), np.empty(size)
    for i in range(n if size else 0):
        if group[i] >= 0:
            gr[group[i]] += group_fixed[i] * r[i]
    for d in range(size):
        variance[d] = 1.0 / (1.0 + w * tau * tau * norms[d])
        rhs[d] = w * tau * gr[d]
        for j in range(k):
            common[d, j] = w * tau * ahead[j] * cross[d, j]
    matrix = np.empty((k, k))
    for i in range(k):
        for j in range(k):
            matrix[i, j] = w * ahead[i] * ahead[j] * gram[i, j]
        matrix[i, i] += 1.0
        if not matrix[i, i] < 1e16:
            return -np.inf, gradient, weights
    scaled = common * variance.reshape((size, 1))
    matrix -= np.dot(common.T, scaled)
    m = np.linalg.cholesky(matrix)
    mi = inverse(m)
    fr = np.dot(fixed, r)
    lead = np.dot(mi, w * ahead * fr - np.dot(scaled.T, rhs))
    b = np.dot(mi.T, lead + z[p : p + k])
    left = rhs - np.dot(common, b)
    effect = np.empty(size)
    for d in range(size):
        effect[d] = variance[d] * left[d] + math.sqrt(variance[d]) * z[p + k + d]
    weights[:k] = b
    weights[k:] = effect
    # What the weights of each share add to the log loss, over the share; the last share is 1.
    added = np.zeros((shares.size + 1, n))
    for j in range(k):
        moved, own = scale[j] * b[j], added[of_share[j]]
        for i in range(n):
            own[i] += moved * columns[j, i]
    e = r - added[-1]
    for j in range(shares.size):
        e -= added[j] * v[shares[j]]
    for i in range(n if size else 0):
        if group[i] >= 0:
            e[i] -= tau * effect[group[i]]
    rho = v[correlation]
    if before.size:
        for i in range(n):
            v[errors, i] = e[i] - rho[i] * e[before[i]]
    else:
        v[errors] = e
    evaluate(code, constants, ends[1], ends[2], v, s)
    total = s[value]
    for j in range(k):
        total -= math.log(m[j, j]) + 0.5 * b[j] * b[j]
    for d in range(size):
        total += 0.5 * (math.log(variance[d]) - effect[d] * effect[d])
    for j in range(z_effects.size):
        total -= 0.5 * z_effects[j] * z_effects[j]
    # Derivatives, from the last step to the first: of the errors, the weights, the matrix.
    g, e_bar = v[by_error], np.zeros(n)
    rho_bar = v[cotangents + 1]
    for i in range(n):
        e_bar[i] += g[i]
        rho_bar[i] = 0.0
        if before.size:
            rho_bar[i] = -g[i] * e[before[i]]
            e_bar[before[i]] -= g[i] * rho[i]
    first = cotangents + 2
    by_added = np.empty((shares.size + 1, n))
    by_added[-1] = -e_bar
    for j in range(shares.size):
        v[first + j] = -e_bar * added[j]
        by_added[j] = -e_bar * v[shares[j]]
    scale_bar, b_bar = np.empty(k), np.empty(k)
    for j in range(k):
        dot = np.dot(columns[j], by_added[of_share[j]])
        scale_bar[j] = dot * b[j]
        b_bar[j] = dot * scale[j] - b[j]
    tau_bar, w_bar = 0.0, 0.0
    effect_bar, variance_bar = -effect, np.empty(size)
    for i in range(n if size else 0):
        if group[i] >= 0:
            effect_bar[group[i]] -= tau * e_bar[i]
            tau_bar -= effect[group[i]] * e_bar[i]
    for d in range(size):
        root, eps = math.sqrt(variance[d]), z[p + k + d]
        gradient[p + k + d] = root * effect_bar[d]
        variance_bar[d] = effect_bar[d] * (left[d] + 0.5 * eps / root) + 0.5 / variance[d]
    rhs_bar = variance * effect_bar
    b_bar -= np.dot(common.T, rhs_bar)
    u = np.dot(mi, b_bar)
    gradient[p : p + k] = u
    q = np.dot(mi.T, u)
    m_bar = np.zeros((k, k))
    for i in range(k):
        for j in range(i + 1):
            m_bar[i, j] = -b[i] * u[j] - q[i] * lead[j]
        m_bar[i, i] -= 1.0 / m[i, i]
    half = np.dot(m.T, m_bar)
    for i in range(k):
        half[i, i] *= 0.5
        for j in range(i + 1, k):
            half[i, j] = 0.0
    by_matrix = np.dot(mi.T, np.dot(half, mi))
    by_matrix = 0.5 * (by_matrix + by_matrix.T)
    by_lead = w * ahead * q
    r_bar = np.dot(fixed.T, by_lead) + e_bar
    common_by = np.dot(common, by_matrix)
    common_q = np.dot(common, q)
    cross_bar, ahead_bar = np.empty((size, k)), np.zeros(k)
    for d in range(size):
        t = variance_bar[d] - rhs[d] * common_q[d]
        for j in range(k):
            by = -rhs_bar[d] * b[j] - variance[d] * (rhs[d] * q[j] + 2.0 * common_by[d, j])
            t -= common_by[d, j] * common[d, j]
            cross_bar[d, j] = w * tau * ahead[j] * by
            by *= cross[d, j]
            w_bar += tau * ahead[j] * by
            tau_bar += w * ahead[j] * by
            ahead_bar[j] += w * tau * by
        t *= -variance[d] * variance[d]
        w_bar += t * tau * tau * norms[d]
        tau_bar += 2.0 * t * w * tau * norms[d]
        rhs_bar[d] -= variance[d] * common_q[d]
        w_bar += tau * rhs_bar[d] * gr[d]
        tau_bar += w * rhs_bar[d] * gr[d]
    for i in range(n if size else 0):
        if group[i] >= 0:
            r_bar[i] += w * tau * rhs_bar[group[i]] * group_fixed[i]
    for i in range(k):
        w_bar += q[i] * ahead[i] * fr[i]
        ahead_bar[i] += w * q[i] * fr[i]
        for j in range(k):
            t = by_matrix[i, j] * gram[i, j] * ahead[j]
            w_bar += t * ahead[i]
            ahead_bar[i] += 2.0 * w * t
    if exact:
        for i in range(k):
            for j in range(k):
                by_matrix[i, j] *= 2.0 * w * ahead[i] * ahead[j]
        fixed_bar = np.dot(by_matrix, fixed)
        for i in range(n if size else 0):
            if group[i] >= 0:
                for j in range(k):
                    fixed_bar[j, i] += cross_bar[group[i], j]
        for j in range(k):
            if of_share[j] >= 0:
                h_bar = v[first + of_share[j]]
                for i in range(n):
                    h_bar[i] += columns[j, i] * (fixed_bar[j, i] + by_lead[j] * r[i])
    v[cotangents] = -r_bar
    s[p] = w_bar
    for j in range(scales.size):
        s[p + 1 + j] = 0.0
    for j in range(k):
        s[p + 1 + of_scale[j]] += scale_bar[j] + ahead_bar[j] * typical[j]
        if not exact and of_share[j] >= 0:
            v[first + of_share[j]] += ahead_bar[j] * scale[j] * mean[j]
    s[p + 1 + of_tau] += tau_bar
    first += shares.size
    later = p + k + size
    for j in range(z_effects.size):
        gradient[later + j] = -z_effects[j]
    for j in range(levels):
        h, h_bar = v[factors[j]], v[first + j]
        for i in range(n):
            place, h_bar[i] = effects[j, i], 0.0
            if place >= 0:
                gradient[later + place] -= h[i] * r_bar[i]
                h_bar[i] = -z_effects[place] * r_bar[i]
    evaluate(code, constants, ends[2], code.shape[0], v, s)
    for i in range(p):
        gradient[i] = s[derivatives[i]]
    return total, gradient, weights


@njit(cache=True, nogil=True, error_model="numpy")
def scaled(point, centre, factor, arguments):
    """Density and gradient where the parameters are `centre` plus `factor` times their coordinates.

    Also the point of `density`, with weights in place of eps. Where anything is not finite, the log
    density is minus infinity.
    """
    size = centre.size
    moved = point.copy()
    moved[:size] = centre + np.dot(factor, point[:size])
    value, gradient, weights = density(moved, *arguments)
    if not math.isfinite(value + gradient.sum()):
        return -np.inf, np.zeros(point.size), moved
    gradient[:size] = np.dot(gradient[:size], factor)
    moved[size : size + weights.size] = weights
    return value, gradient, moved
