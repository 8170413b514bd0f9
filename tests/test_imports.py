"""The direction of imports: no file imports one above it, nor one that imports it, inside of its functions neither."""
import ast
import re
from graphlib import TopologicalSorter

from helpers import ROOT

# each folder or file of the root → what it may import beside itself
HALL = {'model', 'optim', 'data', 'engine', 'configurator', 'process'}
MAY_IMPORT = dict(model=set(), configurator={'process'}, process=set(), optim={'model'}, data={'configurator'}, engine=HALL,
                  lab=HALL, vision=HALL | {'lab'}, train=HALL, sample=HALL, bench=HALL)
FILES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding='utf-8'))
         for name in MAY_IMPORT for path in [*ROOT.glob(f'{name}.py'), *(ROOT / name).rglob('*.py')]}


def imports(tree):
    """Yield ('engine.device', its node) for each import in a syntax tree, `from engine import device` included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((name, node) for name in (node.module, *(f'{node.module}.{alias.name}' for alias in node.names)))


def room(name):
    """'engine' for engine/device.py and engine.device; engine/process.py, which stands below all others, is its own."""
    first, *rest = name.removesuffix('.py').replace('/', '.').split('.')
    return 'process' if rest[:1] == ['process'] else first


def test_no_file_imports_one_above_it():
    """The root's scripts import lab only where a key asks for it"""
    assert {path.name for path in ROOT.glob('*.py')} - FILES.keys() == {'test_model.py'}
    for file, tree in FILES.items():
        on_request = [node for part in tree.body if '/' not in file and isinstance(part, ast.If) for _, node in imports(part)]
        for name, node in imports(tree):
            if room(name) in MAY_IMPORT and not (room(name) == 'lab' and node in on_request):
                assert room(name) in MAY_IMPORT[room(file)] | {room(file)}, f'{file}, line {node.lineno}: {name}'


def test_no_files_import_each_other():
    """Nor do several in a circle, which prepare() would name"""
    graph = {}
    for file, tree in FILES.items():
        paths = [name.replace('.', '/') for name, _ in imports(tree)]
        graph[file] = {path for name in paths for path in (f'{name}.py', f'{name}/__init__.py') if path in FILES}
    assert 'lab/plot/__init__.py' in graph['lab/measure/gradients.py'] and 'engine/run.py' in graph['train.py']
    TopologicalSorter(graph).prepare()


def test_engine_and_data_do_not_name_vision():
    for path in [*(ROOT / 'engine').glob('*.py'), *(ROOT / 'data').rglob('*.py')]:
        assert not re.search(r'vision|ViT|top-?\d', path.read_text(encoding='utf-8')), path
