"""
How many of 100 small faults the tests notice: python tests/mutants.py [--count=100] [--first=0]

Each mutant changes one operator, comparison or number of the files below, drawn at random with a fixed seed.
The tests of its file run in a copy of the repository until one fails. The list with its outcomes goes to out-mutants.csv.
"""
import argparse
import ast
import csv
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = {           # each file → the tests that know it, the fastest first
    'model.py': 'test_model.py tests/test_golden.py tests/test_measure.py tests/test_export.py tests/test_mup.py',
    'optim.py': 'tests/test_optim.py tests/test_groups.py tests/test_muon.py tests/test_mup.py tests/test_golden.py',
    'train.py': 'tests/test_golden.py tests/test_step.py tests/test_train.py tests/test_bad_input.py tests/test_fsdp.py',
    'data/tokens.py': 'tests/test_tokens.py tests/test_vision.py tests/test_golden.py tests/test_text.py',
    'engine/checkpoint.py': 'tests/test_checkpoint.py tests/test_golden.py tests/test_train.py tests/test_fsdp.py',
    'engine/fsdp.py': 'tests/test_fsdp.py tests/test_edits.py',
    'engine/ranks.py': 'tests/test_fsdp.py tests/test_muon.py',
}
SWAPS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Lt: ast.LtE,
         ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot,
         ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And}


def places(tree):
    """(node, what to change there) of each place of a syntax tree that a mutant may change, without annotations and defaults"""
    for node in ast.walk(tree):
        if isinstance(node, (ast.BinOp, ast.BoolOp, ast.AugAssign)) and type(node.op) in SWAPS:
            yield node, 'op'
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
            yield node, 'ops'
        elif isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
            yield node, 'value'


def mutants(count, seed=0):
    """[(file, line, before, after, text of the file)]"""
    draw, drawn = random.Random(seed), []
    trees = {file: (ROOT / file).read_text(encoding='utf-8') for file in TESTS}
    sites = [(file, i) for file, text in trees.items() for i, _ in enumerate(places(ast.parse(text)))]
    for file, i in draw.sample(sites, count):
        tree = ast.parse(trees[file])
        node, what = list(places(tree))[i]
        before = ast.unparse(node)
        if what == 'value':
            node.value = not node.value if isinstance(node.value, bool) else node.value + 1
        else:
            old = node.ops[0] if what == 'ops' else node.op
            setattr(node, what, [SWAPS[type(old)](), *node.ops[1:]] if what == 'ops' else SWAPS[type(old)]())
        lines = trees[file].splitlines(True)            # only this statement's text changes, so that comments and help stay
        statement = next((n for n in ast.walk(tree) if isinstance(n, ast.stmt) and not hasattr(n, 'body')
                          and n.lineno <= node.lineno <= n.end_lineno), None)
        if statement is None:                           # the head of an if, a loop or a function
            text = ast.unparse(tree)
        else:
            indent = ' ' * statement.col_offset
            new = ''.join(f'{indent}{line}\n' for line in ast.unparse(statement).splitlines())
            text = ''.join([*lines[:statement.lineno - 1], new, *lines[statement.end_lineno:]])
        drawn.append((file, node.lineno, before, ast.unparse(node), text))
    return drawn


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--count', type=int, default=100)
    parser.add_argument('--first', type=int, default=0, help='begin with the mutant of this number, from 0')
    args = parser.parse_args()
    caught = 0
    with tempfile.TemporaryDirectory() as folder, open('out-mutants.csv', 'a', newline='', encoding='utf-8') as f:
        place, table = Path(folder) / 'copy', csv.writer(f)
        shutil.copytree(ROOT, place, ignore=shutil.ignore_patterns('.git', '.venv*', 'out*', '__pycache__'))
        for number, (file, line, before, after, text) in list(enumerate(mutants(args.count)))[args.first:]:
            original = (place / file).read_text(encoding='utf-8')
            (place / file).write_text(text, encoding='utf-8')
            command = [sys.executable, '-m', 'pytest', '-q', '-x', '--timeout=120', *TESTS[file].split()]
            outcome = 'caught' if subprocess.run(command, cwd=place, capture_output=True).returncode else 'survived'
            (place / file).write_text(original, encoding='utf-8')
            caught += outcome == 'caught'
            table.writerow([number, file, line, before, after, outcome])
            f.flush()
            print(f'{number}: {outcome}: {file}, line {line}: {before}  →  {after}', flush=True)
    print(f'{caught} of {args.count - args.first} were caught')


if __name__ == '__main__':
    main()
