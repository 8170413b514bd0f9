"""lab/results.py and lab/sweep_claims.py: verdicts from raw numbers that are made here, and the pages of results/."""
import csv
import math
from pathlib import Path

import numpy as np
import pytest
from helpers import ROOT, run_here
from scipy.stats import false_discovery_control, ttest_1samp, ttest_rel

from lab import results
from lab.statistics import beyond_margin, contrast, within_margin
from lab.sweep_claims import Test as ClaimTest
from lab.sweep_claims import correct
from lab.sweep_table import CELLS, read_runs, rows_of

NOISE = np.random.default_rng(0).normal(0, 0.02, (3, 13))
LOSSES = {arch: mean + NOISE[i] for i, (arch, mean) in enumerate((('a', 2.0), ('b', 2.1), ('c', 2.0)))}


def write_csv(path, best=0.2, losses=LOSSES, lost=(), **cells):
    """A runs.csv in which seed 1 is best at the rate `best` of 0.1, 0.2, 0.4, and the other seeds ran there. `lost` are
    (arch, seed) of runs that diverged."""
    with open(path, 'w', newline='') as f:
        table = csv.DictWriter(f, ['arch', 'learning_rate', 'seed', *CELLS], restval='')
        table.writeheader()
        for arch, ends in losses.items():
            for rate in (0.1, 0.2, 0.4):
                for seed, loss in enumerate(ends, 1):
                    if seed == 1 or rate == best:
                        loss = round(loss + abs(math.log(rate / best)), 6)
                        done = (arch, seed) not in lost
                        ended = dict(val_loss=loss, test_loss=loss) if done else {}
                        table.writerow(dict(arch=arch, learning_rate=rate, seed=seed, status='done' if done else 'diverged',
                                            seconds=5, val_losses=f'0:5.5 100:{loss}', iterations=100, code='c0de',
                                            data='da7a', **{**ended, **cells}))
    return str(path)


def claim_of(path, sign=-1, margin=0.04, pairs=4, text='arch=a - arch=b'):
    test = ClaimTest(dict(text='x', contrast=text, sign=sign, margin=margin, pairs=pairs), rows_of(read_runs(path)), 'test')
    correct([test])
    return test


@pytest.mark.parametrize('sign, text, wanted', [
    (-1, 'arch=a - arch=b', 'supported'), (1, 'arch=a - arch=b', 'contradicted'), (0, 'arch=a - arch=b', 'contradicted'),
    (0, 'arch=a - arch=c', 'equal within ±0.04'), (-1, 'arch=a - arch=c', 'equal within ±0.04'),
    (0, 'arch=a - arch=d', 'not run')])
def test_verdicts(tmp_path, sign, text, wanted):
    assert claim_of(write_csv(tmp_path / 'x.csv'), sign, text=text).verdict() == wanted


def test_what_leaves_a_claim_open(tmp_path):
    """A margin that so few seeds cannot show, too few pairs, a rate at the edge, and a run that did not end"""
    few = {arch: losses[:4] + 0.05 * np.sin(9 * np.arange(4) + i) for i, (arch, losses) in enumerate(LOSSES.items())}
    path = tmp_path / 'x.csv'
    assert claim_of(write_csv(path, losses=few), 0, 0.001, 3, 'arch=a - arch=c').verdict() == 'open'
    assert claim_of(str(path), 0, pairs=4).verdict() == 'open: 3 of 4 pairs were run'
    assert claim_of(write_csv(path, best=0.4)).verdict() == 'open: the best rate of arch=a is at the edge'
    assert claim_of(write_csv(path, lost=[('b', 5)])).verdict() == 'open: 1 of 24 runs did not end'
    lines = Path(write_csv(path)).read_text().splitlines(keepends=True)
    path.write_text(''.join(line for line in lines if not line.startswith('b,0.4,')))
    assert claim_of(str(path)).verdict() == 'open: fewer than 3 rates of arch=b have ended'


def test_seed_1_chooses_and_never_counts(tmp_path):
    """However low its loss is"""
    low = {arch: np.array([loss - (arch == 'a') * (i == 0) for i, loss in enumerate(losses)]) for arch, losses in LOSSES.items()}
    for losses in (LOSSES, low):
        e = claim_of(write_csv(tmp_path / 'x.csv', losses=losses)).estimate
        assert e.n == 4 and e.p == pytest.approx(ttest_rel(LOSSES['a'][1:5], LOSSES['b'][1:5]).pvalue, rel=1e-3)


@pytest.mark.parametrize('shift', [0.0, 0.03, -0.03, 0.1, -0.1])
def test_equality_against_scipy(shift):
    """Two one-sided tests are SciPy's one-sided tests of the shifted differences"""
    d = NOISE[0] + shift
    e = contrast([1, -1], [dict(enumerate(d)), dict.fromkeys(range(13), 0.0)])
    sides = [ttest_1samp(d + 0.04, 0, alternative='greater').pvalue, ttest_1samp(d - 0.04, 0, alternative='less').pvalue]
    assert within_margin(e, 0.04) == pytest.approx(max(sides))
    beyond = min(ttest_1samp(d - 0.04, 0, alternative='greater').pvalue, ttest_1samp(d + 0.04, 0, alternative='less').pvalue)
    assert beyond_margin(e, 0.04) == pytest.approx(min(1, 2 * beyond))


def test_all_p_values_are_corrected_together(tmp_path):
    path = write_csv(tmp_path / 'x.csv')
    tests = [claim_of(path, text=text) for text in ('arch=a - arch=b', 'arch=a - arch=c', 'arch=c - arch=b')]
    rows = rows_of(read_runs(path))
    tests = [ClaimTest(test.claim, rows, 'test') for test in tests]
    raw = [p for test in tests for p in test.ps]
    correct(tests)
    assert [p for test in tests for p in test.ps] == pytest.approx(list(false_discovery_control(raw)))


@pytest.fixture
def place(tmp_path):
    """A folder like results/, and one like config/sweep/"""
    for name in ('results/csv', 'results/pages', 'sweeps'):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / 'sweeps' / 'dnt.py').write_text(
        "claims = [dict(text='a wins', contrast='arch=a - arch=b', sign=-1, margin=0.04, pairs=4)]\ndiverged_loss = 4.0\n")
    (tmp_path / 'results' / 'pages' / 'page.md').write_text(
        "{{claim_table('dnt')}}\n{{table('dnt')}}\n{{difference('dnt', 'arch=a - arch=b')}}\n"
        "{{difference('dnt', 'arch=a - arch=c')}}\n{{state('dnt')}}\n")
    return tmp_path


def make(place, *arguments):
    return run_here('lab.results', f'--folder={place}/results', f'--sweeps={place}/sweeps', *arguments)


def test_a_page(place):
    """What is no claim is marked; a page before its runs says so; and a check finds what was changed"""
    page = place / 'results' / 'page.md'
    (place / 'results' / 'pages' / 'page.md').rename(place / 'page.md')
    (place / 'results' / 'pages' / 'page.md').write_text("{{claim_table('dnt')}} {{table('dnt')}} {{state('dnt')}}")
    assert make(place)[0] == 0 and all(text in page.read_text() for text in ('| not run |', '*Not run yet.*', 'no run yet'))
    (place / 'page.md').rename(place / 'results' / 'pages' / 'page.md')
    write_csv(place / 'results' / 'csv' / 'dnt.csv')
    assert make(place)[0] == 0
    text, d = page.read_text(), (LOSSES['a'] - LOSSES['b'])[1:5]
    low, high = ttest_1samp(d, 0).confidence_interval()
    cell = f'{d.mean():+.3f} [{low:+.3f}, {high:+.3f}]'.replace('-', '−')
    assert f'| a wins |  | {cell} | 4 | ' in text and text.count('supported') == 2
    assert text.count('exploratory') == 1 and f'{LOSSES["c"][1:].mean():.3f} ± ' in text
    assert make(place, '--check=True')[0] == 0
    page.write_text(text.replace('supported', 'contradicted', 1))
    assert make(place, '--check=True')[2] == f'error: {page} is not what csv/ and pages/ give: run  make results\n'


def test_runs_of_two_codes_or_data_are_never_on_a_page(place):
    path = place / 'results' / 'csv' / 'dnt.csv'
    write_csv(path)
    path.write_text(path.read_text().replace('c0de', 'beef', 1))
    assert 'has runs of several codes: beef, c0de' in make(place)[2]
    write_csv(path)
    path.write_text(path.read_text().replace('da7a', 'beef', 1))
    assert 'has runs of several data: beef, da7a' in make(place)[2]


def test_a_wrong_tag_is_one_line(place):
    (place / 'results' / 'pages' / 'page.md').write_text("{{tabel('dnt')}}")
    code, _, err = make(place)
    assert code == 1 and 'a tag is a call of difference' in err and err.count('\n') == 1


def test_the_pages_of_this_repository_are_what_their_numbers_give():
    for path, text in results.build(str(ROOT / 'results'), str(ROOT / 'config' / 'sweep')).items():
        assert open(path, encoding='utf-8').read() == text, f'{path}: run  make results'
