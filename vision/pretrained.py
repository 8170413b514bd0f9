"""
Read the weights of ViTs: runs and exports of this repository, Hugging Face's and timm's models. Settings that a source states are
adopted or refused. Unstated settings come from the command line; any remaining guess is printed.
"""
from configurator import expanded
from engine.process import one_line

import argparse
import math
import os
import re
from dataclasses import replace
from typing import NamedTuple

import torch
from torch.nn import functional as F

from engine.checkpoint import FREE, load_run
from engine.errors import is_number, read_json
from engine.keys import config_from
from lab.convert.pretrained import ACTIVATIONS, COMMON, COPY, PRE_NORM, adopt, unknown_fields, with_weights
from vision.vit import ViT, ViTConfig

# ----------------------------------------------------------------------------- settings in other people's configs
# Names that are no fields of ViTConfig are properties that the weights show.

OF_A_VIT = COMMON | {'norm', 'qk_norm', 'pos', 'ffn', 'image_size', 'patch_size', 'channels', 'classes', 'pool', 'qkv_bias',
                     'drop_path'}
HUGGING_FACE = dict(
    hidden_size='n_embd', num_hidden_layers='n_layer', num_attention_heads='n_head', intermediate_size='d_ff', hidden_act='ffn',
    image_size='image_size', patch_size='patch_size', num_channels='channels', qkv_bias='qkv_bias', layer_norm_eps='norm_eps')
HF_DEFAULTS = dict(num_attention_heads=12, hidden_act='gelu', layer_norm_eps=1e-12)     # of transformers' ViTConfig
TIMM = dict(        # the arguments of timm's VisionTransformer
    embed_dim='n_embd', depth='n_layer', num_heads='n_head', act_layer='ffn', img_size='image_size', patch_size='patch_size',
    in_chans='channels', num_classes='classes', qkv_bias='qkv_bias', mlp_ratio='d_ff', global_pool='pool',
    final_norm='final_norm', init_values='LayerScale', class_token='class token', fc_norm='fc_norm',
    no_embed_class='no_embed_class')
TIMM_ONLY = dict(   # arguments that are supported with this value only
    qk_norm=False, scale_attn_norm=False, scale_mlp_norm=False, proj_bias=True, pos_embed='learn', reg_tokens=0, pre_norm=False,
    pool_include_prefix=False, norm_layer='layernorm')
TIMM_TRAINING = {   # arguments that do not affect what trained weights compute
    'drop_rate', 'pos_drop_rate', 'patch_drop_rate', 'proj_drop_rate', 'attn_drop_rate', 'drop_path_rate', 'weight_init',
    'fix_init', 'dynamic_img_size', 'dynamic_img_pad', 'strict_img_size'}
TIMM_DEFAULTS = dict(norm_eps=1e-6, ffn='gelu')                     # of the architectures that are supported here
TIMM_HEADS = {192: 3, 384: 6, 512: 8, 640: 10, 768: 12, 896: 14, 1024: 16, 1280: 16, 1408: 16, 1664: 16}    # width → heads
OTHER_KEYS = {      # keys that transformers adds to any config.json
    'architectures', 'auto_map', 'transformers_version', 'torch_dtype', 'dtype', 'id2label', 'label2id', 'num_labels',
    'problem_type', 'return_dict', 'output_hidden_states', 'output_attentions', 'chunk_size_feed_forward', 'is_encoder_decoder',
    '_name_or_path'}
NAMES = {           # Hugging Face's and timm's names (whole parts of a name) → ours, replaced in this order
    r'(embeddings\.)?cls_token': 'patch.cls.weight', r'embeddings\.position_embeddings|pos_embed': 'wpe.weight',
    r'embeddings\.patch_embeddings\.projection|patch_embed\.proj': 'patch', r'encoder\.layer|blocks': 'h',
    r'attention\.attention\.query': 'attn.wq', r'attention\.attention\.key': 'attn.wk', r'attention\.attention\.value': 'attn.wv',
    r'attn\.qkv': 'attn.wqkv', r'attention\.output\.dense|attn\.proj': 'attn.wo', r'layernorm_before|norm1': 'attn_pre_norm',
    r'layernorm_after|norm2': 'ffn_pre_norm', r'intermediate\.dense|mlp\.fc1': 'ffn.w1', r'output\.dense|mlp\.fc2': 'ffn.w2',
    r'layernorm|norm': 'final_norm', r'classifier': 'head',
}


def no_equal(what, *choices):
    return ValueError(f'{what} has no equal here' + (f'; supported: {", ".join(map(str, choices))}' if choices else ''))


def stated(settings, table, n_embd):
    """Return {our name: value}, by a table from their names to ours. Raise ValueError for a value that has no equal here."""
    fields_stated = {}
    for key, ours in table.items():
        value = settings.get(key)
        if value is None:
            continue
        if ours in ('image_size', 'patch_size') and isinstance(value, list):
            if len(set(value)) != 1:
                raise no_equal(f'{key}={value}', 'squares')
            value = value[0]
        elif ours == 'ffn':
            known = {**ACTIVATIONS, 'gelu_tanh': 'gelu_tanh'}
            if value not in known:
                raise no_equal(f'{key}={value!r}', *known)
            value = known[value]
        elif ours == 'd_ff' and key == 'mlp_ratio':
            value = int(value * n_embd)
        elif ours == 'pool':
            if value not in ('token', 'avg', ''):
                raise no_equal(f'{key}={value!r}', 'token', 'avg')
        elif ours == 'LayerScale':
            value = bool(value)
        fields_stated[ours] = value
    return fields_stated


def stated_by_timm(about, n_embd):
    """Return {our name: value} for the settings in a timm folder's config.json."""
    cfg, name = about.get('pretrained_cfg', about), str(about.get('architecture', ''))
    size = cfg.get('input_size') or [3, 0, 0]
    args = {'num_classes': about.get('num_classes'), 'global_pool': about.get('global_pool'),
            'img_size': size[1:] if size[1] != size[2] else None, **about.get('model_args', {})}
    for key, value in args.items():
        if value is not None and not (key in TIMM or key in TIMM_TRAINING or key in TIMM_ONLY and TIMM_ONLY[key] == value):
            raise no_equal(f'{key}={value!r}', *([TIMM_ONLY[key]] if key in TIMM_ONLY else []))
    if '_rpn_' in name:                                 # its norms have the usual names, but follow the branches
        raise no_equal(f'architecture={name!r}')
    return {**(TIMM_DEFAULTS if name else {}), **stated(args, TIMM, n_embd)}


def stated_normalization(about, images):
    """Return {'image_mean': …, 'image_std': …}, for values from 0 to 1, if a folder's two JSON files state them."""
    if images.get('do_rescale', True) is not True or abs(images.get('rescale_factor', 1 / 255) * 255 - 1) > 1e-6:
        raise no_equal('a preprocessor_config.json whose images are not rescaled by 1/255')
    if images.get('do_normalize', True) is not True:
        return dict(image_mean=0.0, image_std=1.0)
    cfg = about.get('pretrained_cfg', about)            # timm's
    normalization = {key: images.get(key, cfg.get(key[6:])) for key in ('image_mean', 'image_std')}
    return {key: value for key, value in normalization.items() if value is not None}


# ----------------------------------------------------------------------------- files

WEIGHTS = ('model.safetensors', 'model.safetensors.index.json', 'pytorch_model.bin', 'pytorch_model.bin.index.json')
HOLDERS = ('state_dict', 'model', 'state_dict_ema', 'model_ema')            # where checkpoints of training scripts have weights
RUN = {'model', 'config', 'iter', 'optimizer'}                              # of a checkpoint of vision.train


def read_file(path):
    """Load a file of weights, without running code in it. An argparse.Namespace, where scripts store arguments, is allowed."""
    if path.endswith('.safetensors'):
        from safetensors.torch import load_file
        return load_file(path)
    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(path, map_location='cpu', weights_only=True)


def read_weights(path):
    """Load the weights in a file, or in a folder, where they may be spread over several files."""
    if not os.path.isdir(path):
        return read_file(path)
    file = next((file for name in WEIGHTS if os.path.exists(file := os.path.join(path, name))), None)
    if not file:
        raise ValueError(f'it has none of {", ".join(WEIGHTS)}')
    if not file.endswith('.json'):
        return read_file(file)
    names = read_json(file, COPY)['weight_map'].values()
    return {key: value for name in sorted(set(names)) for key, value in read_file(os.path.join(path, name)).items()}


def unpacked(state):
    """Return a file's {name: tensor}, without the prefixes of wrappers, and a line for the log if moving averages of the weights
    are taken or left out."""
    holders = [key for key in HOLDERS if isinstance(state.get(key), dict)]
    notes = [f'took {", not ".join(holders)}'] if any(key.endswith('_ema') for key in holders) else []
    weights = {}
    for key, value in (state[holders[0]] if holders else state).items():
        if not torch.is_tensor(value):
            raise ValueError(f'{key!r} is no tensor')
        weights[re.sub(r'^((module|_orig_mod|vit|net)\.)+|(?<=\.)_orig_mod\.', '', key)] = value
    return weights, notes


# ----------------------------------------------------------------------------- reading

class Source(NamedTuple):
    config: ViTConfig       # its classes are 0 if it has no head
    weights: dict           # by our names
    unknown: dict           # {name: default} of the fields that the source's format does not have
    images: dict            # image_mean and image_std, if stated
    notes: list             # lines about omissions and changes
    guesses: list           # guessed settings, such as 'ffn=gelu'


def read_vit(path, given):
    """Read the Source in a folder or file. `given`: {field: value} for unstated fields. Raise ValueError for a model that cannot
    be loaded or has no equal here."""
    best, ckpt = (os.path.join(path, name) for name in ('best.pt', 'ckpt.pt'))
    if os.path.exists(best):
        return read_run(best)
    if os.path.exists(ckpt):
        raise ValueError(f'{path} is a run without best.pt: name {ckpt} to start from it')
    about, images = {}, {}
    try:
        if os.path.isdir(path):
            about = read_json(os.path.join(path, 'config.json'), COPY)
            images = read_json(os.path.join(path, 'preprocessor_config.json'), COPY) or {}
            if about is None:
                raise ValueError(f'there is no {os.path.join(path, "config.json")}')
        state = read_weights(path)
        if not RUN <= state.keys():
            weights, notes = unpacked(state)
            if about.get('model_type') == 'nanonorm_vit':
                return read_export(about, weights)
            return read_others(about, images, weights, notes, given)
    except Exception as error:                          # the libraries raise errors of many types
        why = error if isinstance(error, ValueError) else f'it has no {error}' if isinstance(error, KeyError) else one_line(error)
        raise ValueError(f'{path!r} is no ViT that can be loaded here: {why}') from error
    return read_run(path)


def read_run(path):
    """Read the Source in a checkpoint of vision.train."""
    _, state = load_run(path, Model=ViT)
    return of_ours(config_from(ViTConfig, state['config']), state['model'], state['config'])


def read_export(about, weights):
    """Return the Source for a folder written by vision/export.py."""
    their_config = expanded({key: value for key, value in about.items() if key not in OTHER_KEYS | {'model_type'}})
    return of_ours(ViTConfig(**their_config), weights, their_config)


def of_ours(config, weights, their_config):
    """Return the Source with this config and these weights by our names. The file stated the fields in `their_config`."""
    weights, unknown = dict(weights), unknown_fields(ViTConfig, OF_A_VIT | PRE_NORM.keys() | their_config.keys())
    images = {f'image_{name}': weights.pop(f'patch.{name}').flatten().tolist() for name in ('mean', 'std')}
    return Source(config, weights, unknown, images, [], [])


def renamed(theirs):
    """Rename Hugging Face's or timm's weights to our names, and split q, k and v."""
    weights = {}
    for key, value in theirs.items():
        if re.search(r'dist_token|head_dist|distillation', key):
            raise no_equal(f'the distillation token of DeiT ({key!r})')
        for name, ours in NAMES.items():
            key = re.sub(rf'(?<!\w)({name})(?!\w)', ours, key, count=1)
        if not value.is_floating_point():
            raise no_equal(f'{key!r} of {value.dtype}')         # quantized
        keys = [key.replace('wqkv', f'w{letter}') for letter in 'qkv'] if 'wqkv' in key else [key]
        weights.update(zip(keys, value.float().chunk(len(keys))))
    return weights


def read_others(about, images, theirs, notes, given):
    """Return the Source for Hugging Face's or timm's weights and the two JSON files beside them, if any."""
    if 'patch.mean' in theirs:
        raise ValueError('it is a file of vision/export.py: name its folder, whose config.json belongs to it')
    weights, guesses = renamed(theirs), []
    left_out = sorted(key for key in weights if key.startswith('pooler.'))
    for key in left_out:
        del weights[key]
    if left_out:
        notes = [*notes, f'left out {", ".join(left_out)}, which a classifier does not use']
    (n_embd, channels, patch_size, columns), (_, tokens, _) = weights['patch.weight'].shape, weights['wpe.weight'].shape
    if patch_size != columns:
        raise no_equal(f'patches of {patch_size} × {columns} pixels', 'squares')

    # what the weights show
    cls, behind = 'patch.cls.weight' in weights, 'fc_norm.weight' in weights
    for kind in ('weight', 'bias'):
        if f'fc_norm.{kind}' in weights and f'final_norm.{kind}' not in weights:
            weights[f'final_norm.{kind}'] = weights.pop(f'fc_norm.{kind}')
    prefix = next((n for n in (int(cls), 0) if tokens > n and math.isqrt(tokens - n) ** 2 == tokens - n), None)
    if prefix is None:
        raise no_equal(f'a position embedding of {tokens} rows, which are no square of patches,')
    layers = sum(key.endswith('attn.wq.weight') for key in weights)
    seen = {'n_embd': n_embd, 'channels': channels, 'patch_size': patch_size, 'class token': cls, 'n_layer': layers,
            'image_size': patch_size * math.isqrt(tokens - prefix), 'd_ff': len(weights['h.0.ffn.w1.weight']),
            'classes': len(weights.get('head.weight', ())), 'qkv_bias': 'h.0.attn.wq.bias' in weights,
            'LayerScale': 'h.0.ls1.gamma' in weights, 'fc_norm': behind, 'final_norm': 'final_norm.weight' in weights}
    if cls:
        seen['no_embed_class'] = prefix == 0

    # what the JSON states
    kind = about.get('model_type')
    if kind not in (None, 'vit'):
        raise no_equal(f'model_type={kind!r}', 'vit', 'nanonorm_vit')
    if about.keys() & {'architecture', 'model_args', 'pretrained_cfg'}:
        says = stated_by_timm(about, n_embd)
        if 'pool' in says:
            says['pool'] = {'token': 'cls', 'avg': 'patches' if cls else 'mean', '': None}[says['pool']]
    else:
        says = stated({**(HF_DEFAULTS if kind else {}), **about}, HUGGING_FACE, n_embd) | (dict(pool='cls') if kind else {})
    for name, value in seen.items():
        if says.get(name, value) != value:
            raise ValueError(f'its config.json states {name}={says[name]}, and its weights have {value}')

    # unstated settings
    def stated_or(field, guess, why=''):
        if says.get(field) is not None:
            return says[field]
        if field in given:
            return given[field]
        if guess is None:
            raise ValueError(f'it does not state the number of heads, and timm has none for a width of {n_embd}: set --{field}')
        guesses.append(f'{field}={guess}{why}')
        return guess

    n_head = stated_or('n_head', TIMM_HEADS.get(n_embd), f" (timm's for a width of {n_embd})")
    ffn, norm_eps = (stated_or(field, TIMM_DEFAULTS[field]) for field in ('ffn', 'norm_eps'))
    pool = stated_or('pool', 'patches' if behind else 'cls') if cls else says.get('pool') or 'mean'
    if pool == 'cls' and not cls or pool != 'cls' and seen['final_norm'] and not behind:
        raise no_equal('pooling by the class token without one' if pool == 'cls' else 'a norm before the mean of the patches')
    if not about:
        guesses.append(f'square images of {seen["image_size"]} pixels')

    # our shapes
    if cls:
        weights['patch.cls.weight'] = weights['patch.cls.weight'].flatten()
    weights |= {'patch.weight': weights['patch.weight'].flatten(1), 'wpe.weight': weights['wpe.weight'][0]}
    if cls and not prefix:                              # the class token has no position embedding: add one of 0
        weights['wpe.weight'] = F.pad(weights['wpe.weight'], (0, 0, 1, 0))
    if seen['LayerScale']:
        notes = [*notes, 'multiplied its LayerScale into wo and w2, which computes the same']
        for i in range(layers):
            for scale, matrix in ((f'h.{i}.ls1.gamma', f'h.{i}.attn.wo'), (f'h.{i}.ls2.gamma', f'h.{i}.ffn.w2')):
                gamma = weights.pop(scale)
                weights[f'{matrix}.weight'] = gamma[:, None] * weights[f'{matrix}.weight']
                weights[f'{matrix}.bias'] = gamma * weights[f'{matrix}.bias']
    config = ViTConfig(bias=True, pool=pool, n_head=n_head, ffn=ffn, norm_eps=norm_eps, **{
        **{name: value for name, value in seen.items() if name in ViTConfig.__dataclass_fields__},
        'classes': seen['classes'] or 1})
    config.classes = seen['classes']
    return Source(config, weights, unknown_fields(ViTConfig, OF_A_VIT | PRE_NORM.keys()),
                  stated_normalization(about, images), notes, guesses)


# ----------------------------------------------------------------------------- loading

def resized(positions, old, new):
    """Interpolate the patches' position embeddings from old² to new² rows, in float32, bicubic with antialias, as timm's
    resample_abs_pos_embed does. A class token's row before them stays."""
    first, grid = positions.split((len(positions) - old ** 2, old ** 2))
    grid = F.interpolate(grid.float().T.reshape(1, -1, old, old), size=(new, new), mode='bicubic', antialias=True)
    return torch.cat((first, grid[0].flatten(1).T.to(first)))


def per_channel(key, value, channels):
    """Return a number or list, from JSON or a key, as a list with one number per channel. Raise ValueError for anything else."""
    values, std = [value] * channels if is_number(value) else value, key.endswith('std')
    numbers = isinstance(values, list) and len(values) == channels and all(map(is_number, values))
    if not numbers or std and min(values) <= 0:
        raise ValueError(f'{key}={value}: wants {channels} numbers, one for each channel{", above 0" if std else ""}')
    return [float(x) for x in values]


def load_pretrained(path, config, given):
    """Do for a ViT what lab.convert.pretrained.load_pretrained does for a GPT. `given` is as in load_vit."""
    model = load_vit(path, config, given)
    model.notes = adopt(path, model, config) + [f'{path}: {line}' for line in model.notes]
    return model


def load_vit(path, keys={}, given=None):
    """Load a ViT from a run's folder (its best.pt) or checkpoint, from a folder that vision/export.py, Hugging Face or timm has
    written, or from a file with timm's state_dict (.pth, .safetensors), for a run with these `keys` of vision.train.

    `given`: keys to use for settings that the source does not state; by default all. Other settings are guessed. If `classes`
    differs from the source's, the head is new. For another image_size that patch_size divides, positions are interpolated.
    Fields that only training uses (dropout, drop_path, init …), and fields that the source's format does not have, come from
    `keys`. image_mean and image_std are refused if the source states others. The model's `notes` list omissions, changes and
    guesses. Raise ValueError for a model that cannot be loaded or has no equal here.
    """
    if not os.path.exists(path):
        raise ValueError(f"init_from={path!r}: choose one of scratch, resume, auto, a run with a ViT or a checkpoint of it, a "
                         f"folder that vision/export.py, Hugging Face or timm has written, or a file with timm's weights")
    given = {key: keys[key] for key in (keys if given is None else given) if key in keys}
    config, weights, unknown, images, notes, guesses = read_vit(path, given)
    trained = {'dropout': 0.0, 'drop_path': 0.0, **{key: keys[key] for key in (*FREE, *ViTConfig.free) if key in keys}}
    classes, size = keys.get('classes') or config.classes or ViTConfig.classes, keys.get('image_size', config.image_size)
    if config.classes and classes != config.classes:
        notes.append(f'left out its head, which has {config.classes} classes')
        weights = {name: value for name, value in weights.items() if not name.startswith('head.')}
    if size % config.patch_size:
        if 'image_size' in given:
            raise ValueError(f'image_size={size}: wants a multiple of {config.patch_size}, the patch_size of {path}')
        size = config.image_size
    if size != config.image_size:
        old, new = (pixels // config.patch_size for pixels in (config.image_size, size))
        notes.append(f'image_size={size} instead of {config.image_size}: {new} × {new} patches instead of {old} × {old}')
        if 'wpe.weight' in weights:
            weights['wpe.weight'] = resized(weights['wpe.weight'], old, new)
            notes[-1] += ', for which its position embedding is interpolated'
        if config.attention == 'stable':
            notes[-1] += '; τ of StableAtten changes with their number'
    config = replace(config, classes=classes, image_size=size, **trained)

    normalization = []
    for key in ('image_mean', 'image_std'):
        asked = keys.get(key) and per_channel(key, keys[key], config.channels)
        if key not in images and not asked:
            guesses.append(f'{key}=0.5')
        value = per_channel(f'{path}: {key}', images[key], config.channels) if key in images else asked or [0.5] * config.channels
        if asked and not torch.allclose(torch.tensor(asked), torch.tensor(value), rtol=1e-5, atol=1e-6):
            raise ValueError(f'{key}={keys[key]}: {path} has {value}, leave it out')
        normalization.append(value)
    new = ('patch.mean', 'patch.std', *(() if any(name.startswith('head.') for name in weights) else ('head.',)))
    model = with_weights(path, ViT, config, weights, {key: keys.get(key, default) for key, default in unknown.items()},
                         *normalization, new=new)
    model.notes = notes + ([f'guessed: {", ".join(guesses)}'] if guesses else [])
    return model
