"""
Write models, and their tokenizers, as folders that transformers loads: as its GPT-2, LLaMA or Qwen3 if they are equal, or else
as models whose code is in the folder.
"""
from configurator import ROOT

import ast
import base64
import json
import os
import re
import tempfile
from dataclasses import fields
from typing import NamedTuple

import torch

from data.text import load_tokenizer
from lab.convert.pretrained import ACTIVATIONS, COMMON, FAMILIES, hugging_face, tensors, unknown_fields
from model import GPTConfig

# ----------------------------------------------------------------------------- architectures that are equal

def obstacles(config, family):
    """Return why the architecture is not of this family: 'field=value' for each field that needs another value."""
    wants = FAMILIES[family].wants | (dict(n_kv_head=[0, config.n_head]) if family == 'gpt2' else {})
    wants |= {field: [default] for field, default in unknown_fields(GPTConfig, COMMON | wants.keys()).items()}
    return [f'{field}={values[0]}' for field, values in wants.items() if getattr(config, field) not in values]


def their_config(config, family):
    """Convert a GPTConfig to the keywords of their config."""
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
    renamed = {}
    for theirs, ours, transposed in tensors(family, n_layer):
        if ours[0] in weights:
            value = torch.cat([weights[name] for name in ours])
            renamed[theirs] = value.t().contiguous() if transposed else value
    return renamed


# ----------------------------------------------------------------------------- writing

class Own(NamedTuple):
    model_type: str         # in config.json
    code: str               # our module with the classes
    config: str             # the config's class
    model: str              # the model's class
    auto: str               # transformers' class that loads such a model


OWN_GPT = Own('nanonorm', 'lab.convert.modeling_nanonorm', 'NanoNormConfig', 'NanoNormForCausalLM', 'AutoModelForCausalLM')


def write_model(model, folder, family, end=None):
    """Write the GPT into an existing folder, as a Hugging Face model of this family. `end` is the token that ends a
    document."""
    config, weights = model.config, {name: value.detach().cpu() for name, value in model.state_dict().items()}
    theirs_class = getattr(hugging_face(), FAMILIES[family].model)
    theirs_config = theirs_class.config_class(**their_config(config, family), bos_token_id=end, eos_token_id=end)
    known = {name for _, ours, _ in tensors(family, config.n_layer) for name in ours}
    if not weights.keys() <= known:
        raise ValueError(f'{FAMILIES[family].label} has no equal of {min(weights.keys() - known)!r}: '
                         f'--format=nanonorm takes any model')
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
                         f'model.py computes something else; --format=nanonorm takes any model')


def write_weights(model, folder, **more):
    """Write the model into an existing folder: its weights by our names, and its config with the keys in `more`."""
    from safetensors.torch import save_file
    weights = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    if model.config.tie_weights:
        del weights['lm_head.weight']                   # the format cannot store a tensor twice
    save_file(weights, os.path.join(folder, 'model.safetensors'), metadata={'format': 'pt'})
    with open(os.path.join(folder, 'config.json'), 'w', encoding='utf-8') as f:
        json.dump(dict(model_type=OWN_GPT.model_type, **more, **{f.name: getattr(model.config, f.name)
                                                             for f in fields(model.config) if f.init}), f, indent=1)


def write_own(model, folder, **more):
    """Write the model into an existing folder as a transformers model with its code beside it, and compare both. Return a note
    for the user, or ''."""
    for name, text in code_files(OWN_GPT.code).items():
        with open(os.path.join(folder, name), 'w', encoding='utf-8') as f:
            f.write(text)
    module = OWN_GPT.code.rpartition('.')[2]
    auto_map = {'AutoConfig': f'{module}.{OWN_GPT.config}', OWN_GPT.auto: f'{module}.{OWN_GPT.model}'}
    more |= dict(architectures=[OWN_GPT.model], dtype='float32', auto_map=auto_map)
    write_weights(model, folder, **more)
    with tempfile.TemporaryDirectory() as cache:        # keep the code out of the user's cache
        os.environ.setdefault('HF_MODULES_CACHE', cache)
        theirs = getattr(hugging_face(), OWN_GPT.auto).from_pretrained(folder, trust_remote_code=True)
    check_equal(model, theirs)
    if not masks_hold(theirs):
        write_weights(model, folder, **more, masks=False)
        return 'It refuses left-padded text, and several tokens after cached ones, because its attention takes no mask.'
    return ''


def as_transformers(model, end=None):
    """Return the GPT, on the CPU, as the transformers model that its export loads as; both share the weights. `end` ends a
    document."""
    from lab.convert.modeling_nanonorm import NanoNormConfig, NanoNormForCausalLM
    theirs = NanoNormForCausalLM(NanoNormConfig(**dict.fromkeys(('bos_token_id', 'eos_token_id', 'pad_token_id'), end), **{
        f.name: getattr(model.config, f.name) for f in fields(model.config) if f.init}))
    theirs.net.load_state_dict(model.state_dict(), assign=True)
    check_equal(model, theirs)
    theirs.config.masks = masks_hold(theirs)
    return theirs


def check_equal(model, theirs):
    off = largest_difference(model, theirs)
    if not off < 1e-5:
        raise ValueError(f'in transformers this model computes other logits, off by {off:.3g} of the largest: '
                         f'{OWN_GPT.code} must call what GPT.forward calls')


def code_files(module):
    """Return {file name: text} for one of our modules and all of our files that it imports. The texts import each other from
    their own folder. Raise ValueError for an import that would not work there."""
    texts, left = {}, [module]
    while left:
        module = left.pop()
        path = os.path.join(ROOT, *module.split('.')) + '.py'
        with open(path, encoding='utf-8') as f:
            text = f.read()
        for node in ast.walk(ast.parse(text)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else \
                [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
            for name in names:
                file, package = os.path.join(ROOT, *name.split('.')) + '.py', os.path.join(ROOT, name.split('.')[0])
                ours = os.path.exists(file)
                if isinstance(node, ast.Import) and ours or not ours and os.path.isdir(package):
                    raise ValueError(f'{path}, line {node.lineno}: {name} cannot be exported: write  from NAME import …  for a '
                                     f'file NAME.py in {ROOT}')
                if ours:
                    flat = name.rpartition('.')[2]
                    text = re.sub(rf'^(\s*from ){re.escape(name)}(?= import)', rf'\1.{flat}', text, flags=re.MULTILINE)
                    left += [name] if f'{flat}.py' not in texts else []
        texts[os.path.basename(path)] = text
    return texts


@torch.no_grad()
def largest_difference(model, theirs):
    """Return the largest difference of their logits from ours, relative to our largest logit, on a few tokens."""
    c, training = model.config, model.training
    x = torch.arange(min(16, c.block_size))[None] % c.vocab_size
    ours = model.eval()(x)[0]
    model.train(training)
    return ((theirs.eval()(x).logits - ours).abs().max() / ours.abs().max()).item()


@torch.no_grad()
def masks_hold(theirs):
    """Return whether a text keeps its logits in a batch that is padded on the left, and in two parts with a cache."""
    text = torch.arange(1, max(2, min(16, theirs.config.block_size)))[None] % theirs.config.vocab_size
    mask = torch.ones(2, text.size(1) + 1, dtype=torch.long)
    mask[1, 0] = 0
    if mask.size(1) > theirs.config.block_size:
        return True
    alone, batch = theirs(text).logits[0], theirs(torch.cat((text[:, :1], text), dim=1).repeat(2, 1), attention_mask=mask).logits
    first = theirs(text[:, :1])
    rest = theirs(text[:, 1:], past_key_values=first.past_key_values).logits[0] if text.size(1) > 1 else alone[1:]
    off = torch.cat((batch[1, 1:] - alone, rest - alone[1:])).abs().max()
    return bool(off < 1e-3 * alone.abs().max())


# ----------------------------------------------------------------------------- tokenizers

def write_tokenizer(folder, name, chars):
    """Write a data set's tokenizer so that AutoTokenizer reads it, with the same ids for the same text. The token that ends a
    document also begins and pads texts."""
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
