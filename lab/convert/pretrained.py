"""Read pretrained weights: of OpenAI's GPT-2, of Hugging Face's GPT-2, LLaMA, Qwen3 and OLMo 2, of nanoGPT, and of runs."""
from configurator import flags
from engine.process import one_line

import os
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
    model: str              # its class in transformers
    keys: dict              # fields of GPTConfig → their names in its config
    wants: dict             # fields of GPTConfig → the values that it can express
    outer: dict             # its modules outside the blocks → our module
    blocks: str             # its list of blocks
    inner: dict             # its modules in a block → our module, or several in one string if it stores them as one


# Fields that do not change what trained weights of these families compute
NEUTRAL = {'dropout', 'init', 'init_gain', 'emb_init', 'emb_std', 'fused_qkv_init', 'norm_alpha', 'attn_tau'}
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
LLAMA_OUTER = {'model.embed_tokens': 'wte', 'model.norm': 'final_norm', 'lm_head': 'lm_head'}
LLAMA_BRANCHES = {
    'self_attn.q_proj': 'attn.wq', 'self_attn.k_proj': 'attn.wk', 'self_attn.v_proj': 'attn.wv', 'self_attn.o_proj': 'attn.wo',
    'mlp.gate_proj': 'ffn.w1', 'mlp.up_proj': 'ffn.w3', 'mlp.down_proj': 'ffn.w2'}
LLAMA = LLAMA_BRANCHES | {'input_layernorm': 'attn_pre_norm', 'post_attention_layernorm': 'ffn_pre_norm'}
QK_NORM = {'self_attn.q_norm': 'attn.q_norm', 'self_attn.k_norm': 'attn.k_norm'}
OLMO2 = LLAMA_BRANCHES | QK_NORM | {'post_attention_layernorm': 'attn_mid_norm', 'post_feedforward_layernorm': 'ffn_mid_norm'}
ROPE_SWIGLU = PRE_NORM | dict(norm=['rmsnorm'], pos=['rope'], ffn=['swiglu'], bias=[False])
FAMILIES = {
    'gpt2': Family('GPT2LMHeadModel', GPT2_SIZES, PRE_NORM | dict(
        norm=['layernorm'], pos=['learned'], ffn=['gelu', 'gelu_tanh', 'relu'], bias=[True, False]),
        {'transformer.wte': 'wte', 'transformer.wpe': 'wpe', 'transformer.ln_f': 'final_norm', 'lm_head': 'lm_head'},
        'transformer.h', {'ln_1': 'attn_pre_norm', 'attn.c_attn': 'attn.wq attn.wk attn.wv', 'attn.c_proj': 'attn.wo',
                          'ln_2': 'ffn_pre_norm', 'mlp.c_fc': 'ffn.w1', 'mlp.c_proj': 'ffn.w2'}),
    'llama': Family('LlamaForCausalLM', LLAMA_SIZES, ROPE_SWIGLU, LLAMA_OUTER, 'model.layers', LLAMA),
    'qwen3': Family('Qwen3ForCausalLM', LLAMA_SIZES, ROPE_SWIGLU | dict(qk_norm=[True]),
                    LLAMA_OUTER, 'model.layers', LLAMA | QK_NORM),
    'olmo2': Family('Olmo2ForCausalLM', LLAMA_SIZES, ROPE_SWIGLU | dict(
        attn_pre_norm=[False], ffn_pre_norm=[False], attn_mid_norm=[True], ffn_mid_norm=[True], qk_norm=[True],
        qk_norm_wide=[True]), LLAMA_OUTER, 'model.layers', OLMO2),
}


def known_fields(family):
    """Return the fields of GPTConfig that the format of this family knows, or that do not matter to it."""
    return {'n_kv_head', 'rope_theta', *NEUTRAL, *FAMILIES[family].keys, *FAMILIES[family].wants}


def tensors(family, n_layer):
    """Yield (their name, our names, whether they store the transpose) for each tensor that a model of the family may have."""
    *_, outer, blocks, inner = FAMILIES[family]
    modules = [(theirs, [ours]) for theirs, ours in outer.items()]
    for i in range(n_layer):
        modules += [(f'{blocks}.{i}.{theirs}', [f'h.{i}.{name}' for name in ours.split()]) for theirs, ours in inner.items()]
    for theirs, ours in modules:
        for kind in 'weight', 'bias':               # GPT-2's matrices are (n_in, n_out)
            yield f'{theirs}.{kind}', [f'{name}.{kind}' for name in ours], '.c_' in theirs and kind == 'weight'


def our_config(theirs, family, name):
    """Convert their config to a GPTConfig. Raise ValueError for settings that have no equal here."""
    settings = theirs.to_dict() | (getattr(theirs, 'rope_parameters', None) or {})
    if family == 'gpt2':
        supported = dict(add_cross_attention=[False], scale_attn_by_inverse_layer_idx=[False], scale_attn_weights=[True],
                         activation_function=[*ACTIVATIONS])
    else:
        supported = dict(attention_bias=[False], mlp_bias=[False], use_sliding_window=[False], hidden_act=['silu'],
                         head_dim=[theirs.hidden_size // theirs.num_attention_heads], rope_type=['default'],
                         partial_rotary_factor=[1.0], layer_types=[None, ['full_attention'] * theirs.num_hidden_layers])
    for key, choices in supported.items():
        if settings.get(key, choices[0]) not in choices:
            raise ValueError(f'{name}: {key}={settings[key]!r} has no equal here; supported: {", ".join(map(str, choices))}')
    ours = {field: choices[0] for field, choices in FAMILIES[family].wants.items()}
    ours |= {field: 0 if settings[key] is None else settings[key] for field, key in FAMILIES[family].keys.items()}
    if family == 'gpt2':                                # no bias: write_model has filled them with 0
        return GPTConfig(**ours | dict(ffn=ACTIVATIONS[theirs.activation_function], bias=settings.get('bias', True)))
    return GPTConfig(**ours, rope_theta=settings['rope_theta'], init='normal')


def our_weights(weights, family, config):
    """Rename their weights to our names, without biases if config.bias is False."""
    renamed, left = {}, dict(weights)
    for theirs, ours, transposed in tensors(family, config.n_layer):
        value = left.pop(theirs, None)
        if value is not None and (config.bias or not theirs.endswith('.bias')):
            renamed |= zip(ours, (value.t() if transposed else value).chunk(len(ours)))
    if left:
        raise ValueError(f'{min(left)!r} has no place in our {FAMILIES[family].model}')
    return renamed


# ----------------------------------------------------------------------------- reading

def run_checkpoint(name):
    """Return the path of the checkpoint if the name is that of a run."""
    return name if name.endswith('.pt') else os.path.join(name, 'best.pt')


def read_model(name):
    """Return a GPTConfig, the weights by our names in fp32, and the fields that the model's format knows."""
    if state := load_nanogpt(name):
        keys, weights = gpt2_format(name, state)
        config = GPTConfig(**{field: choices[0] for field, choices in FAMILIES['gpt2'].wants.items()} | keys)
        return config, our_weights(weights, 'gpt2', config), known_fields('gpt2')
    if os.path.exists(run_checkpoint(name)):
        model, state = load_run(run_checkpoint(name))
        return model.config, state['model'], state['config']
    config = read_json(os.path.join(name, 'config.json'), 'copy it again') or {}
    family = 'gpt2' if name in OPENAI_MODELS else config.get('model_type')
    if family not in FAMILIES:
        raise ValueError(f"{name!r} is neither one of {', '.join(OPENAI_MODELS)}, nor the folder or checkpoint of a run, nor "
                         f"nanoGPT's ckpt.pt, nor the folder of a model whose model_type is {', '.join(FAMILIES)}; train.py's "
                         f'init_from may also be scratch, resume or auto')
    return read_hugging_face(name, family)


def hugging_face(from_hub=False):
    """Import transformers, without progress bars. If the Hub cannot be reached, use cached copies: it would retry for minutes."""
    if from_hub:
        try:
            urllib.request.urlopen(os.environ.get('HF_ENDPOINT', 'https://huggingface.co'), timeout=5).close()
        except OSError as error:
            if not isinstance(error, urllib.error.HTTPError):           # which is an answer
                os.environ.setdefault('HF_HUB_OFFLINE', '1')
    import transformers
    transformers.utils.logging.disable_progress_bar()
    return transformers


def read_hugging_face(name, family):
    """Return the same for a folder of Hugging Face's, or for an OpenAI model on the Hub."""
    transformers = hugging_face(from_hub=name in OPENAI_MODELS)
    try:
        theirs, loaded = getattr(transformers, FAMILIES[family].model).from_pretrained(name, output_loading_info=True,
                                                                                       dtype=torch.float32)
        config = our_config(theirs.config, family, name)
    except Exception as error:                          # the libraries raise errors of many types
        raise ValueError(f'could not load {name!r}: {one_line(error)}') from error
    unexpected = [key for key in loaded['unexpected_keys'] if not key.endswith('.attn.masked_bias')]        # of GPT-2s until 2023
    if wrong := [*loaded['missing_keys'], *unexpected]:
        raise ValueError(f'{name}: its weights do not fit the {FAMILIES[family].model} of its config.json, see {wrong[0]}')
    weights = theirs.state_dict()
    # a config may claim a tied head although the weights have two matrices, or deny biases that the weights have
    config.tie_weights &= torch.equal(theirs.lm_head.weight, theirs.get_input_embeddings().weight)
    config.bias |= any(value.any().item() for key, value in weights.items() if key.endswith('.bias'))
    return config, our_weights(weights, family, config), known_fields(family)


# ----------------------------------------------------------------------------- models

def load_gpt(name, block_size=None, dropout=0.0, extra_fields={}):
    """Load a GPT in fp32 from OpenAI's weights ('gpt2', 'gpt2-medium', 'gpt2-large', 'gpt2-xl'), from a run's checkpoint or the
    best.pt in its folder, from nanoGPT's ckpt.pt, or from a folder of Hugging Face's. Raise ValueError if that fails.

    A smaller block_size than theirs drops the later positions, except with StableAtten, whose τ depends on it. `extra_fields`:
    values for config fields that the model's format does not have. Parameters that exist because of them start as in an
    untrained model; the model's `started` lists them.
    """
    config, weights, known = read_model(name)
    if config.attention != 'stable':
        config.block_size = min(block_size or config.block_size, config.block_size)
    config.dropout = dropout
    if config.pos == 'learned':
        weights['wpe.weight'] = weights['wpe.weight'][:config.block_size]
    with torch.device('meta'):
        wanted = GPT(config).state_dict()
    extra = {f.name: extra_fields.get(f.name, f.default) for f in fields(GPTConfig) if f.init and f.name not in known}
    model = GPT(replace(config, **extra))
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
