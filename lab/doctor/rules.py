"""
What is healthy and what is sick: the table RULES, with all thresholds. They are provisional, from runs of 0.2M parameters.

A quantity is a function of a Case that returns a table, iterations × places (block types, layers), empty if the run has no such
number. A rule fires where its quantity is below or above the limits of `sick` for `rows` rows in succession. The order of the
rules is that of the findings: a fault comes before the faults that it explains.
"""
import math
from dataclasses import dataclass
from typing import Callable

import numpy as np
import pandas as pd

from lab.doctor.case import place_of

inf = math.inf
MATRICES = ['qk', 'vo', 'ffn']
EARLY = 300             # iterations in which norms may grow by so much
ALL = 10 ** 9           # rows: in all of them
STEP_OF = {'sgdw': 'grad_norms'}        # to what a step is in proportion; other optimizers move each number by about the rate


# ----------------------------------------------------------------------------- quantities

def of(key, places=None):
    """Return the quantity that is a number of the log, in these block types or in all places."""
    return lambda c: select(c.table(key), places)


def select(table, places):
    return table if places is None else table[[place for place in table if place.partition(' ')[0] in places]]


def last_layer(quantity):
    return lambda c: quantity(c).iloc[:, -1:]


def median_logit(c):
    """Return the median over the layers of the largest logit; nothing where attention's branch is 0, as ReZero's at the start."""
    logits, branches = (c.table(key).median(axis=1) for key in ('max_logits', 'attn_rms'))
    return logits[branches > 0].to_frame('') if len(logits) and len(branches) else pd.DataFrame()


def growth(*places):
    """Return the quantity that is the norm of these block types over their first norm."""
    def quantity(c):
        norms = select(c.table('weight_norms'), places)
        return norms / norms.iloc[0].where(norms.iloc[0] > 0) if len(norms) else norms
    return quantity


def embeddings(c):
    """Return the RMS of the token embeddings."""
    norms = select(c.table('weight_norms'), ['emb'])
    return norms / c.sizes['emb'] ** 0.5 if c.sizes else norms[:0]


def embedding_growth(c):
    """Return the embeddings' RMS over that at the start, or over 0.1 if they start smaller, as GPT-2's do."""
    sizes = embeddings(c)
    return sizes / max(0.1, sizes['emb'].iloc[0]) if sizes.size else sizes


def over_corpus(key):
    return lambda c: c.table(key) / c.corpus_entropy if c.corpus_entropy else pd.DataFrame()


def repeated(c):
    """Return the share of repeated rows in the first epoch."""
    share, per_iter = c.table('batches.repeated'), c.config.get('gradient_accumulation_steps', 1) * c.config.get('batch_size', 1)
    return share[(share.index + 1) * per_iter <= c.windows]


def above_uniform(c):
    """Return the loss above that of even probabilities, if the head is the embedding."""
    choices = c.config.get('vocab_size') or c.config.get('classes')
    tied = 'head' not in c.table('weight_norms')
    return c.table('loss') - math.log(choices) if choices and tied else pd.DataFrame()


def gradient_share(c):
    return c.table('grad_norms').div(c.table('grad_norm').get(''), axis=0) if len(c.table('grad_norms')) else pd.DataFrame()


def first_moments(c):
    """Return the first moments, without those of residual states: the first states have nothing to mix."""
    it, moments = c.moments or (0, {})
    return pd.DataFrame({place_of(name): {it: first} for name, (first, _) in moments.items() if '_residual.' not in name})


def moment_ratio(c):
    pairs = [pair for pair in c.moments[1].values() if pair[1]] if c.moments else []
    squares = sum(second for _, second in pairs)
    return pd.DataFrame({'': {c.moments[0]: math.sqrt(sum(first ** 2 for first, _ in pairs) / squares)}} if squares else {})


def relative_updates(c):
    """Return update over weights of the blocks' matrices."""
    return select(c.table('update_norms') / c.table('weight_norms').replace(0, np.nan), MATRICES)


def largest_update(c):
    return relative_updates(c).max(axis=1).to_frame('')


def speed(c):
    """Return how far a step moves a type in proportion to what moves it, over the median of the blocks' matrices. Leave out the
    first row, where moments begin."""
    updates = c.table('update_norms')
    if c.config.get('optimizer') in STEP_OF:
        speeds = updates / c.table(STEP_OF[c.config['optimizer']]).replace(0, np.nan)
    else:
        speeds = updates / pd.Series(c.sizes, dtype=float).reindex(updates.columns) ** 0.5
    speeds = speeds[[kind for kind in speeds if kind not in ('norm', 'gain')]]          # few numbers, which a small ε holds back
    typical = speeds.reindex(columns=MATRICES).median(axis=1).replace(0, np.nan)
    return speeds.div(typical, axis=0).iloc[1:].dropna(axis=1, how='all')


def depth_factor(c):
    """Return the factor by which the gradient changes from a layer to the next."""
    grads = c.table('layers.grad_norms').replace(0, np.nan)
    factors = {}
    for kind in ('vo', 'ffn'):
        sizes = grads[[place for place in grads if place.startswith(kind)]].dropna(axis=1)
        if sizes.shape[1] > 1 and len(sizes):
            slopes = np.polyfit(range(sizes.shape[1]), np.log(sizes.to_numpy().T), 1)[0]
            factors[kind] = dict(zip(sizes.index, np.exp(np.abs(slopes))))
    return pd.DataFrame(factors)


def surprise(c):
    """Return how far the loss is above the median of the ten rows before, in robust standard deviations."""
    loss = c.table('loss')
    jumps = (loss - loss.rolling(10).median().shift()).dropna()
    return jumps / (1.4826 * (jumps - jumps.median()).abs().median() + 0.01) if len(jumps) >= 10 else jumps[:0]


def weight_jump(c):
    """Return the factor by which a type's norm changes within 20 iterations, over that of the rows before. Leave out the first 50
    iterations."""
    norms = c.table('weight_norms')
    norms = norms[norms > 0].dropna(axis=1)[norms.index > 50]
    steps = np.log(norms).diff()[np.diff(norms.index, prepend=norms.index[0] if len(norms) else 0) <= 20]
    return np.exp((steps - steps.rolling(5, min_periods=3).median().shift()).abs()).dropna()


def rise(c):
    """Return how far the loss, as the median of ten rows, is above its lowest."""
    loss = c.table('loss').rolling(10).median().dropna()
    return loss - loss.cummin()


def future(c):
    return pd.DataFrame({'': {c.future[0]: c.future[1]}} if c.future else {})


def diverged(c):
    return pd.DataFrame({'': {row['iter']: float('diverged' in row) for row in c.rows[-1:]}})


# ----------------------------------------------------------------------------- rules

@dataclass
class Rule:
    cause: str
    what: str               # the quantity in words, with its unit
    quantity: Callable
    healthy: tuple          # the range of healthy runs
    sick: tuple             # below the first or above the second
    why: str
    try_keys: Callable = lambda c: {}       # the run's keys → keys that would hold it; {}: the code is to be looked at
    rows: int = 1
    until: float = inf      # the last iteration that counts
    against: str = ''       # clean | usual: the quantity is divided by that of this other start
    beside: bool = False    # the quantity is not in the log: it is in the checkpoint, or replayed
    matrix: tuple = ()      # a row and a column of preflight's invariance matrix

    def series(self, case):
        """Return the quantity's table, over that of the other start if the rule is against one."""
        own = self.quantity(case)
        if not self.against:
            return own
        other = getattr(case, self.against)
        return (own / self.quantity(other).replace(0, np.nan)).dropna(how='all') if other else pd.DataFrame()

    def values(self, case):
        """Return the table that is compared with the limits."""
        table = self.series(case)
        return table[table.index <= self.until] if len(table) else table


def scaled(key, factor):
    return lambda c: {key: float(f'{factor * c.get(key, 0):.2g}')}


def first_of(*options):
    """The first of some (key, value) that the run does not have already."""
    return lambda c: dict(next(([option] for option in options if c.get(option[0]) != option[1]), []))


def even_rates(c):
    return {key: 1.0 for key, value in c.items() if key.startswith('r_') and value != 1.0}


CLEAN = 'over that of clean code'
LOWER = scaled('learning_rate', 0.3)
RULES = [
    # data
    Rule('one token or padding', 'entropy of the inputs over that of the data', over_corpus('batches.entropy'), (0.9, 1.1),
         (0.7, 1.4), 'the batches are not what the data holds: most inputs are one token, or of another file', rows=3),
    Rule('repeated batches', 'share of rows seen before, in the first epoch', repeated, (0, 0.01), (-inf, 0.2),
         'the same windows come again and again, and the model learns them by heart', rows=3),
    Rule('shifted or copied labels', 'share of targets that are the next input', of('batches.agreement'), (1, 1), (0.9, inf),
         'a token is not trained to tell the next one', rows=2),
    Rule('a leak from the future', 'effect of an input on earlier outputs, over that on its own, replayed', future, (0, 1e-5),
         (-inf, 1e-3), 'a token sees those that it should tell', beside=True),
    Rule('a leak from the future', 'validation loss over the entropy of the data\'s tokens', over_corpus('val_loss'), (0.3, 2),
         (0.12, inf), 'no model of text is that good: a token sees those that it should tell'),
    Rule('a leak from the future', f'loss {CLEAN}', of('loss'), (0.95, 1.05), (0.8, inf),
         'an edit that helps so much at once lets a token see those that it should tell', rows=2, against='clean'),
    Rule('no norm where the signal needs one', f'RMS of attention\'s branch {CLEAN}', of('attn_rms'), (0.8, 1.2),
         (0.25, inf), 'the branch reads a stream that nothing brings to unit size', against='clean',
         matrix=('attention branch', 'embeddings'), until=0),
    Rule('no norm where the signal needs one', f'RMS of the FFN\'s branch {CLEAN}', of('ffn_rms'), (0.8, 1.2),
         (0.25, inf), 'the branch reads a stream that nothing brings to unit size', against='clean',
         matrix=('FFN branch', 'embeddings'), until=0),
    # gradients
    Rule('frozen or unused parameters, or a cut gradient', 'gradient of a type over that of all', gradient_share, (1e-3, 1),
         (1e-9, inf), 'no gradient reaches them, and nothing trains them', rows=ALL),
    Rule('frozen or unused parameters, or a cut gradient', 'first moment of the gradient, in ckpt.pt', first_moments,
         (1e-6, inf), (1e-30, inf), 'no gradient reaches them, and nothing trains them', beside=True),
    # starts
    Rule('embeddings too large', f'norm of the embeddings at the start {CLEAN}', of('weight_norms', ['emb', 'pos']),
         (0.9, 1.1), (-inf, 2.5), 'they drown the first branches, and a tied head makes logits of them', against='clean',
         until=0),
    Rule('embeddings too large', 'RMS of the embeddings at the start', embeddings, (0.02, 1), (-inf, 2),
         'steps are small beside them', first_of(('emb_std', 0.02)), until=0),
    Rule('embeddings too small', f'norm of the embeddings at the start {CLEAN}', of('weight_norms', ['emb', 'pos']),
         (0.9, 1.1), (0.4, inf), 'the first branch drowns them', against='clean', until=0),
    Rule('embeddings too small', 'RMS of the embeddings at the start', embeddings, (0.02, 1), (0.005, inf),
         'they must grow first, and steps are large beside them', first_of(('emb_std', 0.02), ('input_norm', True)), until=0),
    Rule('no norm where the signal needs one', 'median largest attention logit at the start', median_logit,
         (0.006, 8), (0.003, inf), 'queries and keys are so small that attention is even', first_of(('attn_pre_norm', True)),
         matrix=('attention logits', 'embeddings'), until=0),
    *(Rule('branches or a stream too large', f'{what} at the start {over}', quantity, (0.5, 2), (-inf, limit),
           'what one branch adds drowns what is there, and gradients grow with it', try_keys, against=against, matrix=matrix,
           until=0)
      for against, over, limit, try_keys in (
          ('clean', CLEAN, 3, lambda c: {}),
          ('usual', 'over that with Xavier\'s initialization', 4, first_of(('residual_scale', 1.0), ('init_gain', 1.0),
                                                                           ('mid_norm', True))))
      for what, quantity, matrix in (
          ('RMS of attention\'s branch', of('attn_rms'), ('attention branch', 'W_v W_o')),
          ('RMS of the FFN\'s branch', of('ffn_rms'), ('FFN branch', 'W_2')),
          ('RMS of the last residual stream', last_layer(of('residual_rms')), ('last hidden state', 'W_2')))),
    Rule('embeddings too large', 'loss at the start − ln V, in nats', above_uniform, (-0.3, 0.3), (-inf, 1.5),
         'the logits are large before anything is learned: a tied head makes them of the embeddings',
         first_of(('init_gain', 1.0), ('emb_std', 0.02)), until=0),
    Rule('attention logits too large at the start', 'entropy of attention over ln T', of('attn_entropy'), (0.7, 1),
         (0.5, inf), 'a softmax that is nearly one-hot passes almost no gradient to queries and keys',
         first_of(('qk_norm', True), ('init_gain', 1.0)), matrix=('attention logits', 'W_q W_k'), until=0),
    Rule('gradients vanish or explode with depth', 'factor of the gradient from layer to layer at the start', depth_factor,
         (1, 3), (-inf, 4), 'lower and upper layers cannot use the same rate', first_of(('attn_pre_norm', True),
                                                                                          ('ffn_pre_norm', True)),
         matrix=('gradient of w1', 'W_2'), until=0),
    Rule('frozen or unused parameters, or a cut gradient', f'gradient of a type at the start {CLEAN}', of('grad_norms'),
         (0.7, 1.4), (0.3, inf), 'part of the gradient is lost on its way back', against='clean', until=0),
    # changes
    Rule('decay on gains', 'norm of the gains over their first', growth('norm', 'gain'), (0.9, 1.1), (0.5, inf),
         'weight decay pulls gains to 0, and with them what they multiply', first_of(('decay_norms', False)), rows=3),
    Rule('β far off', 'first moment over the root of the second, in ckpt.pt', moment_ratio, (0.2, 0.5), (0.13, 0.88),
         'β₁ near 0 averages no noise away, β₁ near 1 follows gradients of long ago (AdamW, Adam-mini)',
         first_of(('beta1', 0.9), ('beta2', 0.95)), beside=True),
    Rule('a block type too slow', 'update over the rate, over that of the matrices', speed, (0.3, 3), (0.06, inf),
         'the other types learn, and this one stands almost still', even_rates, rows=3, until=100),
    Rule('a block type too fast', 'update over the rate, over that of the matrices', speed, (0.3, 5), (-inf, 10),
         'steps that fit the other types throw this one about', even_rates, rows=3, until=100),
    Rule('a block type too slow', f'update over that of the matrices, {CLEAN}', speed, (0.7, 1.4), (0.2, inf),
         'the other types learn, and this one stands almost still', rows=3, until=100, against='clean'),
    Rule('a block type too fast', f'update over that of the matrices, {CLEAN}', speed, (0.7, 1.4), (-inf, 5),
         'steps that fit the other types throw this one about', rows=3, until=100, against='clean'),
    # step size
    Rule('step size too large', 'share of dead units in the FFN', of('dead_units'), (0, 0.1), (-inf, 0.25),
         'a step too far has left units where no input reaches them', LOWER),
    Rule('step size too large', 'growth of the embeddings in 300 iterations', embedding_growth, (1, 2), (-inf, 3),
         'steps add up to more than the weights', LOWER, until=EARLY),
    Rule('step size too large', 'rise of the loss above its lowest, in nats', rise, (0, 0.15), (-inf, 0.5),
         'steps are too long for the curvature; a longer warm-up or smaller clipping may do too', LOWER, rows=5),
    Rule('step size too large', 'update over weights (AdamW, Muon, Lion; SGDW less)', relative_updates, (0.001, 0.06),
         (-inf, 0.15), 'a few steps replace the weights; a longer warm-up or smaller clipping may do too', LOWER, rows=3),
    Rule('step size too small', 'largest update over weights of all types', largest_update, (0.003, 0.06),
         (0.0012, inf), 'the rate, ε, clipping or the warm-up holds the steps back', scaled('learning_rate', 3),
         rows=ALL),
    Rule('step size too large', 'loss or gradient not finite', diverged, (0, 0), (-inf, 0.5),
         'the last steps were too long for the curvature', LOWER),
    Rule('attention logits growing', 'largest attention logit', of('max_logits'), (1, 30), (-inf, 60),
         'the softmax becomes one-hot, and its gradient noise', first_of(('qk_norm', True)),
         matrix=('attention logits', 'W_q W_k')),
    # spikes
    Rule('a spike from the weights', 'factor of a type\'s norm in 20 iterations', weight_jump, (1, 1.1), (-inf, 1.5),
         'the weights moved at once, not by a step of this size'),
    Rule('a spike from a batch', 'jump of the loss, in robust standard deviations', surprise, (-7, 7), (-inf, 12),
         'one batch is unlike the others, and its gradient moves the weights', first_of(('grad_clip', 1.0))),
]
