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

from lab.doctor.case import leaves, look_up, place_of

inf = math.inf
MATRICES = ['qk', 'vo', 'ffn']
EARLY = 300             # iterations in which norms may grow by so much
ALL = 10 ** 9           # rows: in all of them


# ----------------------------------------------------------------------------- quantities

def of(key, places=None):
    """Return the quantity that is a number of the log, in these block types or in all places."""
    return lambda c: select(c.table(key), places)


def select(table, places):
    return table if places is None else table[[place for place in table if place.partition(' ')[0] in places]]


def last_layer(quantity):
    return lambda c: quantity(c).iloc[:, -1:]


def growth(*places):
    """Return the quantity that is the norm of these block types over their first norm."""
    def quantity(c):
        norms = select(c.table('weight_norms'), places)
        return norms / norms.iloc[0].where(norms.iloc[0] > 0) if len(norms) else norms
    return quantity


def undecayed(c):
    """Return the growth of types that decay in other runs, if the config has no weight decay."""
    return growth(*MATRICES, 'emb', 'head')(c) if c.config.get('weight_decay') == 0 else pd.DataFrame()


def embeddings(c):
    """Return the RMS of the token embeddings."""
    norms = select(c.table('weight_norms'), ['emb'])
    return norms / c.sizes['emb'] ** 0.5 if c.sizes else norms[:0]


def over_data(key):
    """Return the quantity that is an entropy, as the median of ten rows, over that of the data's tokens."""
    return lambda c: c.table(key).rolling(10).median().dropna() / c.entropy if c.entropy else pd.DataFrame()


def given_entropy(c):
    return replayed('batches.entropy')(c) / c.entropy if c.entropy else pd.DataFrame()


def validation(c):
    return c.table('val_loss') / c.entropy if c.entropy else pd.DataFrame()


def repeated(c):
    """Return the share of repeated rows in the first epoch."""
    share = c.table('batches.repeated')
    return share[(c.table('rows_before')[''] <= c.windows)] if len(share) else share


def above_uniform(c):
    """Return the loss above that of even probabilities, if the head is the embedding."""
    tied = 'head' not in c.table('weight_norms')
    return c.table('loss') - math.log(c.choices) if c.choices and tied else pd.DataFrame()


def replayed(key):
    """Return the quantity that is a number of replay.py."""
    return lambda c: pd.DataFrame.from_dict({0: dict(leaves(value))}, 'index', float).dropna(axis=1) if (
        value := look_up(c.replayed, key)) is not None else pd.DataFrame()


def gradient_share(c):
    """Return the gradient of each type that the clean code has or the weights have, over that of all."""
    shares = c.table('grad_norms').div(c.table('grad_norm').get(''), axis=0) if len(c.table('grad_norms')) else pd.DataFrame()
    kinds = dict.fromkeys([*shares, *(c.clean.table('grad_norms') if c.clean and len(shares) else ())])
    return shares.reindex(columns=kinds, fill_value=0.0)


def first_moments(c):
    """Return the first moments, without those of residual states: the first states have nothing to mix."""
    it, moments = c.moments or (0, pd.DataFrame(dict(name=[], first=[])))
    return pd.DataFrame({place_of(row.name): {it: row.first} for row in moments.itertuples(index=False)
                         if '_residual.' not in row.name})


def moment_ratio(c):
    """Return the first moment over the root of the second, of weights that have both."""
    it, moments = c.moments or (0, pd.DataFrame())
    both = moments.dropna() if len(moments) else moments
    return pd.DataFrame({'': {it: (both['first'].pow(2).sum() / both['squares'].sum()) ** 0.5}} if len(both) else {})


def momentum(c):
    """Return a momentum that is a sum of gradients, over the gradient of the last 30 rows."""
    it, moments = c.moments or (0, pd.DataFrame())
    sums = moments[moments['is_sum']] if len(moments) else moments
    grads = (c.table('grad_norms').iloc[-30:] ** 2).mean().reindex(sums['kind'].unique()).sum() ** 0.5 if len(sums) else 0
    return pd.DataFrame({'': {it: sums['first'].pow(2).sum() ** 0.5 / grads}} if grads else {})


def updates(c):
    """Return update over weights of the blocks' matrices."""
    return select(c.table('update_norms') / c.table('weight_norms').replace(0, np.nan), MATRICES)


def typical_updates(c):
    """Return the median of 100 rows of update over weights."""
    return updates(c).rolling(min(100, len(updates(c)) or 1)).median().dropna()


def largest_update(c):
    return updates(c).max(axis=1).to_frame('')


def speed(key):
    """Return the quantity that is how far a step moves a type, as the median of 20 rows, over the root of its numbers, or in SGD over
    its entry of this key, and over the median of the blocks' matrices. It leaves out the first row, where moments begin, and
    types of few numbers, which a small ε holds back."""
    def quantity(c):
        def medians(key):
            return c.table(key).iloc[1:].rolling(20, min_periods=3).median()

        sizes = medians(key).replace(0, np.nan) if c.is_sgd else pd.Series(c.sizes, dtype=float) ** 0.5
        speeds = medians('update_norms') / sizes
        typical = speeds.reindex(columns=MATRICES).median(axis=1).replace(0, np.nan)
        speeds = speeds[[kind for kind in speeds if kind not in ('norm', 'gain', 'mix')]]
        return speeds.div(typical, axis=0).dropna(axis=1, how='all').dropna(how='all')
    return quantity


def cut_gradient(c):
    """Return the gradient at the start over that of clean code, and over the median of such ratios."""
    ratios = c.table('grad_norms')[:1] / c.clean.table('grad_norms') if c.clean else pd.DataFrame()
    return ratios.div(ratios.median(axis=1), axis=0).dropna(how='all')


def over_clean(key, least):
    """Return the quantity that is a norm over that of clean code, as the median of ten rows: the least or the largest of all types."""
    def quantity(c):
        if not c.clean:
            return pd.DataFrame()
        ratios = (c.table(key) / c.clean.table(key).replace(0, np.nan)).dropna(how='all').rolling(10, min_periods=1).median()
        return (ratios.min(axis=1) if least else ratios.max(axis=1)).to_frame('')
    return quantity


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


def update_jump(c):
    """Return the factor by which an update exceeds the median of the ten before, where the batch before it is an ordinary one. Leave
    out the first 50 iterations."""
    norms = c.table('update_norms')
    norms = norms[[kind for kind in norms if kind in (*MATRICES, 'emb', 'head')]].replace(0, np.nan)
    jumps = (norms / norms.rolling(10).median().shift())[norms.index > 50]
    odd = surprise(c)
    return jumps[~jumps.index.isin(odd.index[(odd > 6).any(axis=1)])].dropna(how='all') if len(odd) else jumps[:0]


def rise(c):
    """Return how far the loss, as the median of 20 rows, is above its lowest."""
    loss = c.table('loss').rolling(20).median().dropna()
    return loss - loss.cummin()


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
LABELS, LEAK, FROZEN = 'shifted or copied labels', 'a leak from the future', 'frozen or unused parameters, or a cut gradient'
NO_NORM, EMBEDDINGS, LARGE = 'no norm where the signal needs one', 'embeddings too large or too small', 'branches or a stream too large'
DEPTH, BETAS, DECAY = 'gradients vanish or explode with depth', 'β far off', 'decay on gains, or missing on what grows'
RULES = [
    # data
    Rule('one token or padding', 'entropy of the inputs over that of the data', over_data('batches.entropy'), (0.95, 1.05),
         (0.85, 1.2), 'the batches are not what the data holds: most inputs are one token, or of another file'),
    Rule('one token or padding', 'entropy of what the model gets over that of the data, replayed', given_entropy, (0.9, 1.1),
         (0.7, 1.4), 'the model does not get what the data holds: most inputs are one token'),
    Rule('repeated batches', 'share of rows seen before, in the first epoch', repeated, (0, 0.01), (-inf, 0.2),
         'the same windows come again and again, and the model learns them by heart', rows=3),
    Rule('repeated batches', 'share of rows that the model got before, replayed', replayed('batches.repeated'), (0, 0.01),
         (-inf, 0.2), 'the same windows come again and again, and the model learns them by heart'),
    Rule(LABELS, 'share of targets that are the next input', of('batches.agreement'), (1, 1), (0.9, inf),
         'a token is not trained to tell the next one', rows=10),
    Rule(LABELS, 'share of the model\'s targets that are the next input, replayed', replayed('batches.agreement'), (1, 1),
         (0.9, inf), 'a token is not trained to tell the next one'),
    Rule(LEAK, 'effect of a later input or of the targets on an output, over that of its own input, replayed', replayed('future'),
         (0, 1e-5), (-inf, 1e-3), 'a token sees those that it should tell'),
    Rule(LEAK, 'validation loss over the entropy of the data\'s tokens', validation, (0.4, 1.2), (0.2, inf),
         'no model of text is that good: a token sees those that it should tell'),
    Rule(LEAK, f'loss {CLEAN}', of('loss'), (0.9, 1.1), (0.55, inf),
         'an edit that helps so much at once lets a token see those that it should tell', rows=2, against='clean'),
    # gradients and starts
    Rule(EMBEDDINGS, f'norm of the embeddings at the start {CLEAN}', of('weight_norms', ['emb', 'pos']), (0.9, 1.1), (0.4, 2.5),
         'too large they drown the first branches, too small the branches drown them', against='clean', until=0),
    Rule(EMBEDDINGS, f'RMS of what the first block reads {CLEAN}', replayed('first_rms'), (0.9, 1.1), (0.4, 2.5),
         'too large they drown the first branches, too small the branches drown them', against='clean'),
    Rule(EMBEDDINGS, 'RMS of the embeddings at the start', embeddings, (0.02, 0.1), (0.005, 1.4),
         'steps are small beside large ones, and small ones must grow first',
         first_of(('emb_std', 0.02), ('input_norm', True)), until=0),
    Rule(NO_NORM, 'growth of branches and output with embeddings 10,000 times as large', replayed('unbounded'), (0.3, 5),
         (-inf, 80), 'nothing brings what they read to unit size', first_of(('attn_pre_norm', True), ('ffn_pre_norm', True),
                                                                            ('final_norm', True))),
    *(Rule('attention logits too large at the start', f'entropy of attention at the start{over}', of('attn_entropy'), healthy,
           sick, 'a softmax that is nearly one-hot passes almost no gradient to queries and keys', try_keys, against=against,
           matrix=('attention logits', 'W_q W_k'), until=0)
      for over, against, healthy, sick, try_keys in (
          (' over ln T', '', (0.85, 1), (0.55, inf), first_of(('qk_norm', True), ('init_gain', 1.0))),
          (f', {CLEAN}', 'clean', (0.95, 1.05), (0.75, inf), lambda c: {}))),
    *(Rule(LARGE, f'RMS of {what} at the start {over}', quantity, (0.3, 1.2), (-inf, 3),
           'what one branch adds drowns what is there, and gradients grow with it', try_keys, against=against, matrix=matrix,
           until=0)
      for against, over, try_keys in (
          ('clean', CLEAN, lambda c: {}),
          ('usual', 'over the usual', first_of(('residual_scale', 1.0), ('skip_scale', 'one'), ('init_gain', 1.0))))
      for what, quantity, matrix in (
          ('attention\'s branch', of('attn_rms'), ('attention branch', 'W_v W_o')),
          ('the FFN\'s branch', of('ffn_rms'), ('FFN branch', 'W_2')),
          ('the last residual stream', last_layer(of('residual_rms')), ('last hidden state', 'W_2')))),
    Rule(DEPTH, 'factor of the gradient from layer to layer at the start', depth_factor, (1, 1.8), (-inf, 2.7),
         'lower and upper layers cannot use the same rate', first_of(('attn_pre_norm', True), ('ffn_pre_norm', True)),
         matrix=('gradient of w1', 'W_2'), until=0),
    Rule(FROZEN, 'gradient of a type over that of all', gradient_share, (0.01, 1), (1e-9, inf),
         'no gradient reaches them, and nothing trains them', rows=ALL),
    Rule(FROZEN, 'first moment of the gradient, in ckpt.pt', first_moments, (1e-6, inf), (1e-30, inf),
         'no gradient reaches them, and nothing trains them', beside=True),
    Rule(EMBEDDINGS, 'loss at the start − ln V, in nats', above_uniform, (-0.7, 0.5), (-inf, 2),
         'the logits are large before anything is learned: a tied head makes them of the embeddings',
         first_of(('init_gain', 1.0), ('emb_std', 0.02)), until=0),
    Rule(FROZEN, f'gradient of a type at the start {CLEAN}, and over the median of such ratios', cut_gradient,
         (0.9, 1), (0.3, inf), 'part of the gradient is lost on its way back', until=0),
    Rule(LABELS, 'loss of the next token over that of another one, in nats, replayed', replayed('other_targets'), (-4, -0.1),
         (-inf, 0.05), 'the model has learned to tell another token than the next one'),
    # changes
    Rule(DECAY, 'norm of the gains over their first', growth('norm', 'gain'), (0.92, 1.1), (0.68, inf),
         'weight decay pulls gains to 0, and with them what they multiply', first_of(('decay_norms', False)), rows=3),
    Rule(BETAS, 'first moment over the root of the second, in ckpt.pt', moment_ratio, (0.26, 0.54), (0.09, 0.85),
         'β₁ near 0 averages no noise away, β₁ near 1 follows gradients of long ago (AdamW)',
         first_of(('beta1', 0.9), ('beta2', 0.95)), beside=True),
    Rule(BETAS, 'momentum over the gradient, in ckpt.pt', momentum, (2, 6), (-inf, 9),
         'a momentum near 1 follows gradients of long ago, and adds up too many', first_of(('momentum', 0.9)), beside=True),
    *(Rule(f'a block type too {how}', f'its update over that of the matrices{over}', speed(key), healthy, sick, why,
           even_rates if not against else lambda c: {}, rows=30, until=100, against=against)
      for how, sign, key, why in (('slow', 0, 'grad_norms', 'the other types learn, and this one stands almost still'),
                             ('fast', 1, 'weight_norms', 'steps that fit the other types throw this one about'))
      for over, against, healthy, sick in (('', '', (0.34, 5.2), ((0.08, inf), (-inf, 7.6))[sign]),
                                           (f', {CLEAN}', 'clean', (0.7, 1.4), ((0.2, inf), (-inf, 5))[sign]))),
    # step size
    Rule('step size too large', 'loss or gradient not finite', diverged, (0, 0), (-inf, 0.5),
         'the last steps were too long for the curvature', LOWER),
    Rule('a spike from the weights', 'factor of a type\'s norm in 20 iterations', weight_jump, (1, 1.02), (-inf, 1.4),
         'the weights moved at once, not by a step of this size'),
    Rule('a spike from the weights', 'factor of an update over those before', update_jump, (1, 5.4), (-inf, 20),
         'one step moved the weights far, on an ordinary batch'),
    Rule('step size too large', 'rise of the loss above its lowest, in nats', rise, (0, 0.3), (-inf, 0.5),
         'steps are too long for the curvature; a longer warm-up or smaller clipping may do too', LOWER, rows=5),
    Rule('step size too large', 'share of dead units in the FFN', of('dead_units'), (0, 0.1), (-inf, 0.3),
         'a step too far has left units where no input reaches them', LOWER),
    Rule('step size too large', 'update over weights, median of 100', typical_updates, (0.002, 0.042), (-inf, 0.055),
         'a few steps replace the weights; a longer warm-up or smaller clipping may do too', LOWER),
    Rule('step size too small', 'largest update over weights of all types', largest_update, (0.003, 0.08), (0.0023, inf),
         'the rate, ε, clipping or the warm-up holds the steps back', scaled('learning_rate', 3), rows=ALL),
    Rule('step size too small', f'largest gradient of a type at the start {CLEAN}', over_clean('grad_norms', False), (0.9, 1.1),
         (0.3, inf), 'the gradient is divided by a number, and steps with it', until=0),
    Rule('step size too small', f'largest update of a type {CLEAN}', over_clean('update_norms', False), (0.8, 1.25), (0.4, inf),
         'an edit makes all steps smaller', rows=10),
    Rule('step size too large', f'least update of a type {CLEAN}', over_clean('update_norms', True), (0.8, 1.25), (-inf, 2.5),
         'an edit makes all steps larger', rows=10),
    Rule('attention logits growing', 'largest attention logit', of('max_logits'), (1, 25), (-inf, 70),
         'the softmax becomes one-hot, and its gradient noise', first_of(('qk_norm', True)),
         matrix=('attention logits', 'W_q W_k')),
    Rule('a spike from a batch', 'jump of the loss, in robust standard deviations', surprise, (-7, 9.6), (-inf, 14),
         'one batch is unlike the others, and its gradient moves the weights', first_of(('grad_clip', 1.0))),
    Rule(DECAY, 'growth of a block type without weight decay', undecayed, (1, 1.1), (-inf, 1.3),
         'nothing holds their norm, and steps become small beside them', first_of(('weight_decay', 0.1)), rows=3),
    Rule(DECAY, f'norm of a block type {CLEAN}', of('weight_norms', (*MATRICES, 'norm', 'gain')), (0.99, 1.01), (0.95, 1.05),
         'weights shrink or grow as by another weight decay', against='clean', rows=3),
]
