"""
lab/statistics.py against SciPy's tests, numbers worked by hand, and simulations.
"""
import math

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from lab.statistics import contrast, corrected, paired_difference, rate_sensitivity, smallest_effect

A, B = {'1': 2.0, '2': 2.5, '3': 2.25, '4': 9.0}, {'3': 1.75, '2': 2.25, '1': 1.5, '5': 0.0}
DRAW = np.random.default_rng(0).normal(size=(4, 7))
ROWS = [dict(enumerate(row)) for row in DRAW.tolist()]


def test_a_paired_difference_by_hand():
    """Over the seeds that both have: 0.5, 0.25, 0.5, whose mean is 5/12 and whose standard error is 1/12; t(0.975; 2) = 4.3027"""
    found = paired_difference(A, B)
    assert found.n == 3 and found.mean == pytest.approx(5 / 12)
    assert (found.low, found.high) == pytest.approx((5 / 12 - 4.30265 / 12, 5 / 12 + 4.30265 / 12), abs=1e-5)
    assert found.p == pytest.approx(1 - 5 / math.sqrt(27))          # of 2 degrees of freedom: 1 − t/√(t² + 2)
    other = paired_difference(B, A)
    assert (other.mean, other.low, other.p, other.detectable) == pytest.approx(
        (-found.mean, -found.high, found.p, found.detectable))


def test_a_difference_of_differences():
    found, d = contrast([1, -1, -1, 1], ROWS), DRAW[0] - DRAW[1] - DRAW[2] + DRAW[3]
    wanted = ttest_1samp(d, 0)
    interval = wanted.confidence_interval(0.95)
    assert (found.mean, found.low, found.high, found.p, found.n) == pytest.approx(
        (d.mean(), interval.low, interval.high, wanted.pvalue, 7))
    assert found.detectable == pytest.approx(smallest_effect(d.std(ddof=1), 7))


@pytest.mark.parametrize('a, b, n', [({}, {}, 0), ({'1': 1.0}, {'2': 2.0}, 0), ({'1': 1.0}, {'1': 2.0}, 1),
                                     ({'1': 2.1, '2': 3.1}, {'1': 2.0, '2': 3.0}, 2)])
def test_what_cannot_be_tested(a, b, n):
    """No shared seed, one, or differences that are equal but for rounding"""
    found = paired_difference(a, b)
    assert found.n == n and all(map(math.isnan, (found.low, found.high, found.p, found.detectable)))
    assert math.isnan(found.mean) if not n else found.mean == pytest.approx(np.mean([a[s] - b[s] for s in a]))


@pytest.mark.parametrize('n', [2, 3, 5, 20])
def test_the_smallest_effect_is_found_in_80_percent_of_experiments(n):
    """Simulated, at level 0.05"""
    effect = smallest_effect(0.3, n)
    draws = np.random.default_rng(n).normal(effect, 0.3, (20_000, n))
    assert np.mean(ttest_1samp(draws, 0, axis=1).pvalue < 0.05) == pytest.approx(0.8, abs=0.012)        # 4 standard errors


def test_the_smallest_effect_of_many_pairs():
    """That of a normal distribution: (1.96 + 0.8416) standard errors"""
    assert smallest_effect(2.0, 100_000) * math.sqrt(100_000) / 2 == pytest.approx(1.95996 + 0.84162, rel=1e-4)
    assert math.isnan(smallest_effect(1.0, 1))


def test_corrected_p_values():
    """By hand, m = 4: 0.04 · 4/3 = 0.0533 counts for the second too, because it is below 0.03 · 4/2 = 0.06"""
    found = corrected([0.03, math.nan, 0.9, 0.01, 0.04, math.nan])
    assert found == pytest.approx([0.16 / 3, math.nan, 0.9, 0.04, 0.16 / 3, math.nan], nan_ok=True)
    assert corrected([]) == [] and corrected([0.2]) == [0.2] and math.isnan(*corrected([math.nan]))


@pytest.mark.parametrize('losses, wanted', [
    ([2.0, 3.0, 2.5], 0.5), ([2.0, math.inf], 1.75), ([2.0, math.nan], 1.75), ([2.0, 9.0], 1.75), ([2.0], 0),
    ([math.inf, math.inf], 0)])
def test_rate_sensitivity(losses, wanted):
    """By hand, of a model that starts at a loss of 5.5: what is above counts as that"""
    assert rate_sensitivity(losses, 5.5) == pytest.approx(wanted)
