"""
Code that was edited: the examples of README.md and docs/editing.md pass the tests that they name; and with a gate that has a
field and a block type of its own, each script works, or says in one line what it does not know.
"""
import importlib.util
import itertools
import json
import shutil
import sys
from dataclasses import dataclass

import pytest
import torch
from helpers import ROOT, TINY, checkpoint, flags, rows, train
from test_docs import EDITING, EDITS, OF_README, TEXTS, above
from torch import nn

import engine.keys
import lab.convert.pretrained
import model
import optim
from lab import measure
from lab.convert.pretrained import load_gpt
from lab.export import obstacles, write_model
from model import GPT, Block, Gain, GPTConfig
from optim import param_groups

SMALL = dict(block_size=8, vocab_size=13, n_layer=2, n_head=2, n_embd=8)


# ----------------------------------------------------------------------------- the examples of the pages

# What the pages say of test_model.py: (words, behind what), and (how a block begins, above which line)
WORDS = [('norm_every=(0, 1, 2)', 'AXES = CHOICES | dict.fromkeys(SWITCHES, (False, True)) | dict('),
         ("'meanabs'", 'CHOICES = dict(norm=('), ("'cosine'", "attention=('dot', "), ("'distill'", 'TRAINING_ONLY = {')]
BLOCKS = [('on = c.norm_every', 'x_in = x'), ("if c.norm == 'meanabs'", "if c.norm == 'layernorm'"),
          ('q, k = (y / y.norm(', "if c.pos == 'rope':\n                q"), ("if c.attention == 'cosine'", 'a = softmax(')]


def test_the_examples_pass_the_tests_that_they_name(tmp_path, monkeypatch):
    """In any order of the tables"""
    (tmp_path / 'tests').mkdir()
    for name in ('model', 'optim', 'train', 'test_model', 'tests/test_optim'):
        shutil.copy(ROOT / f'{name}.py', tmp_path / f'{name}.py')
    for flag, edits in EDITS.items():
        for edit in edits:
            edit(tmp_path, 'README.md' if flag in OF_README else EDITING)
    for begin, line in BLOCKS:
        above(line, begin, 'test_model.py')(tmp_path, EDITING)
    for path in tmp_path.rglob('test_*.py'):
        code = path.read_text(encoding='utf-8')
        for words, line in WORDS:
            assert words in TEXTS[EDITING]
            code = code.replace(line, f'{line}{words}, ')
        code = code.replace("ffn_post_norm inner_norm", 'ffn_post_norm block_norm inner_norm')
        path.write_text(code, encoding='utf-8')

    def load(name):
        spec = importlib.util.spec_from_file_location(name.split('/')[-1], tmp_path / f'{name}.py')
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    load('model'), load('optim')
    of_model, of_optim = load('test_model'), load('tests/test_optim')
    of_model.test_every_field_and_every_pair_of_values_is_tried()
    for field in 'norm', 'attention':
        of_model.test_a_wrong_choice_is_answered_with_all_choices(field)
    of_model.test_generation_with_a_cache_equals_full_forward_passes('cosine', 2, 3, 'rope')
    edited = [config for config in of_model.COVERING if 'meanabs' == config['norm'] or 'cosine' == config['attention']]
    for config in edited[:8]:
        of_model.test_logits_loss_and_gradients_equal_the_reference(config, True)
    of_optim.test_in_a_notebook('nadam')
    of_optim.test_ratios_set_the_rate_of_each_block_type('nadam')


# ----------------------------------------------------------------------------- a gate and an optimizer

@dataclass
class GatedConfig(GPTConfig):
    gate: bool = False              # a gain for each channel of a branch


class GatedBlock(Block):
    def __init__(self, config, layer):
        super().__init__(config, layer)
        gated = getattr(config, 'gate', False)
        self.attn_gate, self.ffn_gate = (Gain(config.n_embd, 0.1) if gated else nn.Identity() for _ in range(2))

    def forward(self, x, cache=None):
        x = self.attn_post_norm(x + self.dt * self.attn_gate(self.attn_mid_norm(self.attn(self.attn_pre_norm(x), cache))))
        return self.ffn_post_norm(x + self.dt * self.ffn_gate(self.ffn_mid_norm(self.ffn(self.ffn_pre_norm(x)))))


@pytest.fixture
def edited(monkeypatch):
    """Makes the code what it is after these edits."""
    for module in (model, engine.keys, lab.convert.pretrained):
        monkeypatch.setattr(module, 'GPTConfig', GatedConfig)
    monkeypatch.setattr(model.GPT, 'Config', GatedConfig)
    monkeypatch.setattr(model, 'Block', GatedBlock)
    for name in ('attn_gate', 'ffn_gate'):
        monkeypatch.setitem(model.PARAMS, name, model.Row('gate', decays=False))


# ----------------------------------------------------------------------------- how parameters start

class Added(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.wq = nn.Linear(config.n_embd, 3)
        self.random, self.scale = nn.Linear(config.n_embd, 1), nn.Parameter(torch.full((1,), 0.1))
        nn.init.constant_(self.random.bias, -2.0)


def with_added(monkeypatch):
    def build(self, config, layer, old=Block.__init__):
        old(self, config, layer)
        self.added = Added(config)

    for path, row in (('added', model.Row('gain', decays=False)), ('added.wq', model.MATRIX('ffn')),
                      ('added.random', model.Row('ffn', 'constructor'))):
        monkeypatch.setitem(model.PARAMS, path, row)
    monkeypatch.setattr(Block, '__init__', build)


def start(seed=0, **keys):
    torch.manual_seed(seed)
    return dict(GPT(GPTConfig(**SMALL, **keys)).named_parameters()), torch.rand(1)


@pytest.mark.parametrize('keys', [{}, dict(tie_weights=False, norm='gatednorm', bias=True, linear_norm=True, emb_init='head'),
                                  dict(value_residual=True, residual='hyper', init='xavier_trunc')], ids=str)
def test_an_added_module_changes_no_other_weight(monkeypatch, keys):
    """Nor the random numbers that follow"""
    plain, after = start(**keys)
    with_added(monkeypatch)
    both, after_both = start(**keys)
    added = {name for name in both if '.added.' in name}
    assert both.keys() - added == plain.keys() and len(added) == 10 and torch.equal(after, after_both)
    for name in plain:
        assert torch.equal(both[name], plain[name]), name
    assert (both['h.0.added.scale'] == 0.1).all() and (both['h.1.added.random.bias'] == -2).all()
    assert not torch.equal(both['h.0.added.random.weight'], both['h.1.added.random.weight'])


def test_a_start_depends_on_seed_and_name_alone():
    (one, _), (again, _), (other, _) = (start(seed) for seed in (0, 0, 1))
    assert all(torch.equal(p, again[name]) and (p.dim() == 1 or not torch.equal(p, other[name])) for name, p in one.items())
    assert not any(torch.equal(a, b) for a, b in itertools.combinations([p for p in one.values() if p.dim() > 1], 2))
    assert model.hash_seed(1337, 'h.0.attn.wq.weight') == 1276998913867372649        # on every machine and in every process


# ----------------------------------------------------------------------------- a new block type, and weights of before

def test_a_new_block_type(place, edited):
    """It trains with a ratio of its own, is resumed and measured"""
    keys = flags(**{**TINY, 'max_iters': 4, 'eval_interval': 2}, gate=True, r_gate=3, measure_interval=2, measure_batches=1)
    out, _ = train(place, *keys, '--out_dir=typed')
    line, = [line.split() for line in out.splitlines() if line.startswith('gate ')]
    assert line[1:4] == ['4', '64', '3']
    train(place, *keys, '--out_dir=resumed', '--max_iters=2')
    train(place, 'resumed/config.json', '--init_from=resume', '--max_iters=4')
    assert rows(place / 'resumed') == rows(place / 'typed')
    found = json.loads((place / 'typed' / 'measure.jsonl').read_text().splitlines()[1])
    assert found['sharpness']['gate'] and found['updates']['gate'] > 0


def test_weights_of_before_the_edit(place, tmp_path, edited):
    """A new field is the command line's, and its parameters start as in a fresh model; all other weights and fields are theirs"""
    torch.manual_seed(1)
    before = GPT(GPTConfig(**SMALL))
    pytest.importorskip('transformers')
    write_model(before, tmp_path, 'gpt2')
    network = load_gpt(str(tmp_path), extra_fields={'gate': True, 'n_layer': 7})
    assert network.config.gate and network.config.n_layer == 2 and not load_gpt(str(tmp_path)).config.gate
    assert sorted(network.started) == [f'h.{i}.{name}_gate.weight' for i in (0, 1) for name in ('attn', 'ffn')]
    for name, p in network.named_parameters():
        assert torch.equal(p, before.state_dict()[name]) if name not in network.started else (p == 0.1).all()
    keys = flags(**{**TINY, **SMALL, 'max_iters': 1}, init_from=tmp_path, gate=True, out_dir='tuned')
    err = train(place, *keys, '--n_layer=3', '--norm=rmsnorm', code=1)[1]
    assert 'another architecture than the command line: n_layer (2 there, 3 here), norm (layernorm there, rmsnorm here)' in err
    assert 'has no h.0.attn_gate.weight, h.0.ffn_gate.weight, ' in train(place, *keys)[0]
    assert checkpoint(place / 'tuned')['config']['gate']


def test_what_another_format_cannot_hold(tmp_path, edited):
    """A new field, also one that adds no parameter; another computation, which neither a field nor a parameter tells"""
    assert 'gate=False' in obstacles(GatedConfig(gate=True), 'gpt2') and 'gate=False' not in obstacles(GatedConfig(), 'gpt2')
    pytest.importorskip('transformers')
    network = GPT(GPTConfig(**SMALL, init_gain=20.0))
    for block in network.h:
        block.dt = 0.5
    with pytest.raises(ValueError, match='computes other logits with these weights, off by 0'):
        write_model(network, tmp_path, 'gpt2')


def test_measurements_of_an_edited_block(edited):
    """What depends on the branches alone says that the block adds something else"""
    idx = torch.arange(16).view(2, 8) % 13
    network = GPT(GatedConfig(**SMALL, gate=True))
    for what in 'sensitivity', 'jacobian', 'preflight':
        with pytest.raises(ValueError, match=r'adds something else than Δt · Mid\(f\(Pre\(x\)\)\) in h.0, with f = attn'):
            measure.measure(network, [(idx, idx)], (what,), 0)
    assert measure.measure(network, [(idx, idx)], ('hidden',), 0)['hidden']


# ----------------------------------------------------------------------------- an optimizer and an attention

def test_an_optimizer_says_that_it_handles_shards(monkeypatch):
    class OfWholeMatrices(optim.SGDW):
        """Inherits a promise that it does not keep"""

    groups = param_groups(GPT(GPTConfig(**SMALL)), 0.1)
    monkeypatch.setattr(optim, 'mesh_of', lambda p: 'a mesh')           # as if it were sharded
    optim.SGDW(groups, 0.1)
    with pytest.raises(ValueError, match='OfWholeMatrices may need whole matrices.*on_shards = True in the class'):
        OfWholeMatrices(groups, 0.1)


class OneMask(model.DotAttention):
    """Calls its kernel with a mask of its own"""

    def attend(self, q, k, v):
        t = torch.arange(q.size(2))
        return self.kernel(q, k, v, attn_mask=((t - t[:, None]) / 2).masked_fill(t[:, None] < t, -torch.inf))


def test_an_attention_of_ones_own_is_measured_without_its_logits(monkeypatch):
    monkeypatch.setitem(model.ATTENTIONS, 'mine', OneMask)
    idx = torch.arange(16).view(2, 8) % 13
    found = measure.measure(GPT(GPTConfig(**SMALL, attention='mine')), [(idx, idx)], ('attention', 'copying', 'preflight'), 0)
    rows = found['preflight']['invariance']['W_1']
    assert found['attention'] == {} and 'attention logits' not in rows and 'attention Jacobian' in rows
    assert found['copying']['induction'] == [] and found['copying']['first'] > 0
