"""Write the folders of lab/export.py: temporary folders that become final, checkpoints, model cards."""
import errno
import json
import math
import os
import shutil
from contextlib import contextmanager

import torch

from engine.checkpoint import link_or_copy, write_whole
from engine.errors import read_json

FULL = [os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)]       # disk full, or quota exceeded


@contextmanager
def new_folder(path):
    """Within this context, write into a temporary folder, which becomes `path` at the end. If the disk is full, raise OSError
    and leave no folder: libraries raise errors of many types then."""
    if os.path.lexists(path):
        raise ValueError(f'{path} exists: choose another name, or remove it')
    part = path.rstrip('/') + '.tmp'
    shutil.rmtree(part, ignore_errors=True)
    os.makedirs(part)
    try:
        yield part
        os.replace(part, path)
    except Exception as error:
        reason = next((reason for reason in FULL if reason in str(error)), None)
        if reason:
            raise OSError(f'{path} could not be written: {reason}') from error
        raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def write_checkpoint(folder, state):
    """Turn the folder into a run that has trained up to this checkpoint."""
    ckpt, best = (os.path.join(folder, name) for name in ('ckpt.pt', 'best.pt'))
    write_whole(os.path.join(folder, 'config.json'), lambda f: f.write(json.dumps(state['config'], indent=1).encode()))
    write_whole(ckpt, lambda f: torch.save({key: value for key, value in state.items() if key != 'path'}, f))
    link_or_copy(ckpt, best)


def write_card(folder, to, out_dir, model, state, family, auto, notes):
    """Write the model card, README.md, of an export in this folder, which will be `to`. Return the line to print, with the
    notes. `auto`: the transformers class that loads the export."""
    keys, kind, notes = state['config'], type(model).__name__, ' '.join(filter(None, notes))
    about = read_json(os.path.join(out_dir, 'run.json'), 'remove it') or {}
    lines = ['---', 'library_name: transformers', 'pipeline_tag: text-generation', 'tags: [nanonorm]', '---', '',
             f'# {os.path.basename(os.path.normpath(out_dir))}', '',
             f'A {kind} of {model.num_params():,} parameters, trained by nanoNorm on `{keys["dataset"]}` for '
             f'{state["iter"]:,} of {keys["max_iters"]:,} iterations. {notes}'.rstrip(), '']
    if math.isfinite(state['best_val_loss']):
        later = '' if state['path'].endswith('best.pt') else ', and this is a later checkpoint'
        lines += [f'The lowest validation loss of the run is {state["best_val_loss"]:.4f} nats per token{later}.', '']
    if family == 'safetensors':
        lines += ['In a clone of nanoNorm, `--init_from=FOLDER` loads it.', '']
    else:
        trust = ', trust_remote_code=True' if family == 'nanonorm' else ''
        lines += [f'    from transformers import {auto}', f'    model = {auto}.from_pretrained(FOLDER{trust})', '']
    if 'command' in about:
        commit = f', on commit {about["commit"]} and the changes in code.patch of the run' if about.get('commit') else ''
        lines += [f'It was trained by this command{commit}:', '', f'    python {about["command"].partition(" ")[2]}', '']
    lines += ['| key | value |', '| --- | --- |', *(f'| {key} | {value} |' for key, value in keys.items())]
    with open(os.path.join(folder, 'README.md'), 'w', encoding='utf-8') as f:
        f.write('\n'.join(lines) + '\n')
    return f'wrote {to}, {model.num_params():,} parameters as {family}. {notes}'.rstrip()
