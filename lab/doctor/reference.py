"""What a run is compared with: the same start by clean code, and the usual start of the same architecture."""
from configurator import script_of

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
from engine.code import git
from engine.device import pick_device
from engine.health import health
from engine.keys import gpt_config
from lab.doctor.case import Case
from lab.measure.preflight import amplified, effects
from lab.runs import read_run
from model import GPT

PATIENCE = 120          # seconds for a short run; what it has logged by then counts
# keys of a short run that are not the run's own
SHORT = dict(init_from='scratch', overwrite=True, eval_only=False, eval_iters=1, log_layers=True, keep_every=0, wandb_log=False,
             always_save_checkpoint=False, measure_interval=0, compile=False, parallel='ddp', save_shards=False, shard_ranks=0,
             device='auto')
USUAL = dict(init='xavier', init_gain=1.0)          # GPT-2's matrices start smaller than this up to a width of 2500


def train_briefly(code, config, folder, cwd='', **keys):
    """Train with the code in the folder `code` for at most PATIENCE seconds, in `cwd` or in `code`. Return the run as a Case, or
    the last line that it has printed. `keys` change SHORT and the config."""
    short = {key: value for key, value in SHORT.items() if key in config}
    config = {**config, **short, **keys, 'out_dir': os.path.abspath(folder)}
    os.makedirs(folder, exist_ok=True)
    path = os.path.abspath(os.path.join(folder, 'keys.json'))
    with open(path, 'w', encoding='utf-8') as f:
        json.dump(config, f)
    script = ['-m', 'vision.train'] if script_of(config) == 'vision.train' else [os.path.join(code, 'train.py')]
    env = {key: value for key, value in os.environ.items() if key not in ('PYTHONPATH', 'RANK', 'WORLD_SIZE')}
    last = 'it took too long'
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run([sys.executable, *script, path], cwd=cwd or code, env=env, timeout=PATIENCE, text=True,
                              capture_output=True, stdin=subprocess.DEVNULL)
        last = ''.join((done.stdout + done.stderr).strip().splitlines()[-1:]).removeprefix('error: ')
    run = read_run(folder)
    return Case(folder, run['config'], run['about'], run['rows']) if run and run['rows'] else last


def unpack(commit, dataset, folder):
    """Write the files of a commit into a folder, with links to the data. Return whether there is such a commit."""
    archive = git('archive', '--format=zip', commit)
    if not archive:
        return False
    with zipfile.ZipFile(io.BytesIO(archive)) as f:
        f.extractall(folder)
    data = os.path.join(folder, 'data', dataset)
    os.makedirs(data, exist_ok=True)
    for name in os.listdir(os.path.join('data', dataset)):
        if not os.path.exists(os.path.join(data, name)):
            os.symlink(os.path.abspath(os.path.join('data', dataset, name)), os.path.join(data, name))
    return True


def add_clean(case, commit='', iters=40):
    """Give the case its `clean` case: the first `iters` iterations by the code of `commit`, by default the run's own. If the
    run's code is that commit's, one iteration of it completes the run's rows instead: per layer, or of older logs."""
    dataset, own_commit = case.config.get('dataset', ''), (case.about.get('starts') or [case.about])[0].get('commit', '')
    same = own_commit and not case.edited and not commit
    if case.rows[0]['iter'] or case.config.get('init_from', 'scratch') not in ('scratch', 'resume'):
        case.notes.append('there is no reference by clean code: the log does not begin with weights from scratch')
        return
    if not os.path.isdir(os.path.join('data', dataset)):
        case.notes.append(f'there is no reference by clean code: data/{dataset} is not here')
        return
    interval = case.config.get('log_interval', 1)
    iters = 1 if same else max(min(case.it, iters), min(case.it, 2 * interval)) + 1
    keys = dict(max_iters=iters, lr_decay_iters=case.config.get('lr_decay_iters') or case.config['max_iters'],
                eval_interval=case.config.get('eval_interval', iters))
    why = ''
    for commit in [commit] if commit else dict.fromkeys([own_commit, 'HEAD']):
        with tempfile.TemporaryDirectory() as folder:
            if not commit or not unpack(commit, dataset, folder):
                why = f'commit {commit[:10] or "of the run"} is not here'
                continue
            clean = train_briefly(folder, case.config, os.path.join(folder, 'out-clean'), **keys)
        if isinstance(clean, Case) and len(clean.table('update_norms')):
            break
        why = clean if isinstance(clean, str) else f'commit {commit[:10]} is too old to log the evidence'
    else:
        case.notes.append(f'there is no reference by clean code: {why}')
        return
    if why:
        case.notes.append(f'the reference is of {commit}, not of the run\'s commit: {why}')
    if same and not why:
        case.complete(clean.rows)
    else:
        case.clean = clean


def add_usual(case):
    """Give the case, and its clean one, their `usual` case: how this architecture starts with Xavier's initialization, by the
    code at hand."""
    if script_of(case.config) == 'vision.train':
        return
    try:
        config = gpt_config({**case.config, **USUAL, 'residual_scale': min(1.0, case.config.get('residual_scale', 1.0))})
        data, device = Tokens(case.config['dataset'], 'val', config.block_size, config.vocab_size), pick_device('auto')
    except (ValueError, KeyError, OSError) as error:
        case.notes.append(f'the start was not compared with the usual one: {error}')
        return
    torch.manual_seed(case.config.get('seed', 0))
    x, _ = data.read(data.spread(1, case.config.get('batch_size', 1))[0])
    case.usual = Case('', case.config, {}, [dict(iter=0, **health(GPT(config).to(device), x.to(device)))])
    if case.clean:
        case.clean.usual = case.usual


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

