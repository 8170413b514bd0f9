"""The direction of imports: no file imports one above it, inside of its functions neither."""
import ast

import pytest
from helpers import ROOT

# each room or file of the root → what it may import beside itself. The hall, the engine and the lab do not know of vision/.
HALL = {'model', 'optim', 'data', 'engine', 'configurator', 'process'}
MAY_IMPORT = {
    'model': set(), 'configurator': {'process'}, 'process': set(), 'optim': {'model'},
    'data': {'configurator'},
    'engine': HALL, 'train': HALL, 'sample': HALL, 'bench': HALL,       # and lab, but see below
    'lab': HALL, 'vision': HALL | {'lab'},
}
BELOW = ('process',)                                    # files of engine/ that stand below the hall, each a room of its own
FILES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding='utf-8'))
         for name in MAY_IMPORT for path in [*ROOT.glob(f'{name}.py'), *(ROOT / name).rglob('*.py')]}


def imports(tree):
    """('engine.device', its node) of each import in a part of a file; `from engine import device` is one too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, 'an import names its package'
            yield node.module, node
            yield from ((f'{node.module}.{alias.name}', node) for alias in node.names)


def room(name):
    parts = name.removesuffix('.py').replace('/', '.').split('.')
    if parts[0] == 'engine' and parts[1:] and parts[1] in BELOW:
        return parts[1]
    return parts[0]


def test_every_file_is_looked_at():
    scripts = {path.name for path in ROOT.glob('*.py')} - {'test_model.py'}
    assert {room(name) for name in FILES} == set(MAY_IMPORT) and scripts == {name for name in FILES if '/' not in name}


@pytest.mark.parametrize('file', FILES)
def test_no_file_imports_one_above_it(file):
    """The root's scripts import lab only where a key asks for it"""
    asked = [node for node in FILES[file].body if '/' not in file and isinstance(node, ast.If)]
    allowed = {imported for node in asked for name, imported in imports(node) if room(name) == 'lab'}
    for name, node in imports(FILES[file]):
        ours = room(name) in MAY_IMPORT and node not in allowed
        assert not ours or room(name) in MAY_IMPORT[room(file)] | {room(file)}, f'{file}, line {node.lineno}: {name}'


@pytest.mark.parametrize('file', [file for file, tree in FILES.items() if file != 'configurator.py' and {'configure', 'begin'} & {
    node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}])
def test_a_script_imports_configurator_first(file):
    """Or what it imports first, which says how PyTorch's threads wait, and how Ctrl-C ends the script"""
    names = [room(name) for node in FILES[file].body for name, _ in imports(node)]
    first = min(names.index(name) for name in ('configurator', 'process') if name in names)
    assert set(names[:first]) <= {'os', 'sys', 'pathlib'}


def test_there_is_no_circle():
    """Between any two files, whichever room they are in, outside of their functions"""
    modules = {file.removesuffix('.py').replace('/', '.').removesuffix('.__init__'): tree for file, tree in FILES.items()}
    below = {module: {name for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom)) for name, _ in imports(node)
                      if name in modules} for module, tree in modules.items()}
    while free := [module for module, others in below.items() if not others & below.keys()]:
        for module in free:
            del below[module]
    assert not below, f'these import each other: {", ".join(below)}'
