"""lab/sweep/claims.py and pages.py: verdicts from raw numbers that are made here, and the pages of results/."""
import csv
import math
import runpy
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import ROOT, run_here
from lab.sweep.claims import test_all
from lab.sweep.statistics import contrast, samples
from scipy.stats import false_discovery_control

from lab.sweep import pages
from lab.sweep.plan import plan, planned_rows, read_sweep, stated, words
from lab.sweep.table import CELLS, axes_of, read_runs, rows_of, samples_of

NOISE = np.random.default_rng(0).normal(0, 0.02, (3, 13))
LOSSES = {arch: mean + NOISE[i] for i, (arch, mean) in enumerate((('a', 2.0), ('b', 2.1), ('c', 2.0)))}
OTHERS = dict(enumerate(samples([LOSSES[arch][1:].tolist() for arch in 'abc'])))      # without seed 1


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


class Sweep:
    def __init__(self, path, chosen=False):
        self.rows = rows_of(read_runs(path), chosen)
        self.samples = samples_of(self.rows, 'test')


def test_of(paths, text, sign=-1, seeds=12, chosen=False, **more):
    """The Test of one claim on the csv files `paths`, {sweep: path}"""
    sweeps = {name: Sweep(path, chosen) for name, path in paths.items()}
    claim = dict(text='x', contrast=text, sign=sign, **{**(dict(margin=0.04) if sign == 0 else {}), **more})
    (test,), = test_all(dict(one=[claim]), sweeps, dict.fromkeys(sweeps, seeds)).values()
    return test


test_of.__test__ = test_all.__test__ = False


@pytest.mark.parametrize('sign, text, wanted', [
    (-1, 's/arch=a - s/arch=b', 'supported'), (1, 's/arch=a - s/arch=b', 'contradicted'),
    (0, 's/arch=a - s/arch=b', 'contradicted: beyond ±0.04'), (0, 's/arch=a - s/arch=c', 'equal within ±0.04'),
    (-1, 's/arch=a - s/arch=c', 'open'), (0, 's/arch=a - s/arch=d', 'not run'),
    (-1, 's/arch=a - t/arch=b', 'supported'), (-1, 's/arch=a - s/arch=b - t/arch=a + t/arch=b', 'open')])
def test_verdicts(tmp_path, sign, text, wanted):
    """Claims of one sweep and of two"""
    path = write_csv(tmp_path / 'x.csv')
    assert test_of(dict(s=path, t=path), text, sign).verdict() == wanted


def test_what_leaves_a_claim_open(tmp_path):
    """Too few seeds, a rate at the edge, a run that did not end, too few rates"""
    path, text = tmp_path / 'x.csv', 's/arch=a - s/arch=b'
    assert test_of(dict(s=write_csv(path)), text, seeds=13).verdict() == 'open: 12 of 13 seeds of arch=a have ended'
    assert test_of(dict(s=write_csv(path, best=0.4)), text).verdict() == 'open: the best rate of arch=a is at the edge'
    assert test_of(dict(s=write_csv(path, lost=[('b', 5)])), text).verdict() == 'open: 1 of 12 runs of arch=b did not end'
    lines = Path(write_csv(path)).read_text().splitlines(keepends=True)
    path.write_text(''.join(line for line in lines if not line.startswith('b,0.4,')))
    assert test_of(dict(s=str(path)), text).verdict() == 'open: fewer than 3 rates of arch=b have ended'


def test_seed_1_chooses_and_never_counts(tmp_path):
    """However low its loss is; neither where it chose the only rate, in another sweep; all other seeds count"""
    low = {arch: np.array([loss - (arch == 'a') * (i == 0) for i, loss in enumerate(losses)]) for arch, losses in LOSSES.items()}
    wanted = contrast({0: 1, 1: -1}, OTHERS)
    for losses in (LOSSES, low):
        path = tmp_path / 'x.csv'
        e = test_of(dict(s=write_csv(path, losses=losses)), 's/arch=a - s/arch=b').estimate
        assert e.n == 12 and (e.mean, e.p) == pytest.approx((wanted.mean, wanted.p), rel=1e-3)
        lines = path.read_text().splitlines(keepends=True)
        path.write_text(lines[0] + ''.join(line for line in lines if ',0.2,' in line))
        e = test_of(dict(s=str(path)), 's/arch=a - s/arch=b', chosen=True).estimate
        assert e.n == 12 and e.mean == pytest.approx(wanted.mean, rel=1e-3)
        assert test_of(dict(s=str(path)), 's/arch=a - s/arch=b').estimate.n == 13


def test_p_values_are_corrected_within_a_family(tmp_path):
    sweeps = dict(s=Sweep(write_csv(tmp_path / 'x.csv')))
    pairs = [('a', 'b'), ('a', 'c'), ('c', 'b')]
    claims = [dict(text='x', contrast=f's/arch={one} - s/arch={other}', sign=-1) for one, other in pairs]
    raw = [test.estimate.p for test in test_all(dict(all=claims), sweeps, dict(s=12))['all']]
    for families in (dict(all=claims), dict(all=claims, more=claims[:1] * 50)):
        assert [test.p for test in test_all(families, sweeps, dict(s=12))['all']] == pytest.approx(
            list(false_discovery_control(raw)))
    later = [*claims, dict(text='x', contrast='s/arch=a - s/arch=d', sign=1)]      # not run yet: it counts as p = 1
    assert [test.p for test in test_all(dict(all=later), sweeps, dict(s=12))['all']] == pytest.approx(
        [*false_discovery_control([*raw, 1.0])[:3], math.nan], nan_ok=True)


@pytest.fixture
def place(tmp_path):
    """A folder like results/, one like config/sweep/, and claims"""
    for name in ('results/csv', 'results/pages', 'sweeps'):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / 'claims.py').write_text(
        "families = dict(f=[dict(text='a wins', contrast='dnt/arch=a - dnt/arch=b', sign=-1, "
        "shares={'c': 'dnt/arch=c - dnt/arch=b'})])\nseeds = dict(dnt=12)\n")
    (tmp_path / 'sweeps' / 'dnt.py').write_text('grids = []\ndiverged_loss = 4.0\n')
    (tmp_path / 'results' / 'pages' / 'page.md').write_text(
        "{{claim_table('f')}}\n{{share_table('f')}}\n{{table('dnt')}}\n"
        "{{difference('dnt', 'arch=a - arch=c')}}\n{{state('dnt')}}\n")
    return tmp_path


def make(place, *arguments):
    return run_here('lab.results', f'--folder={place}/results', f'--sweeps={place}/sweeps', f'--claims={place}/claims.py',
                    *arguments)


def test_a_page(place):
    """What is no claim is marked; a page before its runs says so; and a check finds what was changed"""
    page = place / 'results' / 'page.md'
    (place / 'results' / 'pages' / 'page.md').rename(place / 'page.md')
    (place / 'results' / 'pages' / 'page.md').write_text("{{table('dnt')}} {{state('dnt')}} {{not_run()}}")
    assert make(place)[0] == 0 and all(text in page.read_text() for text in ('*Not run yet.*', 'no run yet', '- a wins'))
    (place / 'page.md').rename(place / 'results' / 'pages' / 'page.md')
    write_csv(place / 'results' / 'csv' / 'dnt.csv')
    assert make(place)[0] == 0
    text, e = page.read_text(), contrast({0: 1, 1: -1}, OTHERS)
    cell = f'{e.mean:+.3f} [{e.low:+.3f}, {e.high:+.3f}]'.replace('-', '−')
    assert f'| a wins |  | {cell} | 12 | < 0.001 | 🟢 supported |' in text and '| a wins | c | ' in text
    assert text.count('exploratory') == 1 and f'{LOSSES["c"][1:].mean():.3f} ± ' in text
    assert make(place, '--check=True')[0] == 0
    page.write_text(text.replace('supported', 'contradicted', 1))
    assert make(place, '--check=True')[2] == f'error: {page} does not match csv/ and pages/: run  make results\n'


def test_a_screen(place):
    """It is not on the page before its runs. Then the lowest loss comes first, and a row without a loss last"""
    page, csv = place / 'results' / 'page.md', place / 'results' / 'csv' / 'dnt.csv'
    (place / 'results' / 'pages' / 'page.md').write_text("All.\n{{if dnt}}\n{{screen('dnt', 'arch=b')}}\n{{end}}\n")
    assert make(place)[0] == 0 and page.read_text().endswith('\nAll.\n')
    write_csv(csv, lost=[('a', seed) for seed in range(1, 14)])
    assert make(place)[0] == 0
    rows = [line.strip('| ').split(' | ') for line in page.read_text().splitlines() if line.startswith('| ')][2:]
    losses = {arch: LOSSES[arch][1:].mean() for arch in 'bc'}
    assert [row[0] for row in rows] == [*sorted(losses, key=losses.get), 'a']
    assert {row[0]: row[3] for row in rows[:2]} == {arch: f'{losses[arch] - losses["b"]:+.3f}'.replace('-', '−') for arch in 'bc'}
    assert len(rows[2]) < 4 or not rows[2][3]


def test_runs_of_two_codes_or_data_are_never_on_a_page(place):
    path = place / 'results' / 'csv' / 'dnt.csv'
    write_csv(path)
    path.write_text(path.read_text().replace('c0de', 'beef', 1))
    assert 'has runs of several codes (beef, c0de)' in make(place)[2]
    write_csv(path)
    path.write_text(path.read_text().replace('da7a', 'beef', 1))
    assert 'has runs of several data sets (beef, da7a)' in make(place)[2]


# ----------------------------------------------------------------------------- this repository

def test_the_pages_of_this_repository_are_what_their_numbers_give():
    if subprocess.run(['git', 'status', '--porcelain', 'results/csv', 'results/track'], cwd=ROOT, capture_output=True).stdout:
        pytest.skip('results/ differs from the commit: runs are being added')
    built, _ = pages.build(str(ROOT / 'results'), str(ROOT / 'config' / 'sweep'), str(ROOT / 'config' / 'claims.py'))
    for path, text in built.items():
        assert open(path, encoding='utf-8').read() == text, f'{path}: run  make results'


def test_the_page_once_all_runs_have_ended(tmp_path):
    """It shows each claim and each picture, and lists nothing as not run."""
    shutil.copytree(ROOT / 'results', tmp_path / 'results')
    for name in 'base', 'tolerance', 'size', 'batch', 'text', 'tokens', 'figure5_warm', 'track_screen':
        keys = read_sweep(ROOT / 'config' / 'sweep' / f'{name}.py')
        runs = plan(keys['grids'], words('arguments', keys['arguments']), {}, keys['seeds'], keys['script'])
        table = pd.DataFrame([run['labels'] | dict(seconds=1, status='done', val_losses='0:5.5') for run in runs])
        loss = 1.5 + 0.01 * np.random.default_rng(0).normal(size=len(runs))
        if 'learning_rate' in table:                    # the middle rate of each row is the best one
            rate, row = np.log(table.learning_rate.astype(float)), [table[axis] for axis in axes_of(table)]
            loss += abs(rate - rate.groupby(row).transform('median'))
        table = table.assign(val_loss=loss, test_loss=loss, code='c', data='d', parameters=2e5)
        table.reindex(columns=[*table, *(name for name in CELLS if name not in table)]).to_csv(
            tmp_path / 'results' / 'csv' / f'{name}.csv', index=False)
    built, pictures = pages.build(str(tmp_path / 'results'), str(ROOT / 'config' / 'sweep'), str(ROOT / 'config' / 'claims.py'))
    page = built[str(tmp_path / 'results' / 'README.md')]
    claims = runpy.run_path(str(ROOT / 'config' / 'claims.py'))['families']['dnt']
    assert len(pictures) == 5 and '{{' not in page
    assert page.partition('without a verdict yet:\n\n')[2].startswith(f'- {claims[-1]["text"]}\n\n')      # its rows are in no csv
    assert all(f'| {claim["text"]} | ' in page for claim in claims[:-1])


def test_every_claim_can_be_tested():
    """Its rows are in the plans of their sweeps, with as many seeds as it says, and with one rate or three a factor of 2 apart"""
    file, rows = runpy.run_path(str(ROOT / 'config' / 'claims.py')), {}
    families, seeds = file['families'], file['seeds']
    for name in seeds:
        keys = read_sweep(ROOT / 'config' / 'sweep' / f'{name}.py')
        planned = planned_rows(plan(keys['grids'], words('arguments', keys['arguments']), {}, keys['seeds'], keys['script']), 0)
        rows |= {f'{name}/{row}': row for row in planned}

    def names(text):
        return [word for part in text.split(' - ') for word in part.split(' + ')]

    def sorted_labels(name):
        sweep, _, labels = name.partition('/')
        return sweep, tuple(sorted(labels.split(',')))

    known = {sorted_labels(name): row for name, row in rows.items()}
    for claim in (claim for family in families.values() for claim in family if 'track_screen' not in claim['contrast']):
        assert {'text', 'contrast', 'sign'} <= claim.keys() <= {'text', 'contrast', 'sign', 'margin', 'paper', 'shares'}
        assert claim['sign'] in (-1, 0, 1) and ('margin' in claim) == (claim['sign'] == 0)
        for text in (claim['contrast'], *claim.get('shares', {}).values()):
            for name in names(text):
                row, sweep = known[sorted_labels(name)], name.partition('/')[0]
                rates = [float(rate) for rate in row.grid if rate]
                assert len(rates) <= 1 or len(rates) >= 3 and all(b <= 2.001 * a for a, b in zip(rates, rates[1:]))
                number = len({run['labels']['seed'] for run in row.runs()})
                chosen = len(rates) > 1 or stated(ROOT / 'config' / 'sweep' / f'{sweep}.py', '_seed_1_chose')
                assert number - bool(chosen) >= seeds[sweep], name


def test_the_decays_and_rates_of_the_plan_are_those_with_the_lowest_validation_loss():
    best = {}
    for name in 'decay', 'brackets':
        for run in read_runs(ROOT / 'results' / 'csv' / f'{name}.csv', 3.0, 0.5).to_dict('records'):
            key = run['optim'], run['setting']
            if run['status'] == 'done' and run['val_loss'] < best.get(key, dict(val_loss=math.inf))['val_loss']:
                best[key] = run
    tuned = {}
    exec((ROOT / 'config' / 'base' / 'tuned.py').read_text(encoding='utf-8'), dict(
        include=lambda path: None, __file__='config/sweep/x.py'), tuned)
    assert {(optim, setting): values for optim, rows in tuned['_tuned'].items() for setting, values in rows.items()} == {
        key: (float(run['weight_decay']), float(run['learning_rate'])) for key, run in best.items()}
