"""
What is healthy and what is sick: the table RULES, with all thresholds, which are from runs of 0.2M to 0.7M parameters.

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
DECAYING = [*MATRICES, 'emb', 'head']   # types that decay in other runs
ALL = 10 ** 9           # rows: in all of them


# ----------------------------------------------------------------------------- quantities

def of(key, *places):
    """Return the quantity that is a number of the log, in these block types or in all places."""
    return lambda c: (table := c.table(key))[[place for place in table if not places or place in places]]


def replayed(key):
    """Return the quantity that is a number of replay.py."""
    return lambda c: pd.DataFrame.from_dict({0: dict(leaves(look_up(c.replayed, key)))}, 'index', float).dropna(axis=1) if (
        look_up(c.replayed, key)) is not None else pd.DataFrame()


def over(other, quantity):
    """Return the quantity over that of another start, `clean` or `usual`."""
    return lambda c: (quantity(c) / quantity(getattr(c, other)).replace(0, np.nan)).dropna(how='all') if (
        getattr(c, other)) else pd.DataFrame()


def over_data(quantity):
    """Return the quantity over the entropy of the data's tokens."""
    return lambda c: quantity(c) / c.entropy if c.entropy else pd.DataFrame()


def smooth(quantity, rows):
    return lambda c: quantity(c).rolling(rows).median().dropna()


def repeated(c):
    """Return the share of repeated rows in the first epoch."""
    share = c.table('batches.repeated')
    return share[c.table('rows_before')[''] <= c.windows] if len(share) else share


def growth(c):
    """Return the norm of each block type over its first norm."""
    norms = c.table('weight_norms')
    return norms / norms.iloc[0].where(norms.iloc[0] > 0) if len(norms) else norms


def gains(c):
    return growth(c).reindex(columns=[kind for kind in ('norm', 'gain') if kind in growth(c)])


def undecayed(c):
    """Return the growth of the types that have no weight decay by the keys of this run."""
    grown = growth(c)
    return grown[[kind for kind in grown if kind in DECAYING
                  and c.config.get('weight_decay', 1) * c.config.get(f'wd_{kind}', 1) == 0]]


def embeddings(c):
    """Return the RMS of the token embeddings."""
    return of('weight_norms', 'emb')(c) / c.sizes['emb'] ** 0.5 if c.sizes else pd.DataFrame()


def above_uniform(c):
    """Return the loss above that of even probabilities, if the head is the embedding."""
    return c.table('loss') - math.log(c.choices) if c.choices and 'head' not in c.table('weight_norms') else pd.DataFrame()


def last_stream(c):
    return c.table('residual_rms').iloc[:, -1:]


def depth_factor(c):
    """Return the factor by which the gradient changes from a layer to the next."""
    grads, factors = c.table('layers.grad_norms').replace(0, np.nan), {}
    for kind in ('vo', 'ffn'):
        sizes = grads[[place for place in grads if place.startswith(kind)]].dropna(axis=1)
        if sizes.shape[1] > 1 and len(sizes):
            slopes = np.polyfit(range(sizes.shape[1]), np.log(sizes.to_numpy().T), 1)[0]
            factors[kind] = dict(zip(sizes.index, np.exp(np.abs(slopes))))
    return pd.DataFrame(factors)


def gradient_share(c):
    """Return the gradient of each type that this run or clean code has, over that of all."""
    grads = c.table('grad_norms')
    kinds = dict.fromkeys([*grads, *(c.clean.table('grad_norms') if c.clean and len(grads) else ())])
    return grads.div(c.table('grad_norm').get(''), axis=0).reindex(columns=kinds, fill_value=0.0) if len(grads) else grads


def cut_gradient(c):
    """Return the gradient over that of clean code, and over the median of such ratios."""
    ratios = over('clean', of('grad_norms'))(c)
    return ratios.div(ratios.median(axis=1), axis=0)


def first_moments(c):
    """Return the first moments, without those of residual states: the first states have nothing to mix."""
    it, moments = c.moments
    return pd.DataFrame({place_of(row.name): {it: row.first} for row in moments.itertuples(index=False)
                         if '_residual.' not in row.name})


def moment_ratio(c):
    """Return the first moment over the root of the second, of weights that have both."""
    it, moments = c.moments
    squares = moments.dropna()[['first', 'squares']].assign(first=moments['first'] ** 2).sum()
    return pd.DataFrame({'': {it: (squares['first'] / squares['squares']) ** 0.5}} if squares['squares'] else {})


def momentum(is_sum):
    """Return the quantity that is the norm of the first moments, sums of gradients or their means, over the clipped gradient of
    the 30 rows before. Leave out the first 50 iterations."""
    def quantity(c):
        it, moments = c.moments
        chosen = moments[(moments['is_sum'].astype(bool) == is_sum) & (moments['kind'] != '') & (moments['first'] > 0)]
        clipped = (c.config.get('grad_clip') or inf) / c.table('grad_norm').get('', pd.Series(dtype=float))
        grads = c.table('grad_norms').mul(clipped.clip(upper=1), axis=0).loc[:it - 1].iloc[-30:].median()
        grads = (grads ** 2).reindex(chosen['kind'].unique()).sum() ** 0.5
        return pd.DataFrame({'': {it: chosen['first'].pow(2).sum() ** 0.5 / grads}} if grads and it >= 50 else {})
    return quantity


def speed(key):
    """Return the quantity that is how far a step moves a type, as the median of 20 rows, over the root of its numbers, or in SGD
    over its entry of this key, and over the median of the blocks' matrices. It leaves out the first row, where moments begin,
    and types of few numbers, which a small ε holds back."""
    def quantity(c):
        def medians(key):
            return c.table(key).iloc[1:].rolling(20, min_periods=3).median()

        sizes = medians(key).replace(0, np.nan) if c.is_sgd else pd.Series(c.sizes, dtype=float) ** 0.5
        speeds = medians('update_norms') / sizes
        typical = speeds.reindex(columns=MATRICES).median(axis=1).replace(0, np.nan)
        speeds = speeds[[kind for kind in speeds if kind not in ('norm', 'gain', 'mix')]]
        return speeds.div(typical, axis=0).dropna(axis=1, how='all').dropna(how='all')
    return quantity


def updates(c):
    """Return update over weights of the blocks' matrices."""
    return of('update_norms', *MATRICES)(c) / of('weight_norms', *MATRICES)(c).replace(0, np.nan)


def typical_updates(c):
    return smooth(updates, min(100, len(updates(c)) or 1))(c)


def largest_update(c):
    """Return the largest of the updates over weights, if the warm-up or the run has ended."""
    warm = c.it >= min(c.config.get('warmup_iters', 0), c.config.get('max_iters', 0))
    return updates(c).max(axis=1).dropna().to_frame('') if warm else pd.DataFrame()


def long_steps(c):
    """Return the share of the rows whose update is above a tenth of its largest median of ten rows."""
    moved = largest_update(c)
    return pd.DataFrame({'': {c.it: (moved > 0.1 * moved.rolling(10).median().max())[''].mean()}} if len(moved) > 9 else {})


def over_clean(key, pick):
    """Return the quantity that is a norm over that of clean code, as the median of ten rows, of the type that `pick` picks."""
    def quantity(c):
        ratios = over('clean', of(key))(c).rolling(10, min_periods=1).median() if c.clean else pd.DataFrame()
        return getattr(ratios, pick)(axis=1).to_frame('')
    return quantity


def surprise(c):
    """Return how far the loss is above the median of the ten rows before, in robust standard deviations."""
    jumps = (c.table('loss') - c.table('loss').rolling(10).median().shift()).dropna()
    return jumps / (1.4826 * (jumps - jumps.median()).abs().median() + 0.01) if len(jumps) >= 10 else jumps[:0]


def weight_jump(c):
    """Return the factor by which a type's norm changes within 20 iterations, over that of the rows before. Leave out the first 50
    iterations."""
    norms = c.table('weight_norms')
    norms = norms[norms > 0].dropna(axis=1)[norms.index > 50]
    steps = np.log(norms).diff()[np.diff(norms.index, prepend=norms.index[0] if len(norms) else 0) <= 20]
    return np.exp((steps - steps.rolling(5, min_periods=3).median().shift()).abs()).dropna()


def update_jump(c):
    """Return the factor by which an update exceeds the median of the ten before, where its batch is ordinary. Leave out the
    first 50 iterations."""
    norms, odd = of('update_norms', *MATRICES, 'emb', 'head')(c).replace(0, np.nan), surprise(c)
    jumps = (norms / norms.rolling(10).median().shift())[norms.index > 50]
    return jumps[~jumps.index.isin(odd.index[(odd > 6).any(axis=1)])].dropna(how='all') if len(odd) else jumps[:0]


def rise(c):
    """Return how far the loss, as the median of 20 rows, is above its lowest."""
    loss = smooth(of('loss'), 20)(c)
    return loss - loss.cummin()


def diverged(c):
    return pd.DataFrame({'': {row['iter']: float('diverged' in row) for row in c.rows[-1:]}})


# ----------------------------------------------------------------------------- causes

def scaled(key, factor):
    return lambda c: {key: float(f'{factor * c.get(key, 0):.2g}')}


def first_of(**options):
    """Return the first of some keys that the run has otherwise."""
    return lambda c: dict(next(([option] for option in options.items() if c.get(option[0]) != option[1]), []))


def usual_decay(c):
    missing = {f'wd_{kind}': 1.0 for kind in DECAYING if c.get(f'wd_{kind}') == 0}
    return first_of(decay_norms=False)(c) or missing or first_of(weight_decay=0.1)(c)


def even_rates(c):
    return {key: 1.0 for key, value in c.items() if key.startswith('r_') and value != 1.0}


PADDING, REPEATS = 'one token or padding', 'repeated batches'
LABELS, LEAK = 'shifted or copied labels', 'a leak from the future'
EMBEDDINGS, NO_NORM = 'embeddings too large or too small', 'no norm where the signal needs one'
LARGE, FROZEN = 'branches or a stream too large', 'frozen or unused parameters, or a cut gradient'
LOGITS, GROWING = 'attention logits too large at the start', 'attention logits growing'
DEPTH, BETAS = 'gradients vanish or explode with depth', 'β far off'
DECAY, SLOW, FAST = 'decay on gains, or missing on what grows', 'a block type too slow', 'a block type too fast'
STEP_LARGE, STEP_SMALL = 'step size too large', 'step size too small'
SPIKE_WEIGHTS, SPIKE_BATCH = 'a spike from the weights', 'a spike from a batch'
CAUSES = {          # why it harms, and a function of the run's keys that returns keys which would hold it
    PADDING: ('the model does not get what the data holds: most inputs are one token, or of another file',),
    REPEATS: ('the same windows come again and again, and the model learns them by heart',),
    LABELS: ('a token is not trained to tell the next one',),
    LEAK: ('a token sees those that it should tell',),
    EMBEDDINGS: ('large ones drown the first branches and make large logits, small ones must grow first',
                 first_of(emb_std=0.02, input_norm=True, init_gain=1.0)),
    NO_NORM: ('nothing brings what the branches or the head read to unit size',
              first_of(attn_pre_norm=True, ffn_pre_norm=True, final_norm=True)),
    LOGITS: ('a softmax that is nearly one-hot passes almost no gradient to queries and keys',
             first_of(qk_norm=True, init_gain=1.0)),
    LARGE: ('what one branch adds drowns what is there, and gradients grow with it',
            first_of(residual_scale=1.0, skip_scale='one', init_gain=1.0)),
    DEPTH: ('lower and upper layers cannot use the same rate', first_of(attn_pre_norm=True, ffn_pre_norm=True)),
    FROZEN: ('part of the gradient, or all of it, is lost on its way to them',),
    DECAY: ('decay pulls gains to 0, and with them what they multiply; without it norms grow, and steps become small beside them',
            usual_decay),
    BETAS: ('momentum near 0 averages no noise away, momentum near 1 follows gradients of long ago',
            first_of(beta1=0.9, beta2=0.95, momentum=0.9)),
    SLOW: ('the other types learn, and this one stands almost still', even_rates),
    FAST: ('steps that fit the other types throw this one about', even_rates),
    STEP_LARGE: ('steps are too long for the curvature; a longer warm-up or smaller clipping may do too',
                 scaled('learning_rate', 0.3)),
    STEP_SMALL: ('the rate, ε, clipping or the warm-up holds the steps back', scaled('learning_rate', 3)),
    SPIKE_WEIGHTS: ('the weights moved at once, and not because of the batch',),
    SPIKE_BATCH: ('one batch is unlike the others, and its gradient moves the weights', first_of(grad_clip=1.0)),
    GROWING: ('the softmax becomes one-hot, and its gradient noise', first_of(qk_norm=True, init_gain=1.0)),
}


# ----------------------------------------------------------------------------- rules

@dataclass
class Rule:
    cause: str
    what: str               # the quantity in words, with its unit
    quantity: Callable
    healthy: tuple          # the range of healthy runs
    sick: tuple             # below the first or above the second
    rows: int = 1
    until: float = inf      # the last iteration that counts
    matrix: tuple = ()      # a row and a column of preflight's invariance matrix

    def values(self, case):
        """Return the table that is compared with the limits."""
        table = self.quantity(case)
        return table[table.index <= self.until] if len(table) else table


def below(limit):
    return limit, inf


def above(limit):
    return -inf, limit


CLEAN, USUAL = 'over that of clean code', 'over the usual'
V_O, W_2, QK = ('attention branch', 'W_v W_o'), ('FFN branch', 'W_2'), ('attention logits', 'W_q W_k')
STREAM, W_1, READ = ('last hidden state', 'W_2'), ('gradient of w1', 'W_2'), ('FFN branch', 'embeddings')
RULES = [
    # data
    Rule(PADDING, 'entropy of the inputs over that of the data', over_data(smooth(of('batches.entropy'), 10)), (0.95, 1.05),
         (0.85, 1.2)),
    Rule(PADDING, 'entropy of what the model gets over that of the data', over_data(replayed('batches.entropy')), (0.9, 1.1),
         (0.7, 1.4)),
    Rule(REPEATS, 'share of rows seen before, in the first epoch', repeated, (0, 0.04), above(0.2), rows=3),
    Rule(REPEATS, 'share of rows that the model got before', replayed('batches.repeated'), (0, 0.01), above(0.2)),
    Rule(LABELS, 'share of targets that are the next input', of('batches.agreement'), (1, 1), below(0.9), rows=10),
    Rule(LABELS, 'share of the model\'s targets that are the next input', replayed('batches.agreement'), (1, 1), below(0.9)),
    Rule(LEAK, 'effect of a later input or a target on an output, over that of its input', replayed('future'), (0, 1e-5),
         above(1e-3)),
    Rule(LEAK, 'validation loss over the entropy of the data\'s tokens', over_data(of('val_loss')), (0.4, 1.2), below(0.2)),
    Rule(LEAK, f'loss {CLEAN}', over('clean', of('loss')), (0.9, 1.1), below(0.55), rows=2),
    # starts
    Rule(EMBEDDINGS, f'norm of the embeddings {CLEAN}', over('clean', of('weight_norms', 'emb', 'pos')), (0.9, 1.1), (0.4, 2.5),
         until=0),
    Rule(EMBEDDINGS, f'RMS of what the first block reads {CLEAN}', over('clean', replayed('first_rms')), (0.9, 1.1), (0.4, 2.5)),
    Rule(EMBEDDINGS, 'RMS of the embeddings', embeddings, (0.02, 0.1), (0.005, 1.4), until=0),
    Rule(NO_NORM, 'growth with embeddings 10,000 times as large', replayed('unbounded'), (0.3, 5), above(80), matrix=READ),
    Rule(LOGITS, 'entropy of attention over ln T', of('attn_entropy'), (0.66, 1), below(0.4), until=0, matrix=QK),
    Rule(LOGITS, f'entropy of attention {CLEAN}', over('clean', of('attn_entropy')), (0.95, 1.05), below(0.75), until=0,
         matrix=QK),
    Rule(LARGE, f'RMS of attention\'s branch {CLEAN}', over('clean', of('attn_rms')), (0.3, 1.2), above(3), until=0, matrix=V_O),
    Rule(LARGE, f'RMS of the FFN\'s branch {CLEAN}', over('clean', of('ffn_rms')), (0.3, 1.2), above(3), until=0, matrix=W_2),
    Rule(LARGE, f'RMS of the last residual stream {CLEAN}', over('clean', last_stream), (0.3, 1.2), above(3), until=0,
         matrix=STREAM),
    Rule(LARGE, f'RMS of attention\'s branch {USUAL}', over('usual', of('attn_rms')), (0.3, 1.2), above(3), until=0, matrix=V_O),
    Rule(LARGE, f'RMS of the FFN\'s branch {USUAL}', over('usual', of('ffn_rms')), (0.3, 1.2), above(3), until=0, matrix=W_2),
    Rule(LARGE, f'RMS of the last residual stream {USUAL}', over('usual', last_stream), (0.3, 1.2), above(3), until=0,
         matrix=STREAM),
    Rule(DEPTH, 'factor of the gradient from layer to layer', depth_factor, (1, 2), above(2.7), until=0, matrix=W_1),
    Rule(FROZEN, 'gradient of a type over that of all', gradient_share, (0.01, 1), below(1e-9), rows=ALL),
    Rule(FROZEN, 'first moment of the gradient, in ckpt.pt', first_moments, (1e-6, inf), below(1e-30)),
    Rule(EMBEDDINGS, 'loss − ln V, in nats', above_uniform, (-0.7, 1.1), above(2), until=0),
    Rule(FROZEN, f'gradient {CLEAN}, beside that of other types', cut_gradient, (0.9, 1), below(0.3), until=0),
    Rule(LABELS, 'loss of the next token over that of another, in nats', replayed('other_targets'), (-2.2, 0.01), above(0.03)),
    # changes
    Rule(DECAY, 'norm of the gains over their first', gains, (0.82, 1.1), below(0.68), rows=3),
    Rule(BETAS, 'first moment over the root of the second, in ckpt.pt', moment_ratio, (0.19, 0.54), (0.09, 0.85)),
    # any momentum is at least 1, unless something beside the norm clips the gradient
    Rule(STEP_SMALL, 'momentum over the gradient, in ckpt.pt', momentum(True), (2, 6), below(0.6)),
    Rule(BETAS, 'momentum over the gradient, in ckpt.pt', momentum(True), (2, 6), (1.2, 9)),
    Rule(BETAS, 'mean gradient over the gradient, in ckpt.pt', momentum(False), (0.1, 0.5), below(0.04)),
    Rule(STEP_SMALL, 'largest update over weights', largest_update, (0.003, 0.08), below(0.0023), rows=ALL),
    Rule(SLOW, 'its update beside those of the matrices', speed('grad_norms'), (0.24, 8.1), below(0.08), rows=30, until=100),
    Rule(SLOW, f'update beside those of the matrices {CLEAN}', over('clean', speed('grad_norms')),
         (0.7, 1.4), below(0.2), rows=30, until=100),
    Rule(FAST, 'its update beside those of the matrices', speed('weight_norms'), (0.24, 8.1), above(9), rows=30, until=100),
    Rule(FAST, f'update beside those of the matrices {CLEAN}', over('clean', speed('weight_norms')),
         (0.7, 1.4), above(5), rows=30, until=100),
    Rule(STEP_LARGE, 'loss or gradient not finite', diverged, (0, 0), above(0.5)),
    Rule(SPIKE_WEIGHTS, 'factor of a type\'s norm in 20 iterations', weight_jump, (1, 1.1), above(1.4)),
    Rule(SPIKE_WEIGHTS, 'factor of an update over those before', update_jump, (1, 17), above(20)),
    Rule(STEP_LARGE, 'rise of the loss above its lowest, in nats', rise, (0, 0.3), above(0.5), rows=5),
    Rule(STEP_LARGE, 'share of dead units in the FFN', of('dead_units'), (0, 0.4), above(0.45)),
    Rule(STEP_LARGE, 'update over weights, median of 100', typical_updates, (0.002, 0.042), above(0.055)),
    Rule(STEP_SMALL, 'share of rows with more than a tenth of the largest update', long_steps, (0.5, 1), below(0.3)),
    Rule(STEP_SMALL, f'largest gradient of a type {CLEAN}', over_clean('grad_norms', 'max'), (0.9, 1.1), below(0.3), until=0),
    Rule(STEP_SMALL, f'largest update of a type {CLEAN}', over_clean('update_norms', 'max'), (0.8, 1.25), below(0.4), rows=10),
    Rule(STEP_LARGE, f'least update of a type {CLEAN}', over_clean('update_norms', 'min'), (0.8, 1.25), above(2.5), rows=10),
    Rule(GROWING, 'largest attention logit', of('max_logits'), (1, 66), above(70), matrix=QK),
    Rule(SPIKE_BATCH, 'jump of the loss, in robust standard deviations', surprise, (-7, 9.6), above(12)),
    Rule(DECAY, 'growth of a block type without weight decay', undecayed, (1, 1.1), above(1.3), rows=3),
    Rule(DECAY, f'norm of a block type {CLEAN}', over('clean', of('weight_norms', *MATRICES, 'norm', 'gain')), (0.99, 1.01),
         (0.95, 1.05), rows=3),
]
