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
import os
import re
import subprocess
import textwrap
import tokenize
from collections import Counter
from dataclasses import fields
from types import SimpleNamespace

import torch
from torch import nn

import model as source
from engine.checkpoint import load_run
from engine.files import write_whole
from engine.keys import gpt_config
from model import FFNS, GPT, GPTConfig, hash_seed, module_path

# ----------------------------------------------------------------------------- keys
out_dir = ''                        # a run's folder; empty: the model of the config
checkpoint = 'best.pt'              # best.pt: the lowest validation loss | ckpt.pt: the latest | ckpt-000500.pt: a kept one
to = ''                             # the file to write; empty: stdout
cache = False                       # print the KV cache too, with which generation computes each token once
# -----------------------------------------------------------------------------
SIZES = 'n_layer n_head n_kv_head n_embd d_ff block_size vocab_size'.split()
LOOP = ('config', 'c', 'self.config')                   # how model.py calls its config
WIDTH = 100


class CannotFold(ValueError):
    pass


def parse(text):
    return ast.parse(text, mode='eval').body


def is_const(node):
    return isinstance(node, ast.Constant)


def constant(value):
    return ast.UnaryOp(ast.USub(), ast.Constant(-value)) if isinstance(value, float) and value < 0 else ast.Constant(value)


def assign(name, value):
    return ast.Assign([ast.Name(name, ast.Store())], value, lineno=0)


def name_of(node):
    """Return the source of a name or of attributes of one, such as self.attn.wq; of other nodes ''."""
    return ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else ''


def names(nodes, context):
    """Return the names that are read (ast.Load) or assigned (ast.Store) in these nodes, with repetitions."""
    return [n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, context)]


def reads(nodes):
    return names(nodes, ast.Load)


def stores(nodes):
    return names(nodes, ast.Store)


class Substitute(ast.NodeTransformer):
    """Replace names that are read."""

    def __init__(self, values):
        self.values = values

    def visit_Name(self, node):
        return copy.deepcopy(self.values[node.id]) if isinstance(node.ctx, ast.Load) and node.id in self.values else node


class Code:
    """The definitions of model.py: classes and functions, tables, comments at the end of lines."""

    def __init__(self, path):
        with open(path, encoding='utf-8') as f:
            text = f.read()
        self.defs, self.tables = {}, {}
        for node in ast.parse(text).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                self.defs[node.name] = node
            elif isinstance(node, (ast.Assign, ast.AugAssign)) and isinstance(node.value, ast.Dict):
                target = node.target if isinstance(node, ast.AugAssign) else node.targets[0]
                entries = {ast.unparse(key): value for key, value in zip(node.value.keys, node.value.values) if key}
                self.tables.setdefault(target.id, {}).update(entries)
        self.comments = {token.start[0]: token.string for token in tokenize.generate_tokens(io.StringIO(text).readline)
                         if token.type == tokenize.COMMENT and token.line[:token.start[1]].strip()}

    def method(self, kind, name, after=None):
        """Return (owner, method) of a class: the first of its MRO, or the first behind the class `after`."""
        owners = [k for k in kind.__mro__ if k.__name__ in self.defs or k.__module__ == source.__name__]
        for owner in owners[owners.index(after) + 1 if after else 0:]:
            for node in getattr(self.defs.get(owner.__name__), 'body', ()):
                if isinstance(node, ast.Assign) and name_of(node.targets[0]) == name and isinstance(node.value, ast.Attribute):
                    return self.method(getattr(source, name_of(node.value.value)), name)        # such as expand = ResiDual.expand
                if isinstance(node, ast.FunctionDef) and node.name == name:
                    return owner, node
        return None, None


def body_of(function):
    """Copy a function's statements, without its docstring."""
    return copy.deepcopy(function.body[ast.get_docstring(function) is not None:])


def bind(function, call):
    """Return {parameter: argument} of a call."""
    parameters = [arg.arg for arg in function.args.args if arg.arg != 'self']
    defaults = function.args.defaults
    found = dict(zip(parameters[len(parameters) - len(defaults):], defaults)) | dict(zip(parameters, call.args))
    found |= {keyword.arg: keyword.value for keyword in call.keywords}
    if set(parameters) != found.keys() or any(isinstance(arg, ast.Starred) for arg in call.args):
        raise CannotFold(f'the arguments of  {ast.unparse(call)}')
    return found


# what is left of a sum or product with such a number on the left (0) or right (1) side: which side
LEFT_OF = {(ast.Mult, 0, 0): 0, (ast.Mult, 0, 1): 1, (ast.Mult, 1, 1): 0, (ast.Div, 1, 1): 0, (ast.Add, 0, 0): 1,
           (ast.Pow, 0, 1): 0}


class Fold(ast.NodeTransformer):
    """Evaluate the methods of one class, of which the model has these instances, as far as the config decides them. `known` has
    {source of an expression: its value}. A call that can be inlined becomes statements in front, `before`, and a value."""

    def __init__(self, code, model, instances, known, others):
        self.code, self.model, self.instances, self.known, self.others = code, model, instances, dict(known), others
        self.kind, self.owner, self.busy = type(instances[0]), None, []
        self.before, self.later, self.within, self.returned = None, set(), Counter(), None

    def values(self, path):
        """Return the values of self.path in all instances, [] if it is no attribute of theirs."""
        if not re.fullmatch(r'self[\w.\[\]-]+', path):
            return []
        try:
            return [eval(path, {'self': x}) for x in self.instances]
        except (AttributeError, IndexError, TypeError):
            return []

    # ---- expressions

    def visit(self, node):
        if isinstance(node, ast.expr) and not isinstance(getattr(node, 'ctx', None), ast.Store):
            if (text := ast.unparse(node)) in self.known:
                return copy.deepcopy(self.known[text])
        return super().visit(node)

    def apart(self, node):
        """Visit what is evaluated later, or not always: nothing may be computed in front of it."""
        outer, self.before = self.before, None
        node = self.generic_visit(node) if isinstance(node, (ast.Lambda, ast.GeneratorExp)) else self.visit(node)
        self.before = outer
        return node

    visit_Lambda = visit_GeneratorExp = apart

    def visit_IfExp(self, node):
        node.test = self.visit(node.test)
        if is_const(node.test):
            chosen, other = (node.body, node.orelse) if node.test.value else (node.orelse, node.body)
            self.within -= Counter(reads([other]))
            return self.visit(chosen)
        node.body, node.orelse = self.apart(node.body), self.apart(node.orelse)
        sides = ast.unparse(node.body), ast.unparse(node.orelse)
        if sides in (('True', 'False'), ('False', 'True')):
            return node.test if sides[0] == 'True' else ast.UnaryOp(ast.Not(), node.test)
        return node.body if sides[0] == sides[1] else node

    def visit_BoolOp(self, node):
        is_or, left = isinstance(node.op, ast.Or), []
        for value in map(self.visit, node.values):
            if is_const(value) and bool(value.value) == is_or:          # it decides
                if not is_or or not left:
                    return value
                left.append(value)
                break
            if not is_const(value):
                left.append(value)
                if is_or and name_of(value).rpartition('.')[2] in SIZES:        # which are not 0
                    break
        node.values = left or [value]
        return node if len(node.values) > 1 else node.values[0]

    def visit_UnaryOp(self, node):
        node = self.generic_visit(node)
        return ast.Constant(not node.operand.value) if isinstance(node.op, ast.Not) and is_const(node.operand) else node

    def visit_Compare(self, node):
        node = self.generic_visit(node)
        left, right = node.left, node.comparators[0]
        if (text := ast.unparse(node)) in self.known:
            return self.known[text]
        if is_const(right) and right.value is None and (found := self.values(name_of(left))) and None not in found:
            return ast.Constant(isinstance(node.ops[0], ast.IsNot))
        if is_const(left) and all(map(is_const, getattr(right, 'elts', [right]))):
            return ast.Constant(eval(text, {}))
        return node

    def visit_BinOp(self, node):
        node = self.generic_visit(node)
        sides = node.left, node.right
        if all(map(is_const, sides)):
            return constant(eval(ast.unparse(node), {}))
        if isinstance(node.op, ast.Pow) and is_const(node.right) and node.right.value == 0:
            return ast.Constant(1.0)
        for i, side in enumerate(sides):
            if is_const(side) and (type(node.op), i, side.value) in LEFT_OF:
                return sides[LEFT_OF[type(node.op), i, side.value]]
        return node

    def visit_Subscript(self, node):
        node = self.generic_visit(node)
        if is_const(node.slice) and name_of(node.value) in self.code.tables:
            return self.visit(copy.deepcopy(self.code.tables[name_of(node.value)][ast.unparse(node.slice)]))
        return node.value.elts[node.slice.value] if is_const(node.slice) and isinstance(node.value, ast.Tuple) else node

    def visit_Attribute(self, node):
        getter = self.code.method(self.kind, node.attr)[1] if name_of(node) == f'self.{node.attr}' else None
        if getter is not None and any(name_of(d) == 'property' for d in getter.decorator_list):
            return self.inline(ast.Call(node, [], []), self.within, getter, None, 'self', self)
        node = self.generic_visit(node)
        found = self.values(name_of(node)) if isinstance(node.ctx, ast.Load) else []
        return ast.Constant(None) if found and all(value is None for value in found) else node

    def visit_Call(self, node):
        name, others_read = ast.unparse(node.func), self.within - Counter(reads([node]))
        if part := {'make_attention': 'attn', 'make_ffn': 'ffn'}.get(name):
            return parse(f'{type(getattr(self.instances[0], part)).__name__}(config)')
        if name == 'make_blocks':
            block = type(self.model.h[0]).__name__
            return parse(f'nn.ModuleList({block}(config, layer) for layer in range(1, config.n_layer + 1))')
        called = None if name in self.known else self.called(name)
        node = self.generic_visit(node)
        name, args = name_of(node.func), node.args
        if isinstance(node.func, ast.Lambda):
            return self.visit(Substitute(dict(zip([a.arg for a in node.func.args.args], args))).visit(node.func.body))
        if name == 'F.dropout' and is_const(args[1]) and not args[1].value or name == 'replace' and isinstance(args[0], ast.Name):
            return args[0]
        if name == 'torch.add' and [getattr(k.value, 'value', 0) for k in node.keywords] == [1.0]:
            return ast.BinOp(args[0], ast.Add(), args[1])
        if name == 'F.scaled_dot_product_attention':
            node.keywords = [k for k in node.keywords if not is_const(k.value) or k.value.value not in (False, 0.0, None)]
        if name == 'hasattr' and name_of(args[0]) == 'self':
            return ast.Constant(all(hasattr(x, args[1].value) for x in self.instances))
        if name == 'torch.arange' and is_const(args[0]) and not args[0].value and len(args) == 2:
            node.args = args[1:]
        found = self.values(name)
        if found and all(isinstance(x, nn.Identity) or isinstance(x, nn.Dropout) and not x.p for x in found):
            return args[0]
        return called and self.inline(node, others_read, *called) or node

    def called(self, name):
        """Return what a call calls, if it may be inlined: (function, owner, path of the receiver, the Fold of its class)."""
        receiver, _, attribute = name.rpartition('.')
        if name in self.code.defs and name.startswith(('make_', 'run_')):
            return self.code.defs[name], None, '', self
        if receiver == 'super()' and attribute != '__init__':
            owner, function = self.code.method(self.kind, attribute, after=self.owner)
            return function and (function, owner, 'self', self)
        for path, method in (receiver, attribute), (name, 'forward'):
            found = [self] if path == 'self' else [self.others.get(type(x)) for x in self.values(path)]
            if found and found[0] and found.count(found[0]) == len(found):
                owner, function = self.code.method(found[0].kind, method)
                if function:
                    return function, owner, path, found[0]

    def inline(self, call, others_read, function, owner, path, fold):
        """Put a function's statements in front, and return its value; None if the call stays. `others_read`: the names that the
        rest of the statement reads."""
        if function.args.kwarg or any(k.arg is None for k in call.keywords) or (owner, function.name) in fold.busy:
            return None
        arguments, raw = bind(function, call), body_of(function)
        given = {key: value for key, value in arguments.items()
                 if key not in stores(raw) and (is_const(value) or isinstance(value, ast.Lambda))}
        *before, last = fold.body(raw, owner, function.name, given) or [None]
        returns = [node for s in before for node in ast.walk(s) if isinstance(node, ast.Return)]
        if not isinstance(last, ast.Return) or returns and call is not self.returned:
            return None
        read = reads([*before, last])
        if 'super' in read or 'self' in read and path not in ('', 'self'):
            return None                                 # what it reads has another name here
        bound, values = [], {}
        for key, value in arguments.items():
            clashes = key in stores(before) or set(reads([value])) & set(stores(before)) - {key}
            if clashes or read.count(key) > 1 and not name_of(value):
                bound += [assign(key, value)] if name_of(value) != key else []
            elif key not in given:
                values[key] = value
        before = bound + [Substitute(values).visit(s) for s in before]
        if before and (self.before is None or set(stores(before)) & (self.later | set(others_read))):
            return None                                 # it is not always called, or would change what is read later
        self.before = [*self.before, *before] if before else self.before
        return self.visit(Substitute(values).visit(last).value)

    # ---- statements

    def body(self, statements, owner, name, given=()):
        """Return a function's statements, folded, where the parameters in `given` have these values."""
        outer = self.owner, self.busy, {key: self.known.get(key) for key in given}
        self.owner, self.busy = owner or self.owner, [*self.busy, (owner, name)]
        self.known |= given
        result = tidy(self.block(statements))
        self.owner, self.busy, known = outer
        self.known = {k: v for k, v in (self.known | known).items() if v is not None}
        return result

    def block(self, statements, later=frozenset(), branches=False):
        """Fold statements one after the other. `later`: names that are read behind them."""
        out, outer, waiting = [], {}, list(statements)
        while waiting and not (out and isinstance(out[-1], ast.Return)):
            first = waiting.pop(0)
            if isinstance(first, ast.If):
                first.test = self.visit(first.test)
                if is_const(first.test):
                    waiting = (first.body if first.test.value else first.orelse) + waiting
                    continue
            for node in self.statement(first, later | set(reads(statements if branches else waiting))):
                if not branches and isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    key, value = node.targets[0].id, node.value         # a local name of a constant or of another name
                    alias = isinstance(value, ast.Name) and (value.id in self.code.defs or value.id not in stores(statements))
                    if stores(statements).count(key) == 1 and (alias or is_const(value) or isinstance(value, ast.Lambda)):
                        outer[key], self.known[key] = self.known.get(key), value
                        continue
                out.append(node)
        self.known = {k: v for k, v in (self.known | outer).items() if v is not None}
        return out

    def statement(self, node, later):
        """Return the statements that are left of one."""
        state = self.before, self.later, self.within, self.returned
        assigned = stores([node]) if isinstance(node, ast.Assign) else []
        self.before, self.later, self.within = [], later - {*assigned}, Counter(reads([node]))
        self.returned = node.value if isinstance(node, ast.Return) else None
        result = getattr(self, f'fold_{type(node).__name__}', self.plain)(node)
        before = self.before
        self.before, self.later, self.within, self.returned = state
        return before + result

    def plain(self, node):
        return [self.visit(node)]

    def fold_If(self, node):
        changed = node.body[0]
        if isinstance(changed, ast.Assign) and ast.unparse(changed.value).startswith('replace(config'):
            for keyword in changed.value.keywords:              # the config differs from block to block
                for way in LOOP:
                    value = ast.IfExp(copy.deepcopy(node.test), keyword.value, self.known[f'{way}.{keyword.arg}'])
                    self.known[f'{way}.{keyword.arg}'] = self.visit(value)
            return []
        later = self.later
        node.body, node.orelse = (self.block(side, later, True) for side in (node.body, node.orelse))
        node.body = node.body or [ast.Pass()]
        return [node] if node.orelse or not isinstance(node.body[0], ast.Pass) else []

    def fold_For(self, node):
        node.iter = self.visit(node.iter)
        node.body = self.block(node.body, self.later, True)
        if name_of(getattr(node.iter, 'func', None)) == 'enumerate' and node.target.elts[0].id not in reads(node.body):
            node.target, node.iter = node.target.elts[1], node.iter.args[0]
        return [] if isinstance(node.iter, ast.Tuple) and not node.iter.elts else [node]

    def fold_Delete(self, node):
        return []                                       # what the instances do not have is dropped where it is assigned

    def fold_AugAssign(self, node):
        node.value = self.visit(node.value)
        return [] if isinstance(node.op, ast.Mult) and is_const(node.value) and node.value.value == 1 else [node]

    def fold_Expr(self, node):
        path = ast.unparse(getattr(node.value, 'func', node.value))
        if path == 'super().__init__' and (found := self.code.method(self.kind, '__init__', after=self.owner))[0]:
            owner, function = found
            raw, given = body_of(function), bind(function, node.value)
            bound = [assign(key, given.pop(key)) for key in [*given] if key in stores(raw)]
            return self.body(bound + [Substitute(given).visit(s) for s in raw], owner, '__init__')
        if path == 'self.register_buffer' and None in self.values(f'self.{node.value.args[0].value}'):
            return []
        return [] if path == 'attach_aux_and_logged' else self.plain(node)

    def fold_Assign(self, node):
        target, value = node.targets[-1], node.value
        if len(node.targets) > 1:                       # such as self.attn.v_gain = self.attn.v1_gain = None
            return [node] if any(value is not None for t in node.targets for value in self.values(name_of(t))) else []
        if isinstance(target, ast.Tuple) and isinstance(value, ast.GeneratorExp) and any(
                isinstance(t, ast.Attribute) for t in target.elts):
            loop = value.generators[0]                  # self.a, self.b = (f(x) for x in (a, b))
            items = self.visit(loop.iter)
            items = items.elts if isinstance(items, ast.Tuple) else [ast.Constant(i) for i in range(len(target.elts))]
            value = ast.Tuple([Substitute({loop.target.id: item} if isinstance(loop.target, ast.Name) else dict(zip(
                [t.id for t in loop.target.elts], item.elts))).visit(copy.deepcopy(value.elt)) for item in items], ast.Load())
        node.value = self.visit(value)
        if isinstance(target, ast.Attribute):
            self.known.pop(key := ast.unparse(target), None)
            if is_const(node.value) or isinstance(node.value, ast.Lambda) or name_of(node.value).startswith('F.'):
                self.known[key] = node.value
        if ast.unparse(target) == ast.unparse(node.value):
            return []
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple) and not any(
                name_of(t) in reads(node.value.elts[i + 1:]) for i, t in enumerate(target.elts)):
            pairs = [ast.copy_location(ast.Assign([t], v), node) for t, v in zip(target.elts, node.value.elts)]
            return [s for pair in pairs for s in self.fold_Assign(pair)]
        return [node]


def tidy(statements):
    """Drop what is assigned twice alike, and return a value without a name for it."""
    out, constructs = [], any('super().__init__' in ast.unparse(s) for s in statements)
    for node in statements:
        if constructs and ast.unparse(node) in map(ast.unparse, out):       # inlined constructors both say d = config.n_embd
            continue
        if out and isinstance(node, ast.Return) and isinstance(out[-1], ast.Assign) and node.value is not None:
            if ast.unparse(out[-1].targets[0]) == ast.unparse(node.value):
                node = ast.copy_location(ast.Return(out.pop().value), node)
        out.append(node)
    return out


# ----------------------------------------------------------------------------- the printed file

def known_of(config, cache):
    """Return {source of a field: its value as a node} for all that is no size, and what __post_init__ derives from sizes."""
    values = {f.name: constant(getattr(config, f.name)) for f in fields(config) if f.init and f.name not in SIZES}
    values |= {name: ast.Constant(0) for name in ('n_kv_head', 'd_ff') if not getattr(config, name)}
    values |= dict(causal=ast.Constant(True), grouped=ast.Constant(config.grouped))
    values['z_loss'] = ast.Constant(0.0)                # what joins the loss in training stays with train.py
    mup, deep = config.mup_base_width, config.mup_base_depth
    head_dim = 'config.n_embd // config.n_head'
    derived = dict(
        head_dim=head_dim, kv_heads='config.n_kv_head' if config.n_kv_head else 'config.n_head',
        width_growth=f'config.n_embd / {mup}' if mup else '1.0', depth_growth=f'config.n_layer / {deep}' if deep else '1.0',
        branch_scale=f'{config.residual_scale * deep} / config.n_layer' if deep else repr(config.residual_scale),
        logit_scale=f'{config.mup_base_head_dim ** 0.5} / ({head_dim})' if mup else f'({head_dim}) ** -0.5')
    known = {'self.recompute': 'False', 'self.kernel': 'F.scaled_dot_product_attention', 'layer <= 0.0': 'False',
             'None if self.training else logits': 'logits', 'super().forward.__func__ is not DotAttention.forward': 'False'}
    known |= {} if cache else {'cache': 'None', 'caches': 'None', 'q.size(2) > 1': 'True'}
    known = {text: parse(value) for text, value in known.items()}
    for way in LOOP:
        known |= {f'{way}.{name}': value for name, value in values.items()}
        known |= {f'{way}.{name}': parse(text.replace('config.', f'{way}.')) for name, text in derived.items()}
    return known


class Printed:
    """The classes and functions of a model, folded."""

    def __init__(self, model, title, cache):
        self.title, self.code, self.model, self.known = title, Code(source.__file__), model, known_of(model.config, cache)
        if not getattr(model.h[0], 'passes_state', True):
            self.known['isinstance(x, State)'] = ast.Constant(False)
        if cache:                                       # forward takes caches too
            forward = next(m for m in self.code.defs['GPT'].body if getattr(m, 'name', '') == 'forward')
            forward.args.args.append(ast.arg('caches'))
            forward.args.defaults.append(ast.Constant(None))
            for node in (n for n in ast.walk(forward) if isinstance(n, ast.Call) and name_of(n.func) == 'self.hidden'):
                node.args.append(ast.Name('caches', ast.Load()))
        instances, self.functions, self.folds = {}, {}, {}
        for module in model.modules():
            if type(module).__module__ == source.__name__:
                instances.setdefault(type(module), []).append(module)
        self.classes = {kind: self.class_of(kind) for kind in instances}
        for kind in reversed(instances):                # what a class holds comes before it
            self.folds[kind] = Fold(self.code, model, instances[kind], self.known, self.folds)
            self.add_method(kind, '__init__')
        for kind in instances:
            self.add_method(kind, 'forward')
        if model.config.unit_weights or model.config.qk_clip:
            self.add_method(type(model), 'after_step')
        while self.add_methods() or self.drop_unread() or self.drop_parameters():
            pass
        self.add_functions()

    def class_of(self, kind):
        """Return a class without methods, with the docstring of the first class of model.py in its MRO."""
        owner = next(k for k in kind.__mro__ if k.__name__ in self.code.defs and not k.__name__.startswith('Variant'))
        config, doc = self.model.config, ast.get_docstring(self.code.defs[owner.__name__], clean=False) or ''
        doc = self.title if owner.__name__ == 'Block' else doc.replace(' [+ β, with config.bias]', ' + β' * config.bias)
        if ', or gated ' in doc:                        # of FFN
            doc = doc.split(', or gated ')[FFNS[config.ffn][1]]
        base = next(k for k in kind.__mro__ if k.__module__ != source.__name__)
        return ast.ClassDef(kind.__name__, [parse(f'nn.{base.__name__}')], [], [ast.Expr(ast.Constant(doc))] * bool(doc), [])

    def methods(self):
        """Yield (class, method) of what is printed."""
        for kind, tree in self.classes.items():
            yield from ((kind, method) for method in tree.body if isinstance(method, ast.FunctionDef))

    def add_method(self, kind, name):
        owner, node = self.code.method(kind, name)
        if node is not None:
            method = copy.deepcopy(node)
            method.body = self.folds[kind].body(body_of(node), owner, name) or [ast.Pass()]
            self.classes[kind].body.append(method)

    def add_methods(self):
        """Add methods that are called and not there. Return whether there were any."""
        there = {(kind, method.name) for kind, method in self.methods()}
        read = {ast.unparse(node).rpartition('.')[::2] for _, method in self.methods() for node in ast.walk(method)
                if isinstance(node, ast.Attribute)}
        read = {attribute for path, attribute in read if re.match(r'(self|block)\b', path)}
        missing = [(kind, name) for kind in self.classes for name in sorted(read)
                   if (kind, name) not in there and self.code.method(kind, name)[0]]
        for kind, name in missing:
            self.add_method(kind, name)
        return bool(missing)

    def drop_unread(self):
        """Drop attributes that nothing reads and that are no parameters: constants stand where they were read. Return whether
        there were any."""
        read = {node.attr for tree in self.classes.values() for node in ast.walk(tree)
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
        changed = False
        for kind, method in self.methods():
            left = []
            for i, node in enumerate(method.body):
                path = name_of(node.targets[0]) if isinstance(node, ast.Assign) else ''
                keep = True
                if path and not path.startswith('self.'):
                    keep = path in reads(method.body)
                elif path and method.name == '__init__':
                    held = [getattr(x, node.targets[0].attr, None) for x in self.folds[kind].instances]
                    again = any(path in map(name_of, s.targets) for s in method.body[i + 1:] if isinstance(s, ast.Assign))
                    holds = any(isinstance(v, nn.Parameter) or [*getattr(v, 'parameters', tuple)()] for v in held)
                    keep = not again and (holds or node.targets[0].attr in read)
                left += [node] * keep
            changed, method.body = changed or len(left) < len(method.body), left
        return changed

    def calls(self):
        """Yield (call, {(class, method) that it may call})."""
        by_name = {kind.__name__: kind for kind in self.classes}
        for kind, method in self.methods():
            for call in (n for n in ast.walk(method) if isinstance(n, ast.Call)):
                name = ast.unparse(call.func)
                receiver, _, attribute = name.rpartition('.')
                if name in by_name:
                    yield call, {(by_name[name], '__init__')}
                for path, called in (name, 'forward'), (receiver, attribute):
                    found = {'block': [self.model.h[0]], 'self': self.folds[kind].instances}.get(path)
                    yield call, {(type(x), called) for x in found or self.folds[kind].values(path)}

    def drop_parameters(self):
        """Drop a parameter that nothing reads, with its arguments, and a loop's number. Return whether one is gone."""
        calls = [*self.calls()]
        for kind, method in self.methods():
            for i, parameter in reversed([*enumerate(arg.arg for arg in method.args.args)]):
                target, read = (kind, method.name), reads(method.body)
                ours = [(call, targets) for call, targets in calls if target in targets]
                if i and parameter not in read and kind is not type(self.model) and all(len(t) == 1 for _, t in ours):
                    behind = i - len(method.args.args) + len(method.args.defaults)
                    del method.args.args[i]
                    if behind >= 0:
                        del method.args.defaults[behind]
                    for call, _ in ours:
                        call.args = call.args[:i - 1] + call.args[i:]
                        call.keywords = [k for k in call.keywords if k.arg != parameter]
                    return True
        for loop in (n for _, method in self.methods() for n in ast.walk(method) if isinstance(n, ast.GeneratorExp)):
            clause = loop.generators[0]
            if name_of(clause.target) not in ('', '_', *reads([loop.elt])):
                clause.target = ast.Name('_', ast.Store())
                if name_of(getattr(clause.iter, 'func', None)) == 'range' and ast.unparse(clause.iter.args[1]).endswith(' + 1'):
                    clause.iter.args = [clause.iter.args[1].left]
        return False

    def add_functions(self):
        """Add what is still called and defined in model.py, and drop classes that nothing makes."""
        made = set(reads(self.classes.values()))
        self.classes = {kind: tree for kind, tree in self.classes.items() if kind.__name__ in made or kind is type(self.model)}
        waiting = [*self.classes.values(), *[parse('KVCache')] * ('cache' not in self.known)]
        theirs = {kind.__name__ for kind in self.classes}
        while waiting:
            for name in reads([waiting.pop()]):
                if name in self.code.defs and name not in {*self.functions, *theirs, 'init_weights'}:
                    self.functions[name] = copy.deepcopy(self.code.defs[name])
                    waiting.append(self.functions[name])

    def text(self):
        order = sorted(self.classes, key=lambda kind: (kind is type(self.model), 'Block' in kind.__name__, self.line_of(kind)))
        return '\n\n\n'.join(map(self.unparse, [*self.functions.values(), *(self.classes[kind] for kind in order)]))

    def line_of(self, kind):
        return next(self.code.defs[k.__name__].lineno for k in kind.__mro__ if k.__name__ in self.code.defs)

    def unparse(self, node):
        """Unparse a definition, with the comments of the lines that stay."""
        marks = {ast.unparse(s).split('\n')[0]: self.code.comments[s.lineno] for s in ast.walk(node)
                 if isinstance(s, (ast.Assign, ast.Return)) and getattr(s, 'lineno', None) in self.code.comments}
        lines = ast.unparse(ast.fix_missing_locations(node)).split('\n')
        for i, line in enumerate(lines):
            mark = marks.pop(line.strip(), '')
            lines[i] = f'{line}  {mark}' if mark and len(line) + len(mark) + 2 <= WIDTH else line
        return '\n'.join(lines)


def init_text(printed):
    """Return the function that draws the weights: one branch for each distribution."""
    model, code, branches = printed.model, printed.code, {}
    body = [s for s in body_of(code.defs['init_weight'])[1:] if not (isinstance(s, ast.Assign) and name_of(s.targets[0]) in (
        'generator', 'p'))]
    for node in (n for s in body for n in ast.walk(s) if isinstance(n, ast.Call)):
        node.keywords = [keyword for keyword in node.keywords if keyword.arg != 'generator']
    for name, _ in model.named_parameters():
        path, row = module_path(name), model.config.params.get(module_path(name))
        if row and row.init not in ('', 'constructor'):
            known = dict(module=path, kind=row.init)
            known = {key: ast.Constant(value) for key, value in known.items()} | {
                "name.endswith('.bias')": ast.Constant(name.endswith('.bias')), 'shape': parse('p.shape')}
            left = in_one_step(Fold(code, model, [model], printed.known | known, {}).block(copy.deepcopy(body)))
            text = '\n'.join(ast.unparse(ast.fix_missing_locations(s)) for s in left)
            branches.setdefault(text, {})['.'.join(name.removesuffix('.weight').split('.')[-1 - name.endswith('.bias'):])] = None
    text = ''
    for body, ends in branches.items():
        ends = repr(*ends) if len(ends) == 1 else tuple(ends)
        text += f'{"el" * bool(text)}if module.endswith({ends}):\n    ' + body.replace('\n', '\n    ') + '\n'
    return INIT + text.replace('\n', '\n        ')


def in_one_step(statements):
    """Put the std, which init_weight multiplies by one factor after the other, where it is read, and drop unread names."""
    out, std = [], ast.Constant(None)
    for node in statements:
        if isinstance(node, ast.Assign) and name_of(node.targets[0]) == 'std':
            std = Substitute(dict(std=std)).visit(node.value)
        elif isinstance(node, ast.AugAssign):
            std = ast.BinOp(std, node.op, node.value)
        elif isinstance(node, ast.Return):
            values = dict(std=std, p=parse('p.zero_()')) if name_of(node.value) == 'p' else dict(std=std)
            out.append(ast.Expr(Substitute(values).visit(node.value)))
        else:
            out.append(node)
    return [node for node in out if not isinstance(node, ast.Assign) or set(stores([node])) & set(reads(out))]


INIT = '''@torch.no_grad()
def init_weights(model):
    """Draw the matrices and embeddings; other parameters start as their classes say."""
    c = model.config
    for name, p in model.named_parameters():
        module = name.removesuffix('.weight')
        '''
GENERATE = '''
    @torch.no_grad()
    def generate(self, idx, max_new_tokens, temperature=1.0, top_k=None):
        """idx (B, T) → (B, T + max_new_tokens); top_k keeps the k likeliest tokens."""
        size = self.config.block_size{caches}
        for _ in range(max_new_tokens):
            logits = {logits}[0][:, -1] / temperature
            if top_k is not None:
                logits[logits < logits.topk(top_k).values[:, -1:]] = -math.inf
            new = torch.multinomial(logits.softmax(-1), 1)
            idx = torch.cat((idx, new), dim=1)
        return idx
'''
PLAIN = dict(caches='', logits='self(idx[:, -size:])')
CACHED = dict(caches='\n        caches, new = [KVCache() for _ in self.h], idx      # which hold until the window slides',
              logits='(self(new, caches=caches) if idx.size(1) <= size else self(idx[:, -size:]))')
HEAD = '''"""
{title}

The weights have the names of nanoNorm, whose model.py this was printed from.
"""
import itertools
import math
import os
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
'''
MAIN = '''


if __name__ == '__main__':
    model = GPT(Config())
    print(f'{sum(p.numel() for p in model.parameters()):,} parameters')
    if os.path.exists(weights := os.path.splitext(__file__)[0] + '.pt'):
        model.load_state_dict(torch.load(weights))
    print(model.eval().generate(torch.zeros(1, 1, dtype=torch.long), 32)[0].tolist())
'''


def flatten(config, title='', cache=False):
    """Return the source of a plain file with the model of a GPTConfig. Raise ValueError if it would compute something else."""
    small = dict(n_layer=4, n_head=4, n_embd=16, block_size=16, vocab_size=40, n_kv_head=min(config.n_kv_head, 2),
                 d_ff=24 if config.d_ff else 0)
    torch.manual_seed(0)
    model = GPT(type(config)(**{f.name: getattr(config, f.name) for f in fields(config) if f.init} | small))
    try:
        printed = Printed(model, title, cache)
        sizes = [f'    {name}: int = {getattr(config, name)}' for name in SIZES if getattr(config, name)]
        generate = GENERATE.format(**(CACHED if cache else PLAIN))
        code = '\n\n\n'.join(('\n'.join(sizes), printed.text() + generate, init_text(printed)))
    except (AttributeError, KeyError, IndexError, TypeError, StopIteration) as error:
        raise ValueError(f'this edit of model.py cannot be folded: {type(error).__name__} {error}') from error
    code = re.sub(r'\bVariant(?=[A-Z])', '', code)
    code = re.sub(r'\*\* \((-[\d.]+)\)', r'** \1', re.sub(r'ModuleList\(\((.*)\)\)\n', r'ModuleList(\1)\n', code))
    code = '\n'.join(map(without_parentheses, code.split('\n')))
    text = by_ruff(by_ruff(HEAD.format(title=title) + code + MAIN, 'check', '--fix', '--quiet', '--select=F401'), 'format')
    check(model, text, cache)
    return text


def without_parentheses(line):
    """Take the parentheses off a tuple that is returned or assigned."""
    found = re.fullmatch(r'( *(?:return|[\w, ]+ =) )\((.*)\)', line)
    try:
        bare = isinstance(parse(found[2] if found else ''), ast.Tuple)
    except SyntaxError:
        bare = False
    return found[1] + found[2] if bare else line


def by_ruff(text, *command):
    """Format by ruff, if it is installed."""
    options = [f'--config=line-length={WIDTH}', '--config=format.quote-style="single"', '-']
    command = [sys.executable, '-m', 'ruff', *command, *options]
    return subprocess.run(command, input=text, capture_output=True, encoding='utf-8', cwd='/').stdout or text


def check(model, text, cache):
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
        if cache:
            caches = [space['KVCache']() for _ in theirs.eval().h]
            parts = [theirs(idx[:, a:b], caches=caches)[0] for a, b in ((0, 5), (5, 6), (6, 7))]
            found[0]['cache'], found[1]['cache'] = found[0][''][:, :7], torch.cat(parts, dim=1)
    except Exception as error:
        raise ValueError(f'model.py cannot be printed with this config: {type(error).__name__}: {error}') from error
    ours, flat = found
    wrong = [name for name in ours.keys() | flat.keys() if name not in ours or name not in flat or not torch.allclose(
        ours[name], flat[name], rtol=1e-8)]
    if wrong:
        raise ValueError(f'model.py cannot be printed with this config: the file would compute other {wrong[0] or "logits"}')


def check_start(model, theirs, init):
    """Raise ValueError unless each weight starts as ours: a generator with its seed draws the same numbers."""
    for name, p in theirs.named_parameters():
        torch.manual_seed(hash_seed(model.init_seed, name))
        init(SimpleNamespace(config=theirs.config, named_parameters=lambda: [(name, p)]))
        if not torch.allclose(p, model.get_parameter(name), rtol=1e-6):
            raise ValueError(f'{name} would start otherwise')


def what_it_is(config):
    """Return a title with the fields of a config that are no sizes and have no default."""
    told = [f'{f.name}={getattr(config, f.name)}' for f in fields(config)
            if f.init and f.name not in SIZES and getattr(config, f.name) != f.default]
    return '\n'.join(textwrap.wrap('A GPT' + ' with ' * bool(told) + ', '.join(told), WIDTH))


def title_of(paths, config):
    """Return the first line of the last config file, which says what the placement is, or what the config sets."""
    if not paths:
        return what_it_is(config)
    with open(os.path.join(ROOT, paths[-1]) if not os.path.exists(paths[-1]) else paths[-1], encoding='utf-8-sig') as f:
        line = f.readline().strip()
    return line.lstrip('# ') if line.startswith('#') else paths[-1]


def main():
    config = configure(globals(), TRAIN, GPTConfig)
    if to and os.path.lexists(to):
        raise ValueError(f'to={to!r}: there is such a file, which you may have edited; choose another name')
    model = load_run(os.path.join(out_dir, checkpoint))[0] if out_dir else None
    about = model.config if model else gpt_config(config)
    text = flatten(about, title_of([] if model else [arg for arg in sys.argv[1:] if arg[:2] != '--'], about), cache)
    if not to:
        print(text, end='')
        return
    write_whole(to, lambda f: f.write(text.encode()))
    if model:
        write_whole(os.path.splitext(to)[0] + '.pt', lambda f: torch.save(model.state_dict(), f))


if __name__ == '__main__':
    main()
