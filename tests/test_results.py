"""lab/results.py: pages, verdicts and pictures from raw numbers, on numbers that are made here; and the pages of results/."""
import csv
import re

import numpy as np
import pytest
from helpers import ROOT, run_here
from scipy.stats import false_discovery_control, ttest_rel

from lab import results
from lab.sweep_table import CELLS

SEEDS = 6
MEANS = {('s1', '1.5M', 'adamw'): 2.0, ('s1', '1.5M', 'sgdw'): 2.2, ('s5', '1.5M', 'adamw'): 1.8, ('s5', '1.5M', 'sgdw'): 1.81,
         ('s1', '6M', 'adamw'): 1.5, ('s1', '6M', 'sgdw'): 1.9, ('s5', '6M', 'adamw'): 1.4, ('s5', '6M', 'sgdw'): 1.4}
LOSSES = {row: mean + np.random.default_rng(i).normal(0, 0.02, SEEDS).round(4) for i, (row, mean) in enumerate(MEANS.items())}
PAGE = '''# A page

The gap of S1 is {{difference('dnt', 'arch=s1,tokens=6M,optim=sgdw - arch=s1,tokens=6M,optim=adamw')}}.
Again: {{difference('dnt', 'arch=s1,tokens=6M,optim=sgdw - arch=s1,tokens=6M,optim=adamw', p=False)}}.
A row has {{loss('dnt', 'arch=s5,tokens=6M,optim=adamw')}}.

{{claim_table()}}

{{table('dnt')}}

{{table('dnt', across='optim', only='tokens=6M', best_first=True)}}

{{table('dnt', only='arch=s1,tokens=1.5M|6M,optim=adamw')}}

{{leaderboard('dnt')}}

![]({{curves('gap', 'dnt', 'tokens', minus='optim=adamw,sgdw')}})
![]({{curves('arch', 'dnt', 'arch', only='tokens=6M')}})
![]({{forest('forest')}})
'''
GAP = 'arch={0},tokens=6M,optim=sgdw - arch={0},tokens=6M,optim=adamw'
CLAIMS = f'''CLAIMS = [
    dict(text='S1 falls behind', short='S1', paper='DNT', said='+0.039', effect=0.039, sweep='dnt',
         contrast='{GAP.format("s1")}'),
    dict(text='DNT gains', short='DNT', paper='DNT', said='−0.014', sign=-1, sweep='dnt', contrast='{GAP.format("s5")}'),
    dict(text='At 1.4B', short='1.4B', paper='LN', said='+0.037', why='too large'),
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


def leaderboard(text):
    """The cells of the lines of the leaderboard in a page"""
    table = text[text.index('| arch | tokens | optim | loss'):].split('\n\n')[0]
    return [[cell.strip() for cell in line.split('|')[1:-1]] for line in table.splitlines()[2:]]


def test_a_page(place):
    """Its numbers are those of scipy"""
    assert make(place)[0] == 0
    text = (place / 'page.md').read_text()
    assert text.startswith('<!-- Made by `make results` from results/pages/page.md') and '{{' not in text
    gap = LOSSES['s1', '6M', 'sgdw'] - LOSSES['s1', '6M', 'adamw']
    low, high = ttest_rel(LOSSES['s1', '6M', 'sgdw'], LOSSES['s1', '6M', 'adamw']).confidence_interval(0.95)
    assert f'S1 is +{gap.mean():.3f} [+{low:.3f}, +{high:.3f}] (edge), corrected p < 0.001' in text
    assert f'Again: +{gap.mean():.3f} [+{low:.3f}, +{high:.3f}] (edge).' in text
    assert f'A row has {LOSSES["s5", "6M", "adamw"].mean():.3f} ± ' in text
    dnt = ttest_rel(LOSSES['s5', '6M', 'sgdw'], LOSSES['s5', '6M', 'adamw']).pvalue
    claims = [line.strip('| ').split(' | ') for line in text.splitlines() if re.match(r'\| (DNT|LN) ', line)]
    assert [line[1].strip() for line in claims] == ['S1 falls behind', 'DNT gains', 'At 1.4B']
    ends = [[cell.strip() for cell in line][-2:] for line in claims]
    assert ends == [['supported', '20'], ['underpowered', '20'], ['not testable here: too large', '–']]
    assert claims[1][4].strip() == str(SEEDS) and claims[1][6].strip() == f'{dnt:.4f}'      # the larger of two is not changed
    best, *_, worst = leaderboard(text)
    assert best[:3] == ['s5', '6M', 'mSGDW'] and best[4:] == ['0.1 (edge)', '0.250', '0.2', '5']
    assert worst[:3] == ['s1', '1.5M', 'mSGDW']
    wide = text[text.index('| arch | tokens | AdamW'):].splitlines()
    cells = [[cell.split(' ± ')[0].strip() for cell in line.split('|')[1:-1]] for line in (wide[0], *wide[2:4])]
    means = {row: f'{losses.mean():.3f}' for row, losses in LOSSES.items()}
    assert cells == [['arch', 'tokens', 'AdamW', 'mSGDW'],
                     *([arch, '6M', *(means[arch, '6M', optim] for optim in ('adamw', 'sgdw'))] for arch in ('s5', 's1'))]
    chosen = text[text.rindex('| arch | tokens | optim | test loss |'):].split('\n\n')[0].splitlines()[2:]
    assert [line.replace(' ', '').split('|')[1:4] for line in chosen] == [['s1', '1.5M', 'AdamW'], ['s1', '6M', 'AdamW']]
    for name in ('gap', 'arch', 'forest'):
        assert (place / 'img' / f'{name}.png').read_bytes().startswith(b'\x89PNG') and f'![](img/{name}.png)' in text


def test_a_rate_that_was_stopped_is_none_that_ended(place):
    """Nobody knows what it would have done"""
    path = place / 'csv' / 'dnt.csv'
    rows = list(csv.DictReader(path.open(newline='')))
    for row in rows:
        if row['learning_rate'] == '0.2' and row['optim'] == 'sgdw':
            row.update(status='stopped', val_loss='', test_loss='')
    with path.open('w', newline='') as f:
        table = csv.DictWriter(f, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    assert make(place)[0] == 0
    assert {line[2]: line[-2] for line in leaderboard((place / 'page.md').read_text())} == {'mSGDW': '0.1', 'AdamW': '0.2'}


def test_a_check_finds_a_page_that_is_not_what_the_numbers_give(place):
    assert make(place)[0] == 0
    assert make(place, '--check=True')[:2] == (0, '1 pages agree with the numbers\n')
    path = place / 'page.md'
    path.write_text(path.read_text().replace('supported', 'contradicted', 1))
    before = path.read_bytes()
    code, _, err = make(place, '--check=True')
    assert code == 1 and err == f'error: {place}/page.md is not what csv/ and pages/ give: run  make results\n'
    assert path.read_bytes() == before


def test_front_md_is_a_section_of_the_readme_beside_the_folder(place):
    """What stands around it stays; and without its place, nothing is written"""
    readme = place.parent / 'README.md'
    (place / 'pages' / 'front.md').write_text("The loss: {{loss('dnt', 'arch=s5,tokens=6M,optim=adamw')}}\n")
    readme.write_text('# A title\n')
    code, _, err = make(place)
    assert code == 1 and err.startswith(f'error: {readme} has no place for front.md: it wants the lines <!-- Made by')
    assert readme.read_text() == '# A title\n' and not (place / 'page.md').exists()
    made, end = results.MADE.format('front.md'), results.END
    readme.write_text(f'# A title\n{made}old{end}## More\n')
    assert make(place)[0] == 0
    loss = LOSSES['s5', '6M', 'adamw']
    section = f'The loss: {loss.mean():.3f} ± {loss.std(ddof=1) / SEEDS ** 0.5:.3f}\n'
    assert readme.read_text() == f'# A title\n{made}{section}{end}## More\n' and not (place / 'front.md').exists()
    assert make(place, '--check=True')[0] == 0


@pytest.mark.parametrize('text, says', [
    ("{{difference('x', 'a - b')}}", 'page.md: there is no csv/x.csv, choose among dnt'),
    ("{{loss('dnt', 'arch=s9')}}", "loss='arch=s9' names 0 rows of the table"),
    ("{{difference('dnt', 'arch=s1')}}", "contrast='arch=s1': wants as many rows with + as with -"),
    ("{{table('dnt', only='arch=s9')}}", "only='arch=s9' chooses none of the rows: arch=s1,tokens=1.5M,optim=adamw; "),
    ("{{table('dnt', across='arc')}}", "csv/dnt.csv has no axis 'arc', choose among arch, tokens, optim"),
    ("{{curves('c', 'dnt', 'arch', minus='optim=adamw,sgd')}}", "c: there is nothing to draw, minus='optim=adamw,sgd'"),
    ('{{diff(1)}}', "page.md: name 'diff' is not defined; a tag is a call of difference, loss, table"),
    ('{{table(}}', 'page.md: '), ('{{loss()}}', 'page.md: ')])
def test_a_wrong_tag_is_one_line(place, text, says):
    (place / 'pages' / 'page.md').write_text(text)
    code, _, err = make(place)
    assert code == 1 and err.startswith(f'error: {says}') and err.count('\n') == 1 and not (place / 'page.md').exists()


@pytest.mark.parametrize('claim, says', [
    ("dict(text='a', sweep='dnt', sign=1)", "'a' lacks paper, short, said, contrast\n"),
    ("dict(text='a', short='', paper='', said='', sweep='dnt', contrast='', effect=0.0)", "'a' lacks effect or sign\n")])
def test_a_claim_without_a_field(place, claim, says):
    (place / 'claims.py').write_text(f'CLAIMS = [{claim}]')
    code, _, err = make(place)
    assert code == 1 and says in err and err.count('\n') == 1


def sweep_of(tmp_path, statuses):
    """A Sweep of rows a and b, {(arch, rate, seed): status}; without one, a run is done. b is 0.1 above a."""
    with open(tmp_path / 'one.csv', 'w', newline='') as f:
        table = csv.DictWriter(f, ['arch', 'learning_rate', 'seed', *CELLS], restval='')
        table.writeheader()
        for (arch, rate, seed), status in statuses.items():
            loss = 1 + 0.1 * (arch == 'b') + 0.01 * np.sin(99 * seed + (arch == 'b')) + float(rate)
            ended = dict(val_loss=loss, test_loss=loss) if status == 'done' else {}
            table.writerow(dict(arch=arch, learning_rate=rate, seed=seed, status=status, seconds=1, iterations=1, parameters=1,
                                tokens_per_iteration=1, val_losses=f'0:5 1:{loss}', **ended))
    return results.Sweep(str(tmp_path / 'one.csv'))


SEVEN = {(arch, '0.1', seed): 'done' for arch in 'ab' for seed in range(1, 8)}


@pytest.mark.parametrize('claim, p, wanted', [
    (dict(effect=0.04), 0.01, 'supported'), (dict(effect=-0.04), 0.01, 'contradicted'), (dict(effect=9.0), 0.01, 'supported'),
    (dict(sign=1), 0.01, 'supported'), (dict(sign=-1), 0.01, 'contradicted'), (dict(sign=-1), 0.051, 'underpowered'),
    (dict(effect=0.04), float('nan'), 'underpowered'), (dict(why='too large'), 0.01, 'not testable here: too large')])
def test_verdicts(claim, p, wanted, tmp_path):
    """The direction and the corrected p decide, and not the size"""
    test = results.Test(sweep_of(tmp_path, SEVEN), 'arch=b - arch=a')
    test.p = p
    assert test.estimate.mean == pytest.approx(0.1, abs=0.02) and results.verdict(claim, test) == wanted


def test_runs_that_did_not_end_leave_no_verdict(tmp_path):
    """What is left of a row may be its luckier seeds"""
    test = results.Test(sweep_of(tmp_path, SEVEN | {('b', '0.1', 2): 'diverged', ('b', '0.1', 5): 'missing'}), 'arch=b - arch=a')
    test.p = 0.001
    assert results.verdict(dict(sign=1), test) == 'not testable here: 2 of 14 runs did not end'
    assert test.estimate.n == 5 and test.cell().endswith(', 2 of 14 runs did not end')


@pytest.mark.parametrize('seeds, pairs', [(8, 7), (5, 4), (4, 4), (3, 3)])
def test_the_seed_that_chose_a_rate_does_not_count(seeds, pairs, tmp_path):
    """But it does where fewer than 4 others are left"""
    runs = {(arch, '0.1', seed): 'done' for arch in 'ab' for seed in range(1, seeds + 1)}
    runs |= {(arch, '0.2', 1): 'stopped' for arch in 'ab'}
    test = results.Test(sweep_of(tmp_path, runs), 'arch=b - arch=a')
    assert test.estimate.n == pairs
    a, b = ([1 + 0.1 * i + 0.01 * np.sin(99 * seed + i) for seed in range(seeds - pairs + 1, seeds + 1)] for i in (0, 1))
    assert test.estimate.p == pytest.approx(ttest_rel(b, a).pvalue)


def test_a_test_loss_that_some_runs_lack(tmp_path):
    path = tmp_path / 'one.csv'
    sweep_of(tmp_path, SEVEN)
    lines = path.read_text().splitlines()
    at = lines[0].split(',').index('test_loss')
    cells = lines[3].split(',')
    path.write_text('\n'.join([*lines[:3], ','.join([*cells[:at], '', *cells[at + 1:]]), *lines[4:], '']))
    with pytest.raises(ValueError, match='some runs that are done have a test_loss and others have none'):
        results.Sweep(str(path))


def test_what_is_corrected_together(place):
    """The claims of a paper, and the other tests of a sweep, each once however many pages show it"""
    (place / 'pages' / 'more.md').write_text(2 * (
        "{{difference('dnt', 'arch=s5,tokens=6M,optim=sgdw - arch=s5,tokens=6M,optim=adamw')}}\n"
        "{{difference('dnt', 'arch=s5,tokens=1.5M,optim=sgdw - arch=s5,tokens=1.5M,optim=adamw')}}\n"
        "{{difference('dnt', 'arch=s5,tokens=1.5M,optim=adamw - arch=s5,tokens=6M,optim=sgdw')}}\n"))
    assert make(place)[0] == 0
    ps = [ttest_rel(LOSSES[row], LOSSES[other]).pvalue for row, other in (
        (('s5', '6M', 'sgdw'), ('s5', '6M', 'adamw')), (('s1', '6M', 'sgdw'), ('s1', '6M', 'adamw')),
        (('s5', '1.5M', 'sgdw'), ('s5', '1.5M', 'adamw')), (('s5', '1.5M', 'adamw'), ('s5', '6M', 'sgdw')))]
    claim, others = false_discovery_control(ps[:2])[0], false_discovery_control(ps[2:])
    wanted = ['< 0.001' if p < 0.001 else f'{p:.4f}' for p in (claim, *others)]
    assert re.findall(r'corrected p (< \S+|\S+)', (place / 'more.md').read_text()) == 2 * wanted
    line, = (line for line in (place / 'page.md').read_text().splitlines() if '| DNT gains' in line)
    assert line.split(' | ')[6].strip() == wanted[0]


def test_the_pages_of_this_repository_are_what_their_numbers_give():
    pages, figures = results.build(str(ROOT / 'results'))
    for path, text in pages.items():
        assert open(path, encoding='utf-8').read() == text, f'{path}: run  make results'
        for file in re.findall(r'\(img/(\w+)\.png\)', text):
            assert (ROOT / 'results' / 'img' / f'{file}.png').exists()
    results.plt.close('all')
