"""
vision/pretrained.py: weights of Hugging Face's and timm's ViTs give the logits that they give there, and so do our own runs
and exports. What a source states is honoured or refused, and what is guessed, changed or left out is told.
"""
import argparse
import json

import numpy as np
import pytest
import torch
from helpers import checkpoint, flags, train
from PIL import Image

from engine.checkpoint import load_run
from test_model import close, randomize
from vision.images import write_images
from vision.pretrained import load_vit, resized
from vision.vit import ViT

hf = pytest.importorskip('transformers')
safetensors = pytest.importorskip('safetensors.torch')

VIT = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=12, patch_size=4,
          num_labels=5, layer_norm_eps=1e-3)


def save_vit(folder, **more):
    theirs = randomize(hf.ViTForImageClassification(hf.ViTConfig(**VIT | more)))
    theirs.save_pretrained(folder)
    return theirs


def same_logits(ours, theirs, size=12, mean=0.5, std=0.5, channels=3):
    """Of random images, to 1e-5 of the largest"""
    x = torch.rand(3, channels, size, size) * 255
    mean, std = (torch.tensor(value).view(-1, 1, 1) for value in (mean, std))
    with torch.no_grad():
        found, wanted = ours.eval()(x)[0], theirs((x / 255 - mean) / std)
    wanted = getattr(wanted, 'logits', wanted)
    assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def error_of(path, *more, **keys):
    with pytest.raises(ValueError) as error:
        load_vit(str(path), keys, *more)
    assert str(path) in str(error.value) and '\n' not in str(error.value) and 'weights_only' not in str(error.value)
    return str(error.value)


# ----------------------------------------------------------------------------- Hugging Face

@pytest.mark.parametrize('more', [
    dict(hidden_act='gelu_new', qkv_bias=False), dict(hidden_act='relu', num_attention_heads=8, num_channels=1),
    dict(patch_size=3, image_size=[12, 12], layer_norm_eps=1e-12)])
def test_vit_equals_hugging_face(more, tmp_path):
    """Normalized as the preprocessor states, or not at all; an older config without ε means 1e-12, not timm's 1e-6"""
    theirs = save_vit(tmp_path, **more)
    mean, std = [0.2, 0.3, 0.4][:theirs.config.num_channels], [0.5, 0.6, 0.7][:theirs.config.num_channels]
    preprocessor, file = tmp_path / 'preprocessor_config.json', tmp_path / 'config.json'
    preprocessor.write_text(json.dumps(dict(image_mean=mean, image_std=std)))
    ours = load_vit(str(tmp_path))
    same_logits(ours, theirs, mean=mean, std=std, channels=len(mean))
    assert ours.notes == [] and ours.started == []
    assert (ours.config.pool, ours.config.bias, ours.config.classes, ours.config.d_ff) == ('cls', True, 5, 48)
    preprocessor.write_text(json.dumps(dict(do_normalize=False, image_mean=mean)))
    same_logits(load_vit(str(tmp_path)), theirs, mean=0.0, std=1.0, channels=len(mean))
    about = json.loads(file.read_text())
    if about.pop('layer_norm_eps') == 1e-12:
        file.write_text(json.dumps(about))
        assert load_vit(str(tmp_path)).config.norm_eps == 1e-12
    for change in dict(hidden_act='tanh'), dict(image_size=[16, 4]), dict(num_hidden_layers=3), dict(model_type='vit_mae'):
        file.write_text(json.dumps({**about, **change}))
        assert str(*change.values()) in error_of(tmp_path)


def test_weights_in_several_files(tmp_path):
    theirs = randomize(hf.ViTForImageClassification(hf.ViTConfig(**VIT)))
    theirs.save_pretrained(tmp_path, max_shard_size='20KB')
    assert len([*tmp_path.glob('model-*-of-*.safetensors')]) > 1
    same_logits(load_vit(str(tmp_path)), theirs)


def test_a_model_without_a_head(tmp_path):
    """The head is new, and a pooler is told"""
    theirs = randomize(hf.ViTModel(hf.ViTConfig(**VIT)))
    theirs.save_pretrained(tmp_path)
    ours = load_vit(str(tmp_path), dict(classes=7)).eval()
    assert ours.started == ['head.weight', 'head.bias'] and ours.config.classes == 7 and 'left out pooler' in ours.notes[0]
    x = torch.rand(3, 3, 12, 12) * 255
    with torch.no_grad():
        close(ours.final_norm(ours.hidden(x)), theirs(x / 127.5 - 1).last_hidden_state, 1e-4)


# ----------------------------------------------------------------------------- timm

def as_timm(theirs):
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


@pytest.fixture
def of_timm(tmp_path):
    """A function: saves a model of Hugging Face's under timm's names → it, and its weights by those names."""
    def save(**more):
        theirs = save_vit(tmp_path / 'theirs', **dict(layer_norm_eps=1e-6) | more)
        return theirs, as_timm(safetensors.load_file(tmp_path / 'theirs' / 'model.safetensors'))
    return save


def write_timm(folder, state, **more):
    folder.mkdir(exist_ok=True)
    torch.save(state, folder / 'pytorch_model.bin')
    (folder / 'config.json').write_text(json.dumps(dict(architecture='vit_of_mine') | more))


def test_a_folder_of_timm(of_timm, tmp_path):
    """timm's names as timm 1.0 writes them; the logits are those of the same weights in Hugging Face's model"""
    theirs, state = of_timm()
    write_timm(tmp_path / 'timm', state, architecture='vit_tiny_patch16_224', num_classes=5, global_pool='token',
               model_args=dict(num_heads=4, drop_path_rate=0.1), pretrained_cfg=dict(mean=[0.3] * 3, std=[0.2] * 3))
    ours = load_vit(str(tmp_path / 'timm'))
    same_logits(ours, theirs, mean=0.3, std=0.2)
    assert ours.notes == []
    keys = dict(image_mean=[0.2, 0.3, 0.4], image_std=[0.2] * 3)
    assert 'image_mean=[0.2, 0.3, 0.4]: ' in error_of(tmp_path / 'timm', **keys)         # the source states another


FILES = {       # what training scripts save, of these weights and others
    'plain': lambda state, other: state,
    'beside arguments': lambda state, other: dict(state_dict=state, epoch=3, args=argparse.Namespace(lr=1e-3, model='deit')),
    'of wrappers': lambda state, other: {'model': {'_orig_mod.module.' + key.replace('blocks.1.', 'blocks.1._orig_mod.'): value
                                                   for key, value in state.items()}},
    'moving averages': lambda state, other: dict(state_dict_ema=state),
    'beside moving averages': lambda state, other: dict(model_ema=other, model=state)}


@pytest.mark.parametrize('form', FILES)
def test_a_file_of_timm(form, of_timm, tmp_path):
    theirs, state = of_timm()
    torch.save(FILES[form](state, {key: value + 1 for key, value in state.items()}), tmp_path / 'timm.pth')
    same_logits(load_vit(str(tmp_path / 'timm.pth'), dict(n_head=4)), theirs)
    if form == 'plain':
        safetensors.save_file(state, tmp_path / 'timm.safetensors')
        same_logits(load_vit(str(tmp_path / 'timm.safetensors'), dict(n_head=4)), theirs)


class Nasty:
    def __reduce__(self):
        return print, ('code ran',)


def test_what_could_run_code_is_refused(of_timm, tmp_path, capsys):
    torch.save(dict(model=of_timm()[1], args=argparse.Namespace(nasty=Nasty())), tmp_path / 'timm.pth')
    assert 'could run code' in error_of(tmp_path / 'timm.pth', n_head=4)
    assert 'code ran' not in capsys.readouterr().out


def test_timms_settings_and_weights_that_have_no_equal(of_timm, tmp_path):
    _, state = of_timm()
    for more, says in ((dict(reg_tokens=1), 'reg_tokens=1'), (dict(norm_layer='rmsnorm'), "norm_layer='rmsnorm'"),
                       (dict(attn_layer='diff'), "attn_layer='diff'"), (dict(mlp_ratio=4.0), 'd_ff=128'),
                       (dict(init_values=0.1), 'LayerScale=True'), (dict(class_token=False), 'class token=False'),
                       (dict(no_embed_class=True), 'no_embed_class=True'), (dict(fc_norm=True), 'fc_norm=True'),
                       (dict(global_pool='max'), "global_pool='max'"), (dict(global_pool='avg'), 'a norm before the mean'),
                       (dict(final_norm=False), 'final_norm=False')):
        write_timm(tmp_path / 'timm', state, model_args=dict(num_heads=4, **more))
        assert says in error_of(tmp_path / 'timm')
    # norms behind the branches, whose names are those of norms before the branches
    write_timm(tmp_path / 'timm', state, architecture='vit_base_patch16_rpn_224', model_args=dict(num_heads=4))
    assert 'vit_base_patch16_rpn_224' in error_of(tmp_path / 'timm')
    without_bias = {key: value for key, value in state.items() if key != 'norm.bias'}
    for wrong, says in ((state | dict(dist_token=torch.zeros(1, 1, 32)), 'dist_token'), (without_bias, 'final_norm.bias')):
        torch.save(wrong, tmp_path / 'timm.pth')
        assert says in error_of(tmp_path / 'timm.pth', n_head=4)


@torch.no_grad()
@pytest.mark.parametrize('pool', ['mean', 'patches'])
def test_timm_that_pools_by_the_mean(pool, of_timm, tmp_path):
    """Its norm then stands behind the mean, as ours does, with a class token or without one"""
    theirs, state = of_timm()
    state = {key.replace('norm.', 'fc_norm.') if key.startswith('norm.') else key: value for key, value in state.items()}
    images, vit = torch.rand(3, 3, 12, 12) * 255, theirs.vit
    tokens = vit.embeddings(images / 127.5 - 1)
    if pool == 'mean':
        tokens = tokens[:, 1:]
        del state['cls_token']
        state['pos_embed'] = state['pos_embed'][:, 1:]
    for layer in next(module for module in vit.modules() if isinstance(module, torch.nn.ModuleList)):
        tokens = layer(tokens)
    torch.save(state, tmp_path / 'timm.pth')
    ours = load_vit(str(tmp_path / 'timm.pth'), dict(n_head=4))
    assert ours.config.pool == pool
    close(ours(images)[0], theirs.classifier(vit.layernorm(tokens[:, -9:].mean(1))), 1e-4)


@torch.no_grad()
def test_layer_scale_and_a_class_token_without_position(of_timm, tmp_path):
    """As in DeiT III: both are computed exactly"""
    theirs, state = of_timm()
    theirs.vit.embeddings.position_embeddings[0, 0] = 0
    state['pos_embed'] = state['pos_embed'][:, 1:]
    for i in range(2):
        for name, matrix in (('ls1', 'attn.proj'), ('ls2', 'mlp.fc2')):
            gamma = state[f'blocks.{i}.{name}.gamma'] = torch.rand(32) + 0.5
            state[f'blocks.{i}.{matrix}.weight'] = state[f'blocks.{i}.{matrix}.weight'] / gamma[:, None]
            state[f'blocks.{i}.{matrix}.bias'] = state[f'blocks.{i}.{matrix}.bias'] / gamma
    torch.save(state, tmp_path / 'timm.pth')
    ours = load_vit(str(tmp_path / 'timm.pth'), dict(n_head=4, pool='cls'))
    same_logits(ours, theirs)


# ----------------------------------------------------------------------------- what a source does not state

def test_the_command_line_wins_over_a_guess(of_timm, tmp_path):
    """And the config files' n_head does not"""
    theirs, state = of_timm(hidden_size=192, num_attention_heads=6)
    torch.save(state, tmp_path / 'timm.pth')
    keys = dict(n_head=6, image_mean=[0.2, 0.3, 0.4], image_std=[0.5, 0.6, 0.7])
    ours = load_vit(str(tmp_path / 'timm.pth'), keys, {*keys})
    same_logits(ours, theirs, mean=keys['image_mean'], std=keys['image_std'])
    assert 'n_head' not in ours.notes[0]
    guessed = load_vit(str(tmp_path / 'timm.pth'), dict(n_head=6), ())
    assert guessed.config.n_head == 3 and "guessed: n_head=3 (timm's for a width of 192), ffn=gelu" in guessed.notes[0]


# ----------------------------------------------------------------------------- other resolutions

@pytest.mark.parametrize('old, new', [(3, 5), (6, 2)])
def test_interpolation_is_that_of_images(old, new, tmp_path):
    """Of Pillow, bicubic with antialias, on each dimension of the width. A token before the grid stays. Another image_size
    changes the positions alone"""
    positions = torch.randn(1 + old ** 2, 3)
    found = resized(positions, old, new)
    assert torch.equal(found[0], positions[0])
    for i in range(3):
        image = Image.fromarray(positions[1:, i].reshape(old, old).numpy())
        wanted = torch.from_numpy(np.array(image.resize((new, new), Image.Resampling.BICUBIC)))
        close(found[1:, i].reshape(new, new), wanted, 1e-5)
    save_vit(tmp_path, image_size=4 * old)
    ours, larger = load_vit(str(tmp_path)), load_vit(str(tmp_path), dict(image_size=4 * new))
    close(larger.wpe.weight, resized(ours.wpe.weight.detach(), old, new), 0)
    for name, p in ours.named_parameters():
        assert name == 'wpe.weight' or torch.equal(p, larger.get_parameter(name)), name


# ----------------------------------------------------------------------------- our own

def train_vit(*arguments, **more):
    return train(*arguments, script='vision.train', **more)


RUN = dict(dataset='tiny', image_size=6, patch_size=3, channels=3, classes=4, n_layer=2, n_head=2, n_embd=16,
           bias=True, batch_size=8, max_iters=2, gradient_accumulation_steps=1, eval_interval=2, eval_iters=2, warmup_iters=0,
           learning_rate=1e-3, min_lr=0.0, device='cpu', dtype='float32', compile=False)


@pytest.fixture(scope='module')
def place(tmp_path_factory):
    """A folder with data/tiny, images of 12 × 12, and a run on it."""
    folder, rng = tmp_path_factory.mktemp('own'), np.random.default_rng(0)
    write_images(folder / 'data' / 'tiny', {split: [(rng.integers(0, 255, (16, 3, 12, 12), np.uint8), rng.integers(0, 4, 16))]
                                            for split in ('train', 'val')}, 4)
    train_vit(folder, *flags(**RUN, out_dir='run'))
    return folder


def test_a_run(place, monkeypatch):
    """Its best.pt or a checkpoint of it, for another head, and with its own normalization"""
    monkeypatch.chdir(place)
    weights = load_run('run/best.pt', Model=ViT)[1]['model']
    more = load_vit('run', dict(classes=7, dropout=0.1))
    for ours, changed in (load_vit('run'), ()), (load_vit('run/ckpt.pt'), ()), (more, ('head.',)):
        for name, value in ours.state_dict().items():
            assert name.startswith(changed) or torch.equal(value, weights[name]), name
    assert more.config.classes == 7 and more.config.dropout == 0.1 and more.started == ['head.weight', 'head.bias']
    assert 'image_mean=[0.1, 0.2, 0.3]' in error_of('run', image_mean=[0.1, 0.2, 0.3])


# ----------------------------------------------------------------------------- train.py

def test_a_file_is_fine_tuned(place):
    """What is guessed is told; what the command line sets is no guess; what the weights state is not the command line's"""
    save_vit(place / 'theirs', image_size=6, patch_size=3, hidden_size=16, num_labels=4)
    torch.save(as_timm(safetensors.load_file(place / 'theirs' / 'model.safetensors')), place / 'timm.pth')
    (place / 'file.json').write_text(json.dumps({**RUN, 'init_from': 'timm.pth'}))
    keys = ('file.json',)
    assert 'set --n_head' in train_vit(place, *keys, '--out_dir=none', code=1)[1] and not (place / 'none').exists()
    out, _ = train_vit(place, *keys, '--n_head=8', '--pool=cls', '--image_mean=[0.1,0.2,0.3]', '--out_dir=file')
    assert 'timm.pth: guessed: ffn=gelu, norm_eps=1e-06, square images of 6 pixels, image_std=0.5\n' in out
    state = checkpoint(place / 'file')
    assert state['config']['n_head'] == 8 and state['model']['patch.mean'].flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])
    train_vit(place, 'file/config.json', '--init_from=resume', '--max_iters=3')
    err = train_vit(place, *flags(**RUN | dict(n_head=4), out_dir='none', init_from='run'), code=1)[1]
    assert 'run has another architecture than the command line: n_head (2 there, 4 here)' in err
