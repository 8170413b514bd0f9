"""The statistics of lab/sweep/table.py against SciPy's tests, numbers worked by hand, and simulations."""
import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_ind

from lab.sweep.table import Row, Tuning, contrast, corrected, moderate, tolerance

DRAW = np.random.default_rng(0).normal(2, 0.1, (2, 7))


def rows(losses, **labels):
    """A Row for each list of losses, of seeds 1, 2, …; all of one optimizer and size"""
    made = [Row(dict(arch=str(i), **labels), pd.DataFrame(dict(
        seed=range(1, len(of_row) + 1), status='done', val_loss=of_row, parameters=100.0)), Tuning(), 'val')
        for i, of_row in enumerate(losses)]
    moderate(made)
    return made


def test_a_difference_is_welchs_test():
    """Of two rows with their own variances and another number of losses each: rows of two sizes are not moderated together"""
    losses = DRAW[0], DRAW[1][:4]
    (a,), (b,) = rows([losses[0]], size='s'), rows([losses[1]], size='m')
    e, wanted = contrast({a: 1, b: -1}), ttest_ind(*losses, equal_var=False)
    interval = wanted.confidence_interval(0.95)
    assert (e.mean, e.low, e.high, e.p, e.df) == pytest.approx(
        (losses[0].mean() - losses[1].mean(), interval.low, interval.high, wanted.pvalue, wanted.df))
    assert e.n == 4


def test_the_prior_of_variances_is_found():
    """Variances drawn as d₀ s₀²/χ²(d₀), of which each row shows 5 losses; equal variances are worth infinitely many degrees"""
    rng, number = np.random.default_rng(1), 500
    losses = rng.normal(0, np.sqrt(8 * 0.04 / rng.chisquare(8, number))[:, None], (number, 5))
    own, (variances, dfs) = losses.var(axis=1, ddof=1), np.array([row.spread[:2] for row in rows(losses)]).T
    d0 = dfs[0] - 4                                     # variance = (d₀ s₀² + 4 s²) / (d₀ + 4)
    s0 = (variances * (d0 + 4) - 4 * own) / d0
    assert np.ptp(dfs) < 1e-9 and d0 == pytest.approx(8, rel=0.3) and s0 == pytest.approx(0.04, rel=0.1)
    a, b = rows([[0.0, 1.0, 2.0, 3.0], [10.0, 11.01, 12.0, 13.0]])                          # pooled: one variance for both
    assert a.spread == b.spread and contrast({a: 1, b: -1}).df == pytest.approx(6)


@pytest.mark.parametrize('losses', [[[1.0]], [[1.0, 1.0]], [[1.0], [2.0, 3.0], [3.0, 4.0]]])
def test_one_loss_has_no_interval(losses):
    e = contrast({rows(losses)[0]: 1})
    assert e.mean == 1 and all(map(math.isnan, (e.low, e.p, e.error)))


@pytest.mark.parametrize('number, seeds, spread', [(5, 12, 0.5), (2, 4, 0.0)])
def test_intervals_hold_the_true_difference(number, seeds, spread):
    """In 95% of 300 experiments, with standard deviations of the rows that are equal or differ by a factor of 1.6"""
    rng, held = np.random.default_rng(2), []
    for _ in range(300):
        a, b, *_ = rows(rng.normal(0, np.exp(rng.normal(0, spread, number))[:, None], (number, seeds)))
        e = contrast({a: 1, b: -1})
        assert (e.low <= 0 <= e.high) == (e.p >= 0.05)
        held.append(e.low <= 0 <= e.high)
    assert np.mean(held) == pytest.approx(0.95, abs=0.038)         # 3 standard errors


def test_corrected_p_values():
    """By hand, m = 4: 0.04 · 4/3 = 0.0533 counts for the second too, because it is below 0.03 · 4/2 = 0.06"""
    found = corrected([0.03, math.nan, 0.9, 0.01, 0.04, math.nan])
    assert found == pytest.approx([0.16 / 3, math.nan, 0.9, 0.04, 0.16 / 3, math.nan], nan_ok=True)
    assert corrected([]) == [] and corrected([0.2]) == [0.2] and math.isnan(*corrected([math.nan]))


@pytest.mark.parametrize('losses, octaves, is_open', [
    ([2.0, 1.0, 2.0], 0.2, False), ([1.2, 1.1, 1.0, 1.2], 1.5, False), ([1.0, 1.05, 9.0], 1 + 0.05 / 7.95, True),
    ([1.0], 0, True), ([2.0, 1.0, 1.2, 1.05], 0.1 + 0.5, False)])
def test_tolerance(losses, octaves, is_open):
    """By hand. What lies beyond a hill is not within the interval"""
    found = tolerance([0.1 * 2 ** i for i in range(len(losses))], np.array(losses))
    assert found == (pytest.approx(octaves), is_open)
