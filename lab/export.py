"""
Converts a run's checkpoint to the format of Hugging Face, and back:

    python -m lab.export --out_dir=out-llama --to=hf-llama                              # GPT-2, LLaMA or Qwen3, if it equals one
    python -m lab.export --out_dir=out-quick --to=weights-quick --format=safetensors    # any model, for --init_from here
    python -m lab.export --out_dir=out-xl --to=out-whole --format=checkpoint            # of a run with save_shards, one file
    python -m lab.export --from_hf=hf-llama --out_dir=out-back --dataset=textfiles      # a run, to sample from, measure or resume
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.export')

from configurator import TRAIN, at_least, configure, keys_of, refuse

import base64
import json
import os
import shutil
from contextlib import contextmanager
from dataclasses import asdict, fields

import torch

from data.text import load_tokenizer
from data.tokens import read_meta
from engine.checkpoint import link_or_copy, load_run, load_text_run, write_whole
from engine.pretrained import ACTIVATIONS, COMMON, FAMILIES, hugging_face, load_gpt, tensors, unknown_fields
from model import GPTConfig
from optim import OPTIMIZERS, param_groups

# ----------------------------------------------------------------------------- architectures that are equal

def obstacles(config, family):
    """Why the architecture is not one of this family: 'field=value' for each field that would need another value."""
    wants = FAMILIES[family].wants | (dict(n_kv_head=[0, config.n_head]) if family == 'gpt2' else {})
    wants |= {field: [default] for field, default in unknown_fields(GPTConfig, COMMON | wants.keys()).items()}
    return [f'{field}={values[0]}' for field, values in wants.items() if getattr(config, field) not in values]


def their_config(config, family):
    """GPTConfig → the keywords of their config"""
    if family == 'gpt2':
        activation = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}[config.ffn]
        return dict(vocab_size=config.vocab_size, n_positions=config.block_size, n_embd=config.n_embd, n_layer=config.n_layer,
                    n_head=config.n_head, n_inner=config.d_ff or None, activation_function=activation,
                    layer_norm_epsilon=config.norm_eps, tie_word_embeddings=config.tie_weights, bias=config.bias,
                    resid_pdrop=config.dropout, embd_pdrop=config.dropout, attn_pdrop=config.dropout)
    return dict(vocab_size=config.vocab_size, max_position_embeddings=config.block_size, hidden_size=config.n_embd,
                intermediate_size=config.d_ff or 4 * config.n_embd, num_hidden_layers=config.n_layer,
                num_attention_heads=config.n_head, num_key_value_heads=config.n_kv_head or config.n_head,
                head_dim=config.head_dim, rms_norm_eps=config.norm_eps, tie_word_embeddings=config.tie_weights,
                rope_parameters=dict(rope_type='default', rope_theta=config.rope_theta), attention_dropout=config.dropout)


def their_weights(weights, family, n_layer):
    found = {}
    for theirs, ours, transposed in tensors(family, n_layer):
        if ours[0] in weights:
            value = torch.cat([weights[name] for name in ours])
            found[theirs] = value.t().contiguous() if transposed else value
    return found


# ----------------------------------------------------------------------------- writing

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


def write_model(model, folder, family, end=None):
    """Writes the GPT into an existing folder, as Hugging Face's 'gpt2', 'llama' or 'qwen3', or in our own format, 'safetensors'.
    `end` is the token that ends a document."""
    config, weights = model.config, {name: value.detach().cpu() for name, value in model.state_dict().items()}
    if family == 'safetensors':
        from safetensors.torch import save_file
        if config.tie_weights:
            del weights['lm_head.weight']               # the format does not allow a tensor twice
        save_file({name: value.contiguous() for name, value in weights.items()}, os.path.join(folder, 'model.safetensors'),
                  metadata={'format': 'pt'})
        with open(os.path.join(folder, 'config.json'), 'w', encoding='utf-8') as f:
            json.dump(dict(model_type='nanonorm', eos_token_id=end, **asdict(config)), f, indent=1)
        return
    theirs_class = getattr(hugging_face(), FAMILIES[family].model)
    theirs_config = theirs_class.config_class(**their_config(config, family), bos_token_id=end, eos_token_id=end)
    known = {name for _, ours, _ in tensors(family, config.n_layer) for name in ours}
    if not weights.keys() <= known:
        raise ValueError(f'{FAMILIES[family].label} has no equal of {min(weights.keys() - known)!r}: '
                         f'--format=safetensors takes any model')
    weights = their_weights(weights, family, config.n_layer)
    with torch.device('meta'):
        theirs = theirs_class(theirs_config)
    for name, value in theirs.state_dict().items():
        if name.endswith('.bias'):                      # GPT-2 always has biases
            weights.setdefault(name, torch.zeros(value.shape))
    theirs.load_state_dict(weights, assign=True)
    theirs.tie_weights()
    theirs.save_pretrained(folder)
    off = largest_difference(model, theirs_class.from_pretrained(folder))
    if not off < 1e-3:
        raise ValueError(f'{FAMILIES[family].label} computes other logits with these weights, off by {off:.3g} of the largest: '
                         f'model.py computes something else than it; --format=safetensors takes any model')


@torch.no_grad()
def largest_difference(model, theirs):
    """Between their logits and ours on a few tokens, relative to our largest logit"""
    training, idx = model.training, torch.arange(min(16, model.config.block_size))[None] % model.config.vocab_size
    ours = model.eval()(idx)[0]
    model.train(training)
    return ((theirs.eval()(idx).logits - ours).abs().max() / ours.abs().max()).item()


def write_tokenizer(folder, name, chars):
    """Writes the tokenizer of a data set as one that AutoTokenizer reads, with the same ids for the same text."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    path = os.path.join(folder, 'tokenizer.json')
    load_tokenizer(name, chars)                         # raises one line if it is not available
    if name == 'bytes':
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]       # the rest moves beyond 255, in order
        others = [b for b in range(256) if b not in printable]
        letter = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
        theirs = Tokenizer(models.BPE({letter[b]: b for b in range(256)}, []))
        theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        theirs.decoder = decoders.ByteLevel()
        theirs.save(path)
    elif name == 'char':
        theirs = Tokenizer(models.WordLevel({c: i for i, c in enumerate(chars)}, unk_token=chars[0]))
        theirs.pre_tokenizer = pre_tokenizers.Split(Regex(r'[\s\S]'), 'isolated')
        theirs.decoder = decoders.Fuse()
        theirs.save(path)
    else:
        import tiktoken
        if name not in tiktoken.list_encoding_names():
            hugging_face().AutoTokenizer.from_pretrained(name).save_pretrained(folder)
            return
        from transformers.convert_slow_tokenizer import TikTokenConverter
        theirs = tiktoken.get_encoding(name)
        ranks = os.path.join(folder, 'ranks')
        with open(ranks, 'wb') as f:
            f.writelines(b'%s %d\n' % (base64.b64encode(piece), rank) for piece, rank in theirs._mergeable_ranks.items())
        TikTokenConverter(ranks, theirs._pat_str, extra_special_tokens=theirs._special_tokens).converted().save(path)
        os.remove(ranks)
    hugging_face().PreTrainedTokenizerFast(tokenizer_file=path).save_pretrained(folder)


# ----------------------------------------------------------------------------- keys, besides those of train.py
out_dir = 'out'                     # the run's folder: the one to read, or with from_hf the one to write
checkpoint = 'best.pt'              # best.pt: the lowest validation loss | ckpt.pt: the latest
to = ''                             # the folder to write
format = 'auto'                     # auto | gpt2 | llama | qwen3 | safetensors | checkpoint; auto: the one that it equals
from_hf = ''                        # the folder of a model to make a run from; `dataset` must have its tokens
# -----------------------------------------------------------------------------


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
    optimizer = OPTIMIZERS[keys['optimizer']](param_groups(model, keys['weight_decay']), keys)
    write_checkpoint(folder, dict(model=model.state_dict(), optimizer=optimizer.state_dict(), scaler={}, config=keys, iter=0,
                                  best_val_loss=float('inf'), first_loss=None))
    return f'wrote {out_dir}: python train.py {out_dir}/config.json --init_from=resume  trains on'


def write_export(folder):
    """Exports a run's checkpoint."""
    choices = ('auto', *FAMILIES, 'safetensors', 'checkpoint')
    if format not in choices:
        raise ValueError(f'format={format!r}: choose one of {", ".join(choices)}')
    if format == 'checkpoint':
        _, state = load_run(os.path.join(out_dir, checkpoint))
        write_checkpoint(folder, state)
        return (f'wrote {to}, iteration {state["iter"]} of {checkpoint}: python train.py {to}/config.json --out_dir={to} '
                f'--init_from=resume  trains on')
    model, state = load_text_run(os.path.join(out_dir, checkpoint))
    in_the_way = {family: obstacles(model.config, family) for family in FAMILIES}
    equal = [family for family in FAMILIES if not in_the_way[family]]
    family = format if format != 'auto' else equal[0] if equal else None
    if family is None or in_the_way.get(family):
        near = min(FAMILIES, key=lambda name: len(in_the_way[name])) if family is None else family
        raise ValueError(f'{out_dir} is no {FAMILIES[near].label} of Hugging Face\'s, which would have '
                         f'{", ".join(in_the_way[near])}: --format=safetensors takes any model')
    try:
        meta = read_meta(state['config']['dataset'])
        end, missing = load_tokenizer(meta['tokenizer'], meta['chars']).end, None
    except (ValueError, OSError) as error:
        end, missing = None, error
    write_model(model, folder, family, end)
    if not missing:
        write_tokenizer(folder, meta['tokenizer'], meta['chars'])
    return f'wrote {to}, {model.num_params():,} parameters as {family}' + (f', without a tokenizer: {missing}' if missing else '')


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
