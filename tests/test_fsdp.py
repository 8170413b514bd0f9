"""train.py --parallel=fsdp on gloo ranks: the numbers of one process, and checkpoints that any number of ranks continues."""
import json
import sys

import pytest
import torch
from helpers import TINY, checkpoint, flags, in_each_iteration, rows, spread, train
from torch.utils import _foreach_utils

import model
from engine.stats import NUMBERS, OF_ATTENTION

# Odd sizes: 13 tokens, 11 positions and the rows of 3 heads are shared unevenly
ODD = {**TINY, 'n_embd': 24, 'n_head': 3, 'block_size': 11, 'eval_iters': 5, 'max_iters': 20, 'eval_interval': 10,
       'gradient_accumulation_steps': 4, 'weight_decay': 0.1, 'log_layers': True}
LLAMA = dict(norm='rmsnorm', pos='rope', ffn='swiglu', tie_weights=False, qk_norm=True, n_kv_head=1)
FSDP, ON_SHARDS = ['--parallel=fsdp'], ['adamw', 'sgdw', 'lion', 'adam_mini', 'muon', 'normuon']


def assert_alike(run, other):
    ours, theirs = rows(run), rows(other)
    assert len(ours) == len(theirs) > 5
    for a, b in zip(ours, theirs):
        b = {key: value for key, value in b.items() if key in a or not key.startswith((*NUMBERS, *OF_ATTENTION))}
        assert a == pytest.approx(b, abs=1e-5)


@pytest.fixture(scope='module')
def alone(place):
    """The run of an optimizer on one process, made once"""
    made = {}

    def run(optimizer, **more):
        key = '-'.join([optimizer, *(f'{name}={value}' for name, value in more.items())])
        if key not in made:
            rate = {'learning_rate': 1e-3, 'min_lr': 1e-4} if optimizer == 'lion' else {}      # small steps, as Lion wants
            train(place, *flags(**{**ODD, **rate, **more}, optimizer=optimizer, out_dir=f'alone-{key}'))
            made[key] = place / f'alone-{key}'
        return made[key]
    return run


def on(place, alone, optimizer, ranks, flags=(), **more):
    """A run like alone's, whose losses and whose checkpoint, of the whole model, are the same"""
    whole = alone(optimizer, **more)
    run = place / f'{whole.name}-{ranks}-{len(flags)}'
    train(place, f'{whole}/config.json', f'--out_dir={run.name}', *FSDP, *flags, ranks=ranks)
    assert_alike(run, whole)
    ours, theirs = checkpoint(run), checkpoint(whole)
    assert ours['model'].keys() == theirs['model'].keys()
    few = 0.01 if optimizer == 'lion' else 0            # a sum over ranks rounds differently, and a sign near 0 turns
    for key, value in theirs['model'].items():
        assert ((ours['model'][key] - value).abs() > 1e-5).double().mean() <= few, key


@pytest.mark.parametrize('keys', [dict(tie_weights=True), pytest.param(dict(**LLAMA, residual='mhc', norm_gain='zero_centred'),
                                                                        marks=pytest.mark.long)], ids=['tied', 'untied'])
def test_all_start_bit_equal(keys, place):
    """One process, DDP and FSDP; at a learning rate of 0 a checkpoint holds what the run started with"""
    still = flags(**{**ODD, **keys, 'optimizer': 'sgdw', 'learning_rate': 0.0, 'min_lr': 0.0, 'max_iters': 1, 'eval_interval': 1})
    starts = []
    for ranks, parallel in (1, 'ddp'), (2, 'ddp'), (2, 'fsdp'):
        train(place, *still, f'--parallel={parallel}', f'--out_dir=start-{parallel}-{ranks}', '--overwrite=True', ranks=ranks)
        starts.append(checkpoint(place / f'start-{parallel}-{ranks}')['model'])
    for name, value in starts[0].items():
        assert torch.equal(value, starts[1][name]) and torch.equal(value, starts[2][name]), name


@pytest.mark.parametrize('optimizer, first, second', [('muon', 2, 1), *(
    pytest.param(*case, marks=pytest.mark.long) for case in (
        ('sgdw', 4, 1), ('adam_mini', 4, 1), ('adam_mini', 1, 4), ('muon', 1, 4), ('adamw', 4, 2), ('lion', 2, 4),
        ('normuon', 4, 1), ('normuon', 1, 2)))])
def test_other_numbers_of_ranks_go_on(optimizer, first, second, place, alone):
    """Ten iterations on so many ranks, and the rest on so many others, give the same losses. Rows are shared unevenly. NorMuon is
    on a ball here, whose radius goes on too"""
    ball = dict(hyperball=True) if optimizer == 'normuon' else {}
    whole = alone(optimizer, **(dict(n_embd=21) if first == 2 else LLAMA), **ball)
    half = f'{whole.name}-from-{first}-to-{second}'
    train(place, f'{whole}/config.json', f'--out_dir={half}', '--max_iters=10', *FSDP, ranks=first)
    train(place, f'{half}/config.json', '--init_from=resume', '--max_iters=20', *FSDP, ranks=second)
    assert_alike(place / half, whole)


@pytest.mark.long
@pytest.mark.parametrize('optimizer, ranks, more', [('muon', 4, dict(n_embd=15, n_kv_head=1)), *(
    (optimizer, *case) for optimizer in ON_SHARDS for case in ((2, {}), (4, LLAMA), (2, dict(hyperball=True)))),
    *((optimizer, 4, dict(cautious_decay=True)) for optimizer in ON_SHARDS[:2])])
def test_every_optimizer(optimizer, ranks, more, place, alone):
    """Also where the last of four ranks has none of the five rows of W_k and W_v"""
    on(place, alone, optimizer, ranks, **more)


# GatedNorm's matrices are of the type mix: Muon orthogonalizes them, and Adam-mini has a second moment for each row. Both would
# enlarge how gradients of streams round, which are 0 but for that while the streams are equal.
STREAMS = {'values of the first block': dict(value_residual=True, residual='gpas', attn_gate=True, sub_norm=True,
                                             norm='gatednorm'),
           'hyper': dict(residual='hyper', value_residual=True, norm='gatednorm', norm_gain='zero_centred', emb_gain=True,
                         init='torchtitan'),
           'dual': dict(residual='dual', attn_pre_norm=False, ffn_pre_norm=False, norm='seednorm', norm_gain='none'),
           'mhc': dict(residual='mhc'), 'mhc_lite': dict(residual='mhc_lite', streams=3, norm='gatednorm'),
           'siamese': dict(optimizer='adam_mini', residual='siamese', norm='gatednorm'),
           'attnres': dict(optimizer='muon', residual='attnres', norm='gatednorm', embedding_skip=True),
           'parallel': dict(optimizer='muon', parallel_ffn=True, ffn_pre_norm=False, norm_depth_scale=True, unit_weights=True)}


@pytest.mark.long
@pytest.mark.parametrize('name', STREAMS)
@pytest.mark.parametrize('more', [[], ['--recompute=True']], ids=['', 'recomputed'])
def test_residual_states(name, more, place, alone):
    on(place, alone, **{'optimizer': 'sgdw'} | STREAMS[name], ranks=2, flags=more)


def freezes():
    def build(self, config, layer, old=model.Block.__init__):
        old(self, config, layer)
        self.requires_grad_(layer > 1)

    model.Block.__init__ = build


@pytest.mark.long
def test_a_frozen_block(place):
    """Trains as with DDP"""
    for name, more in ('ddp', []), ('fsdp', FSDP):
        train(place, *flags(**ODD, out_dir=f'frozen-{name}'), *more, ranks=2, through=(freezes,))
    ours, theirs = (checkpoint(place / f'frozen-{name}') for name in ('fsdp', 'ddp'))
    for name, value in theirs['model'].items():
        torch.testing.assert_close(ours['model'][name], value, rtol=0, atol=1e-5, msg=name)


def foreach_on_cpu():
    """PyTorch's functions choose kernels over many tensors on a CPU as they do on a GPU, and must have chosen some."""
    used, total = [], torch._foreach_norm
    _foreach_utils._get_foreach_kernels_supported_devices = lambda: ['cuda', 'cpu']
    torch._foreach_norm = lambda *args, **more: (used.append(args), total(*args, **more))[1]
    in_each_iteration(lambda it: used.clear() if used else sys.exit('no foreach kernel was used'))


@pytest.mark.long
@pytest.mark.parametrize('optimizer, flags, through', [
    *((optimizer, [*FSDP, '--compile=True'], ()) for optimizer in ON_SHARDS[1:]),
    ('adamw', [*FSDP, '--compile=True', '--recompute=True'], ()), ('adamw', ['--recompute=True'], ()),
    *((optimizer, FSDP, (foreach_on_cpu,)) for optimizer in ON_SHARDS)])
def test_compiled_recomputed_and_foreach(optimizer, flags, through, place, alone):
    whole, out_dir = alone(optimizer), f'{optimizer}-{len(flags)}-{len(through)}'
    train(place, f'{whole}/config.json', f'--out_dir={out_dir}', '--overwrite=True', *flags, ranks=2, through=through)
    assert_alike(place / out_dir, whole)


@pytest.mark.long
def test_bf16_and_measurements(place, alone):
    """Rank 0 measures a whole copy. In bf16 a block's weights are rounded; those outside of blocks, the residual stream and what
    is stored are not"""
    for dtype in 'bfloat16', 'float32':
        whole = alone('adamw', dtype=dtype, norm='rmsnorm', measure_interval=5, measure_batches=2)
        train(place, f'{whole}/config.json', f'--out_dir={dtype}', *FSDP, ranks=2)
        losses, theirs = ([row['val_loss'] for row in rows(run) if 'val_loss' in row] for run in (place / dtype, whole))
        assert losses == pytest.approx(theirs, abs=0.02) and losses[-1] < losses[0] - 0.3
        assert all(value.dtype == torch.float32 for value in checkpoint(place / dtype)['model'].values())
    ours, theirs = ((run / 'measure.jsonl').read_text().splitlines() for run in (place / dtype, whole))
    for a, b in zip(ours, theirs, strict=True):         # the last one at the end, of no step
        a, b = (spread('', {key: json.loads(line).get(key) for key in ('iter', 'hidden', 'updates')}) for line in (a, b))
        assert a == {name: value if isinstance(value, (str, type(None))) else pytest.approx(value, rel=1e-3, abs=1e-6)
                     for name, value in b.items()}
