"""
What is held over all optimizers, ranks and keys, which takes minutes: a run that is killed again and again ends as if nothing had
happened; no key that a resumed run changes, and none that two ranks were given differently, goes unsaid.
"""
from configurator import TRAIN, defaults_of

import random
import re
import shutil
import signal

import pytest
from helpers import TINY, flags, killed, rows, run_alone, run_here, run_ranks, train
from test_silent import ranks

from engine.keys import CHOICES
from engine.run import OF_A_RANK, OF_A_START
from model import CHOICES as OF_MODEL
from model import GPTConfig
from optim import OPTIMIZERS

pytestmark = pytest.mark.long
DEFAULTS = defaults_of(TRAIN, GPTConfig)
KEYS = sorted(DEFAULTS.keys() - {*OF_A_RANK, *OF_A_START})
# other values, where adding one is none, or is none at this size
OTHERS = dict(dataset='other', n_embd=32, n_kv_head=1, norm_alpha=0.25, mix_ln=0.5, attn_norm_alpha=0.25, dropout=0.5,
              min_lr=1e-4, decay_frac=0.5, beta1=0.5, beta2=0.5, momentum=0.5, dtype='bfloat16')


@pytest.mark.parametrize('parallel', ['one', 'ddp', 'fsdp'])
@pytest.mark.parametrize('optimizer', OPTIMIZERS)
def test_kills(optimizer, parallel, place):
    """SIGKILL at four moments, as files are written, one after another"""
    keys = flags(**TINY | dict(optimizer=optimizer, max_iters=12, eval_interval=3, keep_every=4, init_from='auto'))
    keys += [] if parallel == 'one' else [f'--parallel={parallel}']
    count, name = 1 if parallel == 'one' else 2, f'{optimizer}-{parallel}'
    train(place, *keys, f'--out_dir=calm-{name}', ranks=count)
    draw = random.Random(name)
    for _ in range(4):
        more = [*keys, f'--out_dir={name}']
        through = (killed, draw.randrange(30))
        code, out, err = (run_alone('train.py', *more, cwd=place, through=through) if count == 1 else
                          run_ranks(count, 'train.py', *more, cwd=place, through=through))
        assert code in (0, -signal.SIGKILL), out + err
    train(place, *keys, f'--out_dir={name}', ranks=count)
    assert rows(place / name) == rows(place / f'calm-{name}') and not list((place / name).glob('*.tmp'))


def another(key):
    """Another value of a key than that of TINY, as the command line has it"""
    value = TINY.get(key, DEFAULTS[key])
    if key in OTHERS:
        return OTHERS[key]
    if choices := {**OF_MODEL, **CHOICES}.get(key):
        return next(name for name in choices if name not in (value, 'auto'))
    return not value if isinstance(value, bool) else value + 1 if isinstance(value, (int, float)) else f'{value}x'


@pytest.fixture(scope='module')
def whole(place):
    shutil.copytree(place / 'data' / 'tiny', place / 'data' / 'other')
    train(place, *flags(**TINY | dict(max_iters=4, eval_interval=4), out_dir='whole'))
    return place / 'whole'


@pytest.mark.parametrize('key', KEYS)
def test_a_key_that_is_changed_on_resume(key, whole, place):
    """Is refused in one line, or said"""
    shutil.copytree(whole, place / f'changed-{key}')
    code, out, err = run_here('train.py', 'whole/config.json', f'--out_dir=changed-{key}', '--init_from=resume', '--max_iters=5',
                              f'--{key}={another(key)}', cwd=place)
    assert code == 1 and err.count('\n') == 1 and err.startswith('error: ') or code == 0 and re.search(
        rf'changed since the checkpoint: .*\b{key} \S* → ', out), out + err


@pytest.mark.parametrize('key', KEYS[::4])
def test_a_key_that_differs_between_ranks(key, whole, place):
    """Ends both ranks before they write anything. Under torchrun, a value that is refused on one rank ends the other"""
    if run_here('train.py', *flags(**TINY | {'max_iters': 1, key: another(key)}, out_dir=f'alone-{key}'), cwd=place)[0]:
        return
    keys = flags(**TINY | dict(max_iters=4), out_dir=f'differs-{key}')
    found = ranks(place, ('.', *keys), ('.', *keys, f'--{key}={another(key)}'))
    assert all(code == 1 and err.count('\n') <= 1 for code, err in found) and any(err for _, err in found), found
    assert not (place / f'differs-{key}').exists()
