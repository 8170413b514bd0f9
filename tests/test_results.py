"""lab/results.py: pages, verdicts and pictures from raw numbers, on numbers that are made here; and the pages of results/."""
import csv
import re

import numpy as np
import pytest
from helpers import ROOT, run_here
from scipy.stats import ttest_rel

from lab import results
from lab.statistics import Estimate
from lab.sweep_table import CELLS

SEEDS = 6
MEANS = {('s1', '1.5M', 'adamw'): 2.0, ('s1', '1.5M', 'sgdw'): 2.2, ('s5', '1.5M', 'adamw'): 1.8, ('s5', '1.5M', 'sgdw'): 1.81,
         ('s1', '6M', 'adamw'): 1.5, ('s1', '6M', 'sgdw'): 1.9, ('s5', '6M', 'adamw'): 1.4, ('s5', '6M', 'sgdw'): 1.4}
LOSSES = {row: mean + np.random.default_rng(i).normal(0, 0.02, SEEDS).round(4) for i, (row, mean) in enumerate(MEANS.items())}
PAGE = '''# A page

The gap of S1 is {{difference('dnt', 'arch=s1,tokens=6M,optim=sgdw - arch=s1,tokens=6M,optim=adamw')}}.
A row has {{loss('dnt', 'arch=s5,tokens=6M,optim=adamw')}}.

{{claim_table()}}

{{table('dnt')}}

{{table('dnt', across='optim', only='tokens=6M', best_first=True)}}

{{leaderboard('dnt')}}

![]({{curves('gap', 'dnt', 'tokens', minus='optim=adamw,sgdw')}})
![]({{curves('arch', 'dnt', 'arch', only='tokens=6M')}})
![]({{forest('forest')}})
'''
GAP = 'arch={0},tokens=6M,optim=sgdw - arch={0},tokens=6M,optim=adamw'
CLAIMS = f'''CLAIMS = [
    dict(text='S1 falls behind', short='S1', paper='DNT', said='+0.039', effect=0.039, sweep='dnt',
         contrast='{GAP.format("s1")}'),
    dict(text='DNT does not', short='DNT', paper='DNT', said='−0.014', margin=0.05, sweep='dnt', contrast='{GAP.format("s5")}'),
    dict(text='At 1.4B', short='1.4B', paper='DNT', said='+0.037', why='too large'),
]
'''


@pytest.fixture
def place(tmp_path):
    """A folder like results/"""
    for name in ('csv', 'pages'):
        (tmp_path / 'results' / name).mkdir(parents=True)
    (tmp_path / 'results' / 'pages' / 'page.md').write_text(PAGE)
    (tmp_path / 'results' / 'claims.py').write_text(CLAIMS)
    with open(tmp_path / 'results' / 'csv' / 'dnt.csv', 'w', newline='') as f:
        table = csv.DictWriter(f, ['arch', 'tokens', 'optim', 'learning_rate', 'seed', *CELLS], restval='')
        table.writeheader()
        for (arch, tokens, optim), losses in LOSSES.items():
            for rate, more in (('0.1', 0.0), ('0.2', 0.5)):
                for seed, loss in enumerate(losses + more):
                    table.writerow(dict(arch=arch, tokens=tokens, optim=optim, learning_rate=rate, seed=seed, status='done',
                                        iterations=100, parameters=1000, tokens_per_iteration=200, seconds=5,
                                        val_losses=f'0:5.5 100:{loss:.6g}', val_loss=f'{loss:.6g}', test_loss=f'{loss:.6g}'))
    return tmp_path / 'results'


def make(place, *arguments):
    return run_here('lab.results', f'--folder={place}', *arguments)


def test_a_page(place):
    """Its numbers are those of scipy, and all of its tests are corrected together"""
    assert make(place)[0] == 0
    text = (place / 'page.md').read_text()
    assert text.startswith('<!-- Made by `make results` from pages/page.md') and '{{' not in text
    gap = LOSSES['s1', '6M', 'sgdw'] - LOSSES['s1', '6M', 'adamw']
    low, high = ttest_rel(LOSSES['s1', '6M', 'sgdw'], LOSSES['s1', '6M', 'adamw']).confidence_interval(0.95)
    assert f'S1 is +{gap.mean():.3f} [+{low:.3f}, +{high:.3f}], corrected p < 0.001' in text
    assert f'A row has {LOSSES["s5", "6M", "adamw"].mean():.3f} ± ' in text
    dnt = ttest_rel(LOSSES['s5', '6M', 'sgdw'], LOSSES['s5', '6M', 'adamw']).pvalue
    first = ('| S1 falls', '| DNT does', '| At')
    claims = [line.strip('| ').split(' | ') for line in text.splitlines() if line.startswith(first)]
    ends = [[cell.strip() for cell in line][-2:] for line in claims]
    assert ends == [['supported', '20'], ['supported', '20'], ['not testable here: too large', '–']]
    assert claims[1][3].strip() == f'{dnt:.3f}'         # the largest of three tests is not changed
    best, *_, worst = ([cell.strip() for cell in line.split('|')[1:-1]] for line in text.splitlines() if 'tokens=' in line)
    assert best[0] == 'arch=s5,tokens=6M,optim=sgdw' and best[2:] == ['0.1 (edge)', '0.250', '0.2', '50']
    assert worst[0] == 'arch=s1,tokens=1.5M,optim=sgdw'
    wide = text[text.index('| arch | tokens | adamw'):].splitlines()
    cells = [[cell.split(' ± ')[0].strip() for cell in line.split('|')[1:-1]] for line in (wide[0], *wide[2:4])]
    means = {row: f'{losses.mean():.3f}' for row, losses in LOSSES.items()}
    assert cells == [['arch', 'tokens', 'adamw', 'sgdw'],
                     *([arch, '6M', *(means[arch, '6M', optim] for optim in ('adamw', 'sgdw'))] for arch in ('s5', 's1'))]
    for name in ('gap', 'arch', 'forest'):
        assert (place / 'img' / f'{name}.png').read_bytes().startswith(b'\x89PNG') and f'![](img/{name}.png)' in text


def test_a_check_finds_a_page_that_is_not_what_the_numbers_give(place):
    assert make(place)[0] == 0
    assert make(place, '--check=True')[:2] == (0, '1 pages agree with the numbers\n')
    path = place / 'page.md'
    path.write_text(path.read_text().replace('supported', 'contradicted', 1))
    before = path.read_bytes()
    code, _, err = make(place, '--check=True')
    assert code == 1 and err == f'error: {place}/page.md is not what csv/ and pages/ give: run  make results\n'
    assert path.read_bytes() == before


@pytest.mark.parametrize('text, says', [
    ("{{difference('x', 'a - b')}}", 'page.md: there is no csv/x.csv, choose among dnt'),
    ("{{loss('dnt', 'arch=s9')}}", "loss='arch=s9' names 0 rows of the table"),
    ("{{difference('dnt', 'arch=s1')}}", "contrast='arch=s1': wants as many rows with + as with -"),
    ("{{table('dnt', only='arch=s9')}}", "only='arch=s9' chooses none of the rows: arch=s1,tokens=1.5M,optim=adamw; "),
    ('{{diff(1)}}', "page.md: name 'diff' is not defined; a tag is a call of difference, loss, table"),
    ('{{table(}}', 'page.md: '), ('{{loss()}}', 'page.md: ')])
def test_a_wrong_tag_is_one_line(place, text, says):
    (place / 'pages' / 'page.md').write_text(text)
    code, _, err = make(place)
    assert code == 1 and err.startswith(f'error: {says}') and err.count('\n') == 1 and not (place / 'page.md').exists()


@pytest.mark.parametrize('claim, says', [
    ("dict(text='a')", "'a' wants contrast, paper, said, short, sweep, text"),
    ("dict(text='a', short='', paper='', said='', sweep='dnt', contrast='')", 'effect, sign or margin')])
def test_a_claim_without_a_field(place, claim, says):
    (place / 'claims.py').write_text(f'CLAIMS = [{claim}]')
    code, _, err = make(place)
    assert code == 1 and says in err and err.count('\n') == 1


@pytest.mark.parametrize('claim, low, high, p, wanted', [
    (dict(effect=0.04), 0.01, 0.09, 0.01, 'supported'), (dict(effect=-0.04), 0.01, 0.09, 0.01, 'contradicted'),
    (dict(effect=0.04), -0.02, 0.06, 0.3, 'underpowered'),      # an effect as large as the paper's is within
    (dict(effect=0.04), -0.02, 0.03, 0.3, 'contradicted'),      # and here it is excluded
    (dict(effect=-0.04), -0.03, 0.02, 0.3, 'contradicted'), (dict(effect=-0.04), -0.05, 0.02, 0.3, 'underpowered'),
    (dict(effect=0.04), 0.001, 0.05, 0.06, 'underpowered'),     # significant alone, and not among all
    (dict(sign=-1), -0.09, -0.01, 0.01, 'supported'), (dict(sign=1), -0.09, -0.01, 0.01, 'contradicted'),
    (dict(sign=1), -0.02, 0.03, 0.3, 'underpowered'), (dict(sign=1), -0.09, -0.001, 0.06, 'underpowered'),
    (dict(margin=0.05), -0.04, 0.03, 0.9, 'supported'), (dict(margin=0.05), -0.04, 0.06, 0.9, 'underpowered'),
    (dict(margin=0.05), 0.06, 0.09, 0.01, 'contradicted'), (dict(margin=0.05), -0.09, -0.06, 0.01, 'supported'),
    (dict(margin=0.05), 0.06, 0.09, 0.06, 'underpowered'), (dict(margin=0.05, effect=-0.1), -0.09, 0.04, 0.5, 'supported'),
    (dict(margin=0.05), -0.2, 0.2, 0.9, 'underpowered'), (dict(effect=0.04), *3 * [float('nan')], 'underpowered'),
    (dict(why='too large'), 0.0, 1.0, 0.5, 'not testable here')])
def test_verdicts(claim, low, high, p, wanted):
    test = results.Test(Estimate((low + high) / 2, low, high, p, 8, 0.1))
    test.p = p
    assert results.verdict(claim, test) == wanted


def test_the_pages_of_this_repository_are_what_their_numbers_give():
    pages, figures = results.build(str(ROOT / 'results'))
    for path, text in pages.items():
        assert open(path, encoding='utf-8').read() == text, f'{path}: run  make results'
        for file in re.findall(r'\(img/(\w+)\.png\)', text):
            assert (ROOT / 'results' / 'img' / f'{file}.png').exists()
    results.plt.close('all')
