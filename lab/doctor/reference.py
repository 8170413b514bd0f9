"""What a run is compared with: the same start by clean code, and the usual start of the same architecture."""
from configurator import ROOT, TRAIN, script_of

import io
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from contextlib import suppress

import torch

from data.tokens import Tokens
from engine.code import code_hashes, git
from engine.errors import read_json
from engine.keys import gpt_config
from lab.doctor.case import Case
from lab.measure.preflight import amplified, effects
from lab.runs import read_run
from model import GPT

PATIENCE = 300          # seconds for a short run; what it has logged by then counts
ITERS = 40              # of the run by clean code
# keys of a short run that are not the run's own
SHORT = dict(init_from='scratch', overwrite=True, eval_only=False, eval_iters=1, log_layers=True, keep_every=0, wandb_log=False,
             always_save_checkpoint=False, measure_interval=0, compile=False, parallel='ddp', save_shards=False, shard_ranks=0,
             device='auto')


def train_briefly(code, config, folder, replayed=(), **keys):
    """Train here with the code in the folder `code` for at most PATIENCE seconds. Return the run as a Case, or the last line that
    it has printed. `keys` change SHORT and the config. replayed: a checkpoint and a file for the numbers of replay.py."""
    short = {key: value for key, value in SHORT.items() if key in config}
    config = {**config, **short, **keys, 'out_dir': os.path.abspath(folder)}
    os.makedirs(folder, exist_ok=True)
    path = os.path.abspath(os.path.join(folder, 'keys.json'))
    with open(path, 'w', encoding='utf-8') as f:
        json.dump(config, f)
    script = [os.path.join(code, 'train.py')]
    if script_of(config) == 'vision.train':
        script = ['-c', f'import sys, runpy; sys.path[0] = {code!r}; runpy.run_module("vision.train", None, "__main__", True)']
    replay = [os.path.join(ROOT, 'lab', 'doctor', 'replay.py')] if replayed else []
    env = {**{key: value for key, value in os.environ.items() if key not in ('RANK', 'WORLD_SIZE')}, 'PYTHONPATH': code}
    last = 'it took too long'
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run([sys.executable, *replay, *script, path, *replayed], env=env, timeout=PATIENCE, text=True,
                              capture_output=True, stdin=subprocess.DEVNULL)
        last = ''.join((done.stdout + done.stderr).strip().splitlines()[-1:]).removeprefix('error: ')
    run = read_run(folder)
    return Case(folder, run['config'], run['about'], run['rows']) if run and run['rows'] else last


def unpack(commit, folder, patch=None):
    """Write the files of a commit into a folder, and apply a patch to them. Return whether that was possible."""
    archive = commit and git('archive', '--format=zip', commit)
    if not archive:
        return False
    with zipfile.ZipFile(io.BytesIO(archive)) as f:
        f.extractall(folder)
    return not patch or not subprocess.run(['git', 'apply', '--whitespace=nowarn', os.path.abspath(patch)], cwd=folder,
                                           capture_output=True).returncode


def add_replay(case):
    """Replay the run's first iterations and its checkpoint, by the code at hand if it is the run's, else by its commit with its
    code.patch. That also completes the first rows of the log."""
    if script_of(case.config) != 'train.py' or case.rows[0]['iter'] or case.config.get('init_from') not in ('scratch', 'resume'):
        return
    with tempfile.TemporaryDirectory() as folder:
        code, patch = ROOT, os.path.join(case.folder, 'code.patch')
        if case.about.get('code') != code_hashes(TRAIN):
            code = os.path.join(folder, 'code')
            if not unpack(case.about.get('commit'), code, patch if case.edited else None):
                case.notes.append('the run was not replayed: its commit or its code.patch is not here')
                return
        numbers = os.path.join(folder, 'numbers.json')
        first = train_briefly(code, case.config, os.path.join(folder, 'out'), max_iters=3, eval_interval=3, **keys_of(case),
                              replayed=(os.path.abspath(os.path.join(case.folder, 'ckpt.pt')), numbers))
        case.replayed = read_json(numbers, '') or {}
        if case.replayed and not isinstance(first, str):
            case.complete(first.rows)
            case.usual = Case('', case.config, {}, [dict(iter=0, **case.replayed['usual'])])
        else:
            case.notes.append(f'the run was not replayed: {first}')


def keys_of(case):
    """Return the keys that keep the schedule of a run that ends sooner."""
    return dict(lr_decay_iters=case.config.get('lr_decay_iters') or case.config['max_iters'])


def add_clean(case, commit=''):
    """Give the case its `clean` case: the first iterations by the code of `commit`, by default the run's own without its edit."""
    if not case.edited and not commit:
        return
    if case.rows[0]['iter'] or case.config.get('init_from', 'scratch') not in ('scratch', 'resume'):
        case.notes.append('there is no reference by clean code: the log does not begin with weights from scratch')
        return
    interval = case.config.get('log_interval', 1)
    iters = max(min(case.it, ITERS), min(case.it, 2 * interval)) + 1
    with tempfile.TemporaryDirectory() as folder:
        commit = commit or case.about.get('commit', '')
        clean = f'commit {commit[:10]} is not here'
        if unpack(commit, folder):
            numbers = os.path.join(folder, 'numbers.json')
            clean = train_briefly(folder, case.config, os.path.join(folder, 'out-clean'), max_iters=iters, **keys_of(case),
                                  replayed=('', numbers) if script_of(case.config) == 'train.py' else ())
        if isinstance(clean, str) or not len(clean.table('update_norms')):
            why = clean if isinstance(clean, str) else f'commit {commit[:10]} is too old to log the evidence'
            case.notes.append(f'there is no reference by clean code: {why}')
        else:
            clean.sizes, clean.choices, clean.is_sgd = case.sizes, case.choices, case.is_sgd
            clean.replayed, clean.usual, case.clean = read_json(numbers, '') or {}, case.usual, clean


def exponent(case, effect, cause):
    """Return the exponent with which a quantity of this architecture, by the code at hand, responds to a cause, both as in
    lab.measure's preflight; None if it cannot be told."""
    with suppress(ValueError, KeyError, OSError, AttributeError):
        config = gpt_config(case.config)
        data = Tokens(case.config['dataset'], 'train', config.block_size, config.vocab_size)
        torch.manual_seed(case.config.get('seed', 0))
        model, batch = GPT(config).double(), data.read(data.spread(1, 1)[0])
        before = effects(model, batch, 0)[effect]
        with amplified(model, cause, 10.0):
            return float(torch.tensor(effects(model, batch, 0)[effect] / before).log10())

