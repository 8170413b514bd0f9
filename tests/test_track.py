"""lab/track: what a check refuses, which seeds confirm an entry, scores and their order, the gate of a screen."""
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import ROOT, run_python

import engine.code
import lab.results_run
import lab.track.__main__ as command
from data.tokens import write_tokens
from lab.sweep.table import CELLS, LR, read_csv, write_csv, write_text
from lab.track import check, entry, table
from model import GPT, GPTConfig

FILE = """# A division of seconds
include('config/track/laptop.py')
dataset = 'tiny'
n_layer, n_head, n_embd, block_size, vocab_size = 2, 1, 16, 8, 13
batch_size, max_iters, warmup_iters, eval_interval, eval_iters = 4, 20, 2, 10, 2
_rates = [4e-3, 8e-3, 16e-3]
_data = {data!r}
_noise = (0.01, 50)
_tolerance = {{'same': 1e-3, 'other': 0.1}}
"""
NORM = """class Halved(RMSNorm):
    def normalize(self, x, gain):
        return super().normalize(x, gain / 2)


NORMS = {'halved': Halved, """
ARGUMENTS = ['config/arch/s1.py', '--norm=halved']


def git(place, *arguments):
    command = ['git', '-c', 'user.name=a', '-c', 'user.email=a@b', '-C', str(place), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(place):
    git(place, 'add', '-A')
    git(place, 'commit', '-qm', 'x')
    return git(place, 'rev-parse', 'HEAD')


def make_repository(place):
    """This repository at a first commit, with a division `tiny`"""
    for name in git(ROOT, 'ls-files', '-co', '--exclude-standard').splitlines():
        if not name.startswith(('tests/', 'results/', 'docs/', 'vision/')) and (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, place / name)
    walk = np.cumsum(np.random.default_rng(0).integers(0, 3, 3000)) % 13
    (place / 'data' / 'tiny').mkdir()
    (place / 'data' / 'tiny' / 'prepare.py').touch()
    write_tokens(place / 'data' / 'tiny', dict(train=[walk[:2000]], val=[walk[2000:2500]], test=[walk[2500:]]), 13, 'bytes')
    data = json.loads((place / 'data' / 'tiny' / 'meta.json').read_text())['fingerprint']
    (place / 'config' / 'track' / 'tiny.py').write_text(FILE.format(data=data))
    git(place, 'init', '-q', '-b', 'main')
    commit(place)


def edit(path, old, new):
    text = Path(path).read_text()
    assert old in text
    Path(path).write_text(text.replace(old, new))


def write_runs(one, seeds=(), loss=1.5, best=0.008):
    """Rows and logs of tuning runs, best at decay 0.1 and this rate, and of confirming runs at 0.008"""
    places = [(str(decay), rate, 1) for decay in entry.DECAYS for rate in ('0.004', '0.008', '0.016')]
    places += [('0.1', '0.008', seed) for seed in seeds]
    rng, rows = np.random.default_rng(0), []
    os.makedirs(one.path('logs'), exist_ok=True)
    for decay, rate, seed in places:
        off = abs(math.log2(float(rate) / best)) + abs(math.log10(float(decay) / 0.1))
        end = round(loss + off / 8 + rng.normal(0, 0.01), 4)
        row = dict(weight_decay=decay, learning_rate=rate, seed=str(seed), status='done', iterations='20', val_loss=str(end),
                   tokens_per_iteration='32', val_losses=f'0:2.5 10:2 20:{end}', test_loss=str(end), seconds='1',
                   data=one.division.data, code='c0de', parameters='1000')
        rows.append(row)
        log = [dict(iter=0, val_loss=2.5), dict(iter=10, val_loss=2.0), dict(iter=20, val_loss=end, test_loss=end)]
        Path(one.log_of(row)).write_text(''.join(json.dumps(line) + '\n' for line in log))
    write_csv(one.csv, pd.DataFrame(rows).reindex(columns=['weight_decay', 'learning_rate', 'seed', *CELLS], fill_value=''))


def state_code(one):
    """Give the runs the code, keys and parameters that the entry's code has."""
    rows = read_csv(one.csv)
    found = one.probe(rows.to_dict('records'))
    rows['code'], rows['keys'], rows['parameters'] = found['code'], found['keys'], str(found['parameters'])
    write_csv(one.csv, rows)


@pytest.fixture(scope='module')
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp('track')
    make_repository(place)
    with pytest.MonkeyPatch.context() as patch:
        for module in (engine.code, lab.results_run, entry, check):
            patch.setattr(module, 'ROOT', str(place))
        patch.chdir(place)
        yield place


@pytest.fixture(scope='module')
def whole(place):
    """An entry with an edit of model.py, frozen by a merge, whose confirming seeds have run"""
    one = entry.Entry('results/track/tiny/halved')
    edit(place / 'model.py', 'NORMS = {', NORM)
    one.create(ARGUMENTS)
    git(place, 'checkout', 'model.py')
    Path(one.path('README.md')).write_text('An idea.\n')
    write_runs(one)
    state_code(one)
    git(place, 'checkout', '-qb', 'mine')
    commit(place)
    git(place, 'checkout', '-q', 'main')
    git(place, 'merge', '-q', '--no-ff', '-m', 'merged', 'mine')
    write_runs(one, one.seeds(one.frozen_at()))
    state_code(one)
    return one


@pytest.fixture
def one(whole, tmp_path):
    """That entry, put back afterwards"""
    shutil.copytree(whole.path(''), tmp_path / 'kept')
    yield whole
    shutil.rmtree(whole.path(''))
    shutil.copytree(tmp_path / 'kept', whole.path(''))


def change(one, query, **cells):
    """Change cells of the rows for which a query holds."""
    rows = read_csv(one.csv)
    rows.loc[rows.query(query).index, [*cells]] = [*cells.values()]
    write_csv(one.csv, rows)


def drop(one, query):
    rows = read_csv(one.csv)
    write_csv(one.csv, rows.drop(rows.query(query).index))


def refused(one):
    with pytest.raises(ValueError) as error:
        check.verify(one)
    assert '\n' not in str(error.value)
    return str(error.value)


# ----------------------------------------------------------------------------- what a check refuses

def test_an_entry_that_keeps_the_rules(one, place):
    """Its code is a commit of main with its patch, which leaves the model.py of here alone"""
    assert check.verify(one) and 'Halved' in one.bytes_of('code.patch').decode()
    assert one.keys() == dict(norm='halved', norm_eps=1e-8, init='xavier', emb_std=0.0, init_gain=1.0, fused_qkv_init=True)
    assert 'Halved' not in (place / 'model.py').read_text()


FIRST = 'seed == seed[12]'              # the first confirming run


def other_seed(one):
    os.rename(log_of_first(one), one.log_of(dict(weight_decay='0.1', learning_rate='0.008', seed='7')))
    change(one, FIRST, seed='7')


def log_of_first(one):
    return one.log_of(read_csv(one.csv).iloc[12].to_dict())


def cut(path):
    """Leave out the last line of a file."""
    path = Path(path)
    path.write_text(''.join(path.read_text().splitlines(keepends=True)[:-1]))


def add(one, line):
    Path(one.config).write_text(Path(one.config).read_text() + line + '\n')


def more_parameters(one):
    add(one, 'd_ff = 200')
    state_code(one)


def edit_first(one, cell, logged):
    """Change the test loss of the first confirming run, in its row and in its log."""
    log = Path(log_of_first(one))
    log.write_text(re.sub(r', "test_loss": [\d.]+', logged, log.read_text()))
    change(one, FIRST, test_loss=cell)


def late_rate(one):
    """Add a tuning run behind the freeze, with another spelling of its seed."""
    late = read_csv(one.csv).query('weight_decay == "0.1" and learning_rate == "0.016"')
    os.rename(one.log_of(late.iloc[0]), one.log_of({**late.iloc[0], LR: '0.032'}))
    write_csv(one.csv, pd.concat([read_csv(one.csv), late.assign(learning_rate='0.032', seed='01')]))


def lost_log(one):
    """State that a run diverged, without its log."""
    place = dict(weight_decay='1.0', learning_rate='0.016', seed='1')
    cells = dict.fromkeys(('val_losses', 'val_loss', 'test_loss'), '')
    change(one, 'weight_decay == "1.0" and learning_rate == "0.016"', status='diverged', iterations='-1', **cells)
    os.remove(one.log_of(place))


def other_column(one):
    """Split the runs by an axis of one's own."""
    text = read_csv(one.csv).assign(note='').to_csv(index=False)
    Path(one.csv).write_text(text)


def other_rates(one):
    """Tune between the rates of the division."""
    rows = read_csv(one.csv)
    for row in rows.to_dict('records'):
        os.rename(one.log_of(row), one.log_of({**row, LR: f'{1.25 * float(row[LR]):g}'}))
    write_csv(one.csv, rows.assign(learning_rate=[f'{1.25 * float(rate):g}' for rate in rows[LR]]))


AFTER = {
    'a loss': (lambda one: change(one, FIRST, test_loss='1.2'), 'has other losses than its row'),
    'no loss': (lambda one: edit_first(one, '', ''), 'has other losses than its row'),
    'an infinite loss': (lambda one: edit_first(one, '-inf', ', "test_loss": -Infinity'), 'has other losses than its row'),
    'FLOPs': (lambda one: write_text(one.path('measured.json'), '{"flops_per_token": 9}'), 'measured.json has other FLOPs'),
    'a seed left out': (lambda one: drop(one, FIRST), 'its confirming seeds are not those of the commit'),
    'a seed of ours': (other_seed, 'or has new ones beside the seeds of commit'),
    'more tokens': (lambda one: change(one, FIRST, iterations='40'), 'has 40 iterations of 32 tokens, its division 20 of 32'),
    'a log that ends elsewhere': (lambda one: cut(log_of_first(one)), 'ends elsewhere'),
    'a row of other code': (lambda one: change(one, FIRST, code='beef'), 'has runs of several codes'),
    'a tuning row': (lambda one: change(one, 'weight_decay == "0.3"', seconds='2'), 'runs.csv lacks rows that main has'),
    'a tuning row left out': (lambda one: drop(one, 'weight_decay == "0.3" and learning_rate == "0.016"'),
                              'runs.csv lacks rows that main has'),
    'a late tuning row': (late_rate, 'or has new ones beside the seeds of commit'),
    'a key': (lambda one: add(one, 'qk_norm = True'), 'config.py has changed since commit'),
    'a patch': (lambda one: os.remove(one.patch), 'code.patch has changed since commit'),
    'a README to fill in': (lambda one: Path(one.path('README.md')).write_text('TODO'), 'README.md still says TODO')}
BEFORE = {
    'a rate not bracketed': (lambda one: drop(one, 'learning_rate == "0.016"'), 'lacks one of the rates'),
    'a run without a log': (lost_log, 'ends elsewhere'),
    'rates off the grid': (other_rates, 'lacks one of the rates'),
    'another column': (other_column, 'runs.csv has other columns'),
    'a best rate at the edge': (lambda one: write_runs(one, best=0.016), 'best rate 0.016 is not bracketed'),
    'a decay left out': (lambda one: drop(one, 'weight_decay == "1.0"'), 'it lacks tuning runs at one of the decays'),
    'other data': (lambda one: change(one, 'seed == "1"', data='beef'), 'has the data beef, its division'),
    'more parameters': (more_parameters, 'differ by more than 5% from'),
    'a key beside the free ones': (lambda one: add(one, 'max_iters = 40'), 'max_iters is not free'),
    'such a key in hiding': (lambda one: add(one, '_x = beta2 = 0.99'), 'beta2 is not free'),
    'code in config.py': (lambda one: add(one, 'import os'), 'config.py holds more than'),
    'code in hiding': (lambda one: edit(one.config, '# halved', '# coding: hz\n# ~\nimport os\n#'), 'config.py holds more than'),
    'an edit that is not in code.patch': (lambda one: change(one, 'seed == "1"', code='beef'), 'have the code beef; commit'),
    'a patch of another file': (lambda one: edit(one.patch, 'model.py', 'optim.py'), 'code.patch edits more than model.py'),
    'a patch that nobody reads': (lambda one: edit(one.patch, '+NORMS', '+# long' * 9999 + '\n+NORMS'), 'has more than 20 KB'),
    'a commit that is not of main': (lambda one: edit(one.config, "_commit = '", "_commit = 'ab"), 'is not on main'),
    'confirming runs': (lambda one: write_runs(one, [5]), 'that first contains it (none does)')}


@pytest.mark.parametrize('case', AFTER)
def test_what_a_check_refuses_after_the_freeze(one, case):
    tamper, fault = AFTER[case]
    tamper(one)
    assert fault in refused(one)


@pytest.fixture
def tuned(one, monkeypatch):
    """The entry before main contains it"""
    monkeypatch.setattr(entry.Entry, 'frozen_at', lambda self: '')
    drop(one, 'seed != "1"')
    return one


@pytest.mark.parametrize('case', BEFORE)
def test_what_a_check_refuses_before_the_freeze(tuned, case):
    tamper, fault = BEFORE[case]
    tamper(tuned)
    assert fault in refused(tuned)


def test_a_tuned_entry_keeps_the_rules(tuned):
    assert not check.verify(tuned)


class Leaky(GPT):
    """Each position reads the mean over its pair"""

    def hidden(self, idx, *more):
        x = super().hidden(idx, *more)
        return x + x.unflatten(1, (-1, 2)).mean(2).repeat_interleave(2, dim=1)


class Batched(GPT):
    def hidden(self, idx, *more):
        x = super().hidden(idx, *more)
        return x - x.mean(0)


class Answering(GPT):
    """The head knows the targets"""

    def output(self, x, targets=None):
        known = 0 if targets is None else torch.nn.functional.one_hot(targets, self.config.vocab_size).float()
        return super().output(x + known @ self.wte.weight, targets)


class Flattering(GPT):
    def forward(self, idx, targets=None):
        logits, loss = super().forward(idx, targets)
        return logits, 0.9 * loss


class Another(GPT):
    def forward(self, idx, targets=None):
        self.aux['z'] = self.wte.weight.square().mean()
        return super().forward(idx, targets)


LEAK = 'its logits depend on targets, later tokens or other samples'
LOSS = 'its loss is not the cross-entropy of its logits alone'


@pytest.mark.parametrize('Model, faults', [
    (GPT, []), (Leaky, [LEAK]), (Batched, [LEAK]), (Answering, [LEAK]), (Flattering, [LOSS]), (Another, [LOSS])])
def test_the_code_may_not_see_the_future_or_change_the_loss(Model, faults):
    text, found = Path(check.__file__).with_name('probe.py').read_text(), {}
    exec(text.replace('main(*sys.argv[1:])', ''), found)
    model = Model(GPTConfig(n_layer=2, n_head=2, n_embd=16, block_size=8, vocab_size=11, branch_gain='rezero'))
    assert [*found['faults'](model)] == faults
    linear = 2 * (12 * 16 ** 2 + 2 * 8 * 16) * 2 + 2 * 16 * 11      # QKVO and FFN, attention; two blocks, and the head
    assert found['flops_per_token'](GPT(model.config)) == 3 * linear


@pytest.mark.parametrize('off, number, holds', [
    (5e-4, 1, True), (5e-4, 8, False), (2e-3, 1, False), (math.nan, 8, False), (3e-4, 9, True)])
def test_a_repetition(one, monkeypatch, off, number, holds):
    """Each loss may be 0.001 off here, and the mean of eight 0.001/√8"""
    def sweep(first, grids, out, csv, *more):
        rows = read_csv(one.csv).set_index('seed').loc[[str(seed) for seed in grids[0]['seeds']]].reset_index()
        os.makedirs(out, exist_ok=True)
        write_csv(csv, rows.assign(test_loss=rows.test_loss.astype(float) + off).drop(columns=['weight_decay', LR]))

    monkeypatch.setattr(check, 'sweep', sweep)
    if holds:
        assert check.repeat_runs(one, number).startswith('seeds ')
    else:
        with pytest.raises(ValueError, match='the tolerance is 0.001, and 0.00'):
            check.repeat_runs(one, number)


# ----------------------------------------------------------------------------- seeds

def test_a_commit_of_main_gives_the_seeds(whole, place):
    """The merge, not the author's commit; by SHA-256; and no other entry has the same"""
    frozen = whole.frozen_at()
    assert frozen == git(place, 'rev-parse', 'main') != git(place, 'rev-parse', 'mine')
    digests = [hashlib.sha256(f'{frozen} results/track/tiny/halved {i}'.encode()).hexdigest()[:7] for i in range(8)]
    assert whole.seeds(frozen) == [int(digest, 16) for digest in digests] and 1 not in whole.seeds(frozen)
    pre = whole.division.entry('pre')
    assert len({*pre.seeds(frozen)} - {*whole.seeds(frozen)}) == 24 and not {*whole.seeds(frozen)} & {*whole.seeds('0' * 40)}


def test_what_an_entry_may_not_be_made_of(place, monkeypatch):
    one = entry.Entry('results/track/tiny/other')
    with pytest.raises(ValueError, match='batch_size is not free'):
        one.create(['config/arch/s1.py', '--batch_size=8'])
    (place / 'optim.py').write_text((place / 'optim.py').read_text() + '\n')
    with pytest.raises(ValueError, match='optim.py differs from that of main'):
        one.create([])
    git(place, 'checkout', 'optim.py')
    with pytest.raises(ValueError, match='wants the folder of an entry'):
        entry.Entry('results/csv')
    with pytest.raises(ValueError, match="division='x': choose one of gpu, laptop, tiny"):
        entry.Division('x')


# ----------------------------------------------------------------------------- scores

def test_shrunk_estimates():
    """Towards the mean, not at all if the noise is small, all the way if it explains the spread; fewer seeds go further"""
    means = [1.0, 1.1, 1.3]
    assert table.shrink(means, [1e-9] * 3) == pytest.approx(means)
    assert table.shrink(means, [1.0] * 3) == pytest.approx([np.mean(means)] * 3)
    v = 0.01                                            # here τ² is the variance of the means minus v
    tau2 = np.var(means, ddof=1) - v
    assert table.shrink(means, [v] * 3) == pytest.approx(np.mean(means) + tau2 / (tau2 + v) * (means - np.mean(means)))
    few, many = (abs(estimate - 1.3) for estimate in (table.shrink(means, [v, v, variance])[2] for variance in (2 * v, v / 2)))
    assert few > many and table.shrink([1.5], [v]) == [1.5]


def test_the_pooled_standard_deviation():
    groups = np.random.default_rng(0).normal(0, 0.02, (3, 8)) + np.arange(3)[:, None]
    sd, df = table.pooled(groups.tolist())
    assert (sd, df) == (pytest.approx(math.sqrt(groups.var(axis=1, ddof=1).mean())), 21)
    assert table.pooled(groups.tolist(), (sd, 7)) == (pytest.approx(sd), 28)


def test_the_table(place):
    """The best shrunk difference from pre comes first, an entry without all of its seeds last. The interval by hand"""
    shutil.copy(place / 'config' / 'track' / 'tiny.py', place / 'config' / 'track' / 'ranked.py')
    division, losses = entry.Division('ranked'), {}
    for name, loss in ('pre', 1.5), ('better', 1.4), ('worse', 1.6), ('open', 1.3):
        one = division.entry(name)
        one.create([])
        write_runs(one, one.seeds('c0ffee') if name != 'open' else [5], loss)
        write_text(one.path('measured.json'), json.dumps(dict(flops_per_token=100 * loss, time_ratio=loss)))
        losses[name] = read_csv(one.csv).query('seed != "1"').test_loss.astype(float)
    lines, sd, df = table.ranking(division)
    assert [re.search(r'\[(\w+)\]', line['entry'])[1] for line in lines] == ['better', 'pre', 'worse', 'open']
    better, pre, worse, unfinished = lines
    squares = sum(((losses[name] - losses[name].mean()) ** 2).sum() for name in ('pre', 'better', 'worse'))
    assert df == 50 + 23 + 7 + 7 and sd == pytest.approx(math.sqrt((50 * 0.01 ** 2 + squares) / df))
    off, half = losses['better'].mean() - losses['pre'].mean(), 1.959964 * sd * math.sqrt(1 / 8 + 1 / 24)
    assert better['test loss − pre'] == f'{off:+.3f}'.replace('-', '−')
    assert better['95% interval'] == f'[{off - half:+.3f}, {off + half:+.3f}]'.replace('-', '−')
    assert better['sd of seeds'] == f"{losses['better'].std():.3f}" and unfinished['sd of seeds'] == ''
    assert (better['FLOPs / pre'], worse['time / pre'], better['decay'], better['rate']) == ('0.93', '1.60', '0.1', '0.008')
    assert unfinished['test loss − pre'] == 'open: 7 seeds left' and pre['shrunk'] == '0'
    os.remove(division.file)


@pytest.mark.parametrize('loss, says', [(1.4, 'better than pre: it passes'), (1.49, 'better than pre: it does not pass')])
def test_a_screen(place, monkeypatch, capsys, loss, says):
    """Without pre's rows it is trained too; the gate is 2√2 times the standard deviation of a loss, here 0.028"""
    def sweep(first, grids, out, csv, *more, **keys):
        rates, best = grids[0]['learning_rate'], 1.5 if len(first) == 1 else loss
        rows = [dict(learning_rate=str(rate), seed='1', status='done', val_loss=str(best + off), val_losses='0:2', seconds='1')
                for rate, off in zip(rates, (0.1, 0, 0.1))]
        os.makedirs(out, exist_ok=True)
        write_csv(csv, pd.DataFrame(rows).reindex(columns=['learning_rate', 'seed', *CELLS], fill_value=''))

    monkeypatch.setattr(command, 'sweep', sweep)
    monkeypatch.setattr(command, 'ROOT', str(place))
    command.compare_screen(entry.Division('tiny'), ['config/arch/s1.py'])
    assert f'difference {loss - 1.5:+.4f}, {says} the gate, -0.0283' in capsys.readouterr().out


# ----------------------------------------------------------------------------- with trained runs

@pytest.mark.long
def test_an_entry_from_an_edit_to_a_row(tmp_path):
    """Tuning, a merge, confirming seeds, and a check that repeats a run; then a tampered key"""
    place = tmp_path / 'clone'
    make_repository(place)
    edit(place / 'model.py', 'NORMS = {', NORM)

    def track(*arguments):
        code, out, err = run_python('-m', 'lab.track', *arguments, cwd=place)
        assert code == 0, out + err
        return out

    folder = 'results/track/tiny/halved'
    assert 'commit this folder and merge it into main' in track('--division=tiny', '--new=halved', *ARGUMENTS)
    git(place, 'checkout', 'model.py')
    edit(place / folder / 'README.md', 'TODO', 'Done')
    commit(place)
    out = track('--division=tiny', '--new=halved')
    assert 'this working tree has other code' in out and f'--check={folder}' in out
    assert f'{folder} keeps the rules; seeds ' in track(f'--check={folder}', '--repeat=2')
    edit(place / folder / 'config.py', "'halved'", "'rmsnorm'")
    code, out, err = run_python('-m', 'lab.track', f'--check={folder}', cwd=place)
    assert code == 1 and err.startswith(f'error: {folder}: config.py has changed since') and err.count('\n') == 1
