"""
Random configurations: every valid one builds, trains, resumes bit for bit and samples. A wrong value of any key is one line.
"""
import collections
import itertools
import json
import os
import shutil
from dataclasses import fields
from pathlib import Path

import pytest
from helpers import call, put_back, rows, run_here
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_bad_input import TINY, lay_out, tree

from model import ATTENTIONS, CHOICES, FFNS, NORMS, STDS, GPTConfig
from optim import OPTIMIZERS, SCHEDULES

RUN = dict(dataset='tiny', device='cpu', compile=False, max_iters=4)
number = itertools.count()


def few(**more):
    """So that every run tries the same examples, and a slow machine does not fail."""
    return settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck), **more)


# ----------------------------------------------------------------------------- valid configurations

def floats(low, high):
    return st.floats(low, high, allow_subnormal=False).map(lambda x: float(f'{x:.3g}'))


@st.composite
def valid(draw):
    """All fields of GPTConfig and the keys of train.py that have a say in a step: small sizes, every choice."""
    pick = {name: draw(st.sampled_from(list(choices))) for name, choices in dict(
        norm=NORMS, attention=ATTENTIONS, ffn=FFNS, pos=CHOICES['pos'], init=STDS, optimizer=OPTIMIZERS, schedule=SCHEDULES,
        blockwise=('ramp', 'jump'), dtype=('float32', 'bfloat16')).items()}
    switches = {f.name: draw(st.booleans()) for f in fields(GPTConfig) if f.type is bool}
    n_head, half = draw(st.sampled_from((1, 2, 4))), draw(st.integers(1, 4))
    head_dim = 2 * half if pick['pos'] == 'rope' else draw(st.integers(1, 8))
    kv = [0, n_head] if pick['attention'] == 'l2_tied' else [k for k in range(n_head + 1) if not k or n_head % k == 0]
    ratios = {f'r_{kind}': draw(floats(0, 4)) for kind in ('emb', 'head', 'qk', 'ffn', 'vo')}
    if switches['tie_weights']:
        ratios['r_head'] = 1.0
    if pick['attention'] == 'stable':                   # it has norms of its own per head
        switches['qk_norm_wide'] = False
    if switches['parallel_ffn']:                        # both branches read the same state
        switches |= dict(ffn_pre_norm=False, attn_post_norm=False, b2t=False)
    rate = draw(floats(1e-5, 1e-2))
    return {
        **RUN, **pick, **switches, **ratios,
        'n_head': n_head, 'n_embd': n_head * head_dim, 'n_kv_head': draw(st.sampled_from(kv)),
        'block_size': draw(st.integers(1, 12)), 'vocab_size': draw(st.integers(13, 40)), 'n_layer': draw(st.integers(1, 3)),
        'd_ff': draw(st.integers(0, 20)), 'dropout': draw(st.sampled_from((0.0, 0.1, 0.5))), 'norm_alpha': draw(floats(0, 1)),
        'norm_eps': draw(floats(1e-8, 1e-2)), 'residual_scale': draw(floats(-1, 2)), 'attn_tau': draw(floats(0.1, 4)),
        'rope_theta': draw(floats(10, 1e5)), 'init_gain': draw(floats(0, 2)),
        'learning_rate': rate, 'min_lr': draw(floats(0, 1)) * rate / 2, 'warmup_iters': draw(st.integers(0, 5)),
        'lr_decay_iters': draw(st.integers(1, 6)), 'decay_frac': draw(floats(0, 1)), 'weight_decay': draw(floats(0, 1)),
        'grad_clip': draw(st.sampled_from((0.0, 0.1, 1.0))), 'beta1': draw(floats(0, 0.99)), 'beta2': draw(floats(0, 0.999)),
        'momentum': draw(floats(0, 0.99)), 'recompute': draw(st.booleans()), 'batch_size': draw(st.integers(1, 3)),
        'gradient_accumulation_steps': draw(st.integers(1, 3)), 'eval_interval': draw(st.integers(1, 5)),
        'eval_iters': draw(st.integers(1, 3)), 'log_interval': draw(st.integers(1, 3)),
        'seed': draw(st.integers(0, 2 ** 63 - 1)), 'data_seed': draw(st.integers(0, 2 ** 63 - 1))}


@pytest.fixture(scope='module', autouse=True)
def place(tmp_path_factory):
    """A folder with data/tiny, as the current one."""
    folder = tmp_path_factory.mktemp('fuzz')
    lay_out(folder)
    with put_back():
        os.chdir(folder)
        yield


def check_valid(config):
    """2 + 2 iterations are 4, in every row of the log, and the checkpoint samples."""
    whole, half = f'whole-{next(number)}', f'half-{next(number)}'
    Path('fuzz.json').write_text(json.dumps(config), encoding='utf-8')
    call('train.py', 'fuzz.json', f'--out_dir={whole}')
    call('train.py', 'fuzz.json', f'--out_dir={half}', '--max_iters=2')
    assert {row['iter'] for row in rows(half)} <= {0, 1, 2}
    call('train.py', f'{half}/config.json', '--init_from=resume', '--max_iters=4')
    assert rows(half) == rows(whole)
    assert [row['iter'] for row in rows(whole) if 'loss' in row] == list(range(0, 4, config['log_interval']))
    call('sample.py', f'--out_dir={half}', '--checkpoint=ckpt.pt', '--num_samples=2', '--max_new_tokens=5', '--device=cpu',
              f'--dtype={config["dtype"]}')
    shutil.rmtree(whole)
    shutil.rmtree(half)


@few(max_examples=2)
@given(config=valid())
def test_valid_configurations(config):
    check_valid(config)


@pytest.mark.long
@few(max_examples=60)
@given(config=valid())
def test_many_valid_configurations(config):
    check_valid(config)


# ----------------------------------------------------------------------------- invalid ones

BROKEN = collections.defaultdict(list)                  # test_configurator.py has values of another type
for keys, values in {
        'block_size n_layer n_head n_embd eval_interval eval_iters log_interval gradient_accumulation_steps '
        'batch_size measure_batches': ['0'],
        'n_kv_head d_ff max_iters warmup_iters lr_decay_iters measure_interval seed data_seed': ['-1'],
        'dropout norm_eps init_gain rope_theta learning_rate min_lr weight_decay grad_clip decay_frac beta1 beta2 '
        'momentum max_minutes r_emb r_head r_qk r_ffn r_vo': ['-1e-30'],
        'norm attention ffn pos init optimizer schedule blockwise dtype device backend dataset init_from': ['ADAMW'],
        'dropout beta1 beta2 momentum': ['1'], 'decay_frac': ['1.5'], 'rope_theta': ['0'],
        'vocab_size': ['12', '-1'], 'block_size': ['100']}.items():
    for key in keys.split():
        BROKEN[key] += values


@pytest.mark.parametrize('key', BROKEN)
def test_each_wrong_value_of_a_key_is_one_line_that_names_it(key):
    """And no folder is there afterwards. test_bad_input.py has values that are wrong beside others"""
    Path('fuzz.json').write_text(json.dumps({**RUN, **TINY}), encoding='utf-8')
    before = tree('.')
    for value in BROKEN[key]:
        code, out, err = run_here('train.py', 'fuzz.json', '--out_dir=refused', f'--{key}={value}')
        assert code == 1 and out == '', (code, out, err)
        assert err.startswith('error: ') and err.count('\n') == 1 and 'Traceback' not in err, err
        assert key in err and tree('.') == before, err
