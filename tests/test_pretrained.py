"""
engine/pretrained.py: weights of Hugging Face, OpenAI and timm give the logits that they give there, and what has no equal here
is an error that says so. The way back is in test_export.py.
"""
import json
import shutil

import pytest
import torch
from test_vit import build

from engine.pretrained import load_gpt, load_vit
from test_model import close, randomize, tokens
from vit import ViT, ViTConfig

hf = pytest.importorskip('transformers')

# ----------------------------------------------------------------------------- GPTs

@pytest.mark.parametrize('activation', ['gelu', 'gelu_new', 'relu'])
@pytest.mark.parametrize('tied', [True, False])
def test_equals_hugging_face_gpt2(activation, tied, tmp_path):
    theirs = randomize(hf.GPT2LMHeadModel(hf.GPT2Config(
        vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=4, n_inner=48, layer_norm_epsilon=1e-3,
        activation_function=activation, tie_word_embeddings=tied)))
    theirs.save_pretrained(tmp_path)
    ours = load_gpt(str(tmp_path)).eval()
    close(ours(tokens(3, 16))[0], theirs(tokens(3, 16)).logits, 1e-4)


@torch.no_grad()
def test_biases_that_the_config_denies(tmp_path):
    """They count: GPT-2 of Hugging Face has them whatever its config says"""
    theirs = randomize(hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=4,
                                                        bias=False)))
    theirs.save_pretrained(tmp_path)
    assert '"bias": false' in (tmp_path / 'config.json').read_text()
    ours = load_gpt(str(tmp_path)).eval()
    close(ours(tokens(3, 16))[0], theirs(tokens(3, 16)).logits, 1e-4)


@pytest.mark.parametrize('more', [
    dict(rope_parameters=dict(rope_type='default', rope_theta=1e4, partial_rotary_factor=0.5)),
    dict(layer_types=['full_attention', 'sliding_attention'], sliding_window=4)])
def test_what_a_folder_states_is_honoured_or_refused(more, tmp_path):
    hf.Qwen3ForCausalLM(hf.Qwen3Config(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                       num_attention_heads=4, num_key_value_heads=4, head_dim=8)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / 'config.json').read_text())
    (tmp_path / 'config.json').write_text(json.dumps(config))
    load_gpt(str(tmp_path))
    (tmp_path / 'config.json').write_text(json.dumps(config | more))
    with pytest.raises(ValueError, match='has no equal here'):
        load_gpt(str(tmp_path))


@pytest.fixture(scope='module')
def openai(tmp_path_factory):
    """A small GPT-2 of Hugging Face's, and the folder that it is saved in."""
    theirs = randomize(hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=4)))
    folder = tmp_path_factory.mktemp('openai')
    theirs.save_pretrained(folder)
    return theirs, str(folder)


@pytest.mark.parametrize('asked, block_size', [(None, 16), (16, 16), (17, 16), (9, 9), (1, 1)])
@torch.no_grad()
def test_pretrained_positions_are_left_out_at_the_end(asked, block_size, openai):
    """The first ones stay: what fits gets the same logits, and what does not is an error"""
    theirs, folder = openai
    ours, idx = load_gpt(folder, asked).eval(), tokens(3, block_size)
    assert ours.config.block_size == block_size and len(ours.wpe.weight) == block_size
    close(ours(idx)[0], theirs(idx).logits, 1e-4)
    with pytest.raises(ValueError, match=f'block_size={block_size}'):
        ours(tokens(3, block_size + 1))


@torch.no_grad()
def test_pretrained_with_dropout(openai):
    """As much as is asked for, in every place, and in training only; theirs is never taken over"""
    theirs, folder = openai
    assert load_gpt(folder).config.dropout == 0.0
    ours = load_gpt(folder, dropout=0.4)
    assert {m.p for m in ours.modules() if isinstance(m, torch.nn.Dropout)} == {block.attn.dropout for block in ours.h} == {0.4}
    assert not torch.allclose(ours.train()(tokens(3, 16))[0], ours(tokens(3, 16))[0])
    close(ours.eval()(tokens(3, 16))[0], theirs(tokens(3, 16)).logits, 1e-4)


@pytest.mark.parametrize('tied', [True, False])
def test_pretrained_head(tied, tmp_path):
    """It is the embedding where theirs is, also once it trains, and a matrix of its own where theirs is one"""
    hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=1, n_head=4, tie_word_embeddings=tied)
                       ).save_pretrained(tmp_path)
    ours = load_gpt(str(tmp_path))
    assert ours.config.tie_weights == (ours.lm_head.weight is ours.wte.weight) == tied
    assert ours.config.bias and all(p.requires_grad and p.dtype == torch.float32 for p in ours.parameters())


@pytest.mark.parametrize('name', ['gpt3', 'resum', '', 'empty'])
def test_a_pretrained_name_that_is_none_names_the_choices(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'empty').mkdir()
    with pytest.raises(ValueError, match=f"'{name}' is neither one of gpt2, gpt2-medium, gpt2-large, gpt2-xl, nor the folder"):
        load_gpt(name)


@pytest.mark.parametrize('layers', [1, 3])
def test_weights_of_another_depth(layers, openai, tmp_path):
    """What they lack would otherwise be drawn at random"""
    hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=layers, n_head=4)
                       ).save_pretrained(tmp_path)
    shutil.copy(f'{openai[1]}/config.json', tmp_path)
    with pytest.raises(ValueError, match='weights do not fit the GPT-2 of its config.json, see transformer.h') as error:
        load_gpt(str(tmp_path))
    assert str(tmp_path) in str(error.value) and '\n' not in str(error.value)


def test_pretrained_that_cannot_be_reached_is_one_line(monkeypatch):
    def offline(*args, **kwargs):
        raise OSError('We could not connect\nand tell it in many lines')

    monkeypatch.setattr(hf.GPT2LMHeadModel, 'from_pretrained', offline)
    with pytest.raises(ValueError, match="^could not load 'gpt2-xl': OSError: We could not connect and tell it in many lines$"):
        load_gpt('gpt2-xl')


def test_pretrained_without_weights(openai, tmp_path):
    shutil.copy(f'{openai[1]}/config.json', tmp_path)
    with pytest.raises(ValueError, match='could not load .*no file named') as error:
        load_gpt(str(tmp_path))
    assert '\n' not in str(error.value)


def test_an_unknown_activation_of_hugging_face_is_an_error(tmp_path):
    hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=50, n_embd=32, n_layer=1, n_head=4, activation_function='silu')
                       ).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match='silu.*gelu_new'):
        load_gpt(str(tmp_path))


# ----------------------------------------------------------------------------- ViTs

VIT = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=12, patch_size=4,
          num_labels=5, layer_norm_eps=1e-3)


def save_vit(folder, **more):
    theirs = randomize(hf.ViTForImageClassification(hf.ViTConfig(**VIT | more)))
    theirs.save_pretrained(folder)
    return theirs


def test_vit_equals_hugging_face_by_construction(tmp_path):
    """The same weights in a model of a config that is written by hand"""
    theirs = save_vit(tmp_path)
    ours = ViT(ViTConfig(n_layer=2, n_head=4, n_embd=32, d_ff=48, bias=True, norm_eps=1e-3, image_size=12, patch_size=4,
                         classes=5))
    loaded = load_vit(str(tmp_path))
    assert loaded.config == ours.config
    ours.load_state_dict(loaded.state_dict())
    x = torch.rand(3, 3, 12, 12) * 255
    close(ours.eval()(x)[0], theirs(x / 127.5 - 1).logits, 1e-4)


@pytest.mark.parametrize('more', [dict(hidden_act='gelu_new'), dict(qkv_bias=False), dict(num_channels=1), dict(patch_size=3)])
@torch.no_grad()
def test_vit_equals_hugging_face(more, tmp_path):
    theirs = save_vit(tmp_path, **more)
    mean, std = [0.2, 0.3, 0.4][:theirs.config.num_channels], [0.5, 0.6, 0.7][:theirs.config.num_channels]
    (tmp_path / 'preprocessor_config.json').write_text(json.dumps(dict(image_mean=mean, image_std=std)))
    ours = load_vit(str(tmp_path)).eval()
    x = torch.rand(3, len(mean), 12, 12) * 255
    normalized = (x / 255 - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)
    close(ours(x)[0], theirs(normalized).logits, 1e-4)


def as_timm(theirs, pool='token'):
    """Hugging Face's weights under timm's names, with q, k and v in one."""
    names = {'vit.embeddings.cls_token': 'cls_token', 'vit.embeddings.position_embeddings': 'pos_embed',
             'vit.embeddings.patch_embeddings.projection': 'patch_embed.proj', 'vit.encoder.layer': 'blocks',
             'attention.output.dense': 'attn.proj', 'layernorm_before': 'norm1', 'layernorm_after': 'norm2',
             'intermediate.dense': 'mlp.fc1', 'output.dense': 'mlp.fc2', 'vit.layernorm': 'norm', 'classifier': 'head'}
    state = {}
    for key, value in theirs.items():
        for a, b in names.items():
            key = key.replace(a, b)
        if '.query.' in key:
            parts = [theirs[next(k for k in theirs if k.replace('vit.encoder.layer', 'blocks') == key.replace('query', part))]
                     for part in ('query', 'key', 'value')]
            state[key.replace('attention.attention.query', 'attn.qkv')] = torch.cat(parts)
        elif '.key.' not in key and '.value.' not in key:
            state[key] = value
    return state


@pytest.mark.parametrize('form', ['folder', 'pth', 'safetensors', 'checkpoint'])
@torch.no_grad()
def test_equals_timm(form, tmp_path):
    """timm's names as timm 1.0 writes them; the logits are those of the same weights in Hugging Face's model"""
    safetensors = pytest.importorskip('safetensors.torch')
    theirs = save_vit(tmp_path / 'theirs', layer_norm_eps=1e-6)
    state = as_timm(safetensors.load_file(tmp_path / 'theirs' / 'model.safetensors'))
    assert sorted(key for key in state if '.' not in key or '.0.' in key)[:4] == [
        'blocks.0.attn.proj.bias', 'blocks.0.attn.proj.weight', 'blocks.0.attn.qkv.bias', 'blocks.0.attn.qkv.weight']
    path, mean, std = tmp_path / f'model.{form}', 0.5, 0.5
    if form == 'folder':
        path, mean, std = tmp_path / 'timm', 0.3, 0.2
        path.mkdir()
        torch.save(state, path / 'pytorch_model.bin')
        (path / 'config.json').write_text(json.dumps(dict(
            architecture='vit_tiny_patch16_224', num_classes=5, model_args=dict(num_heads=4),
            pretrained_cfg=dict(mean=[0.3] * 3, std=[0.2] * 3))))
    elif form == 'safetensors':
        safetensors.save_file(state, path)
    else:
        torch.save(dict(state_dict=state, epoch=3) if form == 'checkpoint' else state, path)
    ours = load_vit(str(path), n_head=4).eval()
    x = torch.rand(3, 3, 12, 12) * 255
    close(ours(x)[0], theirs((x / 255 - mean) / std).logits, 1e-4)


@torch.no_grad()
def test_timm_that_pools_by_the_mean(tmp_path):
    """Its norm then stands behind the mean, as ours does, and there is no class token; with one it has no equal"""
    model = build(pool='mean', bias=True, n_layer=1, channels=3).float()
    names = {'patch': 'patch_embed.proj', 'wpe.weight': 'pos_embed', 'h.': 'blocks.', 'attn_pre_norm': 'norm1',
             'ffn_pre_norm': 'norm2', 'attn.wo': 'attn.proj', 'ffn.w1': 'mlp.fc1', 'ffn.w2': 'mlp.fc2', 'final_norm': 'fc_norm'}
    state = {}
    for key, value in model.state_dict().items():
        for a, b in names.items():
            key = key.replace(a, b)
        state[key] = value
    for kind in ('weight', 'bias'):
        state[f'blocks.0.attn.qkv.{kind}'] = torch.cat([state.pop(f'blocks.0.attn.{w}.{kind}') for w in ('wq', 'wk', 'wv')])
    state['patch_embed.proj.weight'] = state['patch_embed.proj.weight'].view(16, 3, 3, 3)
    state['pos_embed'] = state['pos_embed'][None]
    del state['patch_embed.proj.mean'], state['patch_embed.proj.std']
    torch.save(state, tmp_path / 'timm.pth')
    ours = load_vit(str(tmp_path / 'timm.pth'), n_head=4)
    assert ours.config.pool == 'mean' and ours.config.norm_eps == 1e-6
    for name, p in ours.named_parameters():
        assert torch.equal(p, model.get_parameter(name)), name
    torch.save({**state, 'cls_token': torch.zeros(1, 1, 16)}, tmp_path / 'timm.pth')
    with pytest.raises(ValueError, match="no ViT that has an equal here, see 'patch.cls.weight'"):
        load_vit(str(tmp_path / 'timm.pth'), n_head=4)


def test_another_number_of_classes_gets_a_new_head(tmp_path):
    save_vit(tmp_path)
    theirs, ours = load_vit(str(tmp_path)), load_vit(str(tmp_path), classes=9, dropout=0.1, drop_path=0.2)
    assert ours.config.classes == 9 and ours.head.weight.std() < 0.05
    assert (ours.config.dropout, ours.config.drop_path) == (0.1, 0.2)
    for name, p in theirs.named_parameters():
        assert name.startswith('head') or torch.equal(p, ours.get_parameter(name))


@pytest.mark.parametrize('spoil, words', [
    (lambda folder: (folder / 'config.json').unlink(), 'could not load there is no config.json'),
    (lambda folder: (folder / 'model.safetensors').unlink(), 'could not load pytorch_model.bin'),
    (lambda folder: (folder / 'model.safetensors').write_bytes(b'nonsense'), 'could not load'),
    (lambda folder: (folder / 'config.json').write_text('{"num_attention_heads": 4, "hidden_act": "tanh"}'), 'tanh'),
    (lambda folder: (folder / 'config.json').write_text('{"num_attention_heads": 5}'), 'n_head=5'),
    (lambda folder: (folder / 'config.json').write_text('{}'), 'n_head')])
def test_weights_that_are_no_vit(spoil, words, tmp_path):
    save_vit(tmp_path)
    spoil(tmp_path)
    with pytest.raises(ValueError) as error:
        load_vit(str(tmp_path))
    assert str(tmp_path) in str(error.value) and '\n' not in str(error.value)
    assert all(word in str(error.value) for word in words.split())
