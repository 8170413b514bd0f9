"""
Print the model of a config as one plain file, which imports torch alone:

    python -m lab.flatten config/arch/peri.py > peri.py             # with GPT-2's sizes as defaults
    python -m lab.flatten --out_dir=out-quick --to=dnt.py           # a run's model, and its weights as dnt.pt
    python dnt.py                                                   # counts parameters, runs a forward pass, samples

It evaluates model.py on the config: choices that the config makes are folded, what is absent vanishes, and what is left is
printed. The printed model has the same names of weights. It is printed only if it computes the same logits and gradients.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.flatten')

from configurator import ROOT, TRAIN, configure

import ast
import copy
import io
import itertools
import os
import re
import subprocess
import tokenize
from dataclasses import fields
from types import SimpleNamespace

import torch
from torch import nn

import model as source
from engine.checkpoint import load_run
from engine.files import write_whole
from engine.keys import gpt_config
from model import GPT, GPTConfig, hash_seed, module_path

# ----------------------------------------------------------------------------- keys
out_dir = ''                        # a run's folder; empty: the model of the config
checkpoint = 'best.pt'              # best.pt: the lowest validation loss | ckpt.pt: the latest | ckpt-000500.pt: a kept one
to = ''                             # the file to write; empty: stdout
# -----------------------------------------------------------------------------
SIZES = 'n_layer n_head n_kv_head n_embd d_ff block_size vocab_size'.split()
LOOP = ('config', 'c', 'self.config')                   # how model.py calls its config
CACHE = ('cache', 'caches')                             # parameters of generation, which the printed file does without
WIDTH = 100
NUMBERS = itertools.count()


class CannotFold(ValueError):
    pass


def parse(text):
    return ast.parse(text, mode='eval').body


def is_const(node):
    return isinstance(node, ast.Constant)


def constant(value):
    return ast.Constant(value) if not isinstance(value, float) or value >= 0 else ast.UnaryOp(ast.USub(), ast.Constant(-value))


def name_of(node):
    """Return the source of a name or of attributes of one, such as self.attn.wq; of other nodes ''."""
    return ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else ''


class Code:
    """The definitions of model.py: classes and functions, tables, comments at the end of lines."""

    def __init__(self, path):
        with open(path, encoding='utf-8') as f:
            text = f.read()
        self.tree, self.defs, self.tables = ast.parse(text), {}, {}
        for node in self.tree.body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                self.defs[node.name] = node
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
                self.tables[node.targets[0].id] = dict(zip(map(ast.unparse, filter(None, node.value.keys)), node.value.values))
            elif isinstance(node, ast.AugAssign) and isinstance(node.value, ast.Dict):
                self.tables[node.target.id] |= dict(zip(map(ast.unparse, node.value.keys), node.value.values))
        self.comments = {token.start[0]: token.string for token in tokenize.generate_tokens(io.StringIO(text).readline)
                         if token.type == tokenize.COMMENT and token.line[:token.start[1]].strip()}

    def method(self, kind, name, after=None):
        """Return (owner, method) of a class: the first of its MRO, or the first behind the class `after`."""
        owners = [k for k in kind.__mro__ if k.__name__ in self.defs or k.__module__ == source.__name__]
        for owner in owners[owners.index(after) + 1 if after else 0:]:
            for node in getattr(self.defs.get(owner.__name__), 'body', ()):
                if isinstance(node, ast.Assign) and name_of(node.targets[0]) == name and isinstance(node.value, ast.Attribute):
                    return self.method(getattr(source, name_of(node.value.value)), name)
                if isinstance(node, ast.FunctionDef) and node.name == name:
                    return owner, node
        return None, None


def body_of(node):
    """Copy a function's statements, without its docstring."""
    first = node.body[0]
    has_doc = isinstance(first, ast.Expr) and is_const(first.value)
    return copy.deepcopy(node.body[has_doc:])


def bind(node, call, skip_self):
    """Return {parameter: argument} of a call of this function."""
    names = [arg.arg for arg in node.args.args][skip_self:]
    found = dict(zip(names[len(names) - len(node.args.defaults):], node.args.defaults)) if node.args.defaults else {}
    found |= dict(zip(names, call.args)) | {keyword.arg: keyword.value for keyword in call.keywords}
    if set(names) - found.keys() or None in found:
        raise CannotFold(f'the arguments of  {ast.unparse(call)}')
    return found


class Substitute(ast.NodeTransformer):
    """Replace names that are read."""

    def __init__(self, values):
        self.values = values

    def visit_Name(self, node):
        if isinstance(node.ctx, ast.Load) and node.id in self.values:
            return copy.deepcopy(self.values[node.id])
        return node


def rename(tree, name, to):
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == name:
            node.id = to


def stores(statements):
    return {node.id for s in statements for node in ast.walk(s) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def loads(statements):
    return [node.id for s in statements for node in ast.walk(s) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]


class Fold(ast.NodeTransformer):
    """Evaluate the methods of one class, of which the model has these instances, as far as the config decides them."""

    def __init__(self, code, model, instances, known):
        self.code, self.model, self.known = code, model, dict(known)
        self.instances, self.kind, self.owner, self.busy = instances, type(instances[0]), None, []

    # ---- what is known of self

    def values(self, path):
        """Return the values of self.path in all instances, [] if it is no attribute of theirs."""
        try:
            return [eval(path, {'self': x}) for x in self.instances]
        except (AttributeError, IndexError, TypeError, NameError, SyntaxError):
            return []

    def visit_Attribute(self, node):
        node = self.generic_visit(node)
        path = name_of(node)
        if not isinstance(node.ctx, ast.Load) or not path:
            return node
        if path in self.known:
            return copy.deepcopy(self.known[path])
        if path.startswith('self.') and path.count('.') == 1 and path != 'self.training':
            getter = self.code.method(self.kind, node.attr)[1]
            if getter is not None and any(name_of(d) == 'property' for d in getter.decorator_list):
                return self.inline(getter, {}, whole=True)[-1].value
            if (found := self.values(path)) and all(value is None for value in found):
                return ast.Constant(None)
        return node

    def visit_Name(self, node):
        return copy.deepcopy(self.known[node.id]) if isinstance(node.ctx, ast.Load) and node.id in self.known else node

    # ---- expressions

    def visit_IfExp(self, node):
        node.test = self.visit(node.test)
        if is_const(node.test):
            chosen = self.visit(node.body if node.test.value else node.orelse)
            if getattr(node.test, 'is_cache', False) and is_const(chosen):
                chosen.is_cache = True
            return chosen
        node = self.generic_visit(node)
        if name_of(node.test) == 'self.training' and ast.unparse(node) == 'None if self.training else logits':
            return node.orelse
        if ast.unparse(node.body) == ast.unparse(node.orelse):
            return node.body
        sides = [getattr(side, 'value', side) for side in (node.body, node.orelse)]
        if sides == [True, False]:
            return node.test
        return ast.UnaryOp(ast.Not(), node.test) if sides == [False, True] else node

    def visit_BoolOp(self, node):
        wanted, left = isinstance(node.op, ast.Or), []
        for value in map(self.visit, node.values):
            if not is_const(value):
                left.append(value)
            elif bool(value.value) == wanted or value is node.values[-1] and not left:
                left.append(value)
                break
        if any(is_const(value) and bool(value.value) == wanted and (not wanted or value is left[0]) for value in left):
            return ast.Constant(wanted) if not wanted else left[0]
        node.values = left or [ast.Constant(not wanted)]
        return node.values[0] if len(node.values) == 1 else node

    def visit_UnaryOp(self, node):
        node = self.generic_visit(node)
        if isinstance(node.op, ast.Not) and is_const(node.operand):
            return ast.Constant(not node.operand.value)
        return node

    def visit_Compare(self, node):
        node = self.generic_visit(node)
        if (text := ast.unparse(node)) in self.known:
            return self.known[text]
        left, right, op = node.left, node.comparators[0], node.ops[0]
        if isinstance(op, (ast.Is, ast.IsNot)) and is_const(right) and right.value is None and (path := name_of(left)):
            found = self.values(path) if path.startswith('self.') else []
            if found and not any(value is None for value in found):
                return ast.Constant(isinstance(op, ast.IsNot))
        if len(node.ops) == 1 and (is_const(left) and (is_const(right) or isinstance(right, ast.Tuple) and all(
                map(is_const, right.elts)))):
            return ast.Constant(eval(ast.unparse(node), {}))
        return node

    def visit_BinOp(self, node):
        node = self.generic_visit(node)
        left, right = (getattr(side, 'value', None) if is_const(side) else None for side in (node.left, node.right))
        if isinstance(node.op, ast.Mult) and left == 0:
            return ast.Constant(left)
        if isinstance(node.op, ast.Mult) and (left == 1 or right == 1):
            return node.right if left == 1 else node.left
        if isinstance(node.op, ast.Pow) and left == 1:
            return ast.Constant(1.0)
        if isinstance(node.op, ast.Div) and right == 1:
            return node.left
        if isinstance(node.op, ast.Add) and left == 0:
            return node.right
        if left is not None and right is not None:
            return constant(eval(ast.unparse(node), {}))
        return node

    def visit_Subscript(self, node):
        node = self.generic_visit(node)
        if name_of(node.value) in self.code.tables and is_const(node.slice):
            entry = self.code.tables[name_of(node.value)].get(ast.unparse(node.slice))
            if entry is None:
                raise CannotFold(ast.unparse(node))
            return self.visit(copy.deepcopy(entry))
        if isinstance(node.value, ast.Tuple) and is_const(node.slice):
            return node.value.elts[node.slice.value]
        return node

    def visit_Call(self, node):
        if (text := ast.unparse(node)) in self.known:
            return self.known[text]
        function = name_of(node.func)
        if function == 'self.kernel':
            node.func = parse('F.scaled_dot_product_attention')
        if function in ('make_attention', 'make_ffn'):
            return parse(f'{type(self.instances[0].attn if "att" in function else self.instances[0].ffn).__name__}(config)')
        if function == 'make_blocks':
            block = type(self.model.h[0]).__name__
            return parse(f'nn.ModuleList({block}(config, layer) for layer in range(1, config.n_layer + 1))')
        if isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == 'super()' and self.owner is not None:
            owner, called = self.code.method(self.kind, node.func.attr, after=self.owner)
            if called is not None and node.func.attr != '__init__':
                return self.expression(called, self.generic_visit(node), owner) or node
        node = self.generic_visit(node)
        node.args = [arg for arg in node.args if not getattr(arg, 'is_cache', False)]
        if isinstance(node.func, ast.Lambda):
            values = dict(zip([arg.arg for arg in node.func.args.args], node.args))
            return self.visit(Substitute(values).visit(copy.deepcopy(node.func.body)))
        function = name_of(node.func)
        if function == 'F.dropout' and is_const(node.args[1]) and not node.args[1].value:
            return node.args[0]
        if function == 'torch.add' and all(k.arg == 'alpha' and is_const(k.value) and k.value.value == 1 for k in node.keywords):
            return ast.BinOp(node.args[0], ast.Add(), node.args[1])
        if function == 'F.scaled_dot_product_attention':
            node.keywords = [k for k in node.keywords if not is_const(k.value) or k.value.value not in (False, 0.0, None)]
        if function == 'replace' and isinstance(node.args[0], ast.Name):
            return node.args[0]
        if function in self.code.defs and function.startswith('make_'):
            inlined = self.inline(self.code.defs[function], bind(self.code.defs[function], node, False), whole=True)
            return inlined[-1].value
        found = self.values(function) if function.startswith('self.') else []
        if found and all(isinstance(x, nn.Identity) or isinstance(x, nn.Dropout) and not x.p for x in found):
            return node.args[0]
        if found and all(isinstance(x, nn.Module) and type(x) is type(found[0]) for x in found):
            return self.of_module(node, function, 'forward', found) or node
        if isinstance(node.func, ast.Attribute) and (path := ast.unparse(node.func.value)).startswith('self'):
            found = self.values(path)
            owner, called = self.code.method(self.kind, node.func.attr)
            if path == 'self' and called is not None:
                return self.expression(called, node, owner) or node
            if path != 'self' and found and all(isinstance(x, nn.Module) and type(x) is type(found[0]) for x in found):
                return self.of_module(node, path, node.func.attr, found) or node
        return node

    def of_module(self, call, path, name, found):
        """Return what another module's method returns, if it reads nothing of the module; else None."""
        owner, called = self.code.method(type(found[0]), name)
        if called is None or type(found[0]).__module__ != source.__name__:
            return None
        of_config = {key: value for key, value in self.known.items() if key.startswith(LOOP + CACHE)}
        inner = Fold(self.code, self.model, found, of_config)
        start_owner, start = self.code.method(type(found[0]), '__init__')
        inner.inline(start, {}, owner=start_owner)      # what its constants are
        call = copy.deepcopy(call)
        token = f'__caller{next(NUMBERS)}'
        rename(call, 'self', token)
        result = inner.expression(called, call, owner)
        if result is None or name == 'forward' and 'self' in loads([result]):
            return None                                 # it has a state
        text = ast.unparse(ast.fix_missing_locations(result))
        return self.visit(parse(re.sub(rf'\b{token}\b', 'self', re.sub(r'\bself\b', path, text))))

    def expression(self, function, call, owner):
        """Return a function's value as an expression, if its body is one return; else None."""
        body = body_of(function)
        if (owner, function.name) in self.busy or len(body) > 6 or any(isinstance(s, (ast.For, ast.With)) for s in body):
            return None
        if function.args.kwarg or any(k.arg is None for k in call.keywords):
            return None
        arguments = bind(function, call, 'self' in [arg.arg for arg in function.args.args])
        result = self.inline(function, arguments, owner=owner, whole=True, strict=False)
        if not result or len(result) != 1 or not isinstance(result[0], ast.Return):
            return None
        return result[0].value

    # ---- statements

    def inline(self, function, arguments, owner=None, whole=False, strict=True):
        """Return a function's folded statements with its arguments in place. With `whole`, they must be one return."""
        body, outer = body_of(function), (self.owner, self.busy)
        arguments = {key: value for key, value in arguments.items() if key not in CACHE}
        self.owner, self.busy = owner or self.owner, [*self.busy, (owner, function.name)]
        fed = {name_of(arg) for s in body for node in ast.walk(s) if isinstance(node, ast.Call)
               and ast.unparse(node.func).startswith('super()') for arg in node.args}          # which may be read twice there
        simple = {key: value for key, value in arguments.items() if key not in stores(body) and (
            loads(body).count(key) < 2 and key not in fed or is_const(value) or name_of(value))}
        bound = [ast.Assign([ast.Name(key, ast.Store())], value) for key, value in arguments.items()
                 if key not in simple and name_of(value) != key]
        if bound and whole and not strict:
            self.owner, self.busy = outer
            return None
        body = bound + [Substitute(simple).visit(s) for s in body]
        result = tidy(self.block(body))
        self.owner, self.busy = outer
        if whole and strict and (len(result) != 1 or not isinstance(result[0], ast.Return)):
            raise CannotFold(f'the function {function.name}')
        return result

    def block(self, statements, always=True):
        out, local = [], {}
        for number, statement in enumerate(statements):
            for folded in self.statement(statement, statements[number + 1:]):
                if always and isinstance(folded, ast.Assign) and isinstance(folded.targets[0], ast.Name) and (
                                is_const(folded.value) or isinstance(folded.value, (ast.Lambda, ast.Name))):
                    key = folded.targets[0].id
                    if sum(key in stores([s]) for s in statements) == 1 and not isinstance(folded.value, ast.Name) or (
                            isinstance(folded.value, ast.Name) and self.is_alias(key, folded.value.id, statements)):
                        local[key] = self.known.get(key)
                        self.known[key] = folded.value
                        continue
                out.append(folded)
                if isinstance(folded, ast.Return):
                    break
            else:
                continue
            break
        for key, value in local.items():
            self.known.pop(key)
            if value is not None:
                self.known[key] = value
        return out

    def is_alias(self, key, name, statements):
        """Whether a local name stands for another that does not change."""
        return name in self.code.defs or sum(key in stores([s]) for s in statements) == 1 and name not in stores(statements)

    def statement(self, node, rest=()):
        """Return the statements that are left of one."""
        if isinstance(node, ast.If):
            if '__func__' in ast.unparse(node.test):
                return []
            node.test = self.visit(node.test)
            if is_const(node.test):
                return self.block(node.body if node.test.value else node.orelse)
            changed = node.body[0]
            if isinstance(changed, ast.Assign) and ast.unparse(changed.value).startswith('replace('):
                for keyword in changed.value.keywords:          # the config differs from block to block
                    for way in LOOP:
                        key = f'{way}.{keyword.arg}'
                        self.known[key] = self.visit_IfExp(ast.IfExp(copy.deepcopy(node.test), keyword.value, self.known[key]))
                return []
            node.body, node.orelse = self.block(node.body, False), self.block(node.orelse, False)
            if not node.body and not node.orelse:
                return []
            node.body = node.body or [ast.Pass()]
            return [node]
        if isinstance(node, ast.For):
            node.iter = self.visit(node.iter)
            if isinstance(node.iter, ast.Tuple) and not node.iter.elts:
                return []
            node.body = self.block(node.body, False)
            if isinstance(node.target, ast.Tuple) and name_of(getattr(node.iter, 'func', None)) == 'enumerate' and (
                    node.target.elts[0].id not in loads(node.body)):
                node.target, node.iter = node.target.elts[1], node.iter.args[0]
            return [node]
        if isinstance(node, ast.AugAssign):
            node.value = self.visit(node.value)
            return [] if isinstance(node.op, ast.Mult) and is_const(node.value) and node.value.value == 1 else [node]
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            return self.assign(node, rest)
        if isinstance(node, ast.Assign):                # such as self.attn.v_gain = self.attn.v1_gain = None
            found = [value for target in node.targets for value in self.values(name_of(target))]
            return [] if is_const(node.value) and all(value is None for value in found) else [node]
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            call = node.value
            if ast.unparse(call.func) == 'super().__init__':
                owner, called = self.code.method(self.kind, '__init__', after=self.owner)
                if called is not None:
                    return self.inline(called, bind(called, call, True), owner=owner)
            if name_of(call.func) == 'self.register_buffer' and all(v is None for v in self.values(f'self.{call.args[0].value}')):
                return []
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Call):
            if (spliced := self.splice(node.value)) is not None:
                return spliced
        return [self.visit(node)]

    def splice(self, call):
        """Return the statements of a method of self, of super() or of a function that a statement returns; None if it stays."""
        function, path = None, ast.unparse(call.func)
        owner = None
        if path.startswith('super().') and path != 'super().__init__':
            owner, function = self.code.method(self.kind, path.removeprefix('super().'), after=self.owner)
        elif path.startswith('self.') and path.count('.') == 1:
            owner, function = self.code.method(self.kind, path.removeprefix('self.'))
        elif path == 'run_blocks':
            function = self.code.defs[path]
        if function is None or function.args.kwarg or (owner, function.name) in self.busy or any(
                k.arg is None for k in call.keywords):
            return None
        call = copy.deepcopy(call)
        call.args = [self.visit(arg) for arg in call.args]
        return self.inline(function, bind(function, call, 'self' in [arg.arg for arg in function.args.args]), owner=owner)

    def spliced(self, target, value, rest, node):
        """Return the statements of a called method, whose value a target gets; None if the call stays. Names that the method
        changes must not be read later."""
        if not isinstance(value, ast.Call) or not re.match(r'(self|super\(\))\.\w+$', ast.unparse(value.func)):
            return None
        *before, last = self.splice(value) or [None]
        if not isinstance(last, ast.Return) or (stores(before) - stores([target])) & {*loads(rest)}:
            return None
        return [*before, *self.assign(ast.copy_location(ast.Assign([target], last.value), node))]

    def assign(self, node, rest=()):
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Tuple):
            if (spliced := self.spliced(target, value, rest, node)) is not None:
                return spliced
            if isinstance(value, ast.GeneratorExp) and not value.generators[0].ifs and any(
                    isinstance(t, ast.Attribute) for t in target.elts):
                loop = value.generators[0]
                items = self.visit(copy.deepcopy(loop.iter))
                items = items.elts if isinstance(items, ast.Tuple) else [ast.Constant(i) for i in range(len(target.elts))]
                values = [Substitute(dict(zip([loop.target.id] if isinstance(loop.target, ast.Name) else [
                    t.id for t in loop.target.elts], [item] if isinstance(loop.target, ast.Name) else item.elts))).visit(
                        copy.deepcopy(value.elt)) for item in items]
                value = ast.Tuple(values, ast.Load())
            else:
                value = self.visit(value)
            if ast.unparse(target) == ast.unparse(value):
                return []
            if isinstance(value, ast.Tuple) and not any(
                    name_of(t) in loads(value.elts[i + 1:]) for i, t in enumerate(target.elts)):
                return [s for t, v in zip(target.elts, value.elts) for s in self.assign(ast.Assign([t], v, lineno=node.lineno))]
            node.value = value
            return [node]
        if isinstance(target, ast.Name) and (spliced := self.spliced(target, value, rest, node)) is not None:
            return spliced
        node.value = self.visit(value)
        if isinstance(target, ast.Attribute):
            key = ast.unparse(target)
            if is_const(node.value) or name_of(node.value).startswith('F.') or isinstance(node.value, ast.Lambda):
                self.known[key] = node.value
            else:
                self.known.pop(key, None)
        if name_of(target) and name_of(target) == name_of(node.value):
            return []
        return [node]


def tidy(statements):
    """Put a value that is returned at once in the place of its name, and drop what is assigned twice alike."""
    out, assigned = [], {}
    for node in statements:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and 'self' not in loads([node]):
            text = ast.unparse(node.value)
            if assigned.get(node.targets[0].id) == text and not stores(statements) & {*loads([node.value])}:
                continue
            assigned[node.targets[0].id] = text
        else:
            assigned = {key: text for key, text in assigned.items() if key not in stores([node])}
        if out and isinstance(node, ast.Return) and isinstance(node.value, ast.Name) and isinstance(out[-1], ast.Assign):
            if ast.unparse(out[-1].targets[0]) == node.value.id:
                node = ast.copy_location(ast.Return(out.pop().value), node)
        out.append(node)
    return out


# ----------------------------------------------------------------------------- the printed file

def known_of(config):
    """Return {source of a field: its value as a node} for all that is no size, and what __post_init__ derives from sizes."""
    values = {f.name: constant(getattr(config, f.name)) for f in fields(config) if f.init and f.name not in SIZES}
    values |= {name: ast.Constant(0) for name in ('n_kv_head', 'd_ff') if not getattr(config, name)}
    values |= dict(causal=ast.Constant(True), grouped=ast.Constant(config.grouped))
    mup, deep = config.mup_base_width, config.mup_base_depth
    head_dim = 'config.n_embd // config.n_head'
    derived = dict(
        head_dim=head_dim, kv_heads='config.n_kv_head' if config.n_kv_head else 'config.n_head',
        width_growth=f'config.n_embd / {mup}' if mup else '1.0', depth_growth=f'config.n_layer / {deep}' if deep else '1.0',
        branch_scale=f'{config.residual_scale * deep} / config.n_layer' if deep else repr(config.residual_scale),
        logit_scale=f'{config.mup_base_head_dim ** 0.5} / ({head_dim})' if mup else f'({head_dim}) ** -0.5')
    values['z_loss'] = ast.Constant(0.0)                # what joins the loss in training stays with train.py
    known = {}
    for way in LOOP:
        known |= {f'{way}.{name}': value for name, value in values.items()}
        known |= {f'{way}.{name}': parse(text.replace('config.', f'{way}.')) for name, text in derived.items()}
    for name in CACHE:
        known[name] = ast.Constant(None)
        known[name].is_cache = True
    return known | {'self.recompute': ast.Constant(False), 'q.size(2) > 1': ast.Constant(True),
                    'layer <= 0.0': ast.Constant(False)}


class Printed:
    """The classes and functions of a model, folded."""

    def __init__(self, model, title):
        self.title = title
        self.code, self.model, self.known = Code(source.__file__), model, known_of(model.config)
        self.instances, self.functions, self.classes = {}, {}, {}
        for module in model.modules():
            if type(module).__module__ == source.__name__:
                self.instances.setdefault(type(module), []).append(module)
        if not getattr(model.h[0], 'passes_state', True):
            self.known['isinstance(x, State)'] = ast.Constant(False)
        self.folds = {kind: Fold(self.code, model, instances, self.known) for kind, instances in self.instances.items()}
        for kind, fold in self.folds.items():
            self.classes[kind.__name__] = self.class_of(kind)
            for name in ('__init__', 'forward', *(['after_step'] if kind is type(model) and self.has_after_step() else [])):
                self.add_method(kind, fold, name)
        while self.add_methods():
            pass
        self.drop_unread()
        self.drop_layer()
        self.add_functions()

    def class_of(self, kind):
        """Return a class without methods, with the docstring of the first class of model.py in its MRO."""
        owner = next(k for k in kind.__mro__ if k.__name__ in self.code.defs and not k.__name__.startswith('Variant'))
        doc = ast.get_docstring(self.code.defs[owner.__name__], clean=False)
        beta = ' + β' * self.model.config.bias
        doc = self.title if owner.__name__ == 'Block' else doc.replace(' [+ β, with config.bias]', beta)
        base = next(k for k in kind.__mro__ if k.__module__ != source.__name__)
        node = ast.ClassDef(kind.__name__, [parse(f'nn.{base.__name__}')], [], [], [])
        node.body = [ast.Expr(ast.Constant(doc))] * bool(doc)
        return node

    def add_method(self, kind, fold, name):
        owner, node = self.code.method(kind, name)
        if node is None:
            return
        node, fold.owner = copy.deepcopy(node), owner
        node.body = fold.inline(node, {}, owner=owner) or [ast.Pass()]
        defaults = dict(zip([arg.arg for arg in node.args.args][::-1], node.args.defaults[::-1]))
        node.args.args = [arg for arg in node.args.args if arg.arg not in CACHE]
        node.args.defaults = [defaults[arg.arg] for arg in node.args.args if arg.arg in defaults]
        self.classes[kind.__name__].body.append(node)

    def add_methods(self):
        """Add methods that are called and not there. Return whether there were any."""
        read = {node.attr for tree in self.classes.values() for m in tree.body for node in ast.walk(m)
                if isinstance(node, ast.Attribute) and isinstance(m, ast.FunctionDef) and m.name != '__init__'
                and re.match(r'(self|block)\b', ast.unparse(node.value))}
        read -= {'forward', 'hidden', 'output', 'sample', 'generate', 'num_params', 'flops_per_token'}
        added = False
        for kind, fold in self.folds.items():
            own = {m.name for m in self.classes[kind.__name__].body if isinstance(m, ast.FunctionDef)}
            for name in sorted(read - own):
                if self.code.method(kind, name)[1] is not None:
                    self.add_method(kind, fold, name)
                    added = True
        return added

    def has_after_step(self):
        return self.model.config.unit_weights or self.model.config.qk_clip

    def drop_unread(self):
        """Drop attributes that nothing reads and that are no parameters: constants stand where they were read."""
        changed = True
        while changed:
            read = {node.attr for tree in self.classes.values() for node in ast.walk(tree)
                    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
            changed = False
            for kind, instances in self.instances.items():
                for method in self.classes[kind.__name__].body:
                    if not isinstance(method, ast.FunctionDef) or method.name != '__init__':
                        continue
                    for i, node in enumerate(method.body):
                        if isinstance(node, ast.Assign) and name_of(node.targets[0]).startswith('self.'):
                            attribute = node.targets[0].attr
                            later = any(name_of(t) == f'self.{attribute}' for s in method.body[i + 1:]
                                        if isinstance(s, ast.Assign) for t in s.targets)
                            held = [getattr(x, attribute, None) for x in instances]
                            kept = any(isinstance(v, nn.Parameter) or [*getattr(v, 'parameters', tuple)()] for v in held)
                            if later or attribute not in read and not kept:
                                method.body[i], changed = None, True
                        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and name_of(
                                node.value.func) == 'attach_aux_and_logged':
                            method.body[i] = None
                    method.body = [node for node in method.body if node is not None]
            for method in (m for tree in self.classes.values() for m in tree.body if isinstance(m, ast.FunctionDef)):
                used = loads(method.body)
                left = [s for s in method.body if not (isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name)
                                                       and s.targets[0].id not in used)]
                changed, method.body = changed or len(left) < len(method.body), left

    def drop_layer(self):
        """Drop the number of a block where its constructor does not read it."""
        name = type(self.model.h[0]).__name__
        start = next(m for m in self.classes[name].body if isinstance(m, ast.FunctionDef) and m.name == '__init__')
        if 'layer' not in loads(start.body):
            start.args.args = start.args.args[:2]
            for node in ast.walk(self.classes[type(self.model).__name__]):
                if isinstance(node, ast.GeneratorExp) and name_of(getattr(node.elt, 'func', None)) == name:
                    node.elt.args, node.generators[0] = node.elt.args[:1], ast.comprehension(
                        ast.Name('_', ast.Store()), parse('range(config.n_layer)'), [], 0)

    def add_functions(self):
        """Add the functions of model.py that are still called, and drop classes that nothing makes."""
        todo = list(self.classes.values())
        while todo:
            for name in loads([todo.pop()]):
                if name in self.code.defs and name not in (*self.functions, *self.classes, 'init_weights', 'GPTConfig'):
                    node = copy.deepcopy(self.code.defs[name])
                    if isinstance(node, ast.FunctionDef) or 'NamedTuple' in map(name_of, node.bases):
                        self.functions[name] = node
                        todo.append(node)
        made = {name for tree in self.classes.values() for name in loads([tree])}
        self.classes = {name: tree for name, tree in self.classes.items() if name in made or name == 'GPT'}

    def text(self):
        order = [*self.functions.values(), *(self.classes[name] for name in sorted(self.classes, key=self.place))]
        return '\n\n\n'.join(map(self.unparse, order))

    def place(self, name):
        node = self.code.defs.get(name) or self.code.defs.get(name.removeprefix('Variant'))
        return (name == 'GPT', 'Block' in name, node.lineno)

    def unparse(self, node):
        """Unparse a definition, with the comments of the lines that stay."""
        text, marks = ast.unparse(ast.fix_missing_locations(node)), {}
        for statement in (s for s in ast.walk(node) if isinstance(s, (ast.Assign, ast.Return)) and hasattr(s, 'lineno')):
            if statement.lineno in self.code.comments:
                marks[ast.unparse(statement).split('\n')[0]] = self.code.comments[statement.lineno]
        lines = []
        for line in text.split('\n'):
            mark = marks.pop(line.strip(), '')
            lines.append(f'{line}  {mark}' if mark and len(line) + len(mark) + 2 <= WIDTH else line)
        return '\n'.join(lines)


def init_text(printed):
    """Return the function that draws the weights, with a table of what kind each module is."""
    model, code, kinds = printed.model, printed.code, {}
    for name, p in model.named_parameters():
        row = model.config.params.get(module_path(name))
        if row and row.init not in ('', 'constructor'):
            kinds.setdefault(row.init, {})[strip(name)] = None
    modules = [module for names in kinds.values() for module in names]
    has_bias = any(name.endswith('.bias') and strip(name) in modules for name, _ in model.named_parameters())
    known = printed.known | ({} if has_bias else {"name.endswith('.bias')": ast.Constant(False)})
    body = [s for s in body_of(code.defs['init_weight'])[1:] if not (isinstance(s, ast.Assign) and (
        'generator' in ast.unparse(s.targets[0]) or 'torch.zeros(shape)' in ast.unparse(s)))]
    for node in (n for s in body for n in ast.walk(s)):
        if isinstance(node, ast.Call):
            node.keywords = [keyword for keyword in node.keywords if keyword.arg != 'generator']
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In) and name_of(node.left) == 'module':
            node.comparators[0].elts = [e for e in node.comparators[0].elts if e.value in modules]
    tree = as_branches(Fold(code, model, [model], known).block(body))
    text = re.sub(r'\bshape\b', 'p.shape', ast.unparse(ast.fix_missing_locations(ast.Module(tree, []))))
    text = re.sub(r'^else:', 'elif kind:', text, flags=re.MULTILINE).replace('\n', '\n        ')
    table = ' | '.join(f'dict.fromkeys({list(names)!r}, {kind!r})' for kind, names in kinds.items())
    return f'''KINDS = {table}


@torch.no_grad()
def init_weights(model):
    """Draw the weights of the modules in KINDS; the others start as their classes say."""
    c = model.config
    for name, p in model.named_parameters():
        module = re.sub(r'^h\\.\\d+\\.|\\.(weight|bias)$', '', name)
        kind = KINDS.get(module)
        {text}'''


def as_branches(statements):
    """Make  if a: return b; c  to  if a: b; else: c."""
    out = []
    for i, node in enumerate(statements):
        if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Return):
            node.body, node.orelse = as_branches(node.body), as_branches(statements[i + 1:])
            return [*out, node]
        if isinstance(node, ast.Return):
            value = parse('p.zero_()') if name_of(node.value) == 'p' else node.value
            return [*out, ast.Expr(value)]
        out.append(node)
    return out


def strip(name):
    return re.sub(r'^h\.\d+\.|\.(weight|bias)$', '', name)


GENERATE = '''
    @torch.no_grad()
    def generate(self, idx, max_new_tokens, temperature=1.0):
        """idx (B, T) → (B, T + max_new_tokens)"""
        for _ in range(max_new_tokens):
            logits = self(idx[:, -self.config.block_size :])[0][:, -1] / temperature
            idx = torch.cat((idx, torch.multinomial(logits.softmax(-1), 1)), dim=1)
        return idx
'''
HEAD = '''"""
{title}

The weights have the names of nanoNorm, whose model.py this was printed from.
"""

{imports}
import torch
from torch import nn
from torch.nn import functional as F


'''
MAIN = '''


if __name__ == '__main__':
    model = GPT(Config())
    print(f'{sum(p.numel() for p in model.parameters()):,} parameters')
    if os.path.exists(weights := os.path.splitext(__file__)[0] + '.pt'):
        model.load_state_dict(torch.load(weights))
    print(model.eval().generate(torch.zeros(1, 1, dtype=torch.long), 32)[0].tolist())
'''


def flatten(config, title=''):
    """Return the source of a plain file with the model of a GPTConfig. Raise ValueError if it would compute something else."""
    small = dict(n_layer=4, n_head=4, n_embd=16, block_size=16, vocab_size=40, n_kv_head=min(config.n_kv_head, 2),
                 d_ff=24 if config.d_ff else 0)
    torch.manual_seed(0)
    model = GPT(type(config)(**{f.name: getattr(config, f.name) for f in fields(config) if f.init} | small))
    try:
        printed = Printed(model, title)
        sizes = [name for name in SIZES if getattr(config, name)]
        lines = '\n'.join(f'    {name}: int = {getattr(config, name)}' for name in sizes)
        code = '\n\n\n'.join((f'@dataclass\nclass Config:\n{lines}', printed.text() + GENERATE, init_text(printed)))
    except (AttributeError, KeyError, IndexError, TypeError, StopIteration) as error:
        raise ValueError(f'this edit of model.py cannot be folded: {type(error).__name__} {error}') from error
    code = re.sub(r'\bVariant(?=[A-Z])', '', code)
    code = re.sub(r'\*\* \((-[\d.]+)\)', r'** \1', re.sub(r'ModuleList\(\((.*)\)\)\n', r'ModuleList(\1)\n', code))
    code = '\n'.join(map(without_parentheses, code.split('\n')))
    imports = ''.join(f'import {name}\n' for name in ('itertools', 'math', 'os', 're') if f'{name}.' in code + MAIN)
    imports += 'from dataclasses import dataclass\n' + 'from typing import NamedTuple\n' * ('NamedTuple' in code)
    text = HEAD.format(title=title, imports=imports) + code + MAIN
    text = formatted(text)
    check(model, text)
    return text


def without_parentheses(line):
    """Take the parentheses off a tuple that is returned or assigned."""
    found = re.fullmatch(r'( *(?:return|[\w, ]+ =) )\((.*)\)', line)
    if found and isinstance(parse(f'({found[2]})'), ast.Tuple) and isinstance(parse_or_none(found[2]), ast.Tuple):
        return found[1] + found[2]
    return line


def parse_or_none(text):
    try:
        return parse(text)
    except SyntaxError:
        return None


def formatted(text):
    """Format by ruff, if it is installed."""
    command = [sys.executable, '-m', 'ruff', 'format', f'--config=line-length={WIDTH}', '--config=format.quote-style="single"']
    done = subprocess.run([*command, '-'], input=text, capture_output=True, encoding='utf-8', cwd='/')
    return done.stdout if done.returncode == 0 else text


def check(model, text):
    """Raise ValueError unless the text's model has the logits and gradients of ours, with the same weights."""
    space = {'__name__': 'flat'}
    try:
        exec(text, space)
        sizes = {name: getattr(model.config, name) for name in SIZES if name in space['Config'].__dataclass_fields__}
        theirs = space['GPT'](space['Config'](**sizes))
        check_start(model, theirs, space['init_weights'])
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.1 * torch.randn_like(p))
        theirs.load_state_dict(model.state_dict())
        model, theirs = model.double(), theirs.double()         # rounding hides nothing there
        idx, found = torch.randint(model.config.vocab_size, (2, 11)), []
        for net in model.eval(), theirs.eval():
            logits, loss = net(idx[:, :-1], idx[:, 1:].contiguous())
            loss.backward()
            torch.manual_seed(0)
            with torch.no_grad():                       # both take PyTorch's kernel, and drop out the same
                dropped = net.train()(idx[:, :-1])[0]
            found.append({'': logits, 'dropout': dropped} | {
                name: p.grad for name, p in net.named_parameters() if p.grad is not None})
    except Exception as error:
        raise ValueError(f'model.py cannot be printed with this config: {type(error).__name__}: {error}') from error
    ours, flat = found
    if ours.keys() != flat.keys() or not all(torch.allclose(ours[name], flat[name], rtol=1e-8) for name in ours):
        raise ValueError('model.py cannot be printed with this config: the printed file would compute other logits')


def check_start(model, theirs, init):
    """Raise ValueError unless each weight starts as ours: a generator with its seed draws the same numbers."""
    for name, p in theirs.named_parameters():
        seed = hash_seed(model.init_seed, name)
        one = SimpleNamespace(config=theirs.config, named_parameters=lambda: [(name, p)])
        torch.manual_seed(seed)
        init(one)
        if not torch.allclose(p, model.get_parameter(name), rtol=1e-6):
            raise ValueError(f'{name} would start otherwise')


def title_of(paths):
    """Return the first line of the last config file, which says what the placement is."""
    if not paths:
        return f'The model of {out_dir}' if out_dir else 'A GPT'
    with open(os.path.join(ROOT, paths[-1]) if not os.path.exists(paths[-1]) else paths[-1], encoding='utf-8-sig') as f:
        line = f.readline().strip()
    return line.lstrip('# ') if line.startswith('#') else paths[-1]


def main():
    config = configure(globals(), TRAIN, GPTConfig)
    if to and os.path.lexists(to):
        raise ValueError(f'to={to!r}: there is such a file, which you may have edited; choose another name')
    weights = None
    if out_dir:
        model, _ = load_run(os.path.join(out_dir, checkpoint))
        about, weights = model.config, model.state_dict()
    else:
        about = gpt_config(config)
    text = flatten(about, title_of([arg for arg in sys.argv[1:] if not arg.startswith('--')]))
    if not to:
        print(text, end='')
        return
    write_whole(to, lambda f: f.write(text.encode()))
    if weights is not None:
        write_whole(os.path.splitext(to)[0] + '.pt', lambda f: torch.save(weights, f))


if __name__ == '__main__':
    main()
