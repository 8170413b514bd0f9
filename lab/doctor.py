"""
Look for known causes of a run that trains badly, in its log, its last checkpoint and the model at hand; or in an untrained model:

    python -m lab.doctor out-quick
    python -m lab.doctor config/train_quick.py config/arch/post.py --init_gain=4

It trains nothing, runs no code of the run's folder, and tells at most three findings, the likeliest cause first. Its silence
is no sign of health: of 133 sick runs it was right in 54, wrong in 6 and silent in 73 (docs/doctor.md).
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.doctor')

from configurator import TRAIN, defaults_of, parse_args
from engine.process import begin

import math
import os
from contextlib import ExitStack
from typing import Callable, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch.nn import functional as F

from data.tokens import Tokens
from engine.checkpoint import check_data, load_checkpoint, load_run
from engine.keys import gpt_config
from engine.stats import block_stats, rms
from lab.runs import numbers_in, read_run, status_of
from model import GPT, GPTConfig, block_type

FACTOR = 1e4                    # on the embeddings, to see whether anything bounds what follows
MATRICES, DECAYING = ['qk', 'vo', 'ffn'], ['qk', 'vo', 'ffn', 'emb', 'head']


def places(value):
    """Return {place: number} of a value in the log. A place is '' for a plain number, else 'qk', '3' or 'qk 3'."""
    return {f'{key} {layer}'.strip(): number for key, layer, number in numbers_in(value)}


class Patient:
    """A run, or an untrained model, as tables of iterations × places. `seen`: numbers of the models that were looked at."""

    def __init__(self, config, rows, seen):
        self.config, self.rows, self.seen = config, rows, seen

    def table(self, key):
        """Return a number of the log, such as 'loss' or 'batches.repeated', as a table; empty if there is none."""
        first, _, rest = key.partition('.')
        values = ((row['iter'], row.get(first, {}).get(rest) if rest else row.get(first)) for row in self.rows)
        found = {it: numbers for it, value in values if (numbers := places(value))}
        return pd.DataFrame.from_dict(found, orient='index', dtype=float).sort_index().dropna(axis=1, how='all')

    def look(self, key):
        """Return a number of the models as a table with one row."""
        return pd.DataFrame([places(self.seen[key])], dtype=float).dropna(axis=1) if key in self.seen else pd.DataFrame()


@torch.no_grad()
def look_at_start(model, x):
    """Return by how much the branches behind the first block, and the logits, grow with embeddings FACTOR times as large; and the
    health of an untrained model as a row of the log."""
    def sizes():
        return block_stats(model, x), rms(model.eval()(x)[0]).item()

    model.after_step()                                  # as training starts: nGPT normalizes its weights
    usual, output = sizes()
    with ExitStack() as stack:
        for embedding in filter(None, (model.wte, model.wpe)):
            stack.enter_context(embedding.register_forward_hook(lambda _, args, out: FACTOR * out))
        large, large_output = sizes()
    grown = {}
    for branch in ('attn', 'ffn'):
        factors = [b / a if a else None for a, b in zip(*(each.get(f'{branch}_rms', []) for each in (usual, large)))]
        grown[branch] = [None, *factors[1:]] if factors[1:] else factors        # no norm precedes the first of Post-LN
    if any(factor for factors in grown.values() for factor in factors):         # not ReZero, which needs no norm
        grown['output'] = large_output / output
    return dict(unbounded=grown), usual


@torch.no_grad()
def look_at_leaks(model):
    """Return how much an output depends on a later input or on the targets, over how much it depends on its own input."""
    size, choices, leaks = model.config.block_size, model.config.vocab_size, []
    x = torch.randint(choices, (1, size), generator=torch.Generator().manual_seed(0))

    def change(other, *targets, training=False):
        """Return how far each output moves, (T,), if the tokens are others, or the targets."""
        outputs = []
        for tokens, *given in (x, *targets[:1]), (other, *targets[1:]):
            torch.manual_seed(0)                        # for dropout and the like
            outputs.append(model.train(training)(tokens, *given)[0])
        return (outputs[1] - outputs[0]).square().mean((0, 2)).sqrt()

    for at in (1, size - 1):                            # the token that changes
        other = x.clone()
        other[:, at] = (other[:, at] + 1) % choices
        leaks += [moved[:at].max() / moved[at] for moved in (change(other, training=True), change(other))]
    moved = change(other)
    leaks.append(change(x, x, x.roll(1, 1)).max() / moved[-1])
    return dict(future=torch.stack(leaks).max().item())


@torch.no_grad()
def look_at_targets(model, data):
    """Return by how many nats other targets than the next token fit a trained model better, or {} unless it tells the next token
    better than even probabilities do. A model that has learned little may tell an input itself better, by up to 2 nats."""
    size = model.config.block_size
    starts = np.linspace(1, len(data.tokens) - size - 3, 16).astype(int)
    rows = [torch.from_numpy(np.stack([data.tokens[i + ahead:i + ahead + size] for i in starts]).astype(np.int64))
            for ahead in range(4)]
    logits = model(rows[0])[0].flatten(0, 1).float()
    losses = [F.cross_entropy(logits, targets.flatten()).item() for targets in rows]
    learned = min(losses) < math.log(model.config.vocab_size)
    return dict(other_targets=losses[1] - min(losses[0] + 2, losses[2], losses[3])) if learned else {}


def moments_of(state):
    """Return {weight: the norm of its first moment}, 0 if no optimizer has it. Leave out residual states, whose first has nothing
    to mix."""
    numbers, found = state['optimizer'].get('state', {}), {}
    tied = {t.data_ptr(): name for name, t in reversed(state['model'].items())}
    for group in state['optimizer']['param_groups']:
        for name, i in zip(group.get('param_names', []), group['params']):
            tensors = [t for key, t in numbers.get(i, {}).items() if torch.is_tensor(t) and t.dim() and key != 'exp_avg_sq']
            found[name] = max((t.float().norm().item() for t in tensors), default=0.0)
    found = dict.fromkeys(tied.values(), 0.0) | found
    return {name: size for name, size in found.items() if numbers and '_residual.' not in name}


def examine_run(folder):
    """Return a run as a Patient, its status, and notes about what could not be looked at."""
    run = read_run(folder)
    if not run['rows']:
        raise ValueError(f'{folder} has no row in its log.jsonl yet')
    config, seen, notes, path = run['config'], {}, [], f'{folder}/ckpt.pt'
    try:
        if 'patch_size' in config or config.get('init_from') not in ('scratch', 'resume'):
            raise ValueError('only text from scratch is')
        model, _ = load_run(path)
        data = Tokens(config['dataset'], 'val', model.config.block_size, model.config.vocab_size)
        state = load_checkpoint(path, mmap=True)
        check_data(state, data.fingerprint)
        torch.manual_seed(config['seed'])
        seen |= look_at_start(GPT(gpt_config(config)), data.read(data.spread(1, 4)[0])[0])[0]
        seen |= look_at_leaks(model) | look_at_targets(model, data) | dict(moments=moments_of(state))
        seen['embeddings'] = model.wte.weight.numel()
        seen['windows'] = Tokens(config['dataset'], 'train', model.config.block_size, model.config.vocab_size).windows
    except (ValueError, OSError, RuntimeError) as error:
        notes.append(f'its model was not looked at: {error}')
    return Patient(config, run['rows'], seen), status_of(run), notes


def examine_config(arguments):
    """Return the untrained model of a config as a Patient, with its loss on training data and its health as one row of a log."""
    config = parse_args(arguments, defaults_of(TRAIN, GPTConfig))
    torch.manual_seed(config['seed'])
    model = GPT(gpt_config(config))
    data = Tokens(config['dataset'], 'train', model.config.block_size, model.config.vocab_size)
    x, y = data.read(data.spread(1, config['batch_size'])[0])
    seen, row = look_at_start(model, x)
    loss = model(x, y)[1]
    loss.backward()
    norms = {}
    for name, p in model.named_parameters():
        norms.setdefault(block_type(name), []).append(0.0 if p.grad is None else p.grad.norm().item())
    norms = {kind: math.hypot(*sizes) for kind, sizes in norms.items()}
    row |= dict(iter=0, loss=loss.item(), grad_norms=norms, grad_norm=math.hypot(*norms.values()),
                weight_norms=dict(emb=model.wte.weight.norm().item(), **{} if model.config.tie_weights else dict(head=1.0)))
    return Patient(config, [row], seen | look_at_leaks(model) | dict(embeddings=model.wte.weight.numel()))


def growth(p):
    """Return the norm of each block type over its first norm."""
    norms = p.table('weight_norms')
    return norms / norms.iloc[0].where(norms.iloc[0] > 0) if len(norms) > 1 else pd.DataFrame()


def repeated(p):
    share, before = p.table('batches.repeated'), p.table('rows_before')
    return share[before[''] <= p.seen['windows']] if len(share) and 'windows' in p.seen else pd.DataFrame()


def undecayed(p):
    return growth(p)[[kind for kind in growth(p) if kind in DECAYING
                      and p.config.get('weight_decay', 1) * p.config.get(f'wd_{kind}', 1) == 0]]


def embeddings(p):
    norms = p.table('weight_norms')
    return norms[['emb']] / p.seen['embeddings'] ** 0.5 if 'emb' in norms and 'embeddings' in p.seen else pd.DataFrame()


def above_uniform(p):
    """Return the loss above that of even probabilities, if the head is the embedding of text."""
    is_tied = p.config.get('vocab_size') and 'patch_size' not in p.config and 'head' not in p.table('weight_norms')
    return p.table('loss') - math.log(p.config['vocab_size']) if is_tied else pd.DataFrame()


def gradient_share(p):
    grads, whole = p.table('grad_norms'), p.table('grad_norm')
    return grads.div(whole[''], axis=0) if len(grads) and len(whole) else pd.DataFrame()


def largest_update(p):
    """Return the largest update over weights of the blocks' matrices, once the warm-up or the run has ended."""
    if max(row['iter'] for row in p.rows) < min(p.config.get('warmup_iters', 0), p.config.get('max_iters', 0)):
        return pd.DataFrame()
    ratio = p.table('update_norms') / p.table('weight_norms').replace(0, np.nan)
    return ratio.reindex(columns=MATRICES).max(axis=1).dropna().to_frame('')


def weight_jump(p):
    """Return the factor by which a type's norm changes within 20 iterations, over that of the rows before, after the first 50."""
    norms = p.table('weight_norms')
    norms = norms[norms > 0].dropna(axis=1)[norms.index > 50]
    if len(norms) < 2:
        return pd.DataFrame()
    steps = np.log(norms).diff()[np.diff(norms.index, prepend=norms.index[0]) <= 20]
    return np.exp((steps - steps.rolling(5, min_periods=3).median().shift()).abs()).dropna()


def update_jump(p):
    """Return the factor by which an update exceeds the median of the ten before, after the first 50 iterations, if the batch is
    ordinary: its loss is within 6 robust standard deviations of the median of the ten before."""
    loss, norms = p.table('loss'), p.table('update_norms')
    norms = norms.reindex(columns=[*MATRICES, 'emb', 'head']).dropna(axis=1, how='all').replace(0, np.nan)
    jumps = (loss - loss.rolling(10).median().shift()).dropna()
    if len(jumps) < 10:
        return pd.DataFrame()
    odd = jumps / (1.4826 * (jumps - jumps.median()).abs().median() + 0.01)
    factors = (norms / norms.rolling(10).median().shift())[norms.index > 50]
    return factors[~factors.index.isin(odd.index[(odd > 6).any(axis=1)])].dropna(how='all')


class Rule(NamedTuple):
    cause: str
    what: str               # the quantity in words
    quantity: Callable      # of a Patient: a table of iterations × places, empty if it is not known
    healthy: str
    low: float = -math.inf  # sick below
    high: float = math.inf  # sick above
    rows: int = 1           # in so many rows in succession; 0: in all
    until: float = math.inf # the last iteration that counts
    remedy: str = ''        # keys that would hold it, or where to look


LEAK, NO_NORM, LOGITS = 'a leak from the future', 'no norm where the signal needs one', 'attention logits too large at the start'
EMBEDDINGS, FROZEN = 'embeddings too large or too small', 'no gradient here: frozen, unused or cut off'
DECAY, JUMP, SMALL = 'decay on gains, or missing on what grows', 'a spike from the weights', 'updates too small'
REPEATS, LABELS = 'repeated or empty batches', 'shifted or copied labels'
RULES = [           # a cause comes before those that it explains
    Rule(REPEATS, 'share of rows seen before, in the first epoch', repeated, '0 to 0.04', high=0.2, rows=3,
         remedy='look at the order of the batches: train.py, data/tokens.py'),
    Rule(LABELS, 'share of targets that are the next input', lambda p: p.table('batches.agreement'), '1', low=0.9, rows=10,
         remedy='look at data/tokens.py'),
    Rule(LEAK, 'effect of a later input on an output, over that of its own', lambda p: p.look('future'), 'below 1e-5', high=1e-3,
         remedy='look at the mask, and at what mixes tokens'),
    Rule(EMBEDDINGS, 'RMS of the embeddings', embeddings, '0.02 to 0.1', 0.005, 1.4, until=0, remedy='--emb_std=0.02'),
    Rule(NO_NORM, 'growth of a branch with embeddings 10,000 times as large', lambda p: p.look('unbounded'), '0.3 to 5', high=80,
         remedy='--attn_pre_norm=True --ffn_pre_norm=True --final_norm=True'),
    Rule(LOGITS, 'entropy of attention over ln T', lambda p: p.table('attn_entropy'), '0.66 to 1', low=0.4, until=0,
         remedy='--qk_norm=True, or --init_gain=1.0'),
    Rule(FROZEN, 'gradient of a type over that of all', gradient_share, 'above 0.01', low=1e-9, rows=0,
         remedy='look at what cuts the gradient'),
    Rule(FROZEN, 'first moment of the gradient, in ckpt.pt', lambda p: p.look('moments'), 'above 1e-6', low=1e-30,
         remedy='look at what cuts the gradient'),
    Rule(EMBEDDINGS, 'loss − ln V, in nats', above_uniform, '−0.7 to 1.1', high=2, until=0, remedy='--emb_std=0.02'),
    Rule(LABELS, 'loss of the next token over that of another, in nats', lambda p: p.look('other_targets'), 'below 0.01',
         high=0.03, remedy='look at the targets: train.py, data/tokens.py'),
    Rule(DECAY, 'norm of the gains over their first', lambda p: growth(p).filter(['norm', 'gain']), '0.82 to 1.1', low=0.68,
         rows=3, remedy='--decay_norms=False'),
    Rule(SMALL, 'largest update over weights', largest_update, '0.003 to 0.08', low=0.0023, rows=0,
         remedy='a larger rate, a smaller ε, or no clipping'),
    Rule(JUMP, "factor of a type's norm within 20 iterations", weight_jump, '1 to 1.1', high=1.4,
         remedy='look at what sets weights'),
    Rule(JUMP, 'factor of an update over those before', update_jump, '1 to 17', high=20,
         remedy='look at what the optimizer does'),
    Rule(DECAY, 'growth of a block type without weight decay', undecayed, '1 to 1.1', high=1.3, rows=3,
         remedy='--weight_decay=0.1'),
]


def judge(patient, rule):
    """Return (value, places, first iteration) where all of a rule's rows in succession are sick, or None."""
    table = rule.quantity(patient)
    table = table[table.index <= rule.until] if len(table) else table
    windows = table.rolling(max(1, min(rule.rows or len(table), len(table))))
    most, least = windows.max(), windows.min()
    sick = (most < rule.low) | (least > rule.high)
    places = [place for place in sick if sick[place].any()]
    if not places:
        return None
    value = most[places].min().min() if (most < rule.low).any().any() else least[places].max().max()
    return float(value), places, int(sick.index[sick[places].any(axis=1).argmax()])


def findings(patient):
    """Return [(rule, value, places, iteration)], one for each cause, and the causes of which nothing is known."""
    found, known = {}, set()
    for rule in RULES:
        if rule.quantity(patient).size:
            known.add(rule.cause)
            if rule.cause not in found and (sick := judge(patient, rule)):
                found[rule.cause] = rule, *sick
    return [*found.values()], [cause for cause in dict.fromkeys(rule.cause for rule in RULES) if cause not in known]


def main():
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ('-h', '--help'):
        sys.exit(print(__doc__.strip()))
    begin()
    is_run = os.path.isdir(arguments[0])
    if is_run and arguments[1:]:
        raise ValueError(f'{arguments[1]}: name one run alone, or config files and --key=value')
    patient, status, notes = examine_run(arguments[0]) if is_run else (examine_config(arguments), 'untrained', [])
    found, unknown = findings(patient)
    print(f'{arguments[0]} ({status}): {found[0][0].cause if found else "no finding"}')
    for number, (rule, value, places, it) in enumerate(found[:3], 1):
        where = f' ({", ".join(places)})' * any(places)
        limits = ' or '.join([f'below {rule.low:g}'] * (rule.low > -math.inf) + [f'above {rule.high:g}'] * (rule.high < math.inf))
        print(f'{number}. {rule.cause}: {rule.what}{where} is {value:.3g} at iteration {it}; healthy {rule.healthy}, sick '
              f'{limits}.\n   {"try" if rule.remedy.startswith("--") else "then"}: {rule.remedy}')
    for line in notes + [f'not known: {"; ".join(unknown)}'] * bool(unknown):
        print(line)


if __name__ == '__main__':
    main()
