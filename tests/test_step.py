"""The training step that times and measures share, and what an edit adds to the loss in training."""
import copy

import pytest
import torch
from helpers import TINY, checkpoint, evaluations, flags, steps, train

import model
from data.tokens import Tokens
from engine.device import tune_for_training
from engine.keys import config_from, group_settings
from engine.step import training_step
from model import GPT, GPTConfig
from optim import OPTIMIZERS, param_groups


@pytest.mark.parametrize('optimizer, count, dtype', [('adamw', 2, 'bfloat16'), *((name, 1, 'float32') for name in OPTIMIZERS)])
def test_it_is_the_step_of_train(optimizer, count, dtype, place, monkeypatch):
    """On the same batches, three steps lead to the same weights, to the last bit"""
    monkeypatch.chdir(place)
    train(place, *flags(**TINY | dict(gradient_accumulation_steps=count, max_iters=3, eval_interval=3, schedule='constant',
                                      warmup_iters=0, optimizer=optimizer, overwrite=True, out_dir='stepped', dtype=dtype,
                                      grad_clip=0.1 * (count == 1))))
    keys, dtype = checkpoint(place / 'stepped')['config'], getattr(torch, dtype)
    torch.manual_seed(keys['seed'])
    ours = GPT(config_from(GPTConfig, keys))
    tune_for_training(torch.device('cpu'), ours)
    opt = OPTIMIZERS[optimizer](param_groups(ours, **group_settings(keys)), {**keys, 'dtype': dtype})
    data, size = Tokens('tiny', 'train', keys['block_size'], keys['vocab_size']), keys['batch_size']
    for it in range(3):
        batches = [data.shuffled((it * count + j) * size, size, keys['data_seed']) for j in range(count)]
        training_step(ours, ours, opt, batches, keys['grad_clip'], dtype)
    for name, value in checkpoint(place / 'stepped')['model'].items():
        assert torch.equal(ours.state_dict()[name], value), name


def z_loss(put=setattr):
    """An edit as docs/editing.md has it"""
    def output(self, x, targets=None, old=GPT.output):
        if self.training and targets is not None:
            self.aux['z_loss'] = 0.01 * self.lm_head(self.final_norm(x)).float().logsumexp(-1).square().mean()
        return old(self, x, targets)

    put(GPT, 'output', output)


@pytest.mark.parametrize('compiled', [False, pytest.param(True, marks=pytest.mark.long)])
def test_the_loss_is_the_cross_entropy_whatever_is_added_to_it(compiled, place, monkeypatch):
    """In the log and in best.pt; what is added is in the log beside it, and trains"""
    keys = flags(**TINY | dict(max_iters=6, eval_interval=3, compile=compiled))
    train(place, *keys, '--out_dir=plain')
    torch.compiler.reset()                              # it does not notice that a class has another method
    z_loss(monkeypatch.setattr)
    train(place, *keys, '--out_dir=added')
    with_aux, without = steps(place / 'added'), steps(place / 'plain')
    assert with_aux[0]['loss'] == pytest.approx(without[0]['loss'], abs=1e-5) and with_aux[-1]['loss'] != without[-1]['loss']
    assert all(row['aux.z_loss'] > 0.01 for row in with_aux) and 'aux.z_loss' not in without[0]
    first, last = evaluations(place / 'added')[0], evaluations(place / 'added')[-1]
    assert first['val_loss'] == pytest.approx(evaluations(place / 'plain')[0]['val_loss'], abs=1e-5)
    assert last['val_loss'] == checkpoint(place / 'added', 'best.pt')['best_val_loss']


@pytest.mark.parametrize('recompute', [False, True])
def test_blocks_add_to_the_loss(recompute, monkeypatch):
    """Each adds its term once, although recomputation runs it twice, and the next micro-batch starts anew"""
    states = []

    def forward(self, *args, old=model.Block.forward):
        x = old(self, *args)
        states.append(x)
        self.aux['size'] = self.aux.get('size', 0.0) + 0.1 * x.square().mean()
        return x

    torch.manual_seed(0)
    plain = GPT(GPTConfig(block_size=8, vocab_size=13, n_layer=3, n_head=2, n_embd=8, dropout=0.0)).double()
    monkeypatch.setattr(model.Block, 'forward', forward)
    edited = copy.deepcopy(plain)
    edited.recompute = recompute
    batches = [(torch.randint(13, (2, 8)), torch.randint(13, (2, 8))) for _ in range(2)]
    training_step(edited, edited, torch.optim.SGD(param_groups(edited, 0.0), lr=0.5), batches)
    expected = torch.optim.SGD(plain.parameters(), lr=0.5)
    for x, y in batches:
        states.clear()
        (plain(x, y)[1] + 0.1 * sum(x.square().mean() for x in states)).div(2).backward()
    expected.step()
    for (name, a), b in zip(edited.named_parameters(), plain.parameters()):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12, msg=name)
