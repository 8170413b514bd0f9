"""lab/flatten.py: every placement as one plain file, which computes what model.py computes, and runs alone."""
from configurator import TRAIN, defaults_of, parse_args

import os
import re
import subprocess
import sys
from dataclasses import fields

import pytest
import torch
from helpers import ROOT, TINY, call, checkpoint, flags, train
from test_docs import EDITING, EDITS, OF_README, copy_code
from test_optim import ARCHS

from engine.keys import gpt_config
from lab.flatten import flatten
from model import GPT, GPTConfig
from test_model import randomize, tokens


def config_of(arch, **more):
    defaults = defaults_of(TRAIN, GPTConfig)
    return gpt_config({**defaults, **parse_args([f'{ROOT}/config/arch/{arch}.py', *flags(**more)], defaults), 'vocab_size': 40})


def printed(text, sizes):
    space = {'__name__': 'printed'}
    exec(text, space)
    return space['GPT'](space['Config'](**{name: sizes[name] for name in space['Config'].__dataclass_fields__}))


MORE = {'': {}, 'more': dict(bias=True, n_kv_head=2, d_ff=24, tie_weights=False, qk_norm=True, dropout=0.1, input_norm=True),
        'muP': dict(mup_base_width=8, mup_base_head_dim=4, mup_base_depth=2)}


@pytest.mark.parametrize('more', ['', *(pytest.param(more, marks=pytest.mark.long) for more in MORE if more)])
@pytest.mark.parametrize('arch', ARCHS)
def test_a_placement(arch, more):
    """At another depth and other sizes than those it was checked with: names, logits, loss, gradients, and what stays out"""
    try:
        config = config_of(arch, **MORE[more])
    except ValueError:                                  # these keys do not go together
        pytest.skip('no such model')
    text = flatten(config, arch)
    sizes = {f.name: getattr(config, f.name) for f in fields(config)} | dict(
        n_layer=8, n_head=8, n_embd=48, block_size=24, d_ff=56, n_kv_head=config.n_kv_head and 4)
    ours = randomize(GPT(GPTConfig(**{name: value for name, value in sizes.items() if name != 'd_ff' or config.d_ff}))).double()
    with torch.no_grad():                               # LN Off would go far with larger weights
        for p in ours.parameters():
            p.mul_(0.5)
    theirs = printed(text, sizes).double().eval()
    theirs.load_state_dict(ours.state_dict())
    idx = tokens(3, 21)
    losses = [model(idx[:, :-1], idx[:, 1:].contiguous())[1] for model in (ours, theirs)]
    torch.testing.assert_close(theirs(idx)[0], ours(idx)[0], rtol=1e-9, atol=1e-9)
    for loss in losses:
        loss.backward()
    for name, p in ours.named_parameters():
        wanted = torch.zeros_like(p) if p.grad is None else p.grad
        found = theirs.get_parameter(name).grad
        found = torch.zeros_like(p) if found is None else found
        torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-9 * float(1 + wanted.abs().max()), msg=name)
    assert len(text.splitlines()) <= 260 and not re.search(r'\b(cache|plain_attention|recompute|aux)\b|\bif (True|False)\b', text)
    assert ('after_step' in text) == (config.unit_weights or config.qk_clip > 0)


def test_after_a_step():
    for more in dict(qk_clip=0.5), dict(unit_weights=True):
        config = config_of('pre', n_layer=2, n_head=4, n_embd=16, block_size=16, **more)
        ours, theirs = GPT(config), printed(flatten(config), vars(config))
        theirs.load_state_dict(randomize(ours).state_dict())
        for model in ours, theirs:
            model.train()(tokens(8, 9))
            model.after_step()
        for name, value in ours.state_dict().items():
            torch.testing.assert_close(theirs.state_dict()[name], value, rtol=1e-6, atol=1e-7, msg=name)


@pytest.mark.parametrize('arch', ['peri', 's5', 'value_residual'])
def test_with_a_cache(arch):
    """The likeliest text is ours, with and without a cache, until the window slides and behind that"""
    config = config_of(arch, n_layer=2, n_head=4, n_embd=16, block_size=16)
    ours = randomize(GPT(config)).eval()
    wanted = ours.generate(tokens(2, 5), 20, temperature=0)
    for cache in False, True:
        theirs = printed(flatten(config, cache=cache), vars(config)).eval()
        theirs.load_state_dict(ours.state_dict())
        assert torch.equal(theirs.generate(tokens(2, 5), 20, top_k=1), wanted)


def test_of_a_run_and_alone(place):
    """The file of a run samples with its weights, in a process that knows nothing of this repository"""
    train(place, *flags(**{**TINY, 'max_iters': 2, 'eval_interval': 2}, out_dir='run'))
    call('lab.flatten', f'--out_dir={place}/run', f'--to={place}/alone/dnt.py', cwd=place, code=1)      # no such folder
    os.mkdir(place / 'alone')
    call('lab.flatten', f'--out_dir={place}/run', f'--to={place}/alone/dnt.py', cwd=place)
    assert 'there is such a file' in call('lab.flatten', f'--to={place}/alone/dnt.py', cwd=place, code=1)
    assert torch.load(place / 'alone/dnt.pt').keys() == checkpoint(place / 'run')['model'].keys()
    clean = {key: value for key, value in os.environ.items() if key != 'PYTHONPATH'}
    done = subprocess.run([sys.executable, 'dnt.py'], cwd=place / 'alone', env=clean, capture_output=True, text=True)
    assert done.returncode == 0 and ' parameters' in done.stdout and done.stdout.count(',') >= 32, done.stderr


def test_an_edited_model(tmp_path):
    """The examples of docs/editing.md are printed; one that cannot be is refused in one line"""
    copy_code(tmp_path)
    for flag in '--norm=meanabs', '--norm_every=2', '--attention=cosine':
        for edit in EDITS[flag]:
            edit(tmp_path, 'README.md' if flag in OF_README else EDITING)

    def run(*arguments):
        return subprocess.run([sys.executable, '-m', 'lab.flatten', 'config/arch/peri.py', '--vocab_size=64', *arguments],
                              cwd=tmp_path, env={**os.environ, 'PYTHONPATH': str(tmp_path)}, capture_output=True, text=True)

    for flag, says in {'--norm=meanabs': 'class MeanAbsNorm', '--norm_every=2': 'block_norm', '--attention=cosine': 'tau'
                       }.items():
        done = run(flag)
        assert done.returncode == 0 and says in done.stdout, done.stderr
    code = (tmp_path / 'model.py').read_text(encoding='utf-8')
    code = code.replace('return self.dropout(self.w2(y))', 'return self.w2(y) * hashlib.md5().digest_size', 1)
    (tmp_path / 'model.py').write_text(code, encoding='utf-8')
    error = run().stderr
    assert error.startswith('error: ') and error.count('\n') == 1 and 'hashlib' in error
