"""
Converts a run's checkpoint to the format of Hugging Face, and back:

    python -m lab.export --out_dir=out-quick --to=hf-quick                              # any GPT or ViT, for transformers
    python -m lab.export --out_dir=out-quick --to=weights-quick --format=safetensors    # the weights alone, for --init_from here
    python -m lab.export --out_dir=out-xl --to=out-whole --format=checkpoint            # of a run with save_shards, one file
    python -m lab.export --from_hf=hf-llama --out_dir=out-back --dataset=textfiles      # a run, to sample from, measure or resume
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.export')

from configurator import TRAIN, at_least, configure, keys_of, refuse

import json
import math
import os
import shutil
from contextlib import contextmanager
from dataclasses import asdict, fields

import torch

from data.images import read_image_meta
from data.text import load_tokenizer
from data.tokens import read_meta
from engine.checkpoint import link_or_copy, load_run, write_whole
from engine.files import read_json
from engine.pretrained import FAMILIES, load_gpt
from lab.hub import OWN, obstacles, write_model, write_own, write_processor, write_tokenizer, write_weights
from model import GPT, GPTConfig
from optim import OPTIMIZERS, param_groups

# ----------------------------------------------------------------------------- keys, besides those of train.py
out_dir = 'out'                     # the run's folder: the one to read, or with from_hf the one to write
checkpoint = 'best.pt'              # best.pt: the lowest validation loss | ckpt.pt: the latest
to = ''                             # the folder to write
format = 'auto'                     # auto | gpt2 | llama | qwen3 | nanonorm | safetensors | checkpoint; auto: the first that fits
from_hf = ''                        # the folder of a model to make a run from; `dataset` must have its tokens
# -----------------------------------------------------------------------------


@contextmanager
def new_folder(path):
    """A context with a temporary folder to write into, which becomes `path` at its end."""
    if os.path.lexists(path):
        raise ValueError(f'{path} exists: choose another name, or remove it')
    part = path.rstrip('/') + '.tmp'
    shutil.rmtree(part, ignore_errors=True)
    os.makedirs(part)
    try:
        yield part
        os.replace(part, path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def write_checkpoint(folder, state):
    """Makes the folder a run that has come as far as this checkpoint."""
    ckpt, best = (os.path.join(folder, name) for name in ('ckpt.pt', 'best.pt'))
    write_whole(os.path.join(folder, 'config.json'), lambda f: f.write(json.dumps(state['config'], indent=1).encode()))
    write_whole(ckpt, lambda f: torch.save(state, f))
    link_or_copy(ckpt, best)


def write_run(folder):
    """Makes a run, without training, from the model in from_hf."""
    at_least(config, weight_decay=0)
    if config['optimizer'] not in OPTIMIZERS:
        raise ValueError(f'optimizer={config["optimizer"]!r}: choose among {", ".join(OPTIMIZERS)}')
    meta = read_meta(config['dataset'])
    model = load_gpt(from_hf, asked=config)
    for f in fields(GPTConfig):
        if config[f.name] not in (f.default, getattr(model.config, f.name)):
            raise ValueError(f'{f.name}={config[f.name]}: {from_hf} has {getattr(model.config, f.name)}, leave this key out')
    if meta['vocab_size'] > model.config.vocab_size:
        raise ValueError(f'dataset={config["dataset"]} has {meta["vocab_size"]} tokens and {from_hf} {model.config.vocab_size}: '
                         f'choose the data set whose tokens it knows')
    keys = {key: config[key] for key in keys_of(TRAIN, GPTConfig)[0]} | asdict(model.config) | dict(init_from=from_hf)
    optimizer = OPTIMIZERS[keys['optimizer']](param_groups(model, keys['weight_decay'], keys=keys), keys)
    write_checkpoint(folder, dict(model=model.state_dict(), optimizer=optimizer.state_dict(), scaler={}, config=keys, iter=0,
                                  best_val_loss=float('inf'), first_loss=None))
    return f'wrote {out_dir}: python train.py {out_dir}/config.json --init_from=resume  trains on'


def write_export(folder):
    """Exports a run's checkpoint."""
    choices = ('auto', *FAMILIES, 'nanonorm', 'safetensors', 'checkpoint')
    if format not in choices:
        raise ValueError(f'format={format!r}: choose one of {", ".join(choices)}')
    model, state = load_run(os.path.join(out_dir, checkpoint))
    if format == 'checkpoint':
        write_checkpoint(folder, state)
        return (f'wrote {to}, iteration {state["iter"]} of {checkpoint}: python train.py {to}/config.json --out_dir={to} '
                f'--init_from=resume  trains on')
    text = isinstance(model, GPT)
    in_the_way = {family: obstacles(model.config, family) if text else ['model=gpt'] for family in FAMILIES}
    equal = [family for family in FAMILIES if not in_the_way[family]]
    family = format if format != 'auto' else equal[0] if equal else 'nanonorm'
    if in_the_way.get(family):
        raise ValueError(f'{out_dir} is no {FAMILIES[family].label} of Hugging Face\'s, which would have '
                         f'{", ".join(in_the_way[family])}: --format=nanonorm takes any model')
    notes, end, names = [], None, []
    try:
        if text:
            meta = read_meta(state['config']['dataset'])
            write_tokenizer(folder, meta['tokenizer'], meta['chars'])
            end = load_tokenizer(meta['tokenizer'], meta['chars']).end
        else:
            names = read_image_meta(state['config']['dataset'])['names']
    except (ValueError, OSError) as error:
        notes.append(f'It has no {"tokenizer" if text else "names of classes"}: {error}')
    if text:
        more = dict(bos_token_id=end, eos_token_id=end, pad_token_id=end)
    else:
        write_processor(folder, model.config)
        names = [*names, *map(str, range(len(names), model.config.classes))]
        more = dict(id2label=dict(enumerate(names)), label2id={name: i for i, name in enumerate(names)})
    if family == 'safetensors':
        write_weights(model, folder, **more)
    elif family == 'nanonorm':
        notes.append(write_own(model, folder, **more))
    else:
        write_model(model, folder, family, end)
    notes = ' '.join(filter(None, notes))
    with open(os.path.join(folder, 'README.md'), 'w', encoding='utf-8') as f:
        f.write(card(model, state, family, notes))
    return ' '.join(filter(None, (f'wrote {to}, {model.num_params():,} parameters as {family}.', notes)))


def card(model, state, family, notes):
    """The model card: what the model is, how it was trained, how well it does, and how to load it, in Markdown."""
    keys, text, auto = state['config'], isinstance(model, GPT), OWN[type(model)].auto
    about = read_json(os.path.join(out_dir, 'run.json'), {'command?': str, 'commit?': (str, type(None))}, 'remove it') or {}
    lines = ['---', 'library_name: transformers', f'pipeline_tag: {"text-generation" if text else "image-classification"}',
             'tags: [nanonorm]', '---', '',
             f'# {os.path.basename(os.path.normpath(out_dir))}', '',
             f'A {"GPT" if text else "ViT"} of {model.num_params():,} parameters, trained by nanoNorm on `{keys["dataset"]}` for '
             f'{state["iter"]:,} of {keys["max_iters"]:,} iterations. {notes}'.rstrip(), '']
    if math.isfinite(state['best_val_loss']):
        lines += [f'The lowest validation loss of the run is {state["best_val_loss"]:.4f} nats per {"token" if text else "image"}'
                  f'{"" if checkpoint == "best.pt" else ", and this is a later checkpoint"}.', '']
    if family == 'safetensors':
        lines += ['In a clone of nanoNorm, `--init_from=FOLDER` loads it.', '']
    else:
        trust = ', trust_remote_code=True' if family == 'nanonorm' else ''
        lines += [f'    from transformers import {auto}', f'    model = {auto}.from_pretrained(FOLDER{trust})', '']
    if 'command' in about:
        commit = f', on commit {about["commit"]} and the changes in code.patch of the run' if about.get('commit') else ''
        lines += [f'It was trained by this command{commit}:', '', f'    python {about["command"].partition(" ")[2]}', '']
    lines += ['| key | value |', '| --- | --- |', *(f'| {key} | {value} |' for key, value in keys.items())]
    return '\n'.join(lines) + '\n'


if __name__ == '__main__':
    config = configure(globals(), GPTConfig, TRAIN)
    if bool(from_hf) == bool(to):
        raise ValueError('set either --to, the folder to write, or --from_hf, the folder of a model, as in --to=hf-model')
    if from_hf:
        refuse(('checkpoint', 'format'), 'from_hf needs no such key')
    else:
        refuse(keys_of(TRAIN, GPTConfig)[0].keys() - {'out_dir', 'debug'}, f'{out_dir} brings its own keys')
    with new_folder(out_dir if from_hf else to) as part:
        done = write_run(part) if from_hf else write_export(part)
    print(done)
