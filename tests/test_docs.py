"""
The command lines of README.md, AGENTS.md and docs/. Each one names scripts, files and keys that exist, with values of the right
types. The long test runs them in the order of their page, in a copy of the repository, with small models and small data of the
same names.
The edits that a page shows are applied to such copies.
"""
import configurator
from configurator import TRAIN, parse_args

import ast
import functools
import glob
import importlib.util
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from helpers import ROOT, forks_its_runs, run_alone, run_here, run_python, run_ranks
from lab.results import placements
from lab.track.__main__ import split_arguments as split_track_arguments
from lab.track.entry import Division
from torch.distributed.run import get_args_parser

from data.tokens import write_tokens
from engine.keys import check_keys, gpt_config
from lab.sweep.__main__ import split_arguments
from lab.sweep.plan import plan
from model import GPTConfig
from vision.images import write_images
from vision.vit import ViTConfig

PAGES = ['README.md', 'CONTRIBUTING.md', 'AGENTS.md',
         *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / 'docs').glob('*.md'))]
STARTERS = ('python', 'torchrun', 'make', 'pip', 'git', 'cd', 'source', 'sbatch', 'sudo')        # all kinds of commands
NO_CODE = ['x = Post(α x + Δt · gain · Mid(f(Pre(x))))\n']        # blocks that are neither commands nor Python

# commands that the long test does not run, and why: a pattern of the whole command
ONLY_PARSED = {
    r'make (quickstart|test|quickstart-vision)$': 'it installs packages; its own commands run before a page and in other tests',
    r'make (test-long|results-run)( |$)': 'hours',
    r'(make gpu|python -m lab\.gpu)( |$)': 'a GPU; tests/test_gpu.py runs its steps on a CPU',
    r'make test-cuda-code$': 'it installs packages',
    r'pip install ': 'the network',
    r'(git|cd|source) ': 'nothing of ours',
    r'(sbatch|sudo) ': 'a cluster; or rights that a test does not have',
    r'torchrun --nnodes=2 ': 'two machines',
    r'python -m pytest ': 'a test runs no tests',
    r'python data/(shakespeare_char|openwebtext|fineweb|minipile|c4)/prepare\.py$': 'the network',
    r'python -m vision\.prepare\.cifar100$': 'the network',
    r'python data/py(source|docs)/prepare\.py': 'the network; tests/test_packages.py prepares small packages',
    r'.*(init_from=|,)gpt2': 'the network, for the weights of GPT-2',
    r'python -m lab\.scaling ': 'the runs of a sweep of hours; tests/test_scaling.py runs it',
    r'python -m lab\.track ': 'thousands of iterations; tests/test_track.py makes an entry of a small division',
    r'python -m lab\.evaluate .*--what=rouge,bertscore': 'the network, for the model of BERTScore',
    r'python -m lab\.evaluate .*--tasks=': 'the network, for the tasks',
}

# The long test puts these values in place of larger ones, and of those that a command does not give.
SHAPE = dict(n_layer=2, n_head=2, n_embd=16, block_size=32)
STEPS = dict(batch_size=4, gradient_accumulation_steps=2, max_iters=4, eval_interval=2, eval_iters=1, warmup_iters=0,
             log_interval=1, compile=False, dtype='float32', device='cpu')
SMALLER = {
    'train.py': {**SHAPE, **STEPS},
    'bench.py': {**SHAPE, 'batch_size': 2, 'bench_iters': 1, 'bench_warmup': 0, 'compile': False},
    'sample.py': dict(max_new_tokens=20, num_samples=1),
    'lab.sweep': {**SHAPE, **STEPS, 'learning_rate': 0.1, 'seeds': 1, 'jobs': 2},
    'lab.measure': dict(batches=1),
    'lab.sweep --report': {},
    'lab.measure --init_only': {**SHAPE, 'batch_size': 2, 'batches': 1},
    'lab.estimate': SHAPE,
    'vision.train': {**{key: value for key, value in SHAPE.items() if key != 'block_size'}, **STEPS},
    'lab.coordinates': {**SHAPE, 'batch_size': 2, 'widths': '16,32', 'steps': 1, 'seeds': 1},
    'data/textfiles/prepare.py': dict(tokenizer='bytes', processes=1),          # for GPT-2's, which needs the network
    'vision.prepare.imagenet': dict(processes=1),
}
# only where a command gives a larger one
WHERE_GIVEN = dict(measure_interval=2, keep_every=2, sampling=5, compiles=False, mup_base_width=16, mup_base_head_dim=8)
# what the reader has → what the long test has
IN_PLACE = {'/data/imagenet': 'flowers', 'FOLDER': 'their-vit', 'ckpt-000500.pt': 'ckpt-000002.pt'}


# ----------------------------------------------------------------------------- collecting

def blocks(text):
    """The indented blocks of a page, outside of ``` fences"""
    text, found = re.sub(r'^```.*?^```', '', text, flags=re.MULTILINE | re.DOTALL), []
    for indented, lines in itertools.groupby(text.splitlines(), lambda line: not line or line.startswith('    ')):
        block = textwrap.dedent('\n'.join(lines)).strip('\n')
        if indented and block:
            found.append(block + '\n')
    return found


def is_python(block):
    """Whether it is Python, or an entry of a dict, and more than names and operators, as which `ls -l` could be read"""
    for source in (block, '{' + block + '}'):
        try:
            tree = ast.parse(source)
        except SyntaxError:
            continue
        words = (ast.Name, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Constant, ast.Attribute, ast.Set)
        return not all(isinstance(node, ast.Expr) and isinstance(node.value, words) for node in tree.body)
    return False


def commands_of(text):
    """The commands of a page as lists of words, as a shell reads them: with its variables, loops, comments and quotes. It finds
    none but the STARTERS, which print their words. AssertionError for any other command."""
    stubs = [f"{name}() {{ printf '%s\\037' {name} \"$@\"; echo; }}" for name in STARTERS]
    script = [block for block in blocks(text) if not is_python(block) and block not in NO_CODE]
    done = subprocess.run([shutil.which('bash'), '-c', '\n'.join(['PATH=/nowhere', 'set -u', *stubs, *script, 'make end'])],
                          capture_output=True, text=True, encoding='utf-8', cwd='/', env={})
    *found, end = [line.split('\37') for line in done.stdout.splitlines()]
    assert not done.stderr and end == ['make', 'end', ''] and all(len(words) > 1 for words in found), done.stderr or found
    return [words[:-1] for words in found]


def in_sentences(text):
    """The commands between `backticks` in which nothing is left out, as lists of words"""
    return [shlex.split(command) for command in re.findall(r'`((?:python|torchrun|make|pip) [^`…]+)`', text)]


TEXTS = {page: (ROOT / page).read_text(encoding='utf-8') for page in PAGES}
COMMANDS = {page: commands_of(text) for page, text in TEXTS.items()}
ALL = [pytest.param(words, id=f'{page.split("/")[-1]}-{i}')
       for page, text in TEXTS.items() for i, words in enumerate([*COMMANDS[page], *in_sentences(text)])]


def test_the_page_of_placements_is_made_from_the_files():
    assert (ROOT / 'docs' / 'placements.md').read_text(encoding='utf-8') == placements(), 'run  python -m lab.results'


# ----------------------------------------------------------------------------- parsing

def script_of(words):
    """(script or module, its arguments, whether torchrun starts it)"""
    name, *rest = words
    if name == 'torchrun':
        args = get_args_parser().parse_args(rest)
        return args.training_script, args.training_script_args, True
    if rest[:2] == ['-m', 'cProfile']:                  # -m cProfile -s cumtime train.py …
        rest = rest[4:]
    return (rest[1], rest[2:], False) if rest[0] == '-m' else (rest[0], rest[1:], False)


def path_of(script):
    path = ROOT / (script if script.endswith('.py') else script.replace('.', '/'))
    return path / '__main__.py' if path.is_dir() else path.with_suffix('.py')


@functools.cache
def defaults_of(script):
    """The keys of a script, with those that its call of configure() names"""
    path, vision = path_of(script), str(ROOT / 'vision' / 'train.py')
    if script.endswith('.measure'):                     # they share a function that calls it
        more = (TRAIN, GPTConfig) if script == 'lab.measure' else (vision, ViTConfig, TRAIN)
        return configurator.defaults_of(str(ROOT / 'lab' / 'measure' / '__main__.py'), *more)
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding='utf-8')))
             if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == 'configure']
    more = dict(TRAIN=TRAIN, GPTConfig=GPTConfig, ViTConfig=ViTConfig)
    return configurator.defaults_of(str(path), *(more[arg.id] for arg in calls[0].args[1:])) if calls else {}


def without_edits(args):
    return [arg for arg in args if arg not in EDITS]


@functools.cache
def config_of_run(folder):
    """The config.json of a run that some page trains"""
    for words in itertools.chain(*COMMANDS.values()):
        if words[0] in ('python', 'torchrun') and script_of(words)[0] == 'train.py':
            args = without_edits(script_of(words)[1])
            if not any(arg.startswith('out-') for arg in args):
                config = parse_args(args, defaults_of('train.py'))
                if config['out_dir'] == folder:
                    return config
    raise AssertionError(f'no page trains {folder}')


def parse(script, args):
    if script == 'pytest' or args == ['--help']:
        files = [name for name in (script, *args) if name.endswith('.py') or name.startswith(('lab.', 'vision.'))]
        assert all(path_of(name).exists() for name in files)
    elif script in ('lab.plot', 'lab.runs', 'lab.doctor', 'vision.predictions'):
        keys = {arg.partition('=')[0] for arg in args if arg.startswith('-')}
        assert keys <= set(re.findall(r"add_argument\('(--\w+)'", path_of(script).read_text())) and len(keys) < len(args)
    elif script == 'lab.sweep':
        ours, theirs = split_arguments(args)
        keys = parse_args(ours, defaults_of(script))
        if keys['report']:
            assert not theirs and keys['select'] in ('all', 'best')
        else:
            axes = {arg[2:].partition('=')[0]: arg.partition('=')[2].split(',') for arg in theirs if arg.startswith('--')}
            files = [arg for arg in theirs if not arg.startswith('--')]
            plan(keys['grids'] or [{}], [*keys['arguments'].split(), *files], axes, script=keys['script'])
    elif script == 'lab.track':
        ours, theirs = split_track_arguments(args)
        Division(parse_args(ours, defaults_of(script))['division']).changed(theirs)
    else:
        config = parse_args(without_edits(args), defaults_of(script))
        if script in ('train.py', 'lab.estimate', 'vision.train'):
            check_keys(config)
            gpt_config(config, ViTConfig if script == 'vision.train' else GPTConfig)


@pytest.mark.parametrize('words', ALL)
def test_it_parses(words, tmp_path, monkeypatch):
    name, *rest = words
    if name in ('python', 'torchrun'):
        script, args, _ = script_of(words)
        (tmp_path / 'config').symlink_to(ROOT / 'config')
        for arg in args:
            if arg.startswith('out-') and arg.endswith('/config.json'):
                path = tmp_path / arg
                monkeypatch.chdir(ROOT)
                path.parent.mkdir(parents=True)
                path.write_text(json.dumps(config_of_run(arg.split('/')[0])))
        monkeypatch.chdir(tmp_path)
        parse(script, args)
    elif name == 'make':
        makefile, targets = (ROOT / 'Makefile').read_text(), [word for word in rest if '=' not in word]
        assert all(re.search(rf'^{target}:', makefile, re.MULTILINE) for target in targets)
    elif name == 'pip':
        assert rest[:2] == ['install', '-r'] and (ROOT / rest[2]).exists()
    elif name in ('sbatch', 'sudo'):
        assert (ROOT / rest[0]).exists()


# ----------------------------------------------------------------------------- running

def test_the_notebook(tmp_path, monkeypatch):
    """Its first block trains: the loss of bytes that repeat falls"""
    data = np.tile(np.arange(200, dtype=np.uint16), 100)
    write_tokens(str(tmp_path / 'data' / 'pycode'), dict(train=[data], val=[data[:500]]), 256, 'bytes')
    monkeypatch.chdir(tmp_path)
    cell = {}
    exec(blocks(TEXTS['docs/notebook.md'])[0].replace('range(100)', 'range(10)'), cell)
    assert len(cell['losses']) == 10 and cell['losses'][-1] < cell['losses'][0] - 0.1


def block_with(page, text):
    """The block of a page that holds this text"""
    return next(block for block in blocks(TEXTS[page]) if text in block)


def put_before(path, line, block):
    """Puts a block, as far as needed indented, above the line of a file that starts with `line`."""
    text = path.read_text(encoding='utf-8')
    at = re.search(rf'^ *{re.escape(line)}', text, re.MULTILINE)
    indent = re.match(' *', at[0])[0]
    path.write_text(f'{text[:at.start()]}{textwrap.indent(block, indent)}{text[at.start():]}', encoding='utf-8')


def replace(path, old, new):
    text = path.read_text(encoding='utf-8')
    assert text.count(old) == 1, old
    path.write_text(text.replace(old, new), encoding='utf-8')


def add(path, end, page, words):
    """Adds words of the page to the one list, call or dict that ends so."""
    assert words in TEXTS[page], words
    replace(path, end, f'{end[:-1]}, {words}{end[-1]}')


def above(line, text, file='model.py'):
    """An edit: the page's block that holds this text goes above the line. Of a class, the table that follows it stays out."""
    def edit(place, page):
        block = block_with(page, text)
        if text.startswith('class '):
            block = re.split('^[A-Z]+ = ', block, flags=re.MULTILINE)[0] + '\n\n'
        put_before(place / file, line, block)

    return edit


def joins(end, words):
    """An edit: the words join the table of model.py that ends so."""
    return lambda place, page: add(place / 'model.py', end, page, words)


def calls_gates(place, page):
    for line in block_with(page, 'self.attn_gate(self.').replace('...\n', '').splitlines():
        replace(place / 'model.py', re.sub(r'self\.(?:attn|ffn)_gate\((.*\))\)', r'\1', line.strip()), line.strip())


FIELD, BUILT = 'fused_qkv_init: bool', 'self.attn_pre_scale, self.ffn_pre_scale'
# arguments of commands that need edits, which their page shows
EDITS = {
    '--norm=meanabs': [above('NORMS = {', 'class MeanAbsNorm'), joins("'gatednorm': GatedNorm}", "'meanabs': MeanAbsNorm")],
    '--optimizer=nadam': [above("'adamw': lambda groups", "'nadam': ", 'optim.py')],
    '--gate=True': [above(FIELD, 'gate: bool'), above(BUILT, 'self.attn_gate = '), calls_gates,
                    above("'ffn.w1': 'ffn'", "'attn_gate': 'gate'")],
    '--norm_every=2': [above(FIELD, 'norm_every: int'), above(BUILT, 'self.block_norm = '),
                       above('x_in = x', 'x = self.block_norm(x)')],
    '--attention=cosine': [above('ATTENTIONS = {', 'class CosineAttention'),
                           joins("'l2_tied': L2TiedAttention}", "'cosine': CosineAttention"),
                           above("'ffn.w1': 'ffn'", "'attn.tau': 'tau'")],
    '--out_dir=out-emb-std': [above('**evidence.row(', 'emb_std=raw_model', 'train.py')],
    '--out_dir=out-heads-rms': [above('if self.wg is not None', "self.logged['heads_rms']")],
    '--z_loss=1e-4': [above(FIELD, 'z_loss: float'), above('loss = F.cross_entropy(', "self.aux['z_loss']")]}

# and of those that read the runs of these commands
EDITED = {arg for words in itertools.chain(*COMMANDS.values()) if EDITS.keys() & {*words}
          for arg in words if arg in EDITS or arg.startswith('--out_dir=')}


def edits_of(page):
    return [edit for flag, edits in EDITS.items() if any(flag in words for words in COMMANDS[page]) for edit in edits]


def edit_reference(place, page):
    """What the page's options need in test_model.py"""
    file = place / 'test_model.py'
    add(file, "'seednorm', 'gatednorm')", page, "'meanabs'")
    put_before(file, "if c.norm == 'layernorm':", block_with(page, "if c.norm == 'meanabs'"))
    add(file, 'mup_base_head_dim=(0, 2))', page, 'norm_every=(0, 1, 2)')
    replace(file, 'TRAINING_ONLY = set()', "TRAINING_ONLY = {'z_loss'}")
    put_before(file, 'x_in =', block_with(page, "f'h.{i}.block_norm'"))
    add(file, "'stable', 'l2', 'l2_tied')", page, "'cosine'")
    add(file, "('l2_tied', 0))", page, "('cosine', 2)")
    cosine = textwrap.indent(block_with(page, "if c.attention == 'cosine':"), 12 * ' ')
    replace(file, 12 * ' ' + cosine[cosine.index("if c.attention == 'dot'"):], cosine)
    put_before(file, "if c.pos == 'rope':", block_with(page, "if c.attention == 'cosine' else y"))
    replace(file, "emb_scale').split()", "emb_scale gate').split()")
    put_before(file, 'gain = w[', block_with(page, "_gate.weight'] if c.gate"))
    replace(file, "y_norm'.split()", "y_norm block_norm'.split()")


def made_smaller(script, args):
    """The arguments with smaller values, and in a folder of the test."""
    for what, ours in IN_PLACE.items():
        args = [re.sub(f'={what}$', f'={ours}', arg) for arg in args]
    given = {arg[2:].partition('=')[0]: arg.partition('=')[2] for arg in args if arg.startswith('--')}
    small = next((SMALLER[f'{script} --{key}'] for key in given if f'{script} --{key}' in SMALLER), SMALLER.get(script, {}))
    if given.get('init_from') in IN_PLACE.values():
        small = {key: value for key, value in small.items() if key not in SHAPE}        # the weights decide
    small = {**small, **{key: value for key, value in WHERE_GIVEN.items() if key in given}}

    def kept(key, value):
        return (key in given and isinstance(value, (int, float)) and not isinstance(value, bool)
                and re.fullmatch(r'[\d.e-]+', given[key]) and float(given[key]) <= value)

    return [*args, *(f'--{key}={value}' for key, value in small.items() if not kept(key, value))]


def run(place, words):
    """Runs a command of a page in the folder, made smaller, to its end."""
    script, args, by_torchrun = script_of(words)
    args = [name for arg in made_smaller(script, args) for name in sorted(glob.glob(arg, root_dir=place)) or [arg]]
    if by_torchrun:
        found = run_ranks(2, script, *args, cwd=place)
    elif any(arg in EDITED for arg in args):            # a new interpreter imports the edited files
        found = run_python(*['-m'][:script.startswith('lab.')], script, *args, cwd=place, PYTHONPATH=str(place))
    elif script == 'lab.sweep':
        found = run_alone(script, *args, cwd=place, through=(forks_its_runs,))
    else:
        found = run_here(script, *args, cwd=place)
    assert found[0] == 0, f'{" ".join(words)}\n{script} {" ".join(args)}\n{found[1]}{found[2]}'


def copy_repository(place):
    """Copy the repository, with small data of the names that the pages use for text."""
    files = subprocess.run(['git', 'ls-files', '-co', '--exclude-standard', '-z'], cwd=ROOT, capture_output=True, text=True)
    for name in files.stdout.split('\0')[:-1]:
        if not name.startswith(('tests/', 'results/')) and (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, place / name)
    rng = np.random.default_rng(0)
    for name in ('pycode', 'openwebtext'):
        write_tokens(place / 'data' / name, {split: [rng.integers(9, 99, 3000)] for split in ('train', 'val')}, 256, 'bytes')


@pytest.fixture(scope='module')
def repository(tmp_path_factory):
    """A copy of the repository with small data of the names that the pages use, and the runs that they start from"""
    place = tmp_path_factory.mktemp('docs')
    copy_repository(place)
    shutil.copytree(ROOT / 'results' / 'csv', place / 'results' / 'csv', dirs_exist_ok=True)
    rng = np.random.default_rng(0)
    for name, size, classes in ('cifar100', 32, 100), ('imagenet', 256, 1000):
        write_images(place / 'data' / name, {split: [(rng.integers(0, 256, (8, 3, size, size), np.uint8), np.arange(8))]
                                             for split in ('train', 'val')}, classes)
    (place / 'books').mkdir()
    (place / 'books' / 'one.txt').write_text('to be or not to be\n' * 200)
    (place / 'more.jsonl').write_text(json.dumps(dict(text='that is the question\n' * 200)) + '\n')
    (place / 'CIFAR-100-C').mkdir()
    names = parse_args([], defaults_of('vision.prepare.cifar100c'))['corruptions'].split(',')
    for name in names:
        np.save(place / 'CIFAR-100-C' / f'{name}.npy', rng.integers(0, 100, (10, 32, 32, 3), np.uint8))
    np.save(place / 'CIFAR-100-C' / 'labels.npy', np.tile(rng.integers(0, 100, 2, np.uint8), 5))        # five severities
    image = pytest.importorskip('PIL.Image')
    for split, i in itertools.product(('train', 'val'), range(7)):
        at = place / 'flowers' / split / f'class-{i}'
        at.mkdir(parents=True)
        image.fromarray(rng.integers(0, 256, (40, 50, 3), np.uint8)).save(at / 'one.png')
    from test_pretrained_vit import save_vit
    save_vit(place / 'their-vit', image_size=32, patch_size=8)
    run(place, ['python', 'train.py', 'config/train_quick.py'])                 # make quickstart
    run(place, ['python', 'train.py', 'config/train_quick.py', 'config/arch/llama.py', '--out_dir=out-llama'])
    run(place, ['python', 'train.py', 'config/train_quick.py', 'config/arch/s1.py', '--out_dir=out-s1/old-run'])
    return place


@pytest.mark.long
@pytest.mark.timeout(2400)                              # dozens of commands, of which helpers.HANG limits each process
@pytest.mark.parametrize('page', PAGES)
def test_a_page_runs(page, repository, tmp_path):
    place = tmp_path / 'copy'
    shutil.copytree(repository, place)
    for edit in edits_of(page):
        edit(place, page)
    git = ['git', '-C', str(place), '-c', 'user.name=test', '-c', 'user.email=test']
    for command in ['init', '-q'], ['add', '-A'], ['commit', '-qm', 'before']:
        subprocess.run([*git, *command], check=True)
    for words in COMMANDS[page]:
        if not any(re.match(pattern, ' '.join(words)) for pattern in ONLY_PARSED):
            run(place, words)
    left = subprocess.run([*git, 'status', '--porcelain'], check=True, capture_output=True, text=True).stdout
    assert not left, 'what the commands of a page write must be ignored, or every later code.patch has it'
    for card in place.glob('out-hf-*/README.md'):
        assert 'takes no mask' not in card.read_text(encoding='utf-8'), card


# ----------------------------------------------------------------------------- the edits

EDITING = 'docs/editing.md'


@pytest.fixture
def edited(tmp_path):
    """The files of the root, with all edits of the two pages"""
    for path in ROOT.glob('*.py'):
        shutil.copy(path, tmp_path)
    for page, edits in ('README.md', edits_of('README.md')), (EDITING, [*edits_of(EDITING), edit_reference]):
        for edit in edits:
            edit(tmp_path, page)
    return tmp_path


def model_of(place, monkeypatch):
    """The module of an edited model.py"""
    spec = importlib.util.spec_from_file_location('edited_model', place / 'model.py')
    code = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, code)               # dataclasses look for it there
    spec.loader.exec_module(code)
    return code


def test_the_edits_fit_the_code(edited, monkeypatch):
    """Each parameter has its block type and a gradient, and a step of generation has the hidden states of a whole pass"""
    assert [*edits_of('README.md'), *edits_of(EDITING)] == [*itertools.chain(*EDITS.values())]
    for path in edited.glob('*.py'):
        compile(path.read_text(encoding='utf-8'), path, 'exec')
    code = model_of(edited, monkeypatch)
    config = code.GPTConfig(n_layer=2, n_head=2, n_embd=16, n_kv_head=1, block_size=8, vocab_size=11, norm='meanabs',
                            attention='cosine', norm_every=2, gate=True, z_loss=1e-4)
    model, idx = code.GPT(config), torch.arange(8)[None]
    loss = model(idx, idx)[1]
    assert [*model.aux] == ['z_loss'] and model.eval()(idx, idx)[1] == loss
    sum(model.train().aux.values(), loss).backward()
    types = {name: code.block_type(name) for name, p in model.named_parameters() if p.grad.abs().max() > 0}
    assert len(types) == len([*model.parameters()])
    assert (types['h.1.block_norm.weight'], types['h.0.attn.tau'], types['h.0.ffn_gate.weight']) == ('norm', 'tau', 'gate')
    caches = [code.KVCache(8) for _ in model.h]
    steps = torch.cat([model.hidden(idx[:, i:i + 1], caches) for i in range(8)], dim=1)
    torch.testing.assert_close(steps, model.hidden(idx))
    assert model.logged.keys() == {'heads_rms'}
    with pytest.raises(ValueError, match='norm_every=-1: wants at least 0'):
        code.GPTConfig(norm_every=-1)


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_the_reference_learns_the_edits(edited):
    """test_model.py knows every option of the page after the edits that the page names. Only one graph with recompute cannot be:
    it breaks where a block writes to `logged`."""
    one_graph = 'test_model.py::test_compiles_without_a_break_and_not_again[config1-False-True]'
    code, out, err = run_python('-m', 'pytest', '-q', '-m', 'not long', '--deselect', one_graph, 'test_model.py', cwd=edited,
                                PYTHONPATH=os.pathsep.join([str(edited), str(ROOT)]))
    assert code == 0, out + err
