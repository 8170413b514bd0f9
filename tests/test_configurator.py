"""
configurator.py on a small script and on train.py, and everything in config/: a key that is misspelt, of the wrong type
or left out of a fragment would otherwise train another model than the one that was asked for.
"""
import configurator
from configurator import SECTIONS, configure, read_config

import json
import re
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from helpers import ROOT, call, run_python

from engine.keys import gpt_config as model_config
from model import GPT, PARAMS, GPTConfig
from vision.vit import ViT, ViTConfig

FRAGMENTS = sorted(path.stem for path in (ROOT / 'config' / 'arch').glob('*.py'))
EXPERIMENTS = {path.stem.removeprefix('train_'): path.relative_to(ROOT).as_posix()
               for path in sorted((ROOT / 'config').rglob('train_*.py'))}           # {name: path}

SCRIPT = '''"""
A script for the tests
"""
import os
from configurator import configure

learning_rate = 1e-3        # how fast
max_iters = 10              # how long, in steps
name = 'run'
compile = False             # faster
min_lr = -1.0
config = configure(globals())
after = 5                   # not a key
if name == 'raise':
    raise RuntimeError('a bug')
if name == 'missing':
    open('nowhere')
print(config)
'''
DEFAULTS = dict(learning_rate=1e-3, max_iters=10, name='run', compile=False, min_lr=-1.0, debug=False)


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A folder with the script above, which is the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'script.py').write_text(SCRIPT, encoding='utf-8')
    return tmp_path


@pytest.fixture
def keys(script, monkeypatch):
    """keys(*arguments): what configure() makes of them, having checked that the namespace holds the same."""
    monkeypatch.setattr(sys, 'excepthook', sys.excepthook)

    def call(*arguments, path='script.py', more=()):
        monkeypatch.setattr(sys, 'argv', [str(path), *map(str, arguments)])
        namespace = {'__file__': str(path), '__doc__': 'about it'}
        values = configure(namespace, *more)
        assert values.items() <= namespace.items()
        return values

    return call


def write(name, text):
    Path(name).write_text(text, encoding='utf-8')
    return name


# ----------------------------------------------------------------------------- order and values

@pytest.mark.parametrize('order, wanted', [
    (['a.py', 'b.py'], (2.0, 20, 'a')),
    (['b.py', 'a.py'], (1.0, 20, 'a')),
    (['a.py', '--learning_rate=3', 'b.py'], (2.0, 20, 'a')),
    (['--learning_rate=3', '--learning_rate=4', '--name=x'], (4.0, 10, 'x')),
    (['a.py', 'c.json', '--max_iters=40'], (5.0, 40, 'a')),
    (['c.json', 'b.py'], (2.0, 20, 'run')),
])
def test_later_wins(keys, order, wanted):
    """Files and flags in any mix, each overriding what came before it and nothing else"""
    write('a.py', 'learning_rate = 1.0\nname = "a"\n')
    write('b.py', 'learning_rate = 2.0\nmax_iters = 20\n')
    write('c.json', '{"learning_rate": 5.0, "max_iters": 30}')
    assert keys(*order) == {**DEFAULTS, **dict(zip(('learning_rate', 'max_iters', 'name'), wanted))}


# key: (its wish, texts of the command line and their values, values of a file, wrong texts, wrong values of a file)
TYPES = {
    'compile': ('true or false', {'true': True, 'TRUE': True, 'false': False, 'False': False}, [True, False],
                ['maybe', '1', '0', ''], [1, 0, 'true', None, 0.0]),
    'max_iters': ('an integer', {'-3': -3, '7': 7}, [-3], ['1.5', '1e3', 'x', 'true', ''], [1.5, 3.0, True, '3', None, [1]]),
    'learning_rate': ('a finite number', {'6e-4': 6e-4, '-.5': -0.5, '3': 3.0}, [3, 0.5], ['x', 'nan', 'true', ''],
                      ['0.1', True, None, [0.1]]),
    'name': ('a string', {text: text for text in ('', 'a=b', '3', 'true', '--x y', '"a\'b" é')}, ['', '3'], [],
             [3, 0.5, True, None, ['a']])}


@pytest.mark.parametrize('key', TYPES)
def test_types(keys, key):
    """A value has the type of its key, but that an integer is a number; a string stays as it was typed, whatever it looks like"""
    wish, texts, values, wrong_texts, wrong_values = TYPES[key]
    for text, wanted in texts.items():
        found = keys(f'--{key}={text}')
        assert found[key] == wanted and type(found[key]) is type(DEFAULTS[key])
        assert keys('--name=other', '--max_iters=5', write('config.json', json.dumps(found))) == found, 'which repeats a run'
    for text in wrong_texts:
        with pytest.raises(ValueError, match=f'^{key}={re.escape(text)}.*wants {wish}'):
            keys(f'--{key}={text}')

    def files(value):
        return write('file.py', f'{key} = {value!r}'), write('file.json', json.dumps({key: value}))

    for value in values:
        for found in map(keys, files(value)):
            assert found[key] == value and type(found[key]) is type(DEFAULTS[key])
    for value in wrong_values:
        for path in files(value):
            with pytest.raises(ValueError, match=f'^{key}={re.escape(repr(value))} in {path}: wants {wish}'):
                keys(path)


def test_a_config_file_is_ordinary_python(keys):
    """Imports, loops, functions, private names and the keys so far are all at hand, and none of them becomes a key"""
    write('ordinary.py', '''
import math, os
from math import sqrt
_widths = [1, 2, 4]
def double(x):
    """Twice x"""
    return 2 * x
for _i in range(3):
    max_iters = double(max_iters)
learning_rate = sqrt(4.0) * learning_rate * max(_widths)
name = f"{name}-{os.path.basename(__file__)}"
''')
    assert keys('--name=first', '--learning_rate=0.5', 'ordinary.py') == {
        **DEFAULTS, 'max_iters': 80, 'learning_rate': 4.0, 'name': 'first-ordinary.py'}


def test_an_alias_sets_its_keys_where_it_stands(keys):
    """In Python, in JSON and on the command line; of an alias and one of its keys, the later counts"""
    names, more = ('attn_mid_norm', 'ffn_mid_norm'), [GPTConfig, str(ROOT / 'train.py')]
    for text, wanted in (('mid_norm = True', (True, True)), ('mid_norm = True\nffn_mid_norm = False', (True, False)),
                         ('ffn_mid_norm = False\nmid_norm = True', (True, True))):
        write('alias.py', f'{text}\nassert mid_norm')
        lines = [line.split(' = ') for line in text.splitlines()]
        write('alias.json', json.dumps({key: value == 'True' for key, value in lines}))
        for arguments in (['alias.py'], ['alias.json'], [f'--{key}={value}' for key, value in lines]):
            values = keys(*arguments, more=more)
            assert tuple(values[name] for name in names) == wanted and 'mid_norm' not in values, (text, arguments)
    assert not keys('alias.py', '--mid_norm=False', more=more)['attn_mid_norm']
    assert configurator.flags() == set(names)


def test_include_of_a_base(keys):
    """include() names files of the repository, wherever the current folder is; what it brings, the rest may override"""
    write('derived.py', 'mid_norm = False\ninclude("config/arch/s5.py")\nffn_pre_norm = True\n')
    values = keys('derived.py', more=[GPTConfig, str(ROOT / 'train.py')])
    assert values['norm'] == 'rmsnorm' and values['ffn_mid_norm'] and values['ffn_pre_norm'] and 'mid_norm' not in values
    assert 'include' not in values


# ----------------------------------------------------------------------------- errors

@pytest.mark.parametrize('argument, text, says', [
    ('--nam=1', '', "unknown key 'nam' in the command line: did you mean 'name'?"),
    ('wrong.py', 'learning_rat = 1', "unknown key 'learning_rat' in wrong.py: did you mean 'learning_rate'?"),
    ('wrong.json', '{"max_iter": 1}', "unknown key 'max_iter' in wrong.json: did you mean 'max_iters'?"),
    *((argument, '', 'unknown key') for argument in ('--=1', '--after=1', '--os=1')),       # nor what stands below
    ('--compile', '', '--compile: give it a value'),
    ('nowhere.py', '', 'nowhere.py'),
    ('stray', '', "'stray' is neither a config file"),
    ('syntax.py', 'learning_rate = = 3', 'syntax.py: SyntaxError'),
    ('undefined.py', 'learning_rate = 2 * lerning_rate', "undefined.py: NameError: name 'lerning_rate' is not defined"),
    ('lost.py', 'include("config/arch/s55.py")', 'lost.py: FileNotFoundError'),
    ('broken.json', '{"learning_rate": ', 'broken.json'),
    ('public.py', 'for i in range(3): pass', "unknown key 'i' in public.py"),
])
def test_arguments_that_cannot_be_read(keys, argument, text, says):
    """The message names the file or the flag, and what is wrong with it"""
    if text:
        write(argument, text)
    with pytest.raises((ValueError, OSError)) as error:
        keys(argument)
    assert says in str(error.value)


# ----------------------------------------------------------------------------- the end of a script

def test_an_error_of_input_is_one_line(script):
    """With exit code 1, and with --debug=True its traceback, as a bug has it; eight ranks do not say it eight times"""
    for argument in '--max_iter=3', '--name=missing':
        code, out, err = run_python('script.py', argument)
        assert code == 1 and out == '' and err.startswith('error: ') and err.count('\n') == 1
    for arguments in ['--debug=True', '--max_iter=3'], ['--name=raise']:
        code, out, err = run_python('script.py', *arguments)
        assert code == 1 and err.startswith('Traceback')
    assert run_python('script.py', '--max_iter=3', RANK='1', LOCAL_RANK='1') == (1, '', '')


# ----------------------------------------------------------------------------- train.py

def test_help_of_train_py():
    """Every key of train.py and GPTConfig once, with its default and a text, and those of a section"""
    defaults, types = configurator.defaults_of(configurator.TRAIN, GPTConfig), '|'.join({row.type for row in PARAMS.values()})
    wanted = {re.sub(rf'^(r|wd)_({types})$', r'\1_TYPE', key): value for key, value in defaults.items()}
    shown = {key: value for key, value, _ in re.findall(r'^  --(\w+)=(\S*) +(\S.*)$', call('train.py', '--help'), re.MULTILINE)}
    assert shown == {key: str(value) for key, value in wanted.items()}
    assert all(f'\n{section}\n' in call('train.py', '--help') for section in SECTIONS)
    norms = call('train.py', '--help=norms')
    assert '--qk_norm' in norms and '--n_layer' not in norms


# ----------------------------------------------------------------------------- config/

@pytest.fixture
def trains(keys, monkeypatch):
    """trains(*arguments): all the keys of train.py, or of vision.train, when it is given them, in the repository's own folder."""
    monkeypatch.chdir(ROOT)

    def settled(*arguments, vision=None):
        vision = any('/vit/' in str(arg) or 'vision' in str(arg) for arg in arguments) if vision is None else vision
        return keys(*arguments, path='vision/train.py' if vision else 'train.py',
                    more=[ViTConfig, configurator.TRAIN] if vision else [GPTConfig])

    return settled


def gpt_config(values):
    return GPTConfig(**{f.name: values[f.name] for f in fields(GPTConfig) if values[f.name]})       # no 0, as vocab_size may be


TABLE = '''
       norm       input pre_attn pre_ffn mid post qk final Δt  attention ffn    pos     tied init   emb_std fused bias eps  alpha
pre    layernorm  -     y        y       -   -    -  y     1.0 dot       gelu   learned y    gpt2   0.02    -     -    1e-5 0.5
post   layernorm  -     -        -       -   y    -  -     1.0 dot       gelu   learned y    gpt2   0.02    -     -    1e-5 0.5
peri   layernorm  -     y        y       y   -    -  y     1.0 dot       gelu   learned y    gpt2   0.02    -     -    1e-5 0.5
off    layernorm  -     -        -       -   -    -  -     1.0 dot       gelu   learned y    gpt2   0.02    -     -    1e-5 0.5
s1     rmsnorm    -     y        y       -   -    -  y     1.0 dot       gelu   learned y    xavier 0.0     y     -    1e-8 0.5
s2     rmsnorm    -     y        y       -   -    y  y     1.0 dot       gelu   learned y    xavier 0.0     y     -    1e-8 0.5
s3     rmsnorm    y     y        y       -   -    y  y     1.0 dot       gelu   learned y    xavier 0.0     y     -    1e-8 0.5
s4     rmsnorm    y     y        y       y   -    y  y     1.0 dot       gelu   learned y    xavier 0.0     y     -    1e-8 0.5
s5     rmsnorm    y     y        -       y   -    y  y     1.0 dot       gelu   learned y    xavier 0.0     y     -    1e-8 0.5
stable stablenorm -     y        y       -   -    -  y     1.0 stable    gelu   learned y    stable 0.0     y     -    1e-8 0.475
llama  rmsnorm    -     y        y       -   -    -  y     1.0 dot       swiglu rope    -    normal 0.02    -     -    1e-6 0.5
'''
NAMES = ('norm input_norm attn_pre_norm ffn_pre_norm mid_norm post_norm qk_norm final_norm residual_scale '
         'attention ffn pos tie_weights init emb_std fused_qkv_init bias norm_eps norm_alpha').split()
CELLS = {'y': True, '-': False}
ARCHS = {row.split()[0]: configurator.expanded(dict(zip(NAMES, [CELLS.get(cell, cell) for cell in row.split()[1:]])))
         for row in TABLE.strip().splitlines()[1:]}
@pytest.mark.parametrize('name', ARCHS)
def test_architecture(trains, name):
    """The papers that this repository is about, here by hand; other fragments state the step that they are from one of these"""
    found = read_config(str(ROOT / 'config' / 'arch' / f'{name}.py'), {})
    for key, wanted in ARCHS[name].items():
        assert found[key] == (float(wanted) if isinstance(found[key], float) else wanted), key


def other(value):
    """Another value of the same type."""
    return not value if type(value) is bool else value + 7 if type(value) in (int, float) else f'not {value}'


@pytest.mark.parametrize('model', ['gpt', 'vit'])
@pytest.mark.parametrize('name', FRAGMENTS)
def test_an_architecture_leaves_no_field_as_it_was(trains, name, model):
    """Whatever each key was set to before, a fragment gives the same architecture, and keeps the sizes and all other keys. A
    field that you add may stay out of all of them, or is set by each"""
    path, default = str(ROOT / 'config' / 'arch' / f'{name}.py'), trains(vision=model == 'vit')
    before = {key: other(value) for key, value in default.items()}
    alone, found = read_config(path, default), read_config(path, before)
    sets = read_config(str(ROOT / 'config' / 'arch' / 'pre.py'), {}).keys() & default.keys()
    assert found == {**alone, **{key: before[key] for key in before.keys() - sets}} and 'n_layer' not in sets
    assert all(type(alone[key]) is type(default[key]) for key in sets)


@pytest.mark.parametrize('path', sorted((ROOT / 'config' / 'optim').glob('*.py')), ids=lambda path: path.stem)
def test_optimizer_fragment(trains, path):
    """A fragment names its optimizer and its rates, whatever it is stacked on, and leaves the architecture and the sizes alone"""
    values, plain = trains(path), trains()
    assert trains('--optimizer=adamw', '--learning_rate=7', '--min_lr=7', '--weight_decay=7', path) == values
    assert values['optimizer'] == path.stem and values['min_lr'] <= values['learning_rate']
    assert gpt_config(values) == gpt_config(plain) and values['max_iters'] == plain['max_iters']


# Millions of parameters: the papers' shapes, computed by hand. LLaMA 2B says 2025, which its does not give.
COUNTS = {'ldnt': 124.4, 'ldnt_large': 774, 'ldnt_xl': 1438, 'gpt2': 124.4, 'gpt2_large': 774, 'gpt2_xl': 1438,
          'stablegpt_s': 124.4, 'stablegpt_m': 354.6, 'stablegpt_l': 774, 'stable_init': 124.4, 'stable_norm': 124.4,
          'ln_124m': 124.4, 'ln_774m': 774, 'ln_1.5b': 1557, 'sharpness_gpt2': 124.4, 'sharpness_gpt2_minipile': 124.0,
          'llama_0.13b': 133.9, 'llama_0.25b': 237.2, 'llama_0.5b': 522.0, 'llama_0.75b': 743.3, 'llama_1.1b': 1174.9,
          'llama_2b': 1682, 'llama_c4_66m': 66.4, 'llama_c4_0.2b': 200.3, 'llama_c4_0.4b': 396.8, 'llama_c4_1b': 1003.8,
          'quick': 0.838, 'vit_l': 304.33, 'vit_h': 632.05, 'vit_g': 1012.61, 'vit_200': 1419.09, 'vdnt_l': 304.30,
          'vdnt_h': 632.01, 'stablevit_l': 304.28, 'stablevit_h': 631.97, 'stablevit_g': 1012.50, 'stablevit_200': 1418.81,
          'stable_parts_l': 304.33, 'vit_small': 21.377, 'stablevit_small': 21.369, 'quick_vision': 0.202, 'best': 0.838,
          'ngpt_0.5b': 505.9}
VARIANTS = '_adamw _sgd _minipile _adam_mini _lion _muon _wsd'.split()        # of a model that another config has


def model_of(name):
    """llama_0.25b_lion → llama_0.25b, unless COUNTS has it with its ending"""
    ending = [ending for ending in VARIANTS if name.endswith(ending) and name not in COUNTS]
    return name.removesuffix(ending[0]) if ending else name


@pytest.mark.parametrize('name', EXPERIMENTS)
def test_experiment(trains, name):
    """Every experiment parses, makes a model of the papers' size, and says in its header how to run it"""
    values = trains(EXPERIMENTS[name])
    config = model_config(values, ViTConfig if 'patch_size' in values else GPTConfig)
    with torch.device('meta'):
        one, two = ((ViT if isinstance(config, ViTConfig) else GPT)(replace(config, n_layer=n)).num_params() for n in (1, 2))
    assert (one + (config.n_layer - 1) * (two - one)) / 1e6 == pytest.approx(COUNTS[model_of(name)], rel=1e-3)
    header = (ROOT / EXPERIMENTS[name]).read_text(encoding='utf-8').split('\n')[:3]
    assert header[0].startswith('# ') and re.search(rf' (train.py|-m vision.train) {EXPERIMENTS[name]}$', header[1])


def test_files_and_folders_of_the_configs(trains):
    """Each experiment writes to a folder of its own, and each file that a config names, in its header too, is there"""
    folders = [trains(path)['out_dir'] for path in EXPERIMENTS.values()]
    assert len(EXPERIMENTS) == len(list((ROOT / 'config').rglob('train_*.py'))) == len(set(folders))
    for path in [*(ROOT / 'config').rglob('*.py'), *(ROOT / 'config').rglob('*.sh')]:
        for named in re.findall(r'\b(?:config|data)/[\w./]+\.\w+', path.read_text(encoding='utf-8')):
            assert (ROOT / named).is_file(), f'{path}: {named}'
