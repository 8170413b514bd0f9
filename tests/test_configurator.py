"""configurator.py on a small script and on train.py, and the fragments in config/."""
import configurator
from configurator import SECTIONS, TRAIN, configure, read_config

import json
import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from helpers import ROOT, call, run_here

from model import PARAMS, GPTConfig
from vision.vit import ViTConfig

SCRIPT = '''
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
'''
DEFAULTS = dict(learning_rate=1e-3, max_iters=10, name='run', compile=False, min_lr=-1.0, debug=False)


@pytest.fixture
def keys(tmp_path, monkeypatch):
    """keys(*arguments): what configure() makes of them, in a folder with the script above"""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'excepthook', sys.excepthook)
    Path('script.py').write_text(SCRIPT, encoding='utf-8')

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


@pytest.mark.parametrize('order, wanted', [
    (['a.py', '--learning_rate=3', 'b.py'], (2.0, 20, 'a')), (['a.py', 'c.json', '--max_iters=40'], (5.0, 40, 'a')),
    (['--learning_rate=3', '--learning_rate=4', '--name=x'], (4.0, 10, 'x'))])
def test_later_wins(keys, order, wanted):
    """Files and flags in any mix, each overriding what came before it and nothing else"""
    write('a.py', 'learning_rate = 1.0\nname = "a"\n')
    write('b.py', 'learning_rate = 2.0\nmax_iters = 20\n')
    write('c.json', '{"learning_rate": 5.0, "max_iters": 30}')
    assert keys(*order) == {**DEFAULTS, **dict(zip(('learning_rate', 'max_iters', 'name'), wanted))}


# key: (its wish, texts of the command line and their values, wrong texts, wrong values of a file)
TYPES = {
    'compile': ('true or false', {'TRUE': True, 'False': False}, ['maybe', '1', ''], [1, 'true', None, 0.0]),
    'max_iters': ('an integer', {'-3': -3, '7': 7}, ['1.5', '1e3', 'true', ''], [3.0, True, '3', None, [1]]),
    'learning_rate': ('a finite number', {'6e-4': 6e-4, '3': 3}, ['x', 'nan', 'true', ''], ['0.1', True, None, [0.1]]),
    'name': ('a string', {text: text for text in ('', 'a=b', '3', 'true', '--x y', '"a\'b" é')}, [], [3, True, None])}


@pytest.mark.parametrize('key', TYPES)
def test_types(keys, key):
    """A value has the type of its key, but that an integer is a number; a string stays as it was typed, whatever it looks like"""
    def files(value):
        return write('file.py', f'{key} = {value!r}'), write('file.json', json.dumps({key: value}))

    wish, texts, wrong_texts, wrong_values = TYPES[key]
    for text, wanted in texts.items():
        for argument in f'--{key}={text}', *files(wanted):
            value = keys(argument)[key]
            assert value == wanted and type(value) is type(DEFAULTS[key])
    for text in wrong_texts:
        with pytest.raises(ValueError, match=f'^{key}={text}.*must be {wish}'):
            keys(f'--{key}={text}')
    for value, path in ((value, path) for value in wrong_values for path in files(value)):
        with pytest.raises(ValueError, match=f'^{key}={re.escape(repr(value))} in {path}: must be {wish}'):
            keys(path)


def test_a_config_file_is_ordinary_python(keys):
    """Imports, functions, private names and the keys so far are all at hand, and none of them becomes a key"""
    write('ordinary.py', 'import os\ndef double(x):\n    return 2 * x\n_twice = double(max_iters)\nmax_iters = _twice\n'
                         'name = f"{name}-{os.path.basename(__file__)}"\n')
    assert keys('--name=first', 'ordinary.py') == {**DEFAULTS, 'max_iters': 20, 'name': 'first-ordinary.py'}


@pytest.mark.parametrize('name, text', [('bom.py', 'max_iters = 7\r\n'), ('bom.json', '{"max_iters": 7}')])
def test_a_config_file_with_a_byte_order_mark(keys, name, text):
    """As Windows' Notepad writes it"""
    write(name, '\ufeff' + text)
    assert keys(name)['max_iters'] == 7


@pytest.mark.parametrize('lines, wanted', [
    (['mid_norm = True', 'ffn_mid_norm = False'], (True, False)), (['ffn_mid_norm = False', 'mid_norm = True'], (True, True))])
def test_an_alias_sets_its_keys_where_it_stands(keys, lines, wanted):
    """In Python, also behind a file of the repository, in JSON and on the command line"""
    more, pairs = [GPTConfig, TRAIN], [line.split(' = ') for line in lines]
    write('alias.py', '\n'.join(['include("config/arch/peri.py")', *lines, 'assert mid_norm']))
    write('alias.json', json.dumps({key: value == 'True' for key, value in pairs}))
    for arguments in (['alias.py'], ['alias.json'], [f'--{key}={value}' for key, value in pairs]):
        values = keys(*arguments, more=more)
        assert (values['attn_mid_norm'], values['ffn_mid_norm']) == wanted and 'mid_norm' not in values
    assert configurator.flags() == {'attn_mid_norm', 'ffn_mid_norm'}


@pytest.mark.parametrize('argument, text, says', [
    ('--nam=1', '', "'nam' … command line … 'name'"),
    ('wrong.py', 'learning_rat = 1', "'learning_rat' … wrong.py … 'learning_rate'"),
    ('wrong.json', '{"max_iter": 1}', "'max_iter' … wrong.json … 'max_iters'"),
    ('--after=1', '', 'after'),         # which stands below configure()
    ('--compile', '', '--compile'), ('nowhere.py', '', 'nowhere.py'), ('stray', '', "'stray'"),
    ('syntax.py', 'learning_rate = = 3', 'syntax.py: SyntaxError'), ('lost.py', 'include("config/arch/s55.py")', 's55.py'),
    ('broken.json', '{"learning_rate": ', 'broken.json'), ('public.py', 'for i in range(3): pass', "'i' in public.py")])
def test_arguments_that_cannot_be_read(keys, argument, text, says):
    """The message names the file or the flag, and what is wrong with it"""
    if text:
        write(argument, text)
    with pytest.raises((ValueError, OSError)) as error:
        keys(argument)
    assert re.search('.*'.join(map(re.escape, says.split(' … '))), str(error.value)), error.value


def test_an_error_of_input_is_one_line(keys, monkeypatch):
    """With exit code 1, and with --debug=True its traceback, as a bug has it; eight ranks do not say it eight times"""
    for arguments, wanted in (['--name=missing'], 'error: .*\n$'), (['--debug=True', '--nam=x'], 'Traceback'), (
            ['--name=raise'], 'Traceback'):
        code, out, err = run_here('script.py', *arguments)
        assert code == 1 and out == '' and re.match(wanted, err)
    monkeypatch.setattr('time.sleep', lambda seconds: None)
    assert run_here('script.py', '--max_iter=3', RANK='1', LOCAL_RANK='1') == (1, '', '')


def test_help_of_train_py():
    """Every key of train.py and GPTConfig once, with its default and a text"""
    defaults, types = configurator.defaults_of(TRAIN, GPTConfig), '|'.join({row.type for row in PARAMS.values()})
    wanted = {re.sub(rf'^(r|wd)_({types})$', r'\1_TYPE', key): str(value) for key, value in defaults.items()}
    text = call('train.py', '--help')
    assert {key: value for key, value in re.findall(r'^  --(\w+)=(\S*) +\S', text, re.MULTILINE)} == wanted
    assert all(f'\n{section}\n' in text for section in SECTIONS) and '--n_layer' not in call('train.py', '--help=norms')


TABLE = '''
       norm       input pre_attn pre_ffn mid post qk final Δt  attention ffn    pos     tied init   emb_init fused bias eps  alpha
pre    layernorm  -     y        y       -   -    -  y     1.0 dot       gelu   learned y    gpt2   normal  -     -    1e-5 0.5
post   layernorm  -     -        -       -   y    -  -     1.0 dot       gelu   learned y    gpt2   normal  -     -    1e-5 0.5
peri   layernorm  -     y        y       y   -    -  y     1.0 dot       gelu   learned y    gpt2   normal  -     -    1e-5 0.5
off    layernorm  -     -        -       -   -    -  -     1.0 dot       gelu   learned y    gpt2   normal  -     -    1e-5 0.5
s1     rmsnorm    -     y        y       -   -    -  y     1.0 dot       gelu   learned y    xavier head    y     -    1e-8 0.5
s2     rmsnorm    -     y        y       -   -    y  y     1.0 dot       gelu   learned y    xavier head    y     -    1e-8 0.5
s3     rmsnorm    y     y        y       -   -    y  y     1.0 dot       gelu   learned y    xavier head    y     -    1e-8 0.5
s4     rmsnorm    y     y        y       y   -    y  y     1.0 dot       gelu   learned y    xavier head    y     -    1e-8 0.5
s5     rmsnorm    y     y        -       y   -    y  y     1.0 dot       gelu   learned y    xavier head    y     -    1e-8 0.5
stable stablenorm -     y        y       -   -    -  y     1.0 stable    gelu   learned y    stable head    y     -    1e-8 0.475
llama  rmsnorm    -     y        y       -   -    -  y     1.0 dot       swiglu rope    -    normal normal  -     -    1e-6 0.5
'''
NAMES = ('norm input_norm attn_pre_norm ffn_pre_norm mid_norm post_norm qk_norm final_norm residual_scale '
         'attention ffn pos tie_weights init emb_init fused_qkv_init bias norm_eps norm_alpha').split()
CELLS = {'y': True, '-': False}
ARCHS = {row.split()[0]: configurator.expanded(dict(zip(NAMES, [CELLS.get(cell, cell) for cell in row.split()[1:]])))
         for row in TABLE.strip().splitlines()[1:]}


@pytest.mark.parametrize('name', ARCHS)
def test_architecture(name):
    """The papers that this repository is about, here by hand; other fragments state the step that they are from one of these"""
    found = read_config(str(ROOT / 'config' / 'arch' / f'{name}.py'), {})
    for key, wanted in ARCHS[name].items():
        assert found[key] == (float(wanted) if isinstance(found[key], float) else wanted), key


@pytest.mark.parametrize('model', [GPTConfig, ViTConfig])
@pytest.mark.parametrize('name', sorted(path.stem for path in (ROOT / 'config' / 'arch').glob('*.py')))
def test_an_architecture_leaves_no_field_as_it_was(name, model):
    """Whatever each key was set to before, a fragment gives the same architecture, and keeps the sizes and all other keys. A
    field that you add may stay out of all of them, or is set by each"""
    path, default = str(ROOT / 'config' / 'arch' / f'{name}.py'), configurator.defaults_of(model, TRAIN)
    before = {key: not value if type(value) is bool else f'not {value}' if type(value) is str else value + 7
              for key, value in default.items()}
    alone, found = read_config(path, default), read_config(path, before)
    sets = read_config(str(ROOT / 'config' / 'arch' / 'pre.py'), {}).keys() & default.keys()
    assert found == {**alone, **{key: before[key] for key in before.keys() - sets}} and 'n_layer' not in sets
    assert all(type(alone[key]) is type(default[key]) for key in sets)


@pytest.mark.parametrize('path', sorted((ROOT / 'config' / 'optim').glob('*.py')), ids=lambda path: path.stem)
def test_optimizer_fragment(keys, path):
    """A fragment names its optimizer and its rates, whatever it is stacked on, and leaves the architecture and the sizes alone"""
    more = [GPTConfig, TRAIN]
    values = keys('--optimizer=adamw', '--learning_rate=7', '--min_lr=7', '--weight_decay=7', path, more=more)
    assert keys(path, more=more) == values and values['min_lr'] <= values['learning_rate']
    assert values['optimizer'] == path.stem.removesuffix('_small')
    assert all(values[f.name] == f.default for f in fields(GPTConfig))
