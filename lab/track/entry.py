"""Divisions and entries of the track: an entry's folder, the code that trains it, its seeds and its runs."""
from configurator import ROOT, parse_args

import ast
import functools
import hashlib
import itertools
import json
import os
import shlex
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from statistics import median

from engine.code import code_hashes, git
from engine.device import device_name, pick_device
from engine.errors import read_rows
from lab.results_run import checkout_of, run_module
from lab.sweep.plan import script_defaults, stated
from lab.sweep.table import LR, TUNING_SEED, labels_of, name_of, read_csv, read_runs, rows_of, write_text
from model import GPTConfig

DECAYS = [0.03, 0.1, 0.3, 1.0]          # of the matrices; every entry tries these
EXTEND = 4                              # rates that tuning may add on each side of the division's
SEEDS, SEEDS_OF_PRE = 8, 24             # confirming seeds; every entry is compared with `pre`
SIZES = {'block_size', 'vocab_size', 'n_layer', 'n_head', 'n_kv_head', 'n_embd', 'dropout', 'mup_base_width',
         'mup_base_depth', 'mup_base_head_dim'}         # fields of GPTConfig that are not free
LOGGED = ('iter', 'loss', 'lr', 'grad_norm', 'train_loss', 'val_loss', 'test_loss', 'start', 'changes', 'diverged')
THIN = 100                              # iterations between the training losses that a thinned log keeps
TODO = 'TODO'                           # marks what an entry's author fills in
README = f"""# {{name}}

**Idea.** {TODO}: one sentence.

**Source.** {TODO}: a paper's address, or "ours".

{TODO}: a paragraph: what it changes, why that may help, and what came out.
"""
CONFIG = """# {name}: how this entry differs from config/track/{division}.py. lab.track wrote this file; do not edit it.
_commit = {commit!r}      # of main; its code, with code.patch if there is one, trains the runs
_date = {date!r}
{keys}"""


class Division:
    """A division's config file, and what its names with an underscore state."""

    def __init__(self, name):
        files = {path.stem: str(path) for path in sorted(Path(ROOT, 'config', 'track').glob('*.py'))}
        if name not in files:
            raise ValueError(f'division={name!r}: choose one of {", ".join(files)}')
        self.name, self.file, self.folder = name, files[name], os.path.join(ROOT, 'results', 'track', name)
        self.rates, self.data, self.noise, self.tolerance, self.planned = (
            stated(self.file, what) for what in ('_rates', '_data', '_noise', '_tolerance', '_planned'))

    @functools.cached_property
    def config(self):
        return parse_args([self.file], script_defaults('train.py'))

    def check_free(self, keys):
        """Raise ValueError for a key that entries may not change."""
        for key in keys:
            if key in script_defaults('train.py').keys() - {f.name for f in fields(GPTConfig)} | SIZES:
                raise ValueError(f'{key} is not free: entries keep its value in config/track/{self.name}.py')

    def changed(self, arguments):
        """Return {key: value} that the arguments change in the division's config. Raise ValueError for one that is not free."""
        values = parse_args([self.file, *arguments], self.config)
        changed = {key: value for key, value in values.items() if value != self.config[key]}
        self.check_free(changed)
        return changed

    def entry(self, name):
        return Entry(os.path.join(self.folder, name))

    def entries(self):
        """Return all entries that have runs."""
        return [Entry(path.parent) for path in sorted(Path(self.folder).glob('*/runs.csv'))]


class Entry:
    """The folder of an entry: README.md, config.py, code.patch, runs.csv, logs/, measured.json. Its runs train in `out`."""

    def __init__(self, folder):
        self.folder = os.path.relpath(folder, ROOT)
        parts = self.folder.split(os.sep)
        if parts[:2] != ['results', 'track'] or len(parts) != 4:
            raise ValueError(f'{folder}: wants the folder of an entry, results/track/DIVISION/NAME')
        self.division, self.name = Division(parts[2]), parts[3]
        self.wanted = SEEDS_OF_PRE if self.name == 'pre' else SEEDS
        self.out = os.path.join(ROOT, 'out-track', *parts[2:])
        self.csv, self.config, self.patch = map(self.path, ('runs.csv', 'config.py', 'code.patch'))

    def path(self, name):
        return os.path.join(ROOT, self.folder, name)

    def bytes_of(self, name):
        """Return a file's content, or b'' if there is no such file."""
        return Path(self.path(name)).read_bytes() if os.path.exists(self.path(name)) else b''

    # ------------------------------------------------------------------------- its keys and its code

    def stated(self):
        """Return {name: value} from config.py, which holds literals and no code."""
        try:
            lines = ast.parse(self.bytes_of('config.py').decode()).body     # bytes could name another encoding than read_config's
            return {node.targets[0].id: ast.literal_eval(node.value) for node in lines}
        except (AttributeError, ValueError, SyntaxError) as error:
            raise ValueError('config.py holds more than lab.track writes, lines of  name = value') from error

    def keys(self):
        return {key: value for key, value in self.stated().items() if not key.startswith('_')}

    def create(self, arguments):
        """Write config.py, README.md, and a code.patch if this working tree's model.py differs from main's."""
        keys, base, code = self.division.changed(arguments), merge_base('HEAD'), [*code_hashes(os.path.join(ROOT, 'train.py'))]
        edited = {*git('diff', '--name-only', base, '--', *code).decode().split(),
                  *git('ls-files', '--others', '--', *code).decode().split()}
        if others := sorted(edited - {'model.py'}):
            raise ValueError(f'{others[0]} differs from that of main: an entry may edit model.py alone')
        os.makedirs(self.path(''))
        if edited:
            Path(self.patch).write_bytes(git('diff', base, '--', 'model.py'))
        write_text(self.path('README.md'), README.format(name=self.name))
        write_text(self.config, CONFIG.format(name=self.name, division=self.division.name, commit=base,
                                              date=time.strftime('%Y-%m-%d'),
                                              keys=''.join(f'{key} = {value!r}\n' for key, value in keys.items())))

    def checkout(self):
        """Return a checkout of the entry's code, with the data of here."""
        return checkout_of(self.stated()['_commit'], self.patch if os.path.exists(self.patch) else '')

    def run(self, *arguments):
        """Return what Python prints in a checkout of the entry's code."""
        done = subprocess.run([sys.executable, *arguments], cwd=self.checkout(), capture_output=True, text=True)
        if done.returncode:
            raise ValueError(f'its code does not run: {done.stderr.strip().splitlines()[-1]}')
        return done.stdout

    def probe(self, runs=()):
        """Return what the entry's code says of it and of these runs, see probe.py."""
        text = Path(__file__).with_name('probe.py').read_text(encoding='utf-8')
        places = [[run['weight_decay'], run[LR], str(run['seed'])] for run in runs]
        return json.loads(self.run('-c', text, self.division.file, self.config, json.dumps(places)).splitlines()[-1])

    # ------------------------------------------------------------------------- its seeds

    def frozen_at(self):
        """Return the commit of main, by first parents, that first contains this entry, or ''."""
        if git('rev-parse', '--is-shallow-repository').strip() == b'true':
            raise ValueError('this clone is shallow and lacks the commits that freeze entries: run  git fetch --unshallow')
        added = git('log', '--first-parent', '-m', '--diff-filter=A', '--reverse', '--format=%H', main_branch(), '--',
                    f'{self.folder}/config.py')
        return (added.decode().split() or [''])[0]

    def seeds(self, commit):
        """Return the confirming seeds if this commit froze the entry, and none for '': nobody can choose them by an edit or an
        amended commit."""
        digests = (hashlib.sha256(f'{commit} {self.folder} {i}'.encode()).hexdigest() for i in itertools.count())
        seeds = dict.fromkeys(int(digest[:7], 16) for digest in itertools.islice(digests, 2 * SEEDS_OF_PRE))
        return [seed for seed in seeds if seed != TUNING_SEED][:self.wanted if commit else 0]

    def check_frozen(self, commit):
        """Raise ValueError unless config.py and code.patch are those of the commit. runs.csv must have all rows of the commit and
        of main today; other rows may only be confirming runs."""
        for name in 'config.py', 'code.patch':
            if git('show', f'{commit}:{self.folder}/{name}') != self.bytes_of(name):
                raise ValueError(f'{name} has changed since commit {commit[:12]} of main froze it: make a new entry')
        seeds, rows = {str(seed).encode() for seed in self.seeds(commit)}, {*self.bytes_of('runs.csv').splitlines()}
        frozen, today = ({*git('show', f'{at}:{self.folder}/runs.csv').splitlines()} for at in (commit, main_branch()))
        if not frozen | today <= rows or not {row.split(b',')[2] for row in rows - frozen} <= seeds:
            raise ValueError(f'runs.csv lacks rows that main has, or has new ones beside the seeds of commit {commit[:12]}')

    # ------------------------------------------------------------------------- its runs

    def runs(self):
        return read_runs(self.csv)

    def log_of(self, run):
        return self.path(os.path.join('logs', f'{name_of(labels_of(run))}.jsonl'))

    def train(self, seeds, jobs):
        """Train the missing tuning runs, and those with these confirming seeds. Keep thinned logs."""
        best = chosen(self.runs()).labels['weight_decay'] if seeds else ''
        grids = [dict(weight_decay=[decay], learning_rate=self.division.rates,
                      seeds=[TUNING_SEED, *(seeds if str(decay) == best else [])]) for decay in DECAYS]
        sweep([self.division.file, self.config], grids, self.out, self.csv, self.checkout(), jobs)
        os.makedirs(self.path('logs'), exist_ok=True)
        for run in self.runs().to_dict('records'):
            rows = read_rows(os.path.join(self.out, name_of(labels_of(run)), 'log.jsonl'))
            kept = [row for row in rows if row['iter'] % THIN == 0 or 'loss' not in row]
            if kept:                                    # not on a machine that trained none of the earlier runs
                write_text(self.log_of(run), ''.join(
                    json.dumps({key: row[key] for key in LOGGED if key in row}) + '\n' for row in kept))

    def speed(self):
        """Return the tokens per second of a short training."""
        out = f'{self.out}-time'
        self.run('train.py', self.division.file, self.config, '--max_iters=60', '--eval_iters=1', '--log_interval=10',
                 '--overwrite=True', f'--out_dir={out}')
        return median(row['tokens_per_s'] for row in read_rows(os.path.join(out, 'log.jsonl')) if 'tokens_per_s' in row)

    def measure(self, rounds=5):
        """Write measured.json: FLOPs per token, and the time of an iteration as a multiple of pre's. The two take turns."""
        found, pre = dict(flops_per_token=self.probe()['flops_per_token'], time_ratio=1.0), self.division.entry('pre')
        if self.name != 'pre' and os.path.exists(pre.config):
            ratio = median(pre.speed() / self.speed() for _ in range(rounds))
            found |= dict(time_ratio=ratio, machine=device_name(pick_device('auto')))
        write_text(self.path('measured.json'), json.dumps(found, indent=1) + '\n')


# ----------------------------------------------------------------------------- git and sweeps

def main_branch():
    """Return the main of the remote `upstream`, which a fork's clone needs, or that of origin, or that of here."""
    for ref in 'refs/remotes/upstream/main', 'refs/remotes/origin/main', 'refs/heads/main':
        if git('rev-parse', '--verify', '--quiet', ref):
            return ref
    raise ValueError('there is no branch main, whose commits freeze entries')


def merge_base(commit):
    """Return the last commit of main that this commit builds on, or '' for an unknown commit."""
    return git('merge-base', commit, main_branch()).decode().strip()


def chosen(runs):
    """Return lab.sweep's Row of the decay with the lowest validation loss of the tuning seed."""
    def lowest(row):
        return row.tuning.val_loss[row.tuning.status == 'done'].min()

    rows = [row for row in rows_of(runs) if 'done' in set(row.tuning.status)]
    if not rows:
        raise ValueError('no tuning run has ended')
    return min(rows, key=lowest)


def sweep(first, grids, out, csv, checkout, jobs, extend=EXTEND):
    """Train the runs of grids that the csv lacks, each with arguments that start with `first`, by a checkout's code."""
    os.makedirs(out, exist_ok=True)
    first = [arg if arg.startswith('--') else os.path.abspath(arg) for arg in first]
    keys = dict(arguments=shlex.join(first), grids=grids, out_dir=out, extend=extend, jobs=jobs, threads=1)
    write_text(os.path.join(out, 'sweep.py'), ''.join(f'{key} = {value!r}\n' for key, value in keys.items()))
    code = run_module('lab.sweep', os.path.join(out, 'sweep.py'), f'--csv={csv}', cwd=checkout)
    if code < 0 or code == 130:
        sys.exit(130)
    if 'failed' in set(read_csv(csv).status):
        raise ValueError(f'runs have failed: output.txt of each in {os.path.relpath(out)} says why; the same command tries again')
    if code:                                            # lab.sweep has said why
        sys.exit(code)
