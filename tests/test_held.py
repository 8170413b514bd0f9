"""What holds for all optimizers, ranks and keys, which takes minutes: kills lose nothing, and no key that differs goes unsaid."""
from configurator import TRAIN, defaults_of

import random
import re
import shutil
import signal

import pytest
from helpers import TINY, flags, killed, rows, run_here, run_ranks, train
from test_silent import ranks

import model
from engine.keys import CHOICES
from engine.run import RANK_KEYS, RESETTABLE_KEYS
from optim import OPTIMIZERS

pytestmark = pytest.mark.long
DEFAULTS = defaults_of(TRAIN, model.GPTConfig)
KEYS = sorted(DEFAULTS.keys() - {*RANK_KEYS, *RESETTABLE_KEYS})
# other values, where adding one is none, or is none at this size
OTHERS = dict(dataset='other', n_embd=32, n_kv_head=1, norm_alpha=0.25, mix_ln=0.5, attn_norm_alpha=0.25, dropout=0.5,
              min_lr=1e-4, decay_frac=0.5, beta1=0.5, beta2=0.5, momentum=0.5, dtype='bfloat16')


@pytest.mark.parametrize('parallel, count', [('ddp', 1), ('ddp', 2), ('fsdp', 2)])
@pytest.mark.parametrize('optimizer', OPTIMIZERS)
def test_kills(optimizer, parallel, count, place):
    """SIGKILL at four moments, as files are written, one after another"""
    name = f'{optimizer}-{parallel}-{count}'
    keys = flags(**TINY | dict(max_iters=12, eval_interval=3), keep_every=4, optimizer=optimizer, parallel=parallel)
    train(place, *keys, f'--out_dir=calm-{name}', ranks=count)
    draw, keys = random.Random(name), [*keys, f'--out_dir={name}', '--init_from=auto']
    for _ in range(4):
        code, out, err = run_ranks(count, 'train.py', *keys, cwd=place, through=(killed, draw.randrange(30)))
        assert code in (0, -signal.SIGKILL), out + err
    train(place, *keys, ranks=count)
    assert rows(place / name) == rows(place / f'calm-{name}') and not list((place / name).glob('*.tmp'))


def another(key):
    """Another value of a key than that of TINY"""
    value, choices = TINY.get(key, DEFAULTS[key]), {**model.CHOICES, **CHOICES}.get(key, ())
    others = [name for name in choices if name not in (value, 'auto')]
    if key in OTHERS or others:
        return OTHERS.get(key) or others[0]
    return not value if isinstance(value, bool) else value + 1 if isinstance(value, (int, float)) else f'{value}x'


@pytest.fixture(scope='module')
def whole(place):
    shutil.copytree(place / 'data' / 'tiny', place / 'data' / 'other')
    train(place, *flags(**TINY | dict(max_iters=4, eval_interval=4), out_dir='whole'))
    return place / 'whole'


@pytest.mark.parametrize('key', KEYS)
def test_a_key_that_differs(key, whole, place):
    """On resume it is refused in one line, or said. Between ranks it ends both before they write anything"""
    shutil.copytree(whole, place / f'changed-{key}')
    other = f'--{key}={another(key)}'
    keys = [f'--out_dir=changed-{key}', '--init_from=resume', '--max_iters=5', other]
    code, out, err = run_here('train.py', 'whole/config.json', *keys, cwd=place)
    assert code == 1 and err.count('\n') == 1 and err.startswith('error: ') or code == 0 and re.search(
        rf'changed since the checkpoint: .*\b{key} \S* → ', out), out + err
    keys = flags(**TINY | dict(max_iters=4), out_dir=f'differs-{key}')
    if KEYS.index(key) % 4 == 0 and run_here('train.py', *keys, other, f'--out_dir=alone-{key}', cwd=place)[0] == 0:
        found = ranks(place, ('.', *keys), ('.', *keys, other))
        assert all(code == 1 and err.count('\n') <= 1 for code, err in found) and any(err for _, err in found), found
        assert not (place / f'differs-{key}').exists()
