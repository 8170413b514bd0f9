"""Record a run's code: its command, its git commit with a patch, and hashes that ignore comments."""
from engine.process import ROOT, say

import ast
import hashlib
import os
import shlex
import subprocess
import sys

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
    """Return {file: hash of its syntax tree} for a script and our files that it imports, directly or indirectly. Comments,
    docstrings, layout and the version of Python do not change a hash. Leave out lab/, which reads runs."""
    todo, hashes = [os.path.relpath(script, ROOT)], {}
    while todo:
        path = todo.pop()
        if path in hashes or path.startswith('lab' + os.sep) or not os.path.isfile(os.path.join(ROOT, path)):
            continue
        with open(os.path.join(ROOT, path), encoding='utf-8') as f:
            tree = ast.parse(f.read())
        hashes[path] = hashlib.blake2b(repr(content_of(tree)).encode(), digest_size=6).hexdigest()
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or '', *(f'{node.module}.{name}' for name in names)]
            todo += [os.path.join(*name.split('.')) + '.py' for name in names if name]
    return hashes


def content_of(node):
    """Return a syntax tree as nested tuples, without docstrings and empty fields."""
    if isinstance(node, ast.AST):
        fields = ((name, value) for name, value in ast.iter_fields(node) if value not in (None, []) and name != 'kind')
        return type(node).__name__, *((name, content_of(value)) for name, value in fields)
    if isinstance(node, list):
        return [content_of(child) for child in node
                if not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant))]
    return repr(node)
