"""
lab/sweep/statistics.py against SciPy's tests, numbers worked by hand, and simulations.
"""
import math

import numpy as np
import pytest
from lab.sweep.statistics import (
    Sample,
    contrast,
    corrected,
    prior,
    rate_sensitivity,
    samples,
    share,
    smallest_effect,
    tolerance,
    within_margin,
)
from scipy.stats import ttest_1samp, ttest_ind

DRAW = np.random.default_rng(0).normal(2, 0.1, (4, 7))
OWN = {i: Sample(row.mean(), row.var(ddof=1), len(row) - 1, len(row)) for i, row in enumerate(DRAW)}       # not moderated


def test_a_difference_is_welchs_test():
    """Of two rows with their own variances and another number of losses each"""
    a, b = DRAW[0], DRAW[1][:4]
    e = contrast({'a': 1, 'b': -1}, {'a': OWN[0], 'b': Sample(b.mean(), b.var(ddof=1), 3, 4)})
    wanted = ttest_ind(a, b, equal_var=False)
    interval = wanted.confidence_interval(0.95)
    assert (e.mean, e.low, e.high, e.p, e.df) == pytest.approx(
        (a.mean() - b.mean(), interval.low, interval.high, wanted.pvalue, wanted.df))
    assert e.n == 4


def test_the_prior_of_variances_is_found():
    """Variances drawn as d₀ s₀²/χ²(d₀), of which each row shows 5 losses; equal variances are worth infinitely many degrees"""
    rng, rows = np.random.default_rng(1), 4000
    sigma2 = 8 * 0.04 / rng.chisquare(8, rows)
    losses = rng.normal(0, np.sqrt(sigma2)[:, None], (rows, 5))
    d0, s0 = prior(losses.var(axis=1, ddof=1), [4] * rows)
    assert d0 == pytest.approx(8, rel=0.15) and s0 == pytest.approx(0.04, rel=0.05)
    found = samples(losses.tolist())
    own = losses.var(axis=1, ddof=1)
    assert [sample.variance for sample in found] == pytest.approx((d0 * s0 + 4 * own) / (d0 + 4))
    assert all(sample.df == pytest.approx(d0 + 4) for sample in found)
    equal = samples([[0.0, 1.0, 2.0, 3.0], [10.0, 11.01, 12.0, 13.0]])                       # pooled: one variance for both
    assert equal[0].variance == equal[1].variance and contrast({0: 1, 1: -1}, dict(enumerate(equal))).df == pytest.approx(6)


@pytest.mark.parametrize('losses', [[[]], [[1.0]], [[1.0, 1.0]], [[1.0], [2.0, 3.0], [3.0, 4.0]]])
def test_one_loss_has_no_interval(losses):
    e = contrast({0: 1}, dict(enumerate(samples(losses))))
    assert all(map(math.isnan, (e.low, e.p, e.error, e.detectable)))


@pytest.mark.parametrize('rows, seeds, spread', [(8, 12, 0.0), (8, 12, 0.5), (2, 4, 0.0)])
def test_intervals_hold_the_true_difference(rows, seeds, spread):
    """In 95% of 300 experiments, with standard deviations of the rows that are equal or differ by a factor of 1.6"""
    rng, held = np.random.default_rng(2), []
    for _ in range(300):
        losses = rng.normal(0, np.exp(rng.normal(0, spread, rows))[:, None], (rows, seeds))
        e = contrast({0: 1, 1: -1}, dict(enumerate(samples(losses.tolist()))))
        assert (e.low <= 0 <= e.high) == (e.p >= 0.05)
        held.append(e.low <= 0 <= e.high)
    assert np.mean(held) == pytest.approx(0.95, abs=0.038)         # 3 standard errors


def test_shares():
    """Fieller's interval of the part of a lead that a change makes up holds the true one of 0.4 in 95% of 300 experiments"""
    rng, held = np.random.default_rng(3), []
    for _ in range(300):
        losses = rng.normal([[1.0], [0.96], [0.9]], 0.02, (3, 8))
        ratio, low, high = share({1: 1, 0: -1}, {2: 1, 0: -1}, dict(enumerate(samples(losses.tolist()))))
        held.append(low <= 0.4 <= high)
        assert low < ratio < high
    assert np.mean(held) == pytest.approx(0.95, abs=0.038)
    same = {i: Sample(mean, 0.01, 20, 10) for i, mean in enumerate((1.0, 0.8, 0.99))}
    assert math.isnan(share({1: 1, 0: -1}, {2: 1, 0: -1}, same)[1]), 'of a lead that is none'


@pytest.mark.parametrize('shift', [0.0, 0.03, -0.1])
def test_equality_against_scipy(shift):
    """Two one-sided tests are SciPy's one-sided tests of the shifted difference"""
    a, b = DRAW[0] - DRAW[0].mean() + DRAW[1].mean() + shift, DRAW[1]
    sides = [ttest_ind(a + 0.04, b, equal_var=False, alternative='greater').pvalue,
             ttest_ind(a - 0.04, b, equal_var=False, alternative='less').pvalue]
    e = contrast({'a': 1, 'b': -1}, {'a': Sample(a.mean(), a.var(ddof=1), 6, 7), 'b': OWN[1]})
    assert within_margin(e, 0.04) == pytest.approx(max(sides))


@pytest.mark.parametrize('n', [2, 5])
def test_the_smallest_effect_is_found_in_80_percent_of_experiments(n):
    """Simulated, at level 0.05"""
    effect = smallest_effect(0.3 / math.sqrt(n), n - 1)
    draws = np.random.default_rng(n).normal(effect, 0.3, (20_000, n))
    assert np.mean(ttest_1samp(draws, 0, axis=1).pvalue < 0.05) == pytest.approx(0.8, abs=0.012)        # 4 standard errors


def test_corrected_p_values():
    """By hand, m = 4: 0.04 · 4/3 = 0.0533 counts for the second too, because it is below 0.03 · 4/2 = 0.06"""
    found = corrected([0.03, math.nan, 0.9, 0.01, 0.04, math.nan])
    assert found == pytest.approx([0.16 / 3, math.nan, 0.9, 0.04, 0.16 / 3, math.nan], nan_ok=True)
    assert corrected([]) == [] and corrected([0.2]) == [0.2] and math.isnan(*corrected([math.nan]))


@pytest.mark.parametrize('losses, wanted', [([2.0, 3.0, 2.5], 0.5), ([2.0, 9.0], 1.75), ([2.0, 3.5, math.nan], 5 / 3)])
def test_rate_sensitivity(losses, wanted):
    """By hand, of a model that starts at a loss of 5.5. A run that spiked and ended at 3.5 counts with 3.5"""
    assert rate_sensitivity(losses, 5.5) == pytest.approx(wanted)


@pytest.mark.parametrize('losses, octaves, is_open', [
    ([2.0, 1.0, 2.0], 0.2, False), ([1.2, 1.1, 1.0, 1.2], 1.5, False), ([1.0, 1.05, 9.0], 1 + 0.05 / 4.45, True),
    ([1.05, 1.0, math.nan], 1 + 0.1 / 4.5, True), ([1.0], 0, True), ([2.0, 1.0, 1.2, 1.05], 0.1 + 0.5, False)])
def test_tolerance(losses, octaves, is_open):
    """By hand, of a model that starts at 5.5. What lies beyond a hill is not within the interval"""
    found = tolerance([0.1 * 2 ** i for i in range(len(losses))], losses, 5.5)
    assert found == (pytest.approx(octaves), is_open)
