"""
The process of a script: its terminal, its parent, and the errors that end it.

configurator.py imports this file before all others, because it says how Ctrl-C ends a script, and PyTorch reads the environment.
Modules that Python has not loaded by then are imported where they are used, so that an interrupt finds this file complete.
"""
import io
import os
import sys
import time

PARENT = os.getppid()                   # before it can have died unnoticed
if not {'GOMP_SPINCOUNT', 'OMP_WAIT_POLICY', 'KMP_BLOCKTIME', 'KMP_LIBRARY'} & os.environ.keys():
    os.environ['GOMP_SPINCOUNT'] = '10000'      # how long threads spin when they wait for each other, see docs/speed.md
sys.excepthook = lambda kind, *error: (report if kind is KeyboardInterrupt else sys.__excepthook__)(kind, *error)


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
    parent = int(os.environ.pop('SWEEP_PID', 0)) or 'TORCHELASTIC_RUN_ID' in os.environ and PARENT
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
    lost = ranks_have_met() and issubclass(kind, RuntimeError) and 'peer' in str(error)
    full = issubclass(kind, MemoryError) or issubclass(kind, RuntimeError) and re.search('(out of|allocate) memory', str(error))
    variants = kind.__name__ == 'FailOnRecompileLimitHit'
    if debug or not (lost or full or variants or issubclass(kind, (ValueError, OSError, KeyboardInterrupt))):
        sys.__excepthook__(kind, error, trace)
    elif kind is KeyboardInterrupt:                     # Python then ends by SIGINT, which shells show as 130
        if os.environ.get('LOCAL_RANK', '0') == '0':
            print('interrupted', file=sys.stderr)
    elif variants:
        print('error: torch.compile gave up after too many variants of the same code: TORCH_LOGS=recompiles shows how they '
              'differ, --compile=False does not compile', file=sys.stderr)
    elif full:
        print('error: out of memory: use a smaller model or batch, fewer samples, or --recompute=True', file=sys.stderr)
    elif lost:
        print(f'error: rank {os.environ["RANK"]} has lost another rank; train.py goes on from its last checkpoint with '
              '--init_from=auto', file=sys.stderr)
    elif not ('RANK' in os.environ and os.environ.get('LOCAL_RANK', '').strip('0').isdecimal()) or ranks_have_met() \
            or issubclass(kind, NotConnected):
        # before the ranks connect, all fail with the same error, and one prints it
        print('error:', ' '.join(str(error).splitlines()), file=sys.stderr)
    else:
        time.sleep(1)           # torchrun ends all ranks when one has ended, and the one that prints may be slower


class NotConnected(OSError):
    """The ranks could not connect, perhaps because one of them has died."""


def ranks_have_met():
    distributed = sys.modules.get('torch.distributed')
    return distributed is not None and distributed.is_initialized()
