"""Statistics of runs that are paired by their seeds. Pure functions on numbers; those that cannot be computed are NaN."""
import math
import statistics
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.stats import false_discovery_control, nct, t

LEVEL, POWER = 0.05, 0.8


class Estimate(NamedTuple):
    """A mean with its 95% confidence interval, the two-sided p of a mean of zero, the number of pairs, the smallest true mean
    that this test would have found with 80% power, and the mean's standard error."""
    mean: float
    low: float
    high: float
    p: float
    n: int
    detectable: float
    error: float


def contrast(weights, rows):
    """The linear contrast of rows, {seed: loss} each, paired by seed.

    Of every seed s that all rows have, d_s = Σ_i weights_i · rows_i[s]. With n such seeds, the mean m of d and its standard
    deviation sd (of n − 1), the interval is m ± t(0.975; n − 1) · sd/√n, and p = 2 · P(T > |m|/(sd/√n)), T of Student's t
    distribution with n − 1 degrees of freedom. Weights 1, −1 give the paired t-test, 1, −1, −1, 1 the difference of two
    differences. With one seed, or where all d are equal, interval and p are NaN.
    """
    seeds = [seed for seed in rows[0] if all(seed in row for row in rows)]
    d = [math.fsum(weight * row[seed] for weight, row in zip(weights, rows)) for seed in seeds]
    n = len(d)
    mean, sd = statistics.fmean(d) if d else math.nan, statistics.stdev(d) if n > 1 else 0.0
    if sd <= 1e-12 * max((abs(row[seed]) for row in rows for seed in seeds), default=0.0):      # no more than rounding
        return Estimate(mean, math.nan, math.nan, math.nan, n, math.nan, math.nan)
    error = sd / math.sqrt(n)
    half = t.ppf(1 - LEVEL / 2, n - 1) * error
    return Estimate(mean, mean - half, mean + half, float(2 * t.sf(abs(mean) / error, n - 1)), n, smallest_effect(sd, n),
                    error)


def paired_difference(a, b):
    """The mean difference a − b of two rows, {seed: loss} each, over the seeds that both have. See `contrast`."""
    return contrast([1, -1], [a, b])


def within_margin(e, margin):
    """The p of equality within ±margin, by two one-sided t-tests (Schuirmann 1987): the larger of P(T > (margin − m)/s) and
    P(T > (margin + m)/s), with the mean m of an Estimate, its standard error s, and n − 1 degrees of freedom. NaN without s."""
    return float(t.sf((margin - abs(e.mean)) / e.error, e.n - 1)) if e.error > 0 else math.nan


def beyond_margin(e, margin):
    """The two-sided p of a mean that is within ±margin, against one beyond: 2 · P(T > (|m| − margin)/s), at most 1."""
    return min(1.0, float(2 * t.sf((abs(e.mean) - margin) / e.error, e.n - 1))) if e.error > 0 else math.nan


def smallest_effect(sd, n):
    """The true mean δ that the two-sided paired t-test at level 0.05 finds with 80% power, if n differences have the standard
    deviation sd.

    δ = ncp · sd/√n, where P(T > t(0.975; n − 1)) = 0.8 for T of the noncentral t distribution with n − 1 degrees of freedom and
    the noncentrality ncp. The chance of a significant mean of the wrong sign, below 1e-6, is left out. NaN for n < 2.
    """
    if n < 2:
        return math.nan
    critical = t.ppf(1 - LEVEL / 2, n - 1)
    return brentq(lambda ncp: nct.sf(critical, n - 1, ncp) - POWER, 0, 1.5 * critical + 2) * sd / math.sqrt(n)


def corrected(p_values):
    """p-values after Benjamini and Hochberg 1995, in the order given: of m p-values, the k-th smallest becomes
    min over j ≥ k of p_(j) · m/j, at most 1. NaN stays NaN and does not count in m."""
    p = np.array(p_values, float)
    tested = ~np.isnan(p)
    if tested.any():
        p[tested] = false_discovery_control(p[tested])
    return p.tolist()


def rate_sensitivity(losses, initial):
    """Learning rate sensitivity of Wortsman et al. 2023: the mean over a grid's learning rates of min(loss, initial loss), minus
    the lowest loss. `losses`: the final loss at each rate, infinite or NaN where the run has diverged, which then counts with
    the `initial` loss, that of the untrained model."""
    capped = [loss if loss < initial else initial for loss in losses]
    return statistics.fmean(capped) - min(capped)
