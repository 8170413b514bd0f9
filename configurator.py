"""
Config files and --key=value set a script's globals. They apply in order, and the later one wins:

    python train.py config/train_quick.py config/arch/s1.py --learning_rate=0.1

A script defines its keys as constants at its top, each with its help text as a comment, and then calls configure(). It imports
this file first. engine/process.py, which this file imports first, defines how Ctrl-C and wrong input end the script.
"""
from engine.process import ROOT, begin

import ast
import difflib
import inspect
import json
import os
import re
import sys
import textwrap
from dataclasses import fields
from itertools import takewhile
from types import ModuleType
from typing import NamedTuple

TRAIN = os.path.join(ROOT, 'train.py')        # other scripts accept its keys too

SECTIONS = ('sizes', 'norms', 'attention', 'start', 'placements', 'muP', 'loss',    # of the help; these are GPTConfig's
            'optimizer', 'schedule', 'data', 'run', 'machine')
ALIASES = {'mid_norm': ('attn_mid_norm', 'ffn_mid_norm'), 'post_norm': ('attn_post_norm', 'ffn_post_norm'),
           'decay_lr': ('schedule', 'warmup_iters')}            # alias → the keys that it sets; the last is nanoGPT's
LARGEST = {bool: 1, int: 2 ** 63 - 1, float: 3.4e38}        # the largest float32
TYPES = {bool: 'true or false', int: 'an integer', float: 'a finite number', str: 'a string', list: 'a list'}


def configure(namespace, *more):
    """Set the keys in `namespace`, a script's globals(), from sys.argv, and return all keys as {key: value}.

    Keys are the script's constants above its call of configure(), the fields of each dataclass in `more`, and the constants of
    each script whose path is in `more`. configure() also calls begin(), for which --debug=True shows tracebacks.
    """
    begin('--debug=true' in (arg.lower() for arg in sys.argv))
    keys, script = keys_of(namespace['__file__'], *more), namespace['__file__']
    values = parse_args([arg for arg in sys.argv[1:] if not is_help(arg)], {name: key.default for name, key in keys.items()})
    for section in [arg.partition('=')[2] for arg in sys.argv[1:] if is_help(arg)]:
        if section and section not in SECTIONS:
            raise ValueError(f'help={section!r}: choose one of {", ".join(SECTIONS)}')
        print(namespace['__doc__'].strip() + '\n')
        print_help(section, values, keys, [] if os.path.basename(script) == 'train.py' else [*keys_in(script), 'debug'])
        sys.exit(0)
    namespace.update(values)
    return values


def parse_args(arguments, defaults):
    """Return {key: value}: the defaults, changed by config files and --key=value in their order."""
    values = dict(defaults)
    for arg in arguments:
        if arg.startswith('--'):
            key, equals, text = arg[2:].partition('=')
            if not equals:
                raise ValueError(f'{arg}: give it a value with =, as in {arg}=…; --help lists the keys')
            given = {key: parsed(key, text, True) if key == 'decay_lr' else text}
            for key, text in expanded(given).items():
                values[key] = parsed(key, text, defaults[known(key, defaults, 'the command line')])
        else:
            for key, value in read_config(arg, values).items():
                values[key] = typed(key, value, defaults[known(key, defaults, arg)], arg)
    encoding = sys.getfilesystemencoding()
    for key, value in values.items():
        if isinstance(value, str) and not value.isascii() and encoding != 'utf-8':      # torch writes the names of files as UTF-8
            raise ValueError(f'{key}={value!a}: must have ASCII characters alone, because the locale has {encoding} and not '
                             f'UTF-8; or set PYTHONUTF8=1')
    return values


# ----------------------------------------------------------------------------- keys

class Key(NamedTuple):
    default: object
    help: str
    section: str            # of the help
    kind: str = ''          # the block type in its name, as in r_qk


def keys_in(source):
    """Return {name: Key} for a script, given by its path, or a dataclass."""
    if isinstance(source, str):
        with open(source, encoding='utf-8-sig') as f:
            text = f.read()
        keys = parse_keys(text, ast.parse(text).body, 'run')
        keys = takewhile(lambda pair: not isinstance(pair[1].default, ast.Call), keys)      # up to config = configure(…)
        return {name: key._replace(default=ast.literal_eval(key.default)) for name, key in keys}
    keys = {}
    for base in source.__mro__[-2::-1]:
        text = textwrap.dedent(inspect.getsource(base))
        keys |= parse_keys(text, ast.parse(text).body[0].body, 'sizes')
    return {f.name: keys[f.name]._replace(default=f.default) for f in fields(source) if f.init}


def parse_keys(text, body, section):
    """Yield (name, Key) for each line name = default # help in a body of code; the default is an AST node. A comment of one
    word begins a section."""
    lines, last = text.splitlines(), 0
    for node in body:
        headings = re.findall(r'^ *# (\w+)$', '\n'.join(lines[last:node.lineno - 1]), re.MULTILINE)
        section, last = (headings or [section])[-1], node.end_lineno
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            name = getattr(node.target if isinstance(node, ast.AnnAssign) else node.targets[0], 'id', 'NONE')
            behind = lines[last - 1].encode()[node.end_col_offset:].decode()
            if not name.isupper():
                yield name, Key(node.value, behind.partition('#')[2].strip(), section)


def keys_of(*sources):
    """Return {name: Key} for scripts and dataclasses. If two keys have the same name, the first counts. A script's key with
    TYPE in its name stands for one key per block type of the dataclasses."""
    keys, kinds = {}, {row.type: None for source in sources for row in getattr(source, 'params', {}).values()}
    # a field with init=False, such as a ViT's block_size, also hides the same key of other sources
    hidden = {f.name for source in sources if not isinstance(source, str) for f in fields(source) if not f.init}
    for source in sources:
        for name, key in keys_in(source).items():
            if type(key.default) not in TYPES:
                raise ValueError(f'{source}: the default of {name} must be {" or ".join(TYPES.values())}')
            for kind in kinds if 'TYPE' in name else [''] if name not in hidden else []:
                keys.setdefault(name.replace('TYPE', kind), key._replace(kind=kind))
    return {**keys, 'debug': Key(False, 'show the traceback of an error', 'machine')}


def defaults_of(*sources):
    """Return {key: default} for the keys of scripts and dataclasses."""
    return {name: key.default for name, key in keys_of(*sources).items()}


def flags():
    """Return the keys that the command line sets by --key=value."""
    return expanded({arg[2:].partition('=')[0]: False for arg in sys.argv[1:] if arg.startswith('--')}).keys()


def expanded(values):
    """Return {key: value} with each alias replaced by the keys that it sets. The later of two values counts. decay_lr=False means
    a constant learning rate without warm-up, and decay_lr=True sets nothing."""
    keys = {}
    for key, value in values.items():
        if key != 'decay_lr':
            keys |= dict.fromkeys(ALIASES.get(key, (key,)), value)
        elif not typed(key, value, True, 'a config file'):
            keys |= dict(schedule='constant', warmup_iters=0)
    return keys


# ----------------------------------------------------------------------------- values

def at_least(config, **lows):
    """Raise ValueError for a key of the config whose value is below its minimum in `lows`."""
    for key, low in lows.items():
        if key in config and config[key] < low:
            raise ValueError(f'{key}={config[key]}: must be at least {low}')


def known(key, defaults, where):
    if key not in defaults:
        near = difflib.get_close_matches(key, defaults, 1)
        hint = f'did you mean {near[0]!r}?' if near else '--help lists the keys'
        private = '; a name that is not a key must start with _' if where.endswith('.py') else ''
        raise ValueError(f'unknown key {key!r} in {where}: {hint}{private}')
    return key


def parsed(key, text, default):
    """Convert the text of --key=text to the type of the key's default."""
    try:
        if isinstance(default, bool):
            return {'true': True, 'false': False}[text.lower()]
        value = ast.literal_eval(text) if isinstance(default, list) else type(default)(text)
        return typed(key, value, default, 'the command line')
    except (ValueError, KeyError, SyntaxError):
        raise ValueError(f'{key}={text}: must be {TYPES[type(default)]}') from None


def typed(key, value, default, where):
    """Return the value if it has the type of the key's default. An int is accepted for a float."""
    if type(value) is int and abs(value) < 2 ** 63 and isinstance(default, float):
        value = float(value)
    if type(value) is not type(default) or isinstance(value, (int, float)) and not abs(value) <= LARGEST[type(value)]:
        raise ValueError(f'{key}={value!r} in {where}: must be {TYPES[type(default)]}')
    return value


# ----------------------------------------------------------------------------- config files

def read_config(path, values):
    """Return {key: value} from a config file: a JSON object or Python code. The code sees the values so far, and
    include('config/…') runs another file, whose path is relative to the repository's root."""
    if os.path.isdir(path) and 'out_dir' in values:
        raise ValueError(f'{path!r} is a folder, not a config file: write --out_dir={path}')
    if not path.endswith(('.py', '.json')):
        raise ValueError(f'{path!r} is neither a config file (.py, .json) nor --key=value')
    path = path if os.path.isfile(path) else os.path.join(ROOT, path)      # from another folder, config/… is the repository's
    if not os.path.isfile(path):
        raise ValueError(f'there is no config file {os.path.relpath(path, ROOT)}')
    if path.endswith('.json'):
        with open(path, encoding='utf-8-sig') as f:
            try:
                return expanded(json.load(f))
            except (json.JSONDecodeError, AttributeError) as error:
                raise ValueError(f'{path}: must be a JSON object of keys and values ({error})') from error
    scope = Scope({**values, '__file__': path, '__name__': '__config__', 'include': lambda base: run(os.path.join(ROOT, base))})

    def run(file):
        with open(file, encoding='utf-8-sig') as f:
            exec(compile(f.read(), file, 'exec'), scope)

    try:
        run(path)
    except (Exception, SystemExit) as error:
        raise ValueError(f'{path}: {type(error).__name__}: {error}') from error
    return {key: value for key, value in scope.items()
            if key in values or not (key in ALIASES or key.startswith('_') or isinstance(value, ModuleType) or callable(value))}


class Scope(dict):
    """The globals of a config file. Setting an alias sets its keys too."""

    def __setitem__(self, key, value):
        self.update({key: value, **expanded({key: value})})


# ----------------------------------------------------------------------------- help

def is_help(arg):
    return arg == '-h' or arg.partition('=')[0] == '--help'


def print_help(section, values, keys, own):
    """Print a section's keys with values and help. Without a section, print the script's `own` keys, or all if there are none."""
    if own and not section:
        print_keys([name for name in keys if name in own], values, keys)
    for name in [section] if section else [] if own else SECTIONS:
        print(name)
        print_keys([key for key in keys if keys[key].section == name], values, keys)
        print('  config/arch/NAME.py sets them all; docs/placements.md explains each file\n' if name == 'norms' else '')
    if not section and len(keys) > len(own):
        print(f'--help=NAME shows a section of the keys of training: {", ".join(SECTIONS)}')


def print_keys(names, values, keys):
    """Print a line for each key. Keys of block types with the same value and help, such as r_emb and r_qk, share a line."""
    kinds = {}                                          # {(the key's text, its help): block types}
    tables = [vars(sys.modules[name])['CHOICES'] for name in ('model', 'engine.keys') if name in sys.modules]
    for name in names:
        choices = next((' | '.join(table[name]) for table in tables if name in table), '')
        key, value = keys[name], values[name] if str(values[name]).isprintable() else repr(values[name])
        name = name.removesuffix(key.kind) + 'TYPE' if key.kind else name
        kinds.setdefault((f'  --{name}={value}', key.help.replace('CHOICES', choices)), []).append(key.kind)
    for (key, text), of_types in kinds.items():
        print(key.ljust(40), text + f'; TYPE: {", ".join(of_types)}' * bool(of_types[0]))
