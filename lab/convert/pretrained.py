"""
Read pretrained weights: OpenAI's GPT-2, folders of Hugging Face's GPT-2, LLaMA, Qwen3 and OLMo 2, folders that lab/export.py
has written, and runs.
"""
from configurator import expanded, flags
from engine.process import one_line

import os
import re
import urllib.request
from dataclasses import asdict, fields, replace
from typing import NamedTuple

import torch

from engine.checkpoint import load_run
from engine.errors import read_json
from model import GPT, GPTConfig

OPENAI_MODELS = ('gpt2', 'gpt2-medium', 'gpt2-large', 'gpt2-xl')

# ----------------------------------------------------------------------------- architectures that are equal


class Family(NamedTuple):
    label: str
    model: str              # its class in transformers
    wants: dict             # fields of GPTConfig → the supported values
    modules: dict           # its modules → our modules, several if it stores them as one; {i} is the block's number


# Fields that every family supports, and those that do not affect trained weights. The formats do not have a field that is neither
# here nor in a Family's `wants`, such as one that you have added: the exporter requires its default, and train.py --init_from
# uses its own value.
COMMON = {'block_size', 'vocab_size', 'n_layer', 'n_head', 'n_kv_head', 'n_embd', 'd_ff', 'dropout', 'bias', 'tie_weights',
          'norm_eps', 'norm_alpha', 'attn_tau', 'rope_theta', 'init', 'init_gain', 'emb_std', 'fused_qkv_init'}
PRE_NORM = dict(input_norm=[False], attn_pre_norm=[True], ffn_pre_norm=[True], attn_mid_norm=[False], ffn_mid_norm=[False],
                attn_post_norm=[False], ffn_post_norm=[False],
                final_norm=[True], residual_scale=[1.0], attention=['dot'],
                norm_depth_scale=[False], mix_ln=[0.0], skip_scale=['one'], mup_base_width=[0], mup_base_depth=[0],
                mup_base_head_dim=[0])
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
QK_NORM = {'model.layers.{i}.self_attn.q_norm': ['h.{i}.attn.q_norm'], 'model.layers.{i}.self_attn.k_norm': ['h.{i}.attn.k_norm']}
OLMO2 = {theirs: ours for theirs, ours in LLAMA.items() if 'layernorm' not in theirs} | QK_NORM | {
    'model.layers.{i}.post_attention_layernorm': ['h.{i}.attn_mid_norm'],
    'model.layers.{i}.post_feedforward_layernorm': ['h.{i}.ffn_mid_norm'],
}
OLMO2_FIELDS = dict(attn_pre_norm=False, ffn_pre_norm=False, attn_mid_norm=True, ffn_mid_norm=True, qk_norm_wide=True)
ROPE_SWIGLU = dict(norm=['rmsnorm'], pos=['rope'], ffn=['swiglu'], bias=[False])
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
    'llama': Family('LLaMA', 'LlamaForCausalLM', PRE_NORM | ROPE_SWIGLU | dict(qk_norm=[False]), LLAMA),
    'qwen3': Family('Qwen3', 'Qwen3ForCausalLM', PRE_NORM | ROPE_SWIGLU | dict(qk_norm=[True]), LLAMA | QK_NORM),
    'olmo2': Family('OLMo 2', 'Olmo2ForCausalLM', PRE_NORM | ROPE_SWIGLU | dict(
        qk_norm=[True], **{field: [value] for field, value in OLMO2_FIELDS.items()}), OLMO2),
}


def our_config(theirs, family, name):
    """Convert their config to a GPTConfig. Raise ValueError for settings that have no equal here."""

    def only(key, *choices):
        value = getattr(theirs, key, choices[0])
        if value not in choices:
            raise ValueError(f'{name}: {key}={value!r} has no equal here; supported: {", ".join(map(str, choices))}')
        return value

    if family == 'gpt2':
        only('add_cross_attention', False)
        only('scale_attn_by_inverse_layer_idx', False)
        only('scale_attn_weights', True)
        return GPTConfig(block_size=theirs.n_positions, vocab_size=theirs.vocab_size, n_layer=theirs.n_layer,
                         n_head=theirs.n_head, n_embd=theirs.n_embd, d_ff=theirs.n_inner or 0,
                         bias=getattr(theirs, 'bias', True),        # False: write_model has filled them with 0
                         ffn=ACTIVATIONS[only('activation_function', *ACTIVATIONS)],
                         norm_eps=theirs.layer_norm_epsilon, tie_weights=theirs.tie_word_embeddings)
    only('attention_bias', False)
    only('mlp_bias', False)
    only('use_sliding_window', False)
    only('hidden_act', 'silu')
    only('head_dim', theirs.hidden_size // theirs.num_attention_heads)
    only('layer_types', None, ['full_attention'] * theirs.num_hidden_layers)
    rope = theirs.rope_parameters
    for key, supported in (('rope_type', 'default'), ('partial_rotary_factor', 1.0)):
        if rope.get(key, supported) != supported:
            raise ValueError(f'{name}: {key}={rope[key]!r} has no equal here; supported: {supported}')
    return GPTConfig(block_size=theirs.max_position_embeddings, vocab_size=theirs.vocab_size, n_layer=theirs.num_hidden_layers,
                     n_head=theirs.num_attention_heads, n_kv_head=theirs.num_key_value_heads, n_embd=theirs.hidden_size,
                     d_ff=theirs.intermediate_size, tie_weights=theirs.tie_word_embeddings, norm='rmsnorm',
                     norm_eps=theirs.rms_norm_eps, qk_norm=family in ('qwen3', 'olmo2'), ffn='swiglu', pos='rope',
                     rope_theta=rope['rope_theta'], init='normal', **OLMO2_FIELDS if family == 'olmo2' else {})


def tensors(family, n_layer):
    """Yield (their name, our names, whether they store the transpose) for each tensor that a model of the family may have."""
    for theirs, ours in FAMILIES[family].modules.items():
        for i in range(n_layer if '{i}' in theirs else 1):
            for kind in ('weight', 'bias'):
                yield (f'{theirs}.{kind}'.format(i=i), [f'{name}.{kind}'.format(i=i) for name in ours],
                       '.c_' in theirs and kind == 'weight')        # GPT-2's matrices are (n_in, n_out)


def unknown_fields(Config, known):
    """Return {name: default} for the fields of a GPTConfig that are not in `known`."""
    return {f.name: f.default for f in fields(Config) if f.init and f.name not in known}


def our_weights(weights, family, n_layer, bias):
    """Rename their weights to our names, dropping biases if `bias` is False. Raise ValueError for a weight that has no place
    here."""
    renamed, unread = {}, set(weights)
    for theirs, ours, transposed in tensors(family, n_layer):
        if theirs in weights and (bias or not theirs.endswith('.bias')):
            value = weights[theirs].t() if transposed else weights[theirs]
            renamed |= zip(ours, value.chunk(len(ours)))
        unread.discard(theirs)
    if unread:
        raise ValueError(f'{min(unread)!r} has no place in a {FAMILIES[family].label} here')
    return renamed


# ----------------------------------------------------------------------------- reading

COPY = 'copy it again from where it came from'


def read_folder(name):
    """Read a model in Hugging Face's format from write_model or from others, a run's checkpoint or the best.pt in its folder, or
    an OpenAI model from the Hub. Return its GPTConfig, its weights by our names, and {name: default} for fields that its format
    does not have. Raise ValueError for anything else."""
    family, best = 'gpt2', name if name.endswith('.pt') else os.path.join(name, 'best.pt')
    if os.path.exists(best):
        model, state = load_run(best)
        return model.config, state['model'], unknown_fields(GPTConfig, state['config'].keys() | PRE_NORM.keys())
    if name not in OPENAI_MODELS:
        path = os.path.join(name, 'config.json')
        if not os.path.isfile(path):
            raise ValueError(f'{name!r} is neither one of {", ".join(OPENAI_MODELS)}, nor the folder of a model that '
                             f'export.py or Hugging Face has saved, or of a run with best.pt')
        their_config = read_json(path, COPY)
        family = their_config.pop('model_type', None)
        if family not in ('nanonorm', *FAMILIES):
            raise ValueError(f'{path}: model_type={family!r} is none of nanonorm, {", ".join(FAMILIES)}')
    if family == 'nanonorm':
        return read_safetensors(name, their_config)
    try:
        theirs, loaded = getattr(hugging_face(from_hub=name in OPENAI_MODELS), FAMILIES[family].model).from_pretrained(
            name, output_loading_info=True, dtype=torch.float32)
        config = our_config(theirs.config, family, name)
    except Exception as error:                          # the libraries raise errors of many types
        raise ValueError(f'could not load {name!r}: {one_line(error)}') from error
    constants = r'.*\.attn\.(masked_)?bias|.*\.inv_freq'         # in older files
    unexpected = sorted(key for key in loaded['unexpected_keys'] if not re.fullmatch(constants, key))
    wrong = [*sorted(loaded['missing_keys']), *unexpected]
    if wrong:
        raise ValueError(f'{name}: its weights do not fit the {FAMILIES[family].label} of its config.json, see {wrong[0]}')
    weights = theirs.state_dict()
    # a config may claim a tied head although the weights have two matrices
    config.tie_weights &= torch.equal(theirs.lm_head.weight, theirs.get_input_embeddings().weight)
    if family == 'gpt2':                                # a config may deny biases that the weights have
        config.bias |= any(weights[name].any().item() for name in weights if name.endswith('.bias'))
    return (config, our_weights(weights, family, config.n_layer, config.bias),
            unknown_fields(GPTConfig, COMMON | FAMILIES[family].wants.keys()))


def hugging_face(from_hub=False):
    """Import transformers, without progress bars. If the Hub, from which to load a model, cannot be reached, use a cached copy
    at once; transformers would retry for minutes."""
    if from_hub:
        try:
            urllib.request.urlopen(os.environ.get('HF_ENDPOINT', 'https://huggingface.co'), timeout=5).close()
        except urllib.error.HTTPError:
            pass                                        # it answers
        except OSError:
            os.environ.setdefault('HF_HUB_OFFLINE', '1')
    os.environ.setdefault('HF_HUB_VERBOSITY', 'error')
    os.environ.setdefault('TRANSFORMERS_VERBOSITY', 'error')
    import transformers
    transformers.utils.logging.disable_progress_bar()
    return transformers


OF_TRANSFORMERS = {'architectures', 'auto_map', 'bos_token_id', 'dtype', 'eos_token_id', 'masks', 'pad_token_id',
                   'transformers_version', 'use_cache'}          # in a 'nanonorm' config.json, besides our fields


def read_safetensors(name, their_config):
    from safetensors import SafetensorError
    from safetensors.torch import load_file
    path = os.path.join(name, 'model.safetensors')
    their_config = expanded({key: value for key, value in their_config.items() if key not in OF_TRANSFORMERS})
    unknown = their_config.keys() - {f.name for f in fields(GPTConfig)}
    if unknown:
        raise ValueError(f'{name}: config.json has {min(unknown)!r}, which is not a field of GPTConfig')
    try:
        config = GPTConfig(**their_config)
        weights = {key.removeprefix('net.'): value for key, value in load_file(path).items()}       # net. by save_pretrained
        head, wte = weights.setdefault('lm_head.weight', weights['wte.weight']), weights['wte.weight']
        if config.tie_weights and not torch.equal(head, wte):
            raise ValueError(f'{path} has a head of its own, and config.json says tie_weights=true: set it to false')
        with torch.device('meta'):
            model = GPT(config)
        model.load_state_dict(weights, assign=True)
    except FileNotFoundError:
        raise ValueError(f'there is no {path}') from None
    except (SafetensorError, RuntimeError, KeyError) as error:
        raise ValueError(f'{path} is damaged, or does not fit its config.json: '
                         f'{" ".join(str(error).split())[:300]}') from error
    return config, weights, unknown_fields(GPTConfig, their_config.keys() | PRE_NORM.keys())


# ----------------------------------------------------------------------------- models

def load_gpt(name, block_size=None, dropout=0.0, extra_fields={}):
    """Load a GPT from OpenAI's weights ('gpt2', 'gpt2-medium', 'gpt2-large', 'gpt2-xl'), from a run's checkpoint or the best.pt
    in its folder, or from a folder that lab/export.py or Hugging Face has saved.

    A smaller block_size than theirs drops the later positions, except with StableAtten, whose τ depends on it. `extra_fields`:
    values for config fields that the model's format does not have. Raise ValueError for another name, and for a model that
    cannot be loaded or has no equal here.
    """
    config, weights, unknown = read_folder(name)
    if config.attention != 'stable':
        config.block_size = min(block_size or config.block_size, config.block_size)
    config.dropout = dropout
    if config.pos == 'learned':
        weights['wpe.weight'] = weights['wpe.weight'][:config.block_size]
    return with_weights(name, GPT, config, weights, {key: extra_fields.get(key, default) for key, default in unknown.items()})


def with_weights(name, Model, config, weights, more, *arguments, new=()):
    """Return a Model with this config, changed by `more`, and these weights. Parameters that exist because of `more`, or that
    are `new`, start as in an untrained model; the model's `started` lists them. Raise ValueError if others are missing, or if
    weights are left over."""
    with torch.device('meta'):
        wanted = Model(config, *arguments).state_dict()
    model = Model(replace(config, **more), *arguments)
    model.started = [key for key, _ in model.named_parameters() if key not in weights]
    left = [key for key in weights if key not in model.state_dict()]
    missing = [key for key in wanted if key not in weights and not key.startswith(new)]
    if left:
        raise ValueError(f'{name!r} is no {Model.__name__} that has an equal here, see {left[0]!r}')
    if missing:
        raise ValueError(f'{name!r} has no {missing[0]!r}: a parameter that you add to the code must depend on a new field of '
                         'the config, by whose default it is absent')
    try:
        model.load_state_dict(weights, strict=False)
    except RuntimeError as error:                       # a tensor has another shape
        raise ValueError(f'{name!r} is no {Model.__name__} that has an equal here: '
                         f'{" ".join(str(error).split())[:300]}') from error
    return model


def load_pretrained(name, config):
    """Return the model that --init_from=name loads, unless it is scratch or resume, and set its architecture in `config`, a
    run's keys. The model's `notes` are lines to print. Raise ValueError if the command line asks for another architecture."""
    if name not in OPENAI_MODELS and not os.path.exists(name):
        raise ValueError(f'init_from={name!r}: choose one of scratch, resume, auto, {", ".join(OPENAI_MODELS)}, the folder '
                         f'or checkpoint of a run, or the folder of a model that lab/export.py or Hugging Face has saved')
    model = load_gpt(name, config['block_size'], config['dropout'], {f.name: config[f.name] for f in fields(GPTConfig)})
    model.notes = adopt(name, model, config)
    return model


def adopt(name, model, config):
    """Set the model's architecture in a run's config. Return lines about the keys that differed, and about parameters that
    `name` does not have. Raise ValueError if the command line has set one of these keys to another value."""
    differ = {key: value for key, value in asdict(model.config).items() if key in config and config[key] != value}
    contradictions = [f'{key} ({value} there, {config[key]} here)' for key, value in differ.items() if key in flags()]
    if contradictions:
        raise ValueError(f'{name} has another architecture than the command line: {", ".join(contradictions)}; leave these out')
    config.update(differ)
    notes = []
    if differ:
        notes.append(f'{name} brings its own ' + ', '.join(f'{key}={value}' for key, value in sorted(differ.items())))
    if model.started:
        more = f' and {len(model.started) - 3} more' if len(model.started) > 3 else ''
        notes.append(f'{name} has no {", ".join(model.started[:3])}{more}: these start as in an untrained model')
    return notes
