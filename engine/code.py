"""Record a run's code: its command, its git commit with a patch, and a hash of each file."""
from engine.process import ROOT, say

import hashlib
import os
import shlex
import subprocess
import sys
from pathlib import Path

OTHER_SCRIPTS = ('bench.py', 'sample.py', 'test_model.py')
MAX_NEW_FILES = 100         # untracked .py files in a patch: more are likely an environment that git does not ignore


def script():
    """Return the running script's path."""
    return os.path.abspath(sys.modules['__main__'].__file__)


def script_as_typed():
    """Return 'train.py' or '-m vision.train', as typed in the repository's root."""
    name = os.path.relpath(script(), ROOT)
    return f'-m {name[:-3].replace(os.sep, ".")}' if os.sep in name else name


def command():
    """Return this process's command, as typed in the repository's root."""
    return f'{sys.executable} {script_as_typed()} {shlex.join(sys.argv[1:])}'.strip()


def git(*arguments):
    """Return git's output, or b'' without git or a repository."""
    try:
        return subprocess.run(['git', *arguments], capture_output=True, cwd=ROOT, stdin=subprocess.DEVNULL).stdout
    except OSError:
        return b''


def code_state():
    """Return the git commit, the tracked files that differ from it, and a patch of the differences for `git apply`. The patch
    includes untracked .py files, at most MAX_NEW_FILES; print a line if there are more."""
    commit = git('rev-parse', 'HEAD').decode().strip()
    changed = git('status', '--porcelain', '--untracked-files=no').decode(errors='replace').splitlines()
    patch = git('diff', 'HEAD', '--binary')
    new = git('ls-files', '--others', '--exclude-standard', '-z', '--', '*.py').split(b'\0')[:-1]
    for file in new[:MAX_NEW_FILES]:
        patch += git('diff', '--no-index', '--binary', '--', os.devnull, os.fsdecode(file))
    if left_out := [os.fsdecode(file) for file in new[MAX_NEW_FILES:]]:
        changed.append(f'code.patch leaves out {len(left_out)} new .py files, such as {left_out[0]}')
        say(f'{changed[-1]}: list files that are not your code in .gitignore')
    return commit, changed, patch


def code_hash(script):
    """Return one hash for all of code_hashes."""
    return hashlib.blake2b(repr(sorted(code_hashes(script).items())).encode(), digest_size=6).hexdigest()


def code_hashes(script):
    """Return {file: hash of its bytes} for the code that a training script runs: model.py and what stands beside it, engine/,
    data/, and the script's own folder. Leave out lab/, which reads runs, and the root's other scripts."""
    own = os.path.relpath(os.path.dirname(os.path.abspath(script)), ROOT)
    paths = {path for folder in ('.', 'engine', 'data', own) for path in Path(ROOT, folder).glob('*.py')}
    files = {path.relative_to(ROOT).as_posix(): path for path in sorted(paths)}
    return {name: hashlib.blake2b(path.read_bytes(), digest_size=6).hexdigest() for name, path in files.items()
            if name not in OTHER_SCRIPTS}
