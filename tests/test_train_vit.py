"""
vision.train, vision.measure and vision.predictions, as their users run them.
"""
from configurator import TRAIN, defaults_of

import json
import shutil

import numpy as np
import pytest
import torch
from helpers import ROOT, call, checkpoint, evaluations, flags, interrupted, rows, steps, train

from data.tokens import write_tokens
from engine.keys import config_from
from model import GPTConfig
from vision.images import Images, write_images
from vision.vit import ViT, ViTConfig

pytest.importorskip('kornia')

TINY = dict(dataset='tiny', image_size=6, patch_size=3, channels=3, classes=4, n_layer=2, n_head=2, n_embd=16,
            batch_size=8, drop_path=0.2, dropout=0.1, crop_scale=0.6, interpolation='random', aug_repeats=3, flip=0.5,
            randaugment=5.0, mixup=0.8, cutmix=1.0, label_smoothing=0.1, max_iters=12, gradient_accumulation_steps=2,
            eval_interval=6, eval_iters=100, warmup_iters=2, learning_rate=1e-2, min_lr=1e-3, device='cpu', dtype='float32',
            compile=False)
PLAIN = dict(drop_path=0.0, dropout=0.0, crop_scale=1.0, aug_repeats=1, flip=0.0, randaugment=0.0, mixup=0.0, cutmix=0.0,
             label_smoothing=0.0)


def train_vit(*arguments, **more):
    return train(*arguments, script='vision.train', **more)


@pytest.fixture(scope='module')
def place(tmp_path_factory):
    """A folder to run in, with data/tiny: noise, in whose four classes another colour is bright, or none. The training images
    are whole ones of all shapes."""
    folder = tmp_path_factory.mktemp('vit')
    rng, splits = np.random.default_rng(0), {}
    for split, count in (('train', 200), ('val', 30)):
        images, labels = rng.integers(0, 150, (count, 3, 6, 6), np.uint8), rng.integers(0, 4, count)
        for image, label in zip(images, labels):
            image[label:label + 1] += 100
        splits[split] = [(images, labels)]
    write_images(folder / 'data' / 'tiny', splits, 4)
    meta = folder / 'data' / 'tiny' / 'meta.json'
    meta.write_text(json.dumps({**json.loads(meta.read_text()), 'whole': True}))
    rng.uniform(0.5, 2, 200).astype(np.float32).tofile(folder / 'data' / 'tiny' / 'train_aspects.bin')
    return folder


@pytest.fixture(scope='module')
def whole(place):
    out, _ = train_vit(place, *flags(**TINY, out_dir='whole'))
    assert 'val top1' in out and 'images/s' in out and '200 images an epoch' in out
    return place / 'whole'


def test_the_checkpoint_has_the_accuracy_that_the_log_reports(whole, monkeypatch):
    """Of every validation image once, top-5 of four classes being all of them"""
    monkeypatch.chdir(whole.parent)
    state, data = checkpoint(whole), Images('tiny', 'val', config_from(ViTConfig, checkpoint(whole)['config']))
    model = ViT(config_from(ViTConfig, state['config']))
    model.load_state_dict(state['model'])
    assert model.patch.mean.flatten().tolist() == pytest.approx(data.mean)      # belongs to the weights
    x, y = data.read(range(30))
    logits, loss = model.eval()(x, y)
    last = evaluations(whole)[-1]
    assert last['val_loss'] == pytest.approx(loss.item(), abs=1e-5) and last['val_top5'] == 1
    assert last['val_top1'] == pytest.approx((logits.argmax(1) == y).float().mean().item(), abs=1e-6)


def test_resumed_equals_whole(whole, place):
    """Stopped by a signal in the middle, with every augmentation, dropout and stochastic depth"""
    train_vit(place, *flags(**TINY, out_dir='resumed'), code=143, through=(interrupted, 7))
    train_vit(place, 'resumed/config.json', '--init_from=resume')
    assert rows(place / 'resumed') == rows(whole)


OF_IMAGES, OF_TEXT = 'is of a run of vision.train', 'is of a run of train.py'


@pytest.mark.parametrize('command, says', [
    ('lab.measure --out_dir=whole', OF_IMAGES), ('train.py --out_dir=whole --dataset=text --init_from=resume', OF_IMAGES),
    ('train.py whole/config.json --out_dir=new', 'is for vision.train: it sets patch_size'),
    ('vision.measure --out_dir=text', OF_TEXT), ('vision.train whole/config.json --out_dir=new --init_from=text', OF_TEXT),
    ('vision.train whole/config.json --out_dir=new --flip=2.0', 'flip=2.0')])
def test_runs_of_text_and_of_images_are_told_apart(command, says, whole, place):
    if not (place / 'text').exists():
        keys, state = defaults_of(TRAIN, GPTConfig), checkpoint(ROOT / 'tests' / 'golden' / 'ckpt-adamw')
        state['config'] = {key: value for key, value in state['config'].items() if key in keys}
        (place / 'text').mkdir()
        torch.save(state, place / 'text' / 'ckpt.pt')
        torch.save(state, place / 'text' / 'best.pt')
        write_tokens(place / 'data' / 'text', {split: [[1, 2] * 600] for split in ('train', 'val')}, 5, 'bytes')
    script, *arguments = command.split()
    err = call(script, *arguments, cwd=place, code=1)
    assert err.startswith('error: ') and err.count('\n') == 1 and says in err and not (place / 'new').exists()


@pytest.mark.long
def test_two_ranks_equal_one(place):
    """With nothing random in the model, whose draws are each micro-batch's own"""
    keys = TINY | dict(drop_path=0.0, dropout=0.0)
    train_vit(place, *flags(**keys, out_dir='one'))
    train_vit(place, *flags(**keys, out_dir='two'), ranks=2)
    for a, b in zip(rows(place / 'one'), rows(place / 'two'), strict=True):
        assert a == pytest.approx(b, rel=1e-4)


@pytest.mark.long
def test_it_learns_and_is_measured(place):
    """… by momentum SGDW in bf16, once through all of measure.py's measurements, in training and after"""
    train_vit(place, ROOT / 'config' / 'arch' / 's5.py',
          *flags(**TINY | PLAIN | dict(out_dir='learned', max_iters=40, eval_interval=20, optimizer='sgdw', learning_rate=0.1,
                                       dtype='bfloat16', measure_interval=20, measure_batches=2)))
    first, *_, last = evaluations(place / 'learned')
    assert first['val_top1'] < 0.6 and last['val_top1'] > 0.9
    measured = [json.loads(line) for line in (place / 'learned' / 'measure.jsonl').read_text().splitlines()]
    assert [row['iter'] for row in measured] == [0, 20, 40] and {'emb', 'head', 'qk'} <= measured[0]['sharpness'].keys()
    call('vision.measure', '--out_dir=learned', '--batches=2', cwd=place)
    for what, script in (('loss', 'lab.plot'), ('predictions', 'vision.predictions')):
        call(script, 'learned', cwd=place)
        assert (place / 'learned' / f'{what}.png').stat().st_size > 10000
    found = json.loads((place / 'learned' / 'measure.json').read_text())
    assert found['images'] == 16 and {'gradients', 'hidden', 'attention', 'sensitivity', 'drift', 'updates'} <= found.keys()


@pytest.mark.long
def test_compiled(place):
    """Two batch sizes in evaluation, and soft targets in training"""
    if not shutil.which('g++'):
        pytest.skip('no C++ compiler')
    train_vit(place, *flags(**TINY | dict(out_dir='eager')))
    train_vit(place, *flags(**TINY | dict(out_dir='compiled', compile=True)))
    for a, b in zip(rows(place / 'eager'), rows(place / 'compiled'), strict=True):
        assert a.keys() == b.keys() and a['iter'] == b['iter']
    assert torch.isfinite(torch.tensor([row['loss'] for row in steps(place / 'compiled')])).all()
