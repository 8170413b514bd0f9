"""
Convert a run's checkpoint to Hugging Face's format, and back:

    python -m lab.export --out_dir=out-quick --to=out-hf-quick                          # any GPT, for transformers
    python -m lab.export --out_dir=out-quick --to=out-weights --format=safetensors      # only the weights, for --init_from here
    python -m lab.export --from_hf=out-hf-llama --out_dir=out-back --dataset=textfiles  # a run, to sample from, measure or resume
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.export')

from configurator import TRAIN, at_least, configure, defaults_of, refuse

import os
from dataclasses import asdict, fields

from data.text import load_tokenizer
from data.tokens import read_meta
from engine.checkpoint import load_run
from lab.convert.folders import new_folder, write_card, write_checkpoint
from lab.convert.hub import OWN_GPT, obstacles, write_model, write_own, write_tokenizer, write_weights
from lab.convert.pretrained import FAMILIES, load_gpt
from model import GPTConfig
from optim import OPTIMIZERS, make_optimizer, param_groups

# ----------------------------------------------------------------------------- keys, besides those of train.py
out_dir = 'out'                     # the run's folder, to read, or with from_hf to write
checkpoint = 'best.pt'              # best.pt: the lowest validation loss | ckpt.pt: the latest | ckpt-000500.pt: a kept one
to = ''                             # the folder to write
format = 'auto'                     # auto | gpt2 | llama | qwen3 | olmo2 | nanonorm | safetensors; auto: any fit
from_hf = ''                        # the folder of a model to make a run from; `dataset` must use the model's tokens
# -----------------------------------------------------------------------------


def write_run(folder):
    """Make a run from the model in from_hf, without training it."""
    at_least(config, weight_decay=0)
    if config['optimizer'] not in OPTIMIZERS:
        raise ValueError(f'optimizer={config["optimizer"]!r}: choose among {", ".join(OPTIMIZERS)}')
    meta = read_meta(config['dataset'])
    model = load_gpt(from_hf, extra_fields=config)
    for f in fields(GPTConfig):
        if config[f.name] not in (f.default, getattr(model.config, f.name)):
            raise ValueError(f'{f.name}={config[f.name]}: {from_hf} has {getattr(model.config, f.name)}, leave this key out')
    if meta['vocab_size'] > model.config.vocab_size:
        raise ValueError(f'dataset={config["dataset"]} has {meta["vocab_size"]} tokens and {from_hf} {model.config.vocab_size}: '
                         f'choose the data set that uses its tokens')
    keys = {key: config[key] for key in defaults_of(TRAIN, GPTConfig)} | asdict(model.config) | dict(init_from=from_hf)
    optimizer = make_optimizer(param_groups(model, keys['weight_decay'], keys=keys), keys)
    groups = [{key: value for key, value in group.items() if key != 'params'} for group in optimizer.param_groups]
    write_checkpoint(folder, dict(model=model.state_dict(), optimizer=optimizer.state_dict(), scaler={}, config=keys, iter=0,
                                  best_val_loss=float('inf'), started=groups, data=meta['fingerprint'], start=0))
    return f'wrote {out_dir}: python train.py {out_dir}/config.json --init_from=resume  trains on'


def write_export(folder):
    """Export a run's checkpoint."""
    choices = ('auto', *FAMILIES, 'nanonorm', 'safetensors')
    if format not in choices:
        raise ValueError(f'format={format!r}: choose one of {", ".join(choices)}')
    model, state = load_run(os.path.join(out_dir, checkpoint))
    in_the_way = {family: obstacles(model.config, family) for family in FAMILIES}
    equal = [family for family in FAMILIES if not in_the_way[family]]
    family = format if format != 'auto' else equal[0] if equal else 'nanonorm'
    if in_the_way.get(family):
        raise ValueError(f'{out_dir} is not a {FAMILIES[family].label} in Hugging Face\'s sense, which has '
                         f'{", ".join(in_the_way[family])}: --format=nanonorm takes any model')
    notes, end = [], None
    try:
        meta = read_meta(state['config']['dataset'])
        write_tokenizer(folder, meta['tokenizer'], meta['chars'])
        end = load_tokenizer(meta['tokenizer'], meta['chars']).end
    except (ValueError, OSError) as error:
        notes.append(f'It has no tokenizer: {error}')
    more = dict(bos_token_id=end, eos_token_id=end, pad_token_id=end)
    if family == 'safetensors':
        write_weights(model, folder, **more)
    elif family == 'nanonorm':
        notes.append(write_own(model, folder, **more))
    else:
        write_model(model, folder, family, end)
    return write_card(folder, to, out_dir, model, state, family, OWN_GPT.auto, notes)


if __name__ == '__main__':
    config = configure(globals(), GPTConfig, TRAIN)
    if bool(from_hf) == bool(to):
        raise ValueError('set either --to, the folder to write, or --from_hf, the folder of a model, as in --to=hf-model')
    if from_hf:
        refuse(('checkpoint', 'format'), 'from_hf does not use this key')
    else:
        refuse(defaults_of(TRAIN, GPTConfig).keys() - {'out_dir', 'debug'}, f'{out_dir} brings its own keys')
    with new_folder(out_dir if from_hf else to) as part:
        done = write_run(part) if from_hf else write_export(part)
    print(done)
