"""Statistics of runs that differ in their seeds: pure functions on numbers, with NaN for results that cannot be computed."""
import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import polygamma, psi
from scipy.stats import false_discovery_control, nct, t

LEVEL, POWER = 0.05, 0.8


class Sample(NamedTuple):
    """The mean of n independent losses, the variance of one loss, and the variance's degrees of freedom. Rows that share a
    variance have the same `pool`."""
    mean: float
    variance: float
    df: float
    n: int
    pool: object = None


class Estimate(NamedTuple):
    """A contrast of means: the value, its 95% confidence interval, the two-sided p against zero, the standard error, the
    degrees of freedom, the fewest losses behind a mean, and the smallest true contrast that the test detects with 80% power."""
    mean: float
    low: float
    high: float
    p: float
    error: float
    df: float
    n: int
    detectable: float


def samples(rows):
    """Return Samples of rows, which are lists of losses, with moderated variances (Smyth 2004): few seeds say little about a
    row's variance, so each is shrunk towards the rows' common variance, and the more the rows agree, the further.

    Let row i have the variance s_i² with d_i = n_i − 1 degrees of freedom, and e_i = ln s_i² − ψ(d_i/2) + ln(d_i/2). Then
    ψ′(d₀/2) = var(e) − mean ψ′(d_i/2), with d₀ = ∞ unless this is above 0, and ln s₀² = mean(e) + ψ(d₀/2) − ln(d₀/2). The
    moderated variance is (d₀ s₀² + d_i s_i²)/(d₀ + d_i), with d₀ + d_i degrees of freedom, or the rows' total if that is less.
    """
    own = [np.var(losses, ddof=1) if len(losses) > 1 else math.nan for losses in rows]
    counted = [(variance, len(losses) - 1) for variance, losses in zip(own, rows) if variance > 0]
    d0, s0 = prior(*zip(*counted)) if len(counted) > 1 else (0.0, 0.0)
    most, pool, found = sum(d for _, d in counted), object(), []
    for losses, variance in zip(rows, own):
        mean, n = math.fsum(losses) / len(losses) if len(losses) else math.nan, len(losses)
        if n < 2 or not variance > 0 and not d0:
            found.append(Sample(mean, math.nan, math.nan, n))
        elif math.isinf(d0):
            found.append(Sample(mean, s0, most, n, pool))
        else:
            found.append(Sample(mean, (d0 * s0 + (n - 1) * variance) / (d0 + n - 1), min(d0 + n - 1, most), n))
    return found


def prior(variances, dfs):
    """Return (d₀, s₀²) of `samples`: the degrees of freedom that the rows' common variance is worth, and that variance."""
    half = np.array(dfs) / 2
    e = np.log(variances) - psi(half) + np.log(half)
    excess = e.var(ddof=1) - polygamma(1, half).mean()
    if excess <= 0:
        return math.inf, float(np.exp(e.mean()))
    d0 = 2 * brentq(lambda x: polygamma(1, x) - excess, 1e-8, 1 / excess + 1)      # ψ′(x) lies between 1/x and 1/x + 1/x²
    return d0, float(np.exp(e.mean() + psi(d0 / 2) - np.log(d0 / 2)))


def contrast(weights, rows):
    """Estimate the linear contrast Σ w_i m_i of independent Samples. `weights`: {row: w}, `rows`: {row: its Sample}.

    Its variance is V = Σ v_i, v_i = w_i² s_i²/n_i, with V²/Σ(v_i²/df_i) degrees of freedom (Satterthwaite 1946). Rows that
    share a variance form one term of the latter sum.
    """
    used = [(weight, rows[row]) for row, weight in weights.items() if weight]
    mean, n = math.fsum(weight * row.mean for weight, row in used), min((row.n for _, row in used), default=0)
    parts = {}                                          # {pool, or row: [v, df]}
    for weight, row in used:
        part = parts.setdefault(row.pool or id(row), [0.0, row.df])
        part[0] += weight ** 2 * row.variance / row.n if row.n else math.nan
    variance = math.fsum(v for v, _ in parts.values())
    if not variance > 0:
        return Estimate(mean, *[math.nan] * 5, n, math.nan)
    df, error = variance ** 2 / math.fsum(v ** 2 / df for v, df in parts.values()), math.sqrt(variance)
    low, high = t.interval(1 - LEVEL, df, mean, error)
    return Estimate(mean, low, high, float(2 * t.sf(abs(mean) / error, df)), error, df, n, smallest_effect(error, df))


def within_margin(e, margin):
    """Return the p of equality within ±margin: the larger of two one-sided t-tests (Schuirmann 1987), P(T > (margin − m)/s) and
    P(T > (margin + m)/s), for an Estimate's mean m, standard error s and degrees of freedom."""
    return float(t.sf((margin - abs(e.mean)) / e.error, e.df)) if e.error > 0 else math.nan


def smallest_effect(error, df):
    """Return the true difference that a two-sided t-test at level 0.05 detects with 80% power: ncp · error, where P(T >
    t(0.975; df)) = 0.8 for T from the noncentral t distribution with noncentrality ncp. Neglect the chance of a significant
    difference of the wrong sign, which is below 1e-6."""
    critical = t.ppf(1 - LEVEL / 2, df)
    return brentq(lambda ncp: nct.sf(critical, df, ncp) - POWER, 0, 1.5 * critical + 2) * error


def share(part, whole, rows):
    """Return the ratio r = A/B of two contrasts {row: weight} as (r, low, high), with Fieller's 95% interval (Fieller 1954):
    all r for which A − rB does not differ from zero, between the roots of (A − rB)² = t²(V_A − 2r C_AB + r² V_B). If B itself
    does not differ from zero, the interval is NaN, because it would exclude no large r."""
    def mean(u):
        return math.fsum(weight * rows[row].mean for row, weight in u.items())

    def covariance(u, v):
        return math.fsum(u[row] * v[row] * rows[row].variance / rows[row].n for row in u.keys() & v.keys())

    ratio = mean(part) / mean(whole)
    df = contrast({row: part.get(row, 0) - ratio * whole.get(row, 0) for row in {**part, **whole}}, rows).df
    t2 = t.ppf(1 - LEVEL / 2, df) ** 2
    a = mean(whole) ** 2 - t2 * covariance(whole, whole)
    b = mean(part) * mean(whole) - t2 * covariance(part, whole)
    c = mean(part) ** 2 - t2 * covariance(part, part)
    if not a > 0:
        return ratio, math.nan, math.nan
    root = math.sqrt(b ** 2 - a * c)
    return ratio, (b - root) / a, (b + root) / a


def corrected(p_values):
    """Correct p-values as Benjamini and Hochberg 1995 do, in the given order. NaN stays NaN and does not count."""
    p = np.array(p_values, float)
    tested = ~np.isnan(p)
    if tested.any():
        p[tested] = false_discovery_control(p[tested])
    return p.tolist()


def rate_sensitivity(losses, initial):
    """Return the learning rate sensitivity of Wortsman et al. 2023: the mean of min(loss, initial loss) over a grid's learning
    rates, minus the lowest loss. `losses`: final losses, NaN only if train.py stopped the run. `initial`: the untrained model's
    loss."""
    losses = np.fmin(losses, initial)                   # fmin replaces NaN by `initial`
    return losses.mean() - losses.min()


def tolerance(rates, losses, initial, slack=0.1):
    """Return the width, in octaves, of the interval of learning rates around the best one in which min(loss, initial loss),
    interpolated linearly in log rate, is at most the lowest loss + slack.

    `rates`: ascending. Return also whether the interval reaches an end of the grid, so that it may be wider. A rate of 0, which
    has no logarithm, gives NaN.
    """
    if rates[0] <= 0:
        return math.nan, False
    losses, x = np.fmin(losses, initial), np.log2(rates)
    best = losses.argmin()
    limit = losses[best] + slack

    def reach(points):
        """Return where the loss first exceeds the limit on the way from the best rate, and whether it never does."""
        for (x0, loss0), (x1, loss1) in pairwise(points):
            if loss1 > limit:
                return x0 + (x1 - x0) * (limit - loss0) / (loss1 - loss0), False
        return points[-1][0], True

    points = list(zip(x, losses))
    (low, open_below), (high, open_above) = reach(points[best::-1]), reach(points[best:])
    return high - low, open_below or open_above
