"""results/: verdicts on losses that are made here, and the claims and pages of this repository."""
import math
import re
import shlex
import subprocess
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from helpers import ROOT, run_here
from scipy.stats import false_discovery_control, ttest_ind

from lab.sweep.plan import read_sweep, rows_of_file
from lab.sweep.table import Estimate, Tuning, moderate, read_csv, rows_of, runs_of
from results import claims, pages
from results.claims import Claim

NOISE = np.random.default_rng(0).normal(0, 0.02, (3, 13))
LOSSES = {arch: mean + NOISE[i] for i, (arch, mean) in enumerate((('a', 2.0), ('b', 2.1), ('c', 2.0)))}


def sweep_of(losses=LOSSES, best=0.2, rates=(0.1, 0.2, 0.4), lost=()):
    """A sweep in which seed 1 is best at the rate `best`, and the others ran there; the runs `lost`, (arch, seed), diverged"""
    runs = pd.DataFrame([
        dict(arch=arch, learning_rate=str(rate), seed=seed, status='diverged' if (arch, seed) in lost else 'done',
             parameters=1e5, **dict.fromkeys(('val_loss', 'test_loss'), loss + abs(rate - best)))
        for arch, of_seeds in losses.items() for rate in rates for seed, loss in enumerate(of_seeds, 1)
        if seed == 1 or rate == best])
    rows = rows_of(runs, split='test')
    moderate(rows)
    return SimpleNamespace(rows=rows)


def verdict(contrast, sign=-1, seeds=12, sweeps=None, **options):
    """The Verdict on one claim of the sweeps s and t"""
    sweeps = sweeps or dict(s=sweep_of(**options), t=sweep_of(**options))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, 'SEEDS', dict.fromkeys(sweeps, seeds))
        return claims.test_all(sweeps, dict(one=[Claim('x', contrast, sign)]))['one'][0]


AB = 's/arch=a - s/arch=b'


@pytest.mark.parametrize('wanted, text, options', [
    ('supported', AB, {}), ('contradicted', AB, dict(sign=1)), ('contradicted: beyond ±0.04', AB, dict(sign=0)),
    ('equal within ±0.04', 's/arch=a - s/arch=c', dict(sign=0)), ('open', 's/arch=a - s/arch=c', {}),
    ('not run', 's/arch=a - s/arch=d', {}), ('supported', 's/arch=a - t/arch=b', {}),
    ('open', 's/arch=a - s/arch=b - t/arch=a + t/arch=b', {}),
    ('not run: 12 of 13 seeds of a have ended', AB, dict(seeds=13)),
    ('not run: fewer than 3 rates of a have ended', AB, dict(rates=(0.1, 0.2))),
    ('open: the best rate of a is at the edge', AB, dict(best=0.1)),
    ('open: 1 of 12 runs of b diverged', AB, dict(lost=[('b', 5)]))])
def test_verdicts(wanted, text, options):
    assert verdict(text, **options).text == wanted


def test_equality_against_scipy():
    """Two one-sided tests are SciPy's one-sided tests of the shifted difference. Rows of two sweeps have their own variances"""
    a, b = 2.0 + NOISE[0], 2.02 + 2 * NOISE[1]
    wanted = max(ttest_ind(a[1:] + 0.04, b[1:], equal_var=False, alternative='greater').pvalue,
                 ttest_ind(a[1:] - 0.04, b[1:], equal_var=False, alternative='less').pvalue)
    found = verdict('s/arch=a - t/arch=b', 0, sweeps=dict(s=sweep_of({'a': a}), t=sweep_of({'b': b})))
    assert found.p == pytest.approx(wanted)


def test_p_values_are_corrected_within_a_family(monkeypatch):
    """A claim without runs counts as p = 1"""
    monkeypatch.setattr(claims, 'SEEDS', dict(s=12))
    made = [Claim('x', f's/arch={one} - s/arch={other}') for one, other in (('a', 'b'), ('a', 'c'), ('c', 'b'), ('a', 'd'))]
    found = claims.test_all(dict(s=sweep_of()), dict(all=made, more=made[:1] * 50))['all']
    raw = [verdict.estimate.p for verdict in found[:3]]
    assert [verdict.p for verdict in found] == pytest.approx([*false_discovery_control([*raw, 1.0])[:3], math.nan], nan_ok=True)


# ----------------------------------------------------------------------------- this repository

def test_the_pages_of_this_repository_are_what_their_numbers_give():
    if subprocess.run(['git', 'status', '--porcelain', 'results/csv'], cwd=ROOT, capture_output=True).stdout:
        pytest.skip('results/csv differs from the commit: runs are being added')
    for path, text in pages.build()[0].items():
        assert path.read_text(encoding='utf-8') == text, f'{path}: run  python results/pages.py'


def test_the_command_above_a_table_prints_its_numbers(monkeypatch, name='stable_start'):
    """Each loss of the table, and each difference of the claims below it"""
    monkeypatch.chdir(ROOT)
    text = (ROOT / 'results' / 'claims.md').read_text(encoding='utf-8')
    part = re.search(f'<!-- sweep_{name}: .*?-->\n(.*?)<!-- end -->', text, re.DOTALL)[1]
    command, _, tables = part.partition('\n\n')
    _, out, _ = run_here(*shlex.split(command)[2:])
    numbers = re.findall(r'[\d.]+ ± [\d.]+|[+−][\d.]+ \[\S+ \S+\]', tables)
    assert len(numbers) > 10 and all(number in out for number in numbers)


def test_every_claim_can_be_tested():
    """Its rows are planned with as many seeds as it says, and with one point or three rates a factor of 2 apart"""
    planned, tuning = {}, {}
    for name in claims.SEEDS:
        keys = read_sweep(ROOT / 'config' / 'sweep' / f'{name}.py')
        tuning[name] = Tuning.of(keys)
        planned |= {(name, *sorted(str(row).split(','))): row for row in rows_of_file(keys)}
    for claim in (claim for family in claims.FAMILIES.values() for claim in family):
        for sweep, _, labels in (name.partition('/') for name in re.split(' [+-] ', claim.contrast)):
            row = planned[(sweep, *sorted(labels.split(',')))]
            rates = sorted({float(point[-1]) for point in row.grid if point})        # the last key
            assert len(rates) <= 1 or len(rates) >= 3 and all(b <= 2.001 * a for a, b in zip(rates, rates[1:]))
            tuned = len(row.grid) > 1 or tuning[sweep].elsewhere
            assert sum(seed > tuned * tuning[sweep].seeds for seed in row.seeds) >= claims.SEEDS[sweep], claim


def test_the_decays_and_rates_of_the_plan_are_those_with_the_lowest_validation_loss():
    paths = [ROOT / 'results' / 'csv' / f'{name}.csv' for name in ('decay', 'brackets')]
    runs = pd.concat([runs_of(read_csv(path), path, 3.0, 0.5) for path in paths])
    runs = runs[runs.status == 'done'].sort_values('val_loss', kind='stable').drop_duplicates(['optim', 'setting'])
    tuned = {}
    exec((ROOT / 'config' / 'base' / 'tuned.py').read_text(encoding='utf-8'), tuned)
    assert {(optim, setting): values for optim, rows in tuned['_tuned'].items() for setting, values in rows.items()} == {
        (run.optim, run.setting): (float(run.weight_decay), float(run.learning_rate)) for run in runs.itertuples()}


def test_a_prediction_is_missed_once_its_runs_have_ended():
    claim = Claim('A', 'a - b', predicted='−0.05')
    for low, high, p, missed in (-0.04, 0.04, 0.9, True), (-0.06, 0.04, 0.9, False), (-0.04, 0.04, math.nan, False):
        verdict = claims.Verdict(claim, Estimate(0.0, low, high, 0.9, 8), p, 'open')
        assert ('missed' in pages.claim_table([verdict], ('predicted',))) == missed


def test_a_sentence_refuses_a_difference_of_the_other_sign():
    lead, cost = (pages.Difference(Estimate(mean, mean - 0.01, mean + 0.01, 0.01, 8)) for mean in (-0.05, 0.07))
    assert f'{lead} {lead:+.2f} {lead:<.2f} {cost:>.2f}' == '−0.050 [−0.060, −0.040] −0.05 0.05 0.07'
    for form in '{0:>.2f}', '{1:<.2f}':
        with pytest.raises(ValueError, match='reword it'):
            form.format(lead, cost)


def test_the_onset_is_where_the_score_passes_its_threshold():
    assert pages.onset_of({500: 0.01, 1000: 0.03, 1500: 0.07, 2000: 0.01}) == 1250
    assert pages.onset_of({500: 0.01, 1000: 0.04}) == 1000
    line = pd.DataFrame(dict(onset=[1.0, 2.0, 4.0, 8.0], test_loss=[1.0, 1.2, 1.6, 2.4]))
    assert pages.explained(line)[0] == pytest.approx(1)
