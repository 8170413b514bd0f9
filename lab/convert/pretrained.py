"""
Read pretrained weights: OpenAI's GPT-2, folders of Hugging Face's GPT-2, LLaMA, Qwen3 and OLMo 2, folders that lab/export.py
has written, and runs.
"""
from configurator import flags
from engine.process import one_line

import os
import re
import urllib.request
from dataclasses import asdict, fields, replace
from typing import NamedTuple

import torch

from data.text import check_tokenizer, load_tokenizer
from engine.checkpoint import load_checkpoint, load_run, meta_of
from engine.files import read_json
from lab.convert.nanogpt import gpt2_format, load_nanogpt, tokenizer_of_nanogpt
from model import GPT, GPTConfig

OPENAI_MODELS = ('gpt2', 'gpt2-medium', 'gpt2-large', 'gpt2-xl')

# ----------------------------------------------------------------------------- architectures that are equal


class Family(NamedTuple):
    label: str
    model: str              # its class in transformers
    keys: dict              # fields of GPTConfig → their names in its config
    wants: dict             # fields of GPTConfig → the values that it can express
    modules: dict           # its modules → our modules, several if it stores them as one; {i} is the block's number


# Fields that do not change what trained weights of these families compute
NEUTRAL = {'dropout', 'init', 'init_gain', 'emb_std', 'fused_qkv_init', 'norm_alpha', 'attn_tau'}
# Fields whose other values would change what the weights compute without a new parameter. A field that is neither here nor in a
# Family, such as one that you have added, is unknown to the formats: the exporter requires its default, and train.py --init_from
# takes its value from the run's keys.
PRE_NORM = dict(input_norm=[False], attn_pre_norm=[True], ffn_pre_norm=[True], attn_mid_norm=[False], ffn_mid_norm=[False],
                attn_post_norm=[False], ffn_post_norm=[False], final_norm=[True], residual_scale=[1.0], attention=['dot'],
                norm_depth_scale=[False], mix_ln=[0.0], skip_scale=['one'], mup_base_width=[0], mup_base_depth=[0],
                mup_base_head_dim=[0], qk_norm=[False])
SIZES = dict(vocab_size='vocab_size', tie_weights='tie_word_embeddings')
GPT2_SIZES = SIZES | dict(block_size='n_positions', n_embd='n_embd', n_layer='n_layer', n_head='n_head', d_ff='n_inner',
                          norm_eps='layer_norm_epsilon')
LLAMA_SIZES = SIZES | dict(block_size='max_position_embeddings', n_embd='hidden_size', n_layer='num_hidden_layers',
                           n_head='num_attention_heads', n_kv_head='num_key_value_heads', d_ff='intermediate_size',
                           norm_eps='rms_norm_eps')
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
ROPE_SWIGLU = PRE_NORM | dict(norm=['rmsnorm'], pos=['rope'], ffn=['swiglu'], bias=[False])
FAMILIES = {
    'gpt2': Family('GPT-2', 'GPT2LMHeadModel', GPT2_SIZES, PRE_NORM | dict(
        norm=['layernorm'], pos=['learned'], ffn=['gelu', 'gelu_tanh', 'relu'], bias=[True, False]), {
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
    'llama': Family('LLaMA', 'LlamaForCausalLM', LLAMA_SIZES, ROPE_SWIGLU, LLAMA),
    'qwen3': Family('Qwen3', 'Qwen3ForCausalLM', LLAMA_SIZES, ROPE_SWIGLU | dict(qk_norm=[True]), LLAMA | QK_NORM),
    'olmo2': Family('OLMo 2', 'Olmo2ForCausalLM', LLAMA_SIZES, ROPE_SWIGLU | dict(
        attn_pre_norm=[False], ffn_pre_norm=[False], attn_mid_norm=[True], ffn_mid_norm=[True], qk_norm=[True],
        qk_norm_wide=[True]), OLMO2),
}


def unknown_fields(known):
    """Return {name: default} for the fields of GPTConfig that are not in `known`."""
    return {f.name: f.default for f in fields(GPTConfig) if f.init and f.name not in known}


def family_fields(family):
    """Return the fields of GPTConfig that the format of this family knows, or that do not matter to it."""
    return {'n_kv_head', 'rope_theta', *NEUTRAL, *FAMILIES[family].keys, *FAMILIES[family].wants}


def tensors(family, n_layer):
    """Yield (their name, our names, whether they store the transpose) for each tensor that a model of the family may have."""
    for theirs, ours in FAMILIES[family].modules.items():
        for i in range(n_layer if '{i}' in theirs else 1):
            for kind in ('weight', 'bias'):
                yield (f'{theirs}.{kind}'.format(i=i), [f'{name}.{kind}'.format(i=i) for name in ours],
                       '.c_' in theirs and kind == 'weight')        # GPT-2's matrices are (n_in, n_out)


def our_config(theirs, family, name):
    """Convert their config to a GPTConfig. Raise ValueError for settings that have no equal here."""
    settings = theirs.to_dict() | (getattr(theirs, 'rope_parameters', None) or {})
    supported = dict(add_cross_attention=[False], scale_attn_by_inverse_layer_idx=[False], scale_attn_weights=[True],
                     activation_function=[*ACTIVATIONS])
    if family != 'gpt2':
        supported = dict(attention_bias=[False], mlp_bias=[False], use_sliding_window=[False], hidden_act=['silu'],
                         head_dim=[theirs.hidden_size // theirs.num_attention_heads], rope_type=['default'],
                         partial_rotary_factor=[1.0], layer_types=[None, ['full_attention'] * theirs.num_hidden_layers])
    for key, choices in supported.items():
        if settings.get(key, choices[0]) not in choices:
            raise ValueError(f'{name}: {key}={settings[key]!r} has no equal here; supported: {", ".join(map(str, choices))}')
    sizes = {ours: 0 if settings[key] is None else settings[key] for ours, key in FAMILIES[family].keys.items()}
    if family == 'gpt2':                                # no bias: write_model has filled them with 0
        more = dict(ffn=ACTIVATIONS[theirs.activation_function], bias=settings.get('bias', True))
    else:
        more = dict(rope_theta=settings['rope_theta'], init='normal')
    return GPTConfig(**{field: choices[0] for field, choices in FAMILIES[family].wants.items()} | sizes | more)


def our_weights(weights, family, n_layer, bias):
    """Rename their weights to our names, dropping biases if `bias` is False. Raise ValueError for a weight that has no place
    here."""
    renamed, left = {}, dict(weights)
    for theirs, ours, transposed in tensors(family, n_layer):
        value = left.pop(theirs, None)
        if value is not None and (bias or not theirs.endswith('.bias')):
            renamed |= zip(ours, (value.t() if transposed else value).chunk(len(ours)))
    if left:
        raise ValueError(f'{min(left)!r} has no place in a {FAMILIES[family].label} here')
    return renamed


# ----------------------------------------------------------------------------- reading
# Each reader returns a GPTConfig, the weights by our names in fp32, and {name: default} for fields that the format does not have.

def run_checkpoint(name):
    """Return the path of the checkpoint if the name is that of a run."""
    return name if name.endswith('.pt') else os.path.join(name, 'best.pt')


def read_model(name):
    """Read an OpenAI model from the Hub, a run's checkpoint or the best.pt in its folder, a checkpoint of nanoGPT, or a folder in
    Hugging Face's format. Raise ValueError for anything else."""
    if state := load_nanogpt(name):
        return read_nanogpt(name, state)
    if os.path.exists(run_checkpoint(name)):
        model, state = load_run(run_checkpoint(name))
        return model.config, state['model'], unknown_fields(state['config'])
    config = read_json(os.path.join(name, 'config.json'), 'copy it again') or {}
    family = 'gpt2' if name in OPENAI_MODELS else config.get('model_type')
    if family not in ('nanonorm', *FAMILIES):
        raise ValueError(f'{name!r} is neither one of {", ".join(OPENAI_MODELS)}, nor the folder of a run with best.pt, nor the '
                         f'folder of a model whose model_type is nanonorm, {", ".join(FAMILIES)}')
    return read_nanonorm(name, config) if family == 'nanonorm' else read_hugging_face(name, family)


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
    import transformers
    transformers.utils.logging.disable_progress_bar()
    return transformers


def read_hugging_face(name, family):
    transformers = hugging_face(from_hub=name in OPENAI_MODELS)
    try:
        theirs, loaded = getattr(transformers, FAMILIES[family].model).from_pretrained(name, output_loading_info=True,
                                                                                       dtype=torch.float32)
        config = our_config(theirs.config, family, name)
    except Exception as error:                          # the libraries raise errors of many types
        raise ValueError(f'could not load {name!r}: {one_line(error)}') from error
    constants = r'.*\.attn\.(masked_)?bias|.*\.inv_freq'         # in older files
    unexpected = [key for key in loaded['unexpected_keys'] if not re.fullmatch(constants, key)]
    if wrong := [*loaded['missing_keys'], *unexpected]:
        raise ValueError(f'{name}: its weights do not fit the {FAMILIES[family].label} of its config.json, see {wrong[0]}')
    weights = theirs.state_dict()
    # a config may claim a tied head although the weights have two matrices, or deny biases that the weights have
    config.tie_weights &= torch.equal(theirs.lm_head.weight, theirs.get_input_embeddings().weight)
    config.bias |= any(value.any().item() for key, value in weights.items() if key.endswith('.bias'))
    return config, our_weights(weights, family, config.n_layer, config.bias), unknown_fields(family_fields(family))


def read_nanogpt(path, state):
    keys, weights = gpt2_format(path, state)
    config = GPTConfig(**{field: choices[0] for field, choices in FAMILIES['gpt2'].wants.items()} | keys)
    return config, our_weights(weights, 'gpt2', config.n_layer, config.bias), unknown_fields(family_fields('gpt2'))


OF_TRANSFORMERS = {'architectures', 'auto_map', 'bos_token_id', 'dtype', 'eos_token_id', 'model_type', 'pad_token_id',
                   'transformers_version', 'use_cache'}         # in the config.json of an export, besides our fields


def read_nanonorm(name, config):
    """Read a folder, with this config.json, that lab/export.py has written. The code in it is not run."""
    from safetensors.torch import load_file
    config = {key: config[key] for key in config.keys() - OF_TRANSFORMERS}
    if unknown := config.keys() - {f.name for f in fields(GPTConfig)}:
        raise ValueError(f'{name}: config.json has {min(unknown)!r}, which is not a field of GPTConfig')
    weights = load_file(os.path.join(name, 'model.safetensors'))
    weights = {key.removeprefix('net.'): value for key, value in weights.items()}       # save_pretrained writes net.
    weights.setdefault('lm_head.weight', weights['wte.weight'])                         # a tied head is not in the file
    return GPTConfig(**config), weights, unknown_fields(config)


# ----------------------------------------------------------------------------- models

def load_gpt(name, block_size=None, dropout=0.0, extra_fields={}):
    """Load a GPT in fp32 from OpenAI's weights ('gpt2', 'gpt2-medium', 'gpt2-large', 'gpt2-xl'), from a run's checkpoint or the
    best.pt in its folder, from nanoGPT's ckpt.pt, or from a folder that lab/export.py or Hugging Face has saved.

    A smaller block_size than theirs drops the later positions, except with StableAtten, whose τ depends on it. `extra_fields`:
    values for config fields that the model's format does not have. Parameters that exist because of them start as in an
    untrained model; the model's `started` lists them. Raise ValueError for a model that cannot be loaded or has no equal here.
    """
    config, weights, unknown = read_model(name)
    if config.attention != 'stable':
        config.block_size = min(block_size or config.block_size, config.block_size)
    config.dropout = dropout
    if config.pos == 'learned':
        weights['wpe.weight'] = weights['wpe.weight'][:config.block_size]
    with torch.device('meta'):
        wanted = GPT(config).state_dict()
    model = GPT(replace(config, **{key: extra_fields.get(key, default) for key, default in unknown.items()}))
    missing, unexpected = model.load_state_dict(weights, strict=False)
    model.started = [key for key, _ in model.named_parameters() if key in missing]
    if unexpected:
        raise ValueError(f'{name!r} has {min(unexpected)!r}, which no GPT here has')
    if lost := wanted.keys() & missing:
        raise ValueError(f'{name!r} has no {min(lost)!r}. If you have added it to the code, make it depend on a new field of the '
                         f'config, by whose default it is absent')
    return model


def tokenizer_of(name):
    """Return the arguments of load_tokenizer for a model that load_gpt loads."""
    if state := load_nanogpt(name):
        return tokenizer_of_nanogpt(name, state)
    if os.path.exists(run_checkpoint(name)):
        meta = meta_of(load_checkpoint(run_checkpoint(name), mmap=True))
        return meta['tokenizer'], meta['chars']
    return 'gpt2' if name in OPENAI_MODELS else name, ''


def load_pretrained(name, config):
    """Return the model that --init_from=name loads, unless it is scratch or resume, and set its architecture in `config`, a
    run's keys. The model's `notes` are lines to print. Raise ValueError if the command line asks for another architecture."""
    if name not in OPENAI_MODELS and not os.path.exists(name):
        raise ValueError(f'init_from={name!r}: choose one of scratch, resume, auto, {", ".join(OPENAI_MODELS)}, the folder '
                         f"or checkpoint of a run, nanoGPT's ckpt.pt, or the folder of a model that lab/export.py or Hugging "
                         f'Face has saved')
    model = load_gpt(name, config['block_size'], config['dropout'], {f.name: config[f.name] for f in fields(GPTConfig)})
    differ = {key: value for key, value in asdict(model.config).items() if key in config and config[key] != value}
    if contradictions := [f'{key} ({value} there, {config[key]} here)' for key, value in differ.items() if key in flags()]:
        raise ValueError(f'{name} has another architecture than the command line: {", ".join(contradictions)}; leave these out')
    config.update(differ)
    model.notes = [f'{name} gives the weights alone: the optimizer starts anew, at iteration 0'] if name.endswith('.pt') else []
    learned = tokenizer_of(name)
    try:
        load_tokenizer(*learned)
    except (ValueError, OSError) as error:
        model.notes.append(f'the tokens of {name} and of data/{config["dataset"]} were not compared: {error}')
    else:
        check_tokenizer(name, learned, config['dataset'])
    if differ:
        model.notes.append(f'{name} brings its own ' + ', '.join(f'{key}={value}' for key, value in sorted(differ.items())))
    if model.started:
        more = f' and {len(model.started) - 3} more' if len(model.started) > 3 else ''
        model.notes.append(f'{name} has no {", ".join(model.started[:3])}{more}: these start as in an untrained model')
    return model
