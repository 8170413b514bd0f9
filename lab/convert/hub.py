"""
Write a GPT and its tokenizer as a folder that transformers loads: as its GPT-2, LLaMA, Qwen3 or OLMo 2 if that is equal, or else
as a model whose code is in the folder.
"""
from configurator import ROOT

import base64
import json
import os
import re
import tempfile
from dataclasses import asdict

import torch

from data.text import load_tokenizer
from lab.convert.pretrained import ACTIVATIONS, FAMILIES, family_fields, hugging_face, tensors, unknown_fields

CODE = 'lab.convert.modeling_nanonorm'


# ----------------------------------------------------------------------------- as a model of transformers

def obstacles(config, family):
    """Return why the architecture is not of this family: 'field=value' for each field that needs another value."""
    wants = FAMILIES[family].wants | {field: [default] for field, default in unknown_fields(family_fields(family)).items()}
    wants |= dict(n_kv_head=[0, config.n_head]) if family == 'gpt2' else {}
    return [f'{field}={values[0]}' for field, values in wants.items() if getattr(config, field) not in values]


def their_config(config, family):
    """Convert a GPTConfig to the keywords of their config."""
    values = asdict(config) | dict(d_ff=config.d_ff or 4 * config.n_embd, n_kv_head=config.kv_heads)
    theirs = {key: values[field] for field, key in FAMILIES[family].keys.items()}
    if family == 'gpt2':
        activation = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}[config.ffn]
        return theirs | dict(activation_function=activation, bias=config.bias, resid_pdrop=config.dropout,
                             embd_pdrop=config.dropout, attn_pdrop=config.dropout)
    return theirs | dict(head_dim=config.head_dim, attention_dropout=config.dropout,
                         rope_parameters=dict(rope_type='default', rope_theta=config.rope_theta))


def write_model(model, folder, family, end=None):
    """Write the GPT into an existing folder, as a Hugging Face model of this family. `end` is the token that ends a document.
    Raise ValueError if the weights have no place there, or if that model computes other logits."""
    config, weights = model.config, {name: value.detach().cpu() for name, value in model.state_dict().items()}
    theirs_class = getattr(hugging_face(), FAMILIES[family].model)
    theirs_config = theirs_class.config_class(**their_config(config, family), bos_token_id=end, eos_token_id=end)
    renamed = {}
    for their_name, ours, transposed in tensors(family, config.n_layer):
        if ours[0] in weights:
            value = torch.cat([weights.pop(name) for name in ours])
            renamed[their_name] = value.t().contiguous() if transposed else value
    if weights:
        raise ValueError(f'{FAMILIES[family].label} has no equal of {min(weights)!r}: --format=nanonorm takes any model')
    with torch.device('meta'):
        theirs = theirs_class(theirs_config)
    for name, value in theirs.state_dict().items():
        if name.endswith('.bias'):                      # GPT-2 always has biases
            renamed.setdefault(name, torch.zeros(value.shape))
    theirs.load_state_dict(renamed, assign=True)
    theirs.tie_weights()
    theirs.save_pretrained(folder)
    check_equal(model, theirs_class.from_pretrained(folder), 1e-3, f'as {FAMILIES[family].label}', '--format=nanonorm takes any')


@torch.no_grad()
def check_equal(model, theirs, tolerance, place, remedy):
    """Raise ValueError if their logits on a few tokens are off by more than the tolerance, relative to our largest logit."""
    x, training = torch.arange(min(16, model.config.block_size))[None] % model.config.vocab_size, model.training
    ours = model.eval()(x)[0].cpu()
    model.train(training)
    off = ((theirs.eval()(x).logits - ours).abs().max() / ours.abs().max()).item()
    if not off < tolerance:
        raise ValueError(f'{place} this model computes other logits with these weights, off by {off:.3g} of the largest: '
                         f'{remedy}')


# ----------------------------------------------------------------------------- with its code

def write_weights(model, folder, **more):
    """Write the model into an existing folder: its weights by our names, and its config with the keys in `more`."""
    from safetensors.torch import save_file
    weights = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    if model.config.tie_weights:
        del weights['lm_head.weight']                   # the format cannot store a tensor twice
    save_file(weights, os.path.join(folder, 'model.safetensors'), metadata={'format': 'pt'})
    with open(os.path.join(folder, 'config.json'), 'w', encoding='utf-8') as f:
        json.dump(dict(model_type='nanonorm', **more, **asdict(model.config)), f, indent=1)


def write_own(model, folder, end=None):
    """Write the model into an existing folder as a transformers model with its code beside it, and load it from there to compare
    both. `end` is the token that ends a document."""
    for name, text in code_files(CODE).items():
        with open(os.path.join(folder, name), 'w', encoding='utf-8') as f:
            f.write(text)
    auto_map = {'AutoConfig': 'modeling_nanonorm.NanoNormConfig', 'AutoModelForCausalLM': 'modeling_nanonorm.NanoNormForCausalLM'}
    write_weights(model, folder, bos_token_id=end, eos_token_id=end, pad_token_id=end, dtype='float32',
                  architectures=['NanoNormForCausalLM'], auto_map=auto_map)
    with tempfile.TemporaryDirectory() as cache:        # keep the code out of the user's cache
        os.environ.setdefault('HF_MODULES_CACHE', cache)
        theirs = hugging_face().AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    check_equal(model, theirs, 1e-5, 'in transformers', f'{CODE} must call what GPT.forward calls')


def code_files(module):
    """Return {file name: text} for one of our modules and all of our files that it imports. The texts import each other from
    their own folder. Raise ValueError for an import that would not work there."""
    path = os.path.join(ROOT, *module.split('.')) + '.py'
    with open(path, encoding='utf-8') as f:
        text = f.read()
    files = {}
    for name, plain in set(re.findall(r'^\s*(?:from ([\w.]+) import |import ([\w.]+))', text, flags=re.MULTILINE)):
        if name and os.path.exists(os.path.join(ROOT, *name.split('.')) + '.py'):
            files |= code_files(name)
            text = text.replace(f'from {name} import ', f'from .{name.rpartition(".")[2]} import ')
        elif any(os.path.exists(os.path.join(ROOT, (name or plain).split('.')[0] + end)) for end in ('', '.py')):
            raise ValueError(f'{path}: {name or plain} cannot be exported: write  from NAME import …  for a file NAME.py in '
                             f'{ROOT}')
    return files | {os.path.basename(path): text}


# ----------------------------------------------------------------------------- tokenizers

def write_tokenizer(folder, name, chars):
    """Write a data set's tokenizer so that AutoTokenizer reads it, with the same ids for the same text. The token that ends a
    document also begins and pads texts; for characters it is the line feed, or else the first one."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    path = os.path.join(folder, 'tokenizer.json')
    ours = load_tokenizer(name, chars)                  # fails with one line if it is not available
    end = ours.end
    if name == 'bytes':
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]       # the rest moves beyond 255, in order
        others = [b for b in range(256) if b not in printable]
        letter = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
        theirs = Tokenizer(models.BPE({letter[b]: b for b in range(256)}, []))
        theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        theirs.decoder = decoders.ByteLevel()
    elif name == 'char':
        theirs = Tokenizer(models.WordLevel({c: i for i, c in enumerate(chars)}, unk_token=chars[0]))
        theirs.pre_tokenizer = pre_tokenizers.Split(Regex(r'[\s\S]'), 'isolated')
        theirs.decoder = decoders.Fuse()
        end = ours.encode('\n')[0] if '\n' in chars else 0
    else:
        import tiktoken
        if name not in tiktoken.list_encoding_names():
            hugging_face().AutoTokenizer.from_pretrained(name, trust_remote_code=False).save_pretrained(folder)
            return
        from transformers.convert_slow_tokenizer import TikTokenConverter
        encoding = tiktoken.get_encoding(name)
        with open(path, 'wb') as f:
            f.writelines(b'%s %d\n' % (base64.b64encode(piece), rank) for piece, rank in encoding._mergeable_ranks.items())
        theirs = TikTokenConverter(path, encoding._pat_str, extra_special_tokens=encoding._special_tokens).converted()
    theirs.save(path)
    special = {} if end is None else dict.fromkeys(('bos_token', 'eos_token', 'pad_token'), theirs.id_to_token(end))
    hugging_face().PreTrainedTokenizerFast(tokenizer_file=path, split_special_tokens=True, **special).save_pretrained(folder)
