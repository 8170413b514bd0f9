"""
The command lines of README.md, CONTRIBUTING.md and docs/: each names scripts, files and keys that exist, with values of the right
types. The edits that README.md and docs/editing.md show are applied to a copy, which trains.
"""
import configurator
from configurator import parse_args

import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap

import pytest
import torch
from helpers import ROOT, TINY, checkpoint, flags, rows, write_walk

from model import GPTConfig
from vision.vit import ViTConfig

SOURCES = dict(TRAIN=configurator.TRAIN, GPTConfig=GPTConfig, ViTConfig=ViTConfig)
EDITING = 'docs/editing.md'
PAGES = ['README.md', 'CONTRIBUTING.md', *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / 'docs').glob('*.md'))]
TEXTS = {page: (ROOT / page).read_text(encoding='utf-8') for page in PAGES}
TARGETS = set(re.findall(r'^([\w-]+):', (ROOT / 'Makefile').read_text(encoding='utf-8'), re.MULTILINE))


def commands():
    """(page, words) of each indented line that starts `python`, `torchrun` or `make`"""
    for page, text in TEXTS.items():
        for line in re.findall(r'^ {4,}((?:python|torchrun|make) .*)$', text.replace('\\\n', ' '), re.MULTILINE):
            for command in re.split(r' && |; ', line):
                yield page, shlex.split(command.partition(' > ')[0], comments=True)


@functools.cache
def defaults_of(script):
    """The keys of a script, with those that its call of configure() names; none if argparse reads its arguments"""
    path = ROOT / (script if script.endswith('.py') else script.replace('.', '/'))
    path = path / '__main__.py' if path.is_dir() else path.with_suffix('.py')
    names = re.search(r'\bconfigure\(globals\(\)([^()]*)\)', path.read_text(encoding='utf-8'))
    if script == 'lab.measure':                         # which calls it with the sources of a run's keys
        names = ['', 'TRAIN, GPTConfig']
    return configurator.defaults_of(str(path), *(SOURCES[name] for name in re.findall(r'\w+', names[1]))) if names else {}


def test_every_command_parses(monkeypatch):
    monkeypatch.chdir(ROOT)
    seen, wrong = 0, []
    for page, words in commands():
        if words[0] == 'make':
            assert {word for word in words[1:] if '=' not in word} <= TARGETS, (page, words)
            continue
        rest = [word for word in words[1:] if word != '-m']
        while rest and rest[0].startswith('-'):         # torchrun's
            rest = rest[1:]
        script, *args = rest or ['']
        if not re.fullmatch(r'[\w/]+\.py|(lab|vision)\.[\w.]+', script) or '--help' in ' '.join(args) or not defaults_of(script):
            continue                                    # pytest, cProfile, argparse
        args = [arg for arg in args if arg not in EDITS and not arg.startswith('out-') and '$' not in arg]
        if script == 'lab.sweep':                       # whose axes may have several values, and need not be its keys
            args = [arg for arg in args if arg.partition('=')[0][2:] in defaults_of(script)]
        try:
            parse_args(args, defaults_of(script))
        except (ValueError, OSError) as error:
            wrong.append((page, words, error))
        seen += 1
    assert seen > 60 and not wrong


# ----------------------------------------------------------------------------- the edits

def blocks(text):
    """The indented blocks of a page"""
    return [textwrap.dedent(block) for block in re.findall(r'(?:^ {4,}.*\n|^\n(?= {4}))+', text, re.MULTILINE)]


def above(line, text, file='model.py'):
    """An edit: the page's block that holds this text goes above the line. Of a class, the table that follows it stays out."""
    def edit(place, page):
        block = next(block for block in blocks(TEXTS[page]) if text in block).strip('\n') + '\n'
        if text.startswith('class '):
            block = re.split('^[A-Z]+ = ', block, flags=re.MULTILINE)[0].rstrip('\n') + '\n\n\n'
        code = (place / file).read_text(encoding='utf-8')
        at = re.search(rf'^ *(?={re.escape(line)})', code, re.MULTILINE)
        (place / file).write_text(code[:at.start()] + textwrap.indent(block, at[0]) + code[at.start():], encoding='utf-8')

    return edit


def joins(end, words):
    """An edit: the words join the table of model.py that ends so."""
    def edit(place, page):
        code = (place / 'model.py').read_text(encoding='utf-8')
        assert words in TEXTS[page] and code.count(end) == 1, words
        (place / 'model.py').write_text(code.replace(end, f'{end[:-1]}, {words}{end[-1]}'), encoding='utf-8')

    return edit


EDITS = {           # argument of a command → the edits that it needs
    '--norm=meanabs': [above('NORMS = {', 'class MeanAbsNorm'), joins("'stablenorm': StableNorm}", "'meanabs': MeanAbsNorm")],
    '--optimizer=nadam': [above("'adamw': lambda groups", "'nadam': ", 'optim.py')],
    '--norm_every=2': [above('fused_qkv_init: bool', 'norm_every: int'),
                       above('self.dt = config.branch_scale', 'self.block_norm = '),
                       above('x = self.attn_post_norm(x + self.dt', 'x = self.block_norm(x)'),
                       above('x_in = x', 'x = self.block_norm(x)')],
    '--attention=cosine': [above('ATTENTIONS = {', 'class CosineAttention'),
                           joins("'l2_tied': L2TiedAttention}", "'cosine': CosineAttention"),
                           above("'ffn.w1': MATRIX('ffn')", "'attn.tau': Row('tau'")],
    '--distill=0.5': [above('fused_qkv_init: bool', 'distill: float'), above('attach_aux_and_logged(self)', 'self.teacher = '),
                      above('return self.output(x, targets)', 'with torch.no_grad():\n'),
                      above("'ffn.w1': MATRIX('ffn')", "'teacher': Row("),
                      above('if checkpoint:\n    load_weights', 'load_run', 'train.py')],
    '--out_dir=out-heads-rms': [above('return y\n\n    def attend', "self.logged['heads_rms']")]}
OF_README = ['--norm=meanabs']


def test_the_edits_fit_the_code(tmp_path, monkeypatch):
    """Each parameter has its block type and a gradient, and a step of generation has the hidden states of a whole pass"""
    for path in ROOT.glob('*.py'):
        shutil.copy(path, tmp_path)
    for flag, edits in EDITS.items():
        for edit in edits:
            edit(tmp_path, 'README.md' if flag in OF_README else EDITING)
    for path in tmp_path.glob('*.py'):
        compile(path.read_text(encoding='utf-8'), path, 'exec')
    spec = importlib.util.spec_from_file_location('edited_model', tmp_path / 'model.py')
    code = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, code)               # dataclasses look for it there
    spec.loader.exec_module(code)
    config = code.GPTConfig(n_layer=2, n_head=2, n_embd=16, n_kv_head=1, block_size=8, vocab_size=11, norm='meanabs',
                            attention='cosine', norm_every=2, distill=0.5)
    model, idx = code.GPT(config), torch.arange(8)[None]
    loss = model(idx, idx)[1]
    assert [*model.aux] == ['distill'] and model.eval()(idx, idx)[1] == loss
    sum(model.train().aux.values(), loss).backward()
    types = {name: code.block_type(name) for name, p in model.named_parameters()
             if not p.requires_grad or p.grad.abs().max() > 0}
    assert len(types) == len([*model.parameters()]) and types['teacher.h.0.attn.wq.weight'] == 'teacher'
    assert (types['h.1.block_norm.weight'], types['h.0.attn.tau']) == ('norm', 'tau')
    caches = [code.KVCache() for _ in model.h]
    steps = torch.cat([model.hidden(idx[:, i:i + 1], caches) for i in range(8)], dim=1)
    torch.testing.assert_close(steps, model.hidden(idx))
    assert model.logged.keys() == {'heads_rms'}


def copy_code(place):
    """Copy the code, of which only the root's files may be edited, and write a small data set."""
    for path in ROOT.glob('*.py'):
        shutil.copy(path, place)
    for name in ('engine', 'lab', 'config'):
        os.symlink(ROOT / name, place / name)
    write_walk(place)
    for path in (ROOT / 'data').glob('*.py'):
        shutil.copy(path, place / 'data')


@pytest.mark.long
def test_readmes_norm_trains(tmp_path):
    copy_code(tmp_path)
    for edit in EDITS['--norm=meanabs']:
        edit(tmp_path, 'README.md')
    command = 'train.py config/train_quick.py --norm=meanabs --dataset=tiny --max_iters=2 --eval_iters=1 --device=cpu'
    subprocess.run([sys.executable, *command.split()], cwd=tmp_path, env={**os.environ, 'PYTHONPATH': str(tmp_path)}, check=True)


@pytest.mark.long
def test_a_teacher_is_the_same_in_a_resumed_run(tmp_path):
    """A run with the page's teacher: bit for bit when it goes on, although the teacher's own run is gone, and on ranks to 1e-5"""
    copy_code(tmp_path)
    keys = flags(**{**TINY, 'max_iters': 4, 'eval_interval': 2, 'device': 'cpu'}, deterministic=True)

    def run(*more, ranks=1):
        start = ['-m', 'torch.distributed.run', '--standalone', f'--nproc_per_node={ranks}'] if ranks > 1 else []
        subprocess.run([sys.executable, *start, 'train.py', *keys, *more], cwd=tmp_path, check=True,
                       env={**os.environ, 'PYTHONPATH': str(tmp_path), 'OMP_NUM_THREADS': '1'})

    run('--out_dir=out-quick', '--seed=7')
    for edit in EDITS['--distill=0.5']:
        edit(tmp_path, EDITING)
    run('--distill=0.5', '--out_dir=whole')
    run('--distill=0.5', '--out_dir=ddp', ranks=2)
    run('--distill=0.5', '--out_dir=fsdp', '--parallel=fsdp', ranks=2)
    run('--distill=0.5', '--out_dir=half', '--max_iters=2')
    run('--out_dir=out-quick', '--seed=8', '--overwrite=True')              # another teacher stands there now
    run('--distill=0.5', '--out_dir=half', '--init_from=resume')
    whole = checkpoint(tmp_path / 'whole')['model']
    assert any(name.startswith('teacher.') for name in whole)
    for name, tolerance in ('half', 0), ('ddp', 1e-5), ('fsdp', 1e-5):
        for key, value in checkpoint(tmp_path / name)['model'].items():
            torch.testing.assert_close(value, whole[key], rtol=0, atol=tolerance, msg=f'{name} {key}')
    losses = [row['aux.distill'] for row in rows(tmp_path / 'whole') if 'aux.distill' in row]
    assert len(losses) == 4 and losses[-1] < losses[0]
