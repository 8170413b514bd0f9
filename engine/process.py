"""
How a process begins and ends: Ctrl-C, wrong input, a closed terminal.

configurator.py imports this file before all others, and this file imports none of ours.
"""
import os
import sys

sys.excepthook = lambda kind, *error: (                 # before imports that take time or may fail
    report(kind, *error, debug=not issubclass(kind, (KeyboardInterrupt, ModuleNotFoundError))))

import glob
import json
import signal
import time
import traceback
from contextlib import suppress

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if not {'GOMP_SPINCOUNT', 'OMP_WAIT_POLICY', 'KMP_BLOCKTIME', 'KMP_LIBRARY'} & os.environ.keys():
    os.environ['GOMP_SPINCOUNT'] = '10000'      # how long waiting threads spin, see docs/speed.md


def begin(debug=False):
    """Prepare a script's process. From now on, wrong input (ValueError, OSError) ends it with one line, or with `debug` a
    traceback, and exit code 1. Characters that the terminal lacks are replaced."""
    sys.excepthook = lambda *error: report(*error, debug)
    if hasattr(sys.stdout, 'reconfigure'):
        sys.stdout.reconfigure(errors='replace', line_buffering=True)


def say(*words, to=None):
    """Print to stdout, or to the stream `to`. If its reader is gone or its disk is full, print nothing more there."""
    stream = to or sys.stdout
    try:
        print(*words, file=stream, flush=True)
    except OSError as error:
        silence(stream)
        if stream is not sys.stderr:
            say(f'stdout takes no more lines ({error.strerror}); going on without it', to=sys.stderr)


def silence(stream):
    """Redirect a stream, and what its buffer holds, to /dev/null."""
    with open(os.devnull, 'w') as null:
        os.dup2(null.fileno(), stream.fileno())


class NotConnected(OSError):
    """The ranks could not connect, perhaps because one of them has died."""


def ranks_have_met():
    distributed = sys.modules.get('torch.distributed')
    return distributed is not None and distributed.is_initialized()


def one_line(error):
    """Return a library's error message in one line, without PyTorch's advice to run any code in a file."""
    if 'weights_only' in str(error):
        return 'it holds more than weights, which could run code; use the safetensors file of this model'
    return f'{type(error).__name__}: {" ".join(str(error).split())[:300]}'


def requirements_file(module):
    """Return the repository's requirements file that lists a module's package, or ''."""
    package = {'PIL': 'pillow', 'pyarrow': 'datasets'}.get(module, module.replace('_', '-'))
    for path in sorted(glob.glob(os.path.join(ROOT, 'requirements*.txt')), key=len):
        with open(path, encoding='utf-8') as f:
            if any(line.startswith(f'{package}==') for line in f):
                return os.path.basename(path)
    return ''


def line_for(kind, error):
    """Return the line for an error that the user can fix, or '' for a bug."""
    if kind is KeyboardInterrupt:
        return 'interrupted'
    module = (getattr(error, 'name', None) or '').partition('.')[0]
    if issubclass(kind, ModuleNotFoundError) and (file := requirements_file(module)):
        return f'error: {module} is not installed: pip install -r {file}'
    return f'error: {" ".join(str(error).splitlines())}' if issubclass(kind, (ValueError, OSError)) else ''


def report(kind, error, trace, debug=False):
    """As sys.excepthook, print why the process ends: one line, or a bug's traceback."""
    if kind is BrokenPipeError:                         # as in `sample.py | head`
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
    try:
        sys.stdout.flush()
    except OSError:                                     # Python would report it again at exit
        silence(sys.stdout)
    line = '' if debug else line_for(kind, error)
    text = line or ''.join(traceback.format_exception(kind, error, trace)).rstrip()
    if path := os.environ.get('TORCHELASTIC_ERROR_FILE'):       # torchrun prints this last, below its own traceback: by itself
        more = dict(py_callstack=f'\n\n{text}\n', timestamp=str(int(time.time())))
        with suppress(OSError), open(path, 'w', encoding='utf-8') as f:
            json.dump(dict(message=dict(message=text, extraInfo=more)), f)
    # Until the ranks connect, all of them fail with the same error; only the first of each node prints it. Ctrl-C reaches all.
    first_here = not ('RANK' in os.environ and os.environ.get('LOCAL_RANK', '').strip('0').isdecimal())
    of_all = issubclass(kind, (ValueError, OSError)) and not (ranks_have_met() or issubclass(kind, NotConnected))
    if first_here or not line or not (of_all or kind is KeyboardInterrupt):
        print(text, file=sys.stderr)
    else:
        time.sleep(1)           # torchrun ends all ranks when one exits: give the rank that prints time to do so
