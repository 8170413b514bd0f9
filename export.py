"""
A run's checkpoint to the format of Hugging Face, and back:

    python export.py --out_dir=out-llama --to=hf-llama                              # GPT-2, LLaMA or Qwen3, whichever it equals
    python export.py --out_dir=out-quick --to=weights-quick --format=safetensors    # any, for from_pretrained and init_from here
    python export.py --from_hf=hf-llama --out_dir=out-back --dataset=textfiles      # a run, to sample, measure, evaluate, resume
"""
import base64
import json
import math
import os
import re
import shutil
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import NamedTuple

import torch

from configurator import at_least, configure, keys_of
from dataset import read_meta
from model import GPT, OPENAI_MODELS, GPTConfig, ViTConfig
from optim import OPTIMIZERS, param_groups
from text import load_tokenizer

TRAIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'train.py')

# ----------------------------------------------------------------------------- architectures that are equal


class Family(NamedTuple):
    label: str
    model: str              # its class in transformers
    wants: dict             # the fields of GPTConfig of which it knows only these values
    modules: dict           # its modules → ours, or several of ours that it keeps as one; {i} numbers the blocks


PRE_NORM = dict(input_norm=[False], attn_pre_norm=[True], ffn_pre_norm=[True], mid_norm=[False], post_norm=[False],
                final_norm=[True], residual_scale=[1.0], attention=['dot'])
ACTIVATIONS = {'gelu_new': 'gelu_tanh', 'gelu_pytorch_tanh': 'gelu_tanh', 'gelu': 'gelu', 'relu': 'relu'}
LLAMA = {
    'model.embed_tokens': ['wte'],
    'model.layers.{i}.input_layernorm': ['h.{i}.attn_pre_norm'],
    'model.layers.{i}.self_attn.q_proj': ['h.{i}.attn.wq'],
    'model.layers.{i}.self_attn.k_proj': ['h.{i}.attn.wk'],
    'model.layers.{i}.self_attn.v_proj': ['h.{i}.attn.wv'],
    'model.layers.{i}.self_attn.o_proj': ['h.{i}.attn.wo'],
    'model.layers.{i}.post_attention_layernorm': ['h.{i}.ffn_pre_norm'],
    'model.layers.{i}.mlp.gate_proj': ['h.{i}.ffn.w1'],
    'model.layers.{i}.mlp.up_proj': ['h.{i}.ffn.w3'],
    'model.layers.{i}.mlp.down_proj': ['h.{i}.ffn.w2'],
    'model.norm': ['final_norm'],
    'lm_head': ['lm_head'],
}
FAMILIES = {
    'gpt2': Family('GPT-2', 'GPT2LMHeadModel', PRE_NORM | dict(
        norm=['layernorm'], qk_norm=[False], pos=['learned'], ffn=['gelu', 'gelu_tanh', 'relu']), {
        'transformer.wte': ['wte'],
        'transformer.wpe': ['wpe'],
        'transformer.h.{i}.ln_1': ['h.{i}.attn_pre_norm'],
        'transformer.h.{i}.attn.c_attn': ['h.{i}.attn.wq', 'h.{i}.attn.wk', 'h.{i}.attn.wv'],
        'transformer.h.{i}.attn.c_proj': ['h.{i}.attn.wo'],
        'transformer.h.{i}.ln_2': ['h.{i}.ffn_pre_norm'],
        'transformer.h.{i}.mlp.c_fc': ['h.{i}.ffn.w1'],
        'transformer.h.{i}.mlp.c_proj': ['h.{i}.ffn.w2'],
        'transformer.ln_f': ['final_norm'],
        'lm_head': ['lm_head']}),
    'llama': Family('LLaMA', 'LlamaForCausalLM', PRE_NORM | dict(
        norm=['rmsnorm'], qk_norm=[False], pos=['rope'], ffn=['swiglu'], bias=[False]), LLAMA),
    'qwen3': Family('Qwen3', 'Qwen3ForCausalLM', PRE_NORM | dict(
        norm=['rmsnorm'], qk_norm=[True], pos=['rope'], ffn=['swiglu'], bias=[False]), LLAMA | {
        'model.layers.{i}.self_attn.q_norm': ['h.{i}.attn.q_norm'],
        'model.layers.{i}.self_attn.k_norm': ['h.{i}.attn.k_norm']}),
}


def obstacles(config, family):
    """What keeps the architecture from being one of this family's, as 'field=value' of what it would want."""
    wants = FAMILIES[family].wants | (dict(n_kv_head=[0, config.n_head]) if family == 'gpt2' else {})
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


def our_config(theirs, family, name):
    """Their config → GPTConfig; ValueError for what has no equal here."""

    def only(key, *choices):
        value = getattr(theirs, key, choices[0])
        if value not in choices:
            raise ValueError(f'{name}: {key}={value!r} has no equal here, but {", ".join(map(str, choices))}')
        return value

    if family == 'gpt2':
        only('add_cross_attention', False)
        only('scale_attn_by_inverse_layer_idx', False)
        only('scale_attn_weights', True)
        return GPTConfig(block_size=theirs.n_positions, vocab_size=theirs.vocab_size, n_layer=theirs.n_layer,
                         n_head=theirs.n_head, n_embd=theirs.n_embd, d_ff=theirs.n_inner or 0,
                         bias=getattr(theirs, 'bias', True),        # which are 0 where write_model says so
                         ffn=ACTIVATIONS[only('activation_function', *ACTIVATIONS)],
                         norm_eps=theirs.layer_norm_epsilon, tie_weights=theirs.tie_word_embeddings)
    only('attention_bias', False)
    only('mlp_bias', False)
    only('use_sliding_window', False)
    only('hidden_act', 'silu')
    only('head_dim', theirs.hidden_size // theirs.num_attention_heads)
    rope = theirs.rope_parameters
    if rope['rope_type'] != 'default':
        raise ValueError(f'{name}: rope_type={rope["rope_type"]!r} has no equal here, but default')
    return GPTConfig(block_size=theirs.max_position_embeddings, vocab_size=theirs.vocab_size, n_layer=theirs.num_hidden_layers,
                     n_head=theirs.num_attention_heads, n_kv_head=theirs.num_key_value_heads, n_embd=theirs.hidden_size,
                     d_ff=theirs.intermediate_size, tie_weights=theirs.tie_word_embeddings, norm='rmsnorm',
                     norm_eps=theirs.rms_norm_eps, qk_norm=family == 'qwen3', ffn='swiglu', pos='rope',
                     rope_theta=rope['rope_theta'], init='normal')


def tensors(family, n_layer):
    """(their name, our names, whether they store the transpose) of each tensor that such a model may have"""
    for theirs, ours in FAMILIES[family].modules.items():
        for i in range(n_layer if '{i}' in theirs else 1):
            for kind in ('weight', 'bias'):
                yield (f'{theirs}.{kind}'.format(i=i), [f'{name}.{kind}'.format(i=i) for name in ours],
                       '.c_' in theirs and kind == 'weight')        # GPT-2's matrices are (n_in, n_out)


def their_weights(weights, family, n_layer):
    found = {}
    for theirs, ours, transposed in tensors(family, n_layer):
        if ours[0] in weights:
            value = torch.cat([weights[name] for name in ours])
            found[theirs] = value.t().contiguous() if transposed else value
    return found


def our_weights(weights, family, n_layer, bias):
    found = {}
    for theirs, ours, transposed in tensors(family, n_layer):
        if theirs in weights and (bias or not theirs.endswith('.bias')):
            value = weights[theirs].t() if transposed else weights[theirs]
            found |= zip(ours, value.chunk(len(ours)))
    return found


# ----------------------------------------------------------------------------- reading

def read_folder(name):
    """A model that Hugging Face's GPT-2, LLaMA or Qwen3 has saved, that write_model has, or one of OpenAI's on the Hub →
    GPTConfig, weights by our names. ValueError for anything else."""
    family = 'gpt2'
    if name not in OPENAI_MODELS:
        path = os.path.join(name, 'config.json')
        if not os.path.isfile(path):
            raise ValueError(f'{name!r} is neither one of {", ".join(OPENAI_MODELS)}, nor the folder of a model that '
                             f'export.py or Hugging Face has saved')
        try:
            with open(path, encoding='utf-8') as f:
                found = json.load(f)
            family = found.pop('model_type')
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            family = None
        if family not in ('nanonorm', *FAMILIES):
            raise ValueError(f'{path}: model_type={family!r} is none of nanonorm, {", ".join(FAMILIES)}')
    if family == 'nanonorm':
        return read_safetensors(name, found)
    try:
        theirs, found = getattr(hugging_face(), FAMILIES[family].model).from_pretrained(
            name, output_loading_info=True, dtype=torch.float32)
    except Exception as error:                          # of many libraries, each with its own
        raise ValueError(f'could not load {name!r}: {" ".join(str(error).split())[:300]}') from error
    config = our_config(theirs.config, family, name)
    wrong = sorted(found['missing_keys']) + sorted(key for key in found['unexpected_keys'] if key.endswith('.weight'))
    if wrong:
        raise ValueError(f'{name}: its weights are not those of a {FAMILIES[family].label} of its config.json, see {wrong[0]}')
    return config, our_weights(theirs.state_dict(), family, config.n_layer, config.bias)


def hugging_face():
    """The module transformers, which then says nothing but errors, the last of which says it all."""
    os.environ.setdefault('HF_HUB_VERBOSITY', 'error')
    import transformers
    transformers.utils.logging.disable_progress_bar()
    return transformers


def read_safetensors(name, found):
    from safetensors import SafetensorError
    from safetensors.torch import load_file
    path = os.path.join(name, 'model.safetensors')
    found.pop('eos_token_id', None)                     # text.py reads it
    unknown = found.keys() - {f.name for f in fields(GPTConfig)}
    if unknown:
        raise ValueError(f'{name}: config.json knows {min(unknown)!r}, which is no field of GPTConfig')
    try:
        config, weights = GPTConfig(**found), load_file(path)
        if config.tie_weights:
            weights['lm_head.weight'] = weights['wte.weight']
        with torch.device('meta'):
            model = GPT(config)
        model.load_state_dict(weights, assign=True)
    except FileNotFoundError:
        raise ValueError(f'there is no {path}') from None
    except (SafetensorError, RuntimeError, KeyError) as error:
        raise ValueError(f'{path} is damaged, or does not fit its config.json') from error
    return config, weights


TIMM_HEADS = {192: 3, 384: 6, 768: 12, 1024: 16, 1280: 16, 1408: 16}        # of its models, by their width
VIT_NAMES = {       # Hugging Face's and timm's names, of whole parts, in the order in which they are replaced | ours
    r'(vit\.embeddings\.)?cls_token': 'patch.cls.weight', r'vit\.embeddings\.position_embeddings|pos_embed': 'wpe.weight',
    r'vit\.embeddings\.patch_embeddings\.projection|patch_embed\.proj': 'patch', r'vit\.encoder\.layer|blocks': 'h',
    r'attention\.attention\.query': 'attn.wq', r'attention\.attention\.key': 'attn.wk', r'attention\.attention\.value': 'attn.wv',
    r'attn\.qkv': 'attn.wqkv', r'attention\.output\.dense|attn\.proj': 'attn.wo', r'layernorm_before|norm1': 'attn_pre_norm',
    r'layernorm_after|norm2': 'ffn_pre_norm', r'intermediate\.dense|mlp\.fc1': 'ffn.w1', r'output\.dense|mlp\.fc2': 'ffn.w2',
    r'vit\.layernorm|norm|fc_norm': 'final_norm', r'classifier': 'head',
}


def read_vit(path, n_head=0):
    """A ViT in a folder of Hugging Face's or timm's, or a file with timm's state_dict → ViTConfig, the mean and the standard
    deviation of its images, weights by our names. A file does not tell the heads: they are timm's for its width, or n_head; nor
    mean and std, which are then 0.5. ValueError for what cannot be loaded, or has no equal here."""
    about, file = {}, path
    try:
        if os.path.isdir(path):
            for name in ('preprocessor_config.json', 'config.json'):
                if name == 'config.json' or os.path.exists(os.path.join(path, name)):
                    with open(os.path.join(path, name), encoding='utf-8') as f:
                        about.update(json.load(f))
            file = os.path.join(path, 'model.safetensors')
            file = file if os.path.exists(file) else os.path.join(path, 'pytorch_model.bin')
        from safetensors.torch import load_file
        theirs = load_file(file) if file.endswith('.safetensors') else torch.load(file, map_location='cpu', weights_only=True)
        theirs, weights = theirs.get('state_dict', theirs.get('model', theirs)), {}
        for key, value in theirs.items():
            for name, ours in VIT_NAMES.items():
                key = re.sub(rf'(?<!\w)({name})(?!\w)', ours, key, count=1)
            keys = [key.replace('wqkv', f'w{letter}') for letter in 'qkv'] if 'wqkv' in key else [key]
            weights.update(zip(keys, value.float().chunk(len(keys))))
    except Exception as error:                          # of many libraries, each with its own
        raise ValueError(f'could not load {path!r} as a ViT: {" ".join(str(error).split())[:300]}') from error
    about.update({**about.get('model_args', {}), **about.get('pretrained_cfg', {})})        # which timm has
    pool = 'mean' if any(key.startswith('fc_norm') for key in theirs) else 'cls'
    try:
        (n_embd, channels, patch_size, _), (_, tokens, _) = weights['patch.weight'].shape, weights['wpe.weight'].shape
        config = ViTConfig(
            image_size=patch_size * math.isqrt(tokens - (pool == 'cls')), patch_size=patch_size, channels=channels,
            classes=len(weights['head.weight']), pool=pool, n_embd=n_embd, d_ff=len(weights['h.0.ffn.w1.weight']),
            n_layer=sum(key.endswith('wq.weight') for key in weights), bias=True, qkv_bias='h.0.attn.wq.bias' in weights,
            n_head=about.get('num_heads') or about.get('num_attention_heads') or TIMM_HEADS.get(n_embd) or n_head,
            ffn=ACTIVATIONS[about.get('hidden_act', 'gelu')], norm_eps=about.get('layer_norm_eps', 1e-6))
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(f'{path!r} is no ViT that has an equal here, see {" ".join(str(error).split())}') from error
    weights |= {'patch.weight': weights['patch.weight'].flatten(1), 'wpe.weight': weights['wpe.weight'][0]}
    if 'patch.cls.weight' in weights:
        weights['patch.cls.weight'] = weights['patch.cls.weight'].flatten()
    return config, *(about.get(f'image_{name}', about.get(name, 0.5)) for name in ('mean', 'std')), weights


# ----------------------------------------------------------------------------- writing

@contextmanager
def new_folder(path):
    """A folder to write into that becomes `path` once all is written."""
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
    """The GPT into a folder that exists, as Hugging Face's gpt2, llama or qwen3, or as ours: 'safetensors'. `end` is the
    token that closes a document."""
    config, weights = model.config, {name: value.detach().cpu() for name, value in model.state_dict().items()}
    if family == 'safetensors':
        from safetensors.torch import save_file
        if config.tie_weights:
            del weights['lm_head.weight']               # the format takes no tensor twice
        save_file({name: value.contiguous() for name, value in weights.items()}, os.path.join(folder, 'model.safetensors'),
                  metadata={'format': 'pt'})
        with open(os.path.join(folder, 'config.json'), 'w', encoding='utf-8') as f:
            json.dump(dict(model_type='nanonorm', eos_token_id=end, **asdict(config)), f, indent=1)
        return
    theirs_class = getattr(hugging_face(), FAMILIES[family].model)
    theirs_config = theirs_class.config_class(**their_config(config, family), bos_token_id=end, eos_token_id=end)
    weights = their_weights(weights, family, config.n_layer)
    with torch.device('meta'):
        theirs = theirs_class(theirs_config)
    for name, value in theirs.state_dict().items():
        if name.endswith('.bias'):                      # GPT-2 has them always
            weights.setdefault(name, torch.zeros(value.shape))
    theirs.load_state_dict(weights, assign=True)
    theirs.tie_weights()
    theirs.save_pretrained(folder)


def write_tokenizer(folder, name, chars):
    """The tokenizer of a data set as one that AutoTokenizer reads: the same ids for the same text."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    path = os.path.join(folder, 'tokenizer.json')
    load_tokenizer(name, chars)                         # one line, if it is not at hand
    if name == 'bytes':
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]       # the rest is moved beyond 255, in order
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


# ----------------------------------------------------------------------------- keys, beside those of train.py
out_dir = 'out'                     # the run's folder: read from, or made of from_hf
checkpoint = 'best.pt'              # best.pt | ckpt.pt: of the lowest validation loss, or the latest
to = ''                             # the folder to write
format = 'auto'                     # auto | gpt2 | llama | qwen3 | safetensors: auto takes Hugging Face's equal, if there is one
from_hf = ''                        # the folder of a model to make a run of instead; it wants the dataset whose tokens it knows
# -----------------------------------------------------------------------------


def write_run(folder):
    """A run without training of what from_hf holds."""
    at_least(config, weight_decay=0)
    if config['optimizer'] not in OPTIMIZERS:
        raise ValueError(f'optimizer={config["optimizer"]!r}: choose among {", ".join(OPTIMIZERS)}')
    meta = read_meta(config['dataset'])
    model = GPT.from_pretrained(from_hf)
    for f in fields(GPTConfig):
        if config[f.name] not in (f.default, getattr(model.config, f.name)):
            raise ValueError(f'{f.name}={config[f.name]}: {from_hf} has {getattr(model.config, f.name)}, which it keeps')
    if meta['vocab_size'] > model.config.vocab_size:
        raise ValueError(f'dataset={config["dataset"]} has {meta["vocab_size"]} tokens and {from_hf} {model.config.vocab_size}: '
                         f'choose the data set whose tokens it knows')
    keys = {key: config[key] for key in keys_of(TRAIN, GPTConfig)[0]} | asdict(model.config) | dict(init_from=from_hf)
    optimizer = OPTIMIZERS[keys['optimizer']](param_groups(model, keys['weight_decay']), keys)
    state = dict(model=model.state_dict(), optimizer=optimizer.state_dict(), scaler={}, config=keys, iter=0,
                 best_val_loss=float('inf'), first_loss=None)
    with open(os.path.join(folder, 'config.json'), 'w', encoding='utf-8') as f:
        json.dump(keys, f, indent=1)
    torch.save(state, os.path.join(folder, 'ckpt.pt'))
    os.link(os.path.join(folder, 'ckpt.pt'), os.path.join(folder, 'best.pt'))
    return f'wrote {out_dir}: python train.py {out_dir}/config.json --init_from=resume  trains on'


def write_export(folder):
    """What a run's checkpoint holds, for others."""
    choices = ('auto', *FAMILIES, 'safetensors')
    if format not in choices:
        raise ValueError(f'format={format!r}: choose one of {", ".join(choices)}')
    model, state = GPT.from_checkpoint(os.path.join(out_dir, checkpoint))
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
        raise ValueError('name either to, the folder to write, or from_hf, the folder to make a run of, as in --to=hf-model')
    with new_folder(out_dir if from_hf else to) as part:
        done = write_run(part) if from_hf else write_export(part)
    print(done)
