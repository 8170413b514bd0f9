"""
Config files and --key=value set a script's globals. They apply in order, and the later one wins:

    python train.py config/train_quick.py config/arch/s1.py --learning_rate=0.1

A script defines its keys as constants at its top, each with its help text as a comment, and then calls configure().

Every script imports this file before all others: it says how Ctrl-C and wrong input end a script, and sets what PyTorch reads.
Modules that are slow to load are imported where they are used, so that an interrupt finds this file complete.
"""
import os
import sys

sys.excepthook = lambda kind, *error: (                 # before what takes time to import
    print('interrupted', file=sys.stderr) if kind is KeyboardInterrupt else sys.__excepthook__(kind, *error))

import ast
import difflib
import inspect
import io
import json
import re
import time
import traceback
from contextlib import suppress
from dataclasses import MISSING, fields
from types import ModuleType

PARENT = os.getppid()                   # before it can have died unnoticed
if not {'GOMP_SPINCOUNT', 'OMP_WAIT_POLICY', 'KMP_BLOCKTIME', 'KMP_LIBRARY'} & os.environ.keys():
    os.environ['GOMP_SPINCOUNT'] = '10000'      # how long threads spin when they wait for each other, see docs/speed.md

ROOT = os.path.dirname(os.path.abspath(__file__))
TRAIN = os.path.join(ROOT, 'train.py')        # other scripts accept its keys too


# newer key → the older key whose value it takes in a config.json or a checkpoint that lacks the newer one
SPLIT_OFF = {'r_pos': 'r_emb'}
# keys of train.py in older versions, which the config.json of their runs holds, with `model`: gpt or vit
RETIRED = {'model', 'block_size', 'vocab_size', 'tie_weights', 'image_size', 'patch_size', 'channels', 'classes', 'pool',
           'qkv_bias', 'drop_path', 'image_mean', 'image_std', 'crop_scale', 'interpolation', 'aug_repeats', 'flip',
           'randaugment', 'mixup', 'cutmix', 'label_smoothing'}
SECTIONS = ('model', 'norms', 'optimizer', 'schedule', 'data', 'run', 'machine')       # of the help
NICKNAMES = {'lr': 'learning_rate', 'bs': 'batch_size', 'wd': 'weight_decay', 'steps': 'max_iters'}     # of other programs
# a key that stands for several; where it is set, it sets them
ALIASES = {'mid_norm': ('attn_mid_norm', 'ffn_mid_norm'), 'post_norm': ('attn_post_norm', 'ffn_post_norm')}


def configure(namespace, *more):
    """Sets the keys in `namespace`, a script's globals(), from sys.argv, and returns all keys as {key: value}.

    Keys are the script's constants above its call of configure(), the fields of each dataclass in `more`, and the constants of
    each script whose path is in `more`. It also calls begin(), for which --debug=True shows tracebacks.
    """
    namespace['debug'] = '--debug=true' in (arg.lower() for arg in sys.argv)
    begin(namespace)
    defaults, helps = keys_of(namespace['__file__'], *more)
    asks_help = [arg for arg in sys.argv[1:] if is_help(arg)]
    values = settle([arg for arg in sys.argv[1:] if not is_help(arg)], defaults)
    if asks_help:
        section = asks_help[0].partition('=')[2]
        if section and section not in SECTIONS:
            raise ValueError(f'help={section!r}: choose one of {", ".join(SECTIONS)}')
        print(namespace['__doc__'].strip() + '\n')
        print_help(section, values, helps, namespace['__file__'], *more)
        sys.exit(0)
    namespace.update(values)
    return values


def is_help(arg):
    return arg == '-h' or arg.partition('=')[0] == '--help'


def print_help(section, values, helps, script, *more):
    """Prints the keys with their values and helps: those of a section, or without one all of a training script, and of another
    script its own."""
    sections, own = sections_of(script, *more), {*script_keys(script), 'debug'}
    trains = os.path.basename(script) == 'train.py'
    keys_in = {name: [] for name in SECTIONS}
    for key in values:
        keys_in[sections[key]].append(key)
    given = [arg for arg in sys.argv[1:] if not is_help(arg)]
    if given:
        print(f'These are the values after {" ".join(given)}\n')
    if not section and not trains:
        print_keys([key for key in values if key in own], values, helps)
        if more:
            print(f'\nThe other keys are those of training: --help=NAME shows some of them, of {", ".join(SECTIONS)}')
        return
    for name in [section] if section else SECTIONS:
        print(name)
        print_keys(keys_in[name], values, helps)
        if name == 'norms':
            print_architectures(explain=bool(section))
        print()
    if not section:
        print(f'--help=NAME shows one section: {", ".join(SECTIONS)}')


def print_keys(keys, values, helps):
    """A line for each key. Keys of block types that have the same value and help, such as r_emb and r_qk, share one."""
    lines = {}                                          # (text of the key, its help): block types
    for key in keys:
        value, (text, kind) = values[key], helps[key]
        value = value if str(value).isprintable() else repr(value)
        name = key.removesuffix(kind) + 'TYPE' if kind else key
        lines.setdefault((f'  --{name}={value}', text), []).append(kind)
    for (key, text), kinds in lines.items():
        print(key.ljust(40), text + f'; TYPE: {", ".join(kinds)}' * bool(kinds[0]))


def print_architectures(explain):
    """The files of config/arch, which set the keys of norms together, with the first line of each if asked to."""
    folder = os.path.join(ROOT, 'config', 'arch')
    names = sorted(name.removesuffix('.py') for name in os.listdir(folder) if name.endswith('.py'))
    print(f'  config/arch/NAME.py sets them all: {"" if explain else ", ".join(names) + "; --help=norms explains them"}')
    for name in names if explain else ():
        with open(os.path.join(folder, f'{name}.py'), encoding='utf-8') as f:
            print(f'  {name:16}{f.readline().strip("# ").rstrip()}')


def flags():
    """The keys that the command line sets by --key=value"""
    return expanded({arg[2:].partition('=')[0]: '' for arg in sys.argv[1:] if arg.startswith('--')}).keys()


def defaults_of(*sources):
    """{key: default} of scripts (their paths) and dataclasses. A script's key with TYPE in its name stands for one key of each
    block type of the dataclasses."""
    defaults, types = {}, {kind: None for source in sources for kind in getattr(source, 'block_types', {}).values()}
    # fields that are no keys, such as the block_size of a model of images, are no keys of other sources either
    hidden = {f.name for source in sources if not isinstance(source, str) for f in fields(source) if not f.init}
    for source in sources:
        keys = script_keys(source) if isinstance(source, str) else {f.name: f.default for f in fields(source) if f.init}
        for key, default in keys.items():
            if not isinstance(default, tuple(WANTS)):
                state = 'has no default' if default is MISSING else f'has the default {default!r}'
                raise ValueError(f'{getattr(source, "__name__", source)}: {key} {state}; a key wants one that is '
                                 f'{", ".join(WANTS.values())}')
        for key, default in [(key, keys[key]) for key in keys if key not in hidden]:
            for kind in types if 'TYPE' in key else ['']:           # r_TYPE stands for r_emb, r_pos, …
                defaults.setdefault(key.replace('TYPE', kind), default)
    return defaults


def keys_of(*sources):
    """The keys of scripts and dataclasses → {key: default}, {key: (help, block type)}, '' where a key is not of a block type."""
    defaults, comments = defaults_of(*sources), {}
    for source in reversed(sources):
        comments |= comments_of(text_of(source))
    helps = {}
    for key in defaults:
        way, _, kind = key.partition('_')
        helps[key] = (comments[key], '') if key in comments else (comments.get(f'{way}_TYPE', ''), kind)
    return {**defaults, 'debug': False}, {**helps, 'debug': ('show the traceback of an error', '')}


def text_of(source):
    """The source code of a script, or of a dataclass and its bases"""
    if isinstance(source, str):
        with open(source, encoding='utf-8') as f:
            return f.read()
    return ''.join(inspect.getsource(c) for c in source.__mro__[:-1])


def sections_of(*sources):
    """{key: section of the help}: what the last comment line of one word above the key says, as `# norms` in train.py."""
    sections = {'debug': 'machine'}
    for source in sources:
        is_script = isinstance(source, str)
        keys, section = script_keys(source) if is_script else defaults_of(source), 'run' if is_script else 'model'
        for line in text_of(source).splitlines():
            heading, key = re.match(r' *# (\w+)$', line), re.match(r' *(\w+)(?:: *\w+)? *=', line)
            section = heading[1] if heading else section
            if key and key[1] in keys:
                sections.setdefault(key[1], section)
    types = {kind for source in sources for kind in getattr(source, 'block_types', {}).values()}
    ways = {key: section for key, section in sections.items() if 'TYPE' in key}
    return {**sections, **{key.replace('TYPE', kind): section for key, section in ways.items() for kind in types}}


def only_of_train(*configs):
    """The keys of train.py that are no fields of these dataclasses"""
    return defaults_of(TRAIN, *configs).keys() - defaults_of(*configs).keys()


def settle(arguments, defaults):
    """{key: value} after config files and --key=value have set some of the defaults, in order."""
    values = dict(defaults)
    for arg, following in zip(arguments, [*arguments[1:], '…']):
        if arg.startswith('--'):
            key, equals, text = arg[2:].partition('=')
            if not equals:
                following = '…' if following.startswith('--') or following.endswith(('.py', '.json')) else following
                raise ValueError(f'{arg}: give it a value with =, as in {arg}={following}; --help lists the keys')
            for key in ALIASES.get(key, (key,)):
                values[key] = parsed(key, text, defaults[known(key, defaults, 'the command line')])
        else:
            found = read_config(arg, values)
            script, of_older_run = script_of(found), arg.endswith('.json') and 'model' in found
            shape = 'patch_size' if script == 'vision.train' else 'block_size'
            if shape in found and shape not in defaults:
                raise ValueError(f'{arg} is for {script}: it sets {shape}, which is no key here')
            for key, value in found.items():
                if key in defaults or not (of_older_run and key in RETIRED):
                    values[key] = typed(key, value, defaults[known(key, defaults, arg)], arg)
    return values


def script_of(config):
    """'vision.train' or 'train.py': the script that a run's config is for. Those of older runs have all keys, and `model`."""
    return 'vision.train' if 'patch_size' in config and config.get('model') != 'gpt' else 'train.py'


def at_least(config, **lows):
    """ValueError for a key whose value is below its minimum in `lows`."""
    for key, low in lows.items():
        if config[key] < low:
            raise ValueError(f'{key}={config[key]}: wants at least {low}')


def refuse(keys, why):
    """ValueError for a --key=value of the command line whose key is one of these, because the script would ignore it."""
    for arg in sys.argv[1:]:
        if arg.startswith('--') and arg[2:].partition('=')[0] in keys:
            raise ValueError(f'{arg[2:]}: {why}, leave it out')


def script_keys(path):
    """{name: value} of the constants that a script assigns above config = configure(...), without names in CAPITALS."""
    keys = {}
    for node in ast.parse(open(path, encoding='utf-8').read()).body:
        if isinstance(node, ast.Assign) and not node.targets[0].id.isupper():
            if isinstance(node.value, ast.Call):
                break
            keys[node.targets[0].id] = ast.literal_eval(node.value)
    return keys


def comments_of(text):
    """{name: comment} of each name's first assignment that has one"""
    return dict(reversed(re.findall(r'^ *(\w+)(?:: *\w+)? *=[^#\n]*# *(.*)$', text, re.MULTILINE)))


def read_config(path, values):
    """{key: value} from a config file: a JSON object or Python code. The code sees the values so far, and include('config/…')
    runs another file, with a path from the repository's root."""
    if os.path.isdir(path) and 'out_dir' in values:
        raise ValueError(f'{path!r} is a folder and no config file: write --out_dir={path}')
    if not path.endswith(('.py', '.json')):
        raise ValueError(f'{path!r} is neither a config file (.py, .json) nor --key=value')
    if not os.path.isfile(path):
        raise ValueError(f'there is no config file {path}')
    if path.endswith('.json'):
        try:
            with open(path, encoding='utf-8') as f:
                found = json.load(f)
        except (ValueError, RecursionError) as error:
            raise ValueError(f'{path}: wants a JSON object of keys and values ({error})') from error
        if not isinstance(found, dict):
            raise ValueError(f'{path}: wants a JSON object of keys and values')
        for key, other in SPLIT_OFF.items():
            if other in found:
                found.setdefault(key, found[other])
        return expanded(found)
    scope = Scope({**values, '__file__': path, '__name__': '__config__', 'include': lambda base: run(os.path.join(ROOT, base))})

    def run(file):
        with open(file, encoding='utf-8') as f:
            exec(compile(f.read(), file, 'exec'), scope)

    try:
        run(path)
    except (Exception, SystemExit) as error:
        raise ValueError(f'{path}: {type(error).__name__}: {error}') from error
    return {key: value for key, value in scope.items()
            if key in values or not (key in ALIASES or key.startswith('_') or isinstance(value, ModuleType) or callable(value))}


class Scope(dict):
    """The globals of a config file, in which setting an alias sets its keys too."""

    def __setitem__(self, key, value):
        self.update(dict.fromkeys((key, *ALIASES.get(key, ())), value))


def expanded(values):
    """{key: value}, with the keys that aliases among them stand for instead of them; of two values the later counts."""
    return {name: value for key, value in values.items() for name in ALIASES.get(key, (key,))}


def known(key, defaults, where):
    if key not in defaults:
        near = [NICKNAMES[key]] if NICKNAMES.get(key) in defaults else difflib.get_close_matches(key, defaults, 1, 0.5)
        hint = f'did you mean {near[0]!r}?' if near else '--help lists the keys'
        private = '' if not where.endswith('.py') else '; a name that is not a key must start with _'
        raise ValueError(f'unknown key {key!r} in {where}: {hint}{private}')
    return key


LARGEST = {bool: 1, int: 2 ** 63 - 1, float: 3.4e38}        # the largest float32
WANTS = {bool: 'true or false', int: 'an integer', float: 'a finite number', str: 'a string', list: 'a list'}


def parsed(key, text, default):
    """The text of --key=text as the type of the key's default."""
    try:
        if isinstance(default, bool):
            return {'true': True, 'false': False}[text.lower()]
        value = ast.literal_eval(text) if isinstance(default, list) else type(default)(text)
        return typed(key, value, default, 'the command line')
    except (ValueError, KeyError, SyntaxError):
        raise ValueError(f'{key}={text}: wants {WANTS[type(default)]}') from None


def typed(key, value, default, where):
    """The value, if it has the type of the key's default. An int is accepted for a float."""
    if type(value) is int and abs(value) < 2 ** 63 and isinstance(default, float):
        value = float(value)
    if type(value) is not type(default) or isinstance(value, (int, float)) and not abs(value) <= LARGEST[type(value)]:
        raise ValueError(f'{key}={value!r} in {where}: wants {WANTS[type(default)]}')
    return value


# ----------------------------------------------------------------------------- how a script begins and ends

def begin(keys):
    """Prepares the process of a script. From here on, bad input (ValueError, OSError) ends it with one line and exit code 1,
    unless keys['debug']. Characters that its terminal lacks are replaced. If nobody reads its stdout, it ends as Unix tools do.
    Under torchrun or lab/sweep.py it is asked to end (SIGTERM) when its parent dies, even by SIGKILL; this needs Linux."""
    sys.excepthook = lambda *error: report(*error, keys['debug'])
    while (null := os.open(os.devnull, os.O_RDWR)) <= 2:        # the number of a closed stdout, which a log would get
        pass
    os.close(null)
    sys.stdout, sys.stderr = (stream or open(os.devnull, 'w', encoding='utf-8') for stream in (sys.stdout, sys.stderr))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors='replace', line_buffering=True)
    parent = int(os.environ.get('SWEEP_PID', 0)) or 'TORCHELASTIC_RUN_ID' in os.environ and PARENT
    if parent and sys.platform == 'linux':
        import ctypes
        import signal
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)              # PR_SET_PDEATHSIG
        if os.getppid() != parent:                              # it died before
            os.kill(os.getpid(), signal.SIGTERM)


def say(*words, to=None):
    """Prints what is not worth ending for: if stdout, or the stream `to`, is closed or full, nothing more is printed there."""
    stream = to or sys.stdout
    try:
        print(*words, file=stream, flush=True)
    except OSError as error:
        silence(stream)
        if stream is not sys.stderr:
            say(f'stdout takes no more lines ({error.strerror}), and this goes on without', to=sys.stderr)


def silence(stream):
    """Lets a stream write to nowhere, what waits in its buffer too."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def unread():
    """Whether stdout is a pipe that nobody reads any more"""
    import select
    pipe = select.poll()
    pipe.register(1, 0)
    return any(what & select.POLLERR for _, what in pipe.poll(0))


def report(kind, error, trace, debug=False):
    import re
    import signal
    if kind is BrokenPipeError and unread():            # as in `sample.py | head`
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
    try:
        sys.stdout.flush()
    except OSError as found:                            # Python would speak of it again when it ends
        silence(sys.stdout)
        if issubclass(kind, OSError) and (error.errno, error.filename) == (found.errno, None):
            error = f'stdout: {error}'
    runtime = str(error) if issubclass(kind, RuntimeError) else ''
    lost = ranks_have_met() and 'peer' in runtime
    full = issubclass(kind, MemoryError) or re.search('(out of|allocate) memory', runtime)
    unused = 'Expected to have finished reduction' in runtime
    variants = kind.__name__ == 'FailOnRecompileLimitHit'
    first_here = not ('RANK' in os.environ and os.environ.get('LOCAL_RANK', '').strip('0').isdecimal())     # of this node's ranks
    shown = True
    if debug or not (lost or full or unused or variants or issubclass(kind, (ValueError, OSError, KeyboardInterrupt))):
        text = ''.join(traceback.format_exception(kind, error, trace)).rstrip()
    elif kind is KeyboardInterrupt:                     # Python then ends by SIGINT, which shells show as 130
        text, shown = 'interrupted', first_here
    elif variants:
        text = ('error: torch.compile gave up after too many variants of the same code: TORCH_LOGS=recompiles shows how they '
                'differ, --compile=False does not compile')
    elif full:
        text = 'error: out of memory: use a smaller model or batch, fewer samples, or --recompute=True'
    elif unused:
        text = ('error: a parameter got no gradient in an iteration, which DDP cannot average: use it in every forward pass, or '
                'freeze it by requires_grad = False; TORCH_DISTRIBUTED_DEBUG=DETAIL --debug=True names it')
    elif lost:
        text = (f'error: rank {os.environ["RANK"]} has lost another rank; train.py goes on from its last checkpoint with '
                '--init_from=auto')
    else:                   # before the ranks connect, all fail with the same error, and one prints it
        text = f'error: {" ".join(str(error).splitlines())}'
        shown = first_here or ranks_have_met() or issubclass(kind, NotConnected)
    tell_torchrun(text)
    if shown:
        print(text, file=sys.stderr)
    else:
        time.sleep(1)           # torchrun ends all ranks when one has ended, and the one that prints may be slower


def tell_torchrun(text):
    """Lets torchrun print the text as the cause below its own traceback."""
    if path := os.environ.get('TORCHELASTIC_ERROR_FILE'):
        more = dict(py_callstack=text, timestamp=str(int(time.time())))
        with suppress(OSError), open(path, 'w', encoding='utf-8') as f:
            json.dump(dict(message=dict(message=text, extraInfo=more)), f)


def one_line(error):
    """The message of a library's error in one line, without PyTorch's advice to run whatever code is in a file."""
    if 'weights_only' in str(error):
        return 'it holds more than weights, which could run code; use the safetensors file of this model'
    return f'{type(error).__name__}: {" ".join(str(error).split())[:300]}'


class NotConnected(OSError):
    """The ranks could not connect, perhaps because one of them has died."""


def ranks_have_met():
    distributed = sys.modules.get('torch.distributed')
    return distributed is not None and distributed.is_initialized()
