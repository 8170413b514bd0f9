"""What a run is compared with: short runs of its keys by its own code and by clean code."""
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
RUN_VISION = 'import runpy, sys; sys.path[0] = {!r}; runpy.run_module("vision.train", None, "__main__", True)'


def train_briefly(code, config, checkpoint='', **keys):
    """Train here, with the code in the folder `code` and with keys that change SHORT and the config. Return the run as a Case,
    with the numbers of replay.py, also of this checkpoint; or the last line that it has printed."""
    with tempfile.TemporaryDirectory() as folder:
        short = {key: value for key, value in SHORT.items() if key in config}
        path, numbers = os.path.join(folder, 'keys.json'), os.path.join(folder, 'numbers.json')
        with open(path, 'w', encoding='utf-8') as f:
            json.dump({**config, **short, **keys, 'out_dir': folder}, f)
        script = [os.path.join(ROOT, 'lab', 'doctor', 'replay.py'), os.path.join(code, 'train.py'), path, checkpoint, numbers]
        if script_of(config) == 'vision.train':
            script = ['-c', RUN_VISION.format(code), path]
        env = {**{key: value for key, value in os.environ.items() if key not in ('RANK', 'WORLD_SIZE')}, 'PYTHONPATH': code}
        last = 'it took too long'
        with suppress(subprocess.TimeoutExpired):
            done = subprocess.run([sys.executable, *script], env=env, timeout=PATIENCE, text=True, capture_output=True,
                                  stdin=subprocess.DEVNULL)
            last = ''.join((done.stdout + done.stderr).strip().splitlines()[-1:]).removeprefix('error: ')
        run = read_run(folder)
        if not run or not run['rows']:
            return last
        case = Case(folder, run['config'], run['about'], run['rows'])
        case.read_checkpoint()
        case.replayed = read_json(numbers, '') or {}
        if case.replayed:
            case.usual = Case('', config, {}, [dict(iter=0, **case.replayed['usual'])])
        return case


def unpack(commit, folder, patch=''):
    """Write the files of a commit into a folder, and apply a patch to them. Return whether that was possible."""
    archive = commit and git('archive', '--format=zip', commit)
    if not archive:
        return False
    with zipfile.ZipFile(io.BytesIO(archive)) as f:
        f.extractall(folder)
    return not patch or not subprocess.run(['git', 'apply', '--whitespace=nowarn', os.path.abspath(patch)], cwd=folder,
                                           capture_output=True).returncode


def compare(case, reference=''):
    """Complete the case by a replay of its start and its checkpoint by the run's own code: the code at hand, or else its commit
    with its code.patch. If that is edited, give it its `clean` case, by the code of its commit or of `reference`."""
    if case.rows[0]['iter'] or case.config.get('init_from', 'scratch') not in ('scratch', 'resume'):
        case.notes.append('the run was compared with nothing: its log does not begin with weights from scratch')
        return
    commit = case.about.get('commit', '')
    schedule = dict(lr_decay_iters=case.config.get('lr_decay_iters') or case.config.get('max_iters'))
    with tempfile.TemporaryDirectory() as folder:
        own, clean = os.path.join(folder, 'own'), os.path.join(folder, 'clean')
        if case.about.get('code') == code_hashes(TRAIN):
            own = ROOT
        patch = os.path.join(case.folder, 'code.patch') if case.edited else ''
        if own == ROOT or unpack(commit, own, patch):
            checkpoint = os.path.abspath(os.path.join(case.folder, 'ckpt.pt'))
            first = train_briefly(own, case.config, checkpoint, **schedule, max_iters=3, eval_interval=3)
            if isinstance(first, str):
                case.notes.append(f'the run was not replayed: {first}')
            else:
                case.replayed, case.usual = first.replayed, first.usual
                case.complete(first.rows)
                if case.replayed and 'future' not in case.replayed and os.path.exists(checkpoint):
                    case.notes.append('the checkpoint was not replayed: the code does not take it, or it takes too long')
        else:
            case.notes.append('the run was not replayed: its commit or its code.patch is not here')
        if not case.edited and not reference:
            return
        found = f'commit {(reference or commit)[:10]} is not here'
        if unpack(reference or commit, clean):
            iters = max(min(case.it, ITERS), min(case.it, 2 * case.config.get('log_interval', 1))) + 1
            found = train_briefly(clean, case.config, max_iters=iters, **schedule)
    if isinstance(found, str):
        case.notes.append(f'there is no reference by clean code: {found}')
    else:
        case.clean, found.usual = found, case.usual


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
