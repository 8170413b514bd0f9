"""
The claims that the runs of results/csv/ test, in families, and their verdicts. Each claim was written down before its runs. The
p-values of a family are corrected together. Undecided claims count as p = 1, so that later runs take no verdict back. A claim is

    text        what is claimed
    contrast    'ROW - ROW' or 'ROW - ROW - ROW + ROW', the difference in the final loss. A ROW is SWEEP/axis=value,…
    sign        -1: the difference is below 0, 1: above 0, 0: it lies within ±margin
    margin      δ in nats, with sign=0
    paper       (optional) its numbers in the paper

Each claim has one p: with a sign, by a t-test of independent means; with sign=0, the larger of two one-sided t-tests of ±δ
(Schuirmann 1987).
"""
import math

from scipy.stats import t

from lab.sweep.table import contrast, corrected, find_row, interval, read_contrast

LEVEL = 0.05
# the number of losses that each row of a sweep needs: its seeds, without the one that chose its rate or decay
seeds = dict(base=12, size=8, batch=4, text=8, tokens=8, figure5=4, figure5_warm=4, figure6=5, figure6_vit=4, stable_start=4,
             vit_parts=4, placements=8)


def minus(a, b):
    """Return the contrast a − b, of rows or contrasts."""
    return f'{a} - ' + ' '.join({'-': '+', '+': '-'}.get(word, word) for word in b.split(' '))


# ----------------------------------------------------------------------------- DNT: its parts, mSGDW, size, batch, tokens, text
# The rows are those of base.py, size.py, batch.py, tokens.py and text.py in config/sweep/, each at its own weight decay unless it
# says otherwise. The paper's numbers are those of its table on OpenWebText, in nats a token, at 124M, 774M and 1436M parameters.

def base(setting, optim='adamw'):
    return f'base/optim={optim},setting={setting}'


def gap(setting):
    """Return a placement's loss by momentum SGDW minus that by AdamW."""
    return minus(base(setting, 'sgdw'), base(setting))


def gap_at(setting, batch):
    return minus(f'batch/optim=sgdw,setting={setting},batch={batch}', f'batch/optim=adamw,setting={setting},batch={batch}')


def lead(setting, over, sweep='base'):
    """Return a placement's loss minus another's, by AdamW."""
    at = base if sweep == 'base' else lambda name: f'{sweep}/setting={name}'
    return minus(at(setting), at(over))


as_s1, as_s1_rate = 'DNT with the decay of S1', 'DNT with the decay and rate of S1'
dnt = [
    dict(text='DNT is better than S1 by AdamW', contrast=lead('DNT', 'S1'), sign=-1, paper='−0.004, −0.011, −0.039'),
    dict(text='DNT is better at its own decay and rate than at the decay of S1', contrast=lead('DNT', as_s1), sign=-1),
    dict(text='mSGDW costs DNT less than S1', contrast=minus(gap('DNT'), gap('S1')), sign=-1,
         paper='−0.053, −0.030, −0.025'),
    dict(text='DNT by mSGDW is better than S1 by AdamW', contrast=minus(base('DNT', 'sgdw'), base('S1')), sign=-1,
         paper='−0.018, +0.011, −0.027 (our reading of its table)'),
    dict(text='Post-LN by mSGDW is better than DNT by mSGDW', contrast=minus(base('Post', 'sgdw'), base('DNT', 'sgdw')), sign=-1),
    dict(text='DNT − S1 is the same at 0.5M parameters as at 0.2M', sign=0, margin=0.04,
         contrast=minus(lead('DNT', 'S1', 'size'), lead('DNT', 'S1'))),
    # S1 − Pre-LN itself is small, so the margin shows only that it stays small
    dict(text='S1 − Pre-LN is the same at 0.5M parameters as at 0.2M', sign=0, margin=0.04,
         contrast=minus(lead('S1', 'Pre', 'size'), lead('S1', 'Pre'))),
    dict(text='mSGDW costs S1 more with 32K tokens a batch than with 0.5K', sign=1,
         contrast=minus(gap_at('S1', '32K'), gap_at('S1', '0.5K'))),
    dict(text='More tokens a batch change the cost of mSGDW less for DNT than for S1', sign=-1, contrast=minus(
        minus(gap_at('DNT', '32K'), gap_at('DNT', '0.5K')), minus(gap_at('S1', '32K'), gap_at('S1', '0.5K')))),
    dict(text='DNT − Pre-LN is the same on prose as on Python', sign=0, margin=0.04,
         contrast=minus(lead('DNT', 'Pre', 'text'), lead('DNT', 'Pre'))),
    dict(text='DNT is better than S1 at 16M bytes', contrast=lead('DNT', 'S1', 'tokens'), sign=-1,
         paper='−0.004, −0.011, −0.039'),
    dict(text='DNT’s lead over S1 is smaller at 16M bytes than at 4.5M', sign=1,
         contrast=minus(lead('DNT', 'S1', 'tokens'), lead('DNT', 'S1'))),
    dict(text='value_residual’s lead over Pre-LN is smaller at 16M bytes than at 4.5M', sign=1, contrast=minus(
        lead('value_residual', 'Pre', 'tokens'), 'placements/optim=adamw,arch=value_residual - placements/optim=adamw,arch=pre'))]


# ----------------------------------------------------------------------------- reproduced figures of the papers

def figure6_claim(a, b, **more):
    return dict(text=f'S{a} is better than S{b}' if more['sign'] else f'S{a} and S{b} are equal', paper='figure 6',
                contrast=f'figure6/arch=s{a} - figure6/arch=s{b}', **more)


figure6 = [*(figure6_claim(a, b, sign=-1) for a, b in ((3, 2), (5, 3), (5, 1))),
           *(figure6_claim(a, b, sign=0, margin=0.04) for a, b in ((1, 2), (4, 5)))]
figure6_vit = [
    dict(text=f'S{a} is better than S{b} on images, rate: {rate}', sign=-1, paper='figure 6',
         contrast=f'figure6_vit/arch=s{a},rate={rate} - figure6_vit/arch=s{b},rate={rate}')
    for a, b in ((3, 5), (5, 1)) for rate in ('0.1 for all', 'best')]


def stable(setting, other='GPT-2', model='Stable'):
    return minus(f'stable_start/model={model},setting={setting}', f'stable_start/model={other},setting={setting}')


stable_start = [
    dict(text='With a warm-up, Stable-Transformer is better than GPT-2', contrast=stable('warm-up'), sign=-1,
         paper='−0.021 (350M: −0.010, 774M: −0.013)'),
    dict(text='Leaving out the warm-up costs Stable-Transformer less than GPT-2', sign=-1, paper='figure 9, of ViT-g',
         contrast=minus(stable('no warm-up'), stable('warm-up'))),
    *(dict(text=f'At a rate of {rate}, Stable-Transformer is better than GPT-2', contrast=stable(f'warm-up, at {rate}'), sign=-1,
           paper='figure 6, without GPT-2') for rate in (0.032, 0.064)),
    *(dict(text=f'Stable-Transformer is as good with {factor} times τ', sign=0, margin=0.04, paper='figure 7',
           contrast=stable('warm-up', 'Stable', f'Stable, τ × {factor}')) for factor in (0.5, 2))]


def on_images(name, other, setting='no warm-up'):
    return minus(f'vit_parts/model={name},setting=no warm-up', f'vit_parts/model={other},setting={setting}')


parts = [('StableInit is', 'StableInit', 'Xavier', 2), ('α 0.25 is', 'α 0.25', 'α 0.5', 3), ('α 0.25 is', 'α 0.25', 'α 0', 3),
         ('8 heads are', '8 heads', '1 heads', 4), ('StableAtten is', 'StableAtten', 'ViT', 4)]
vit_parts = [
    *(dict(text=f'{name_is} better than {other.replace("1 heads", "1 head")} on images without a warm-up', sign=-1,
           contrast=on_images(name, other), paper=f'figure {figure}, of stability') for name_is, name, other, figure in parts),
    dict(text='StableViT without a warm-up is better than ViT with one', sign=-1,
         contrast=on_images('StableViT', 'ViT', 'warm-up'),
         paper='ViT-L: 82.4 against 81.3%, ViT-H: 81.8 against 80.5% (figures 1 and 8)')]


def blockwise_claims(sweep, lr, note):
    """Return the four claims of Blockwise LR against size. `lr`: the label of its rows in the sweep."""
    def gain(size):
        return minus(f'{sweep}/lr={lr},size={size}', f'{sweep}/lr=none,size={size}')

    return [*(dict(text=f'Blockwise LR is better than one rate for all at {size}{note}', contrast=gain(size), sign=-1)
              for size in ('0.2M', '0.3M', '0.6M')),
            dict(text=f'Blockwise LR gains more at 0.6M than at 0.2M{note}', sign=-1, paper='figure 5',
                 contrast=minus(gain('0.6M'), gain('0.2M')))]


# figure5.py has a warm-up that the paper does not have. Its runs were known when these claims were written for figure5_warm.py.
figure5 = blockwise_claims('figure5', 'blockwise', ', warm-up 10%')
figure5_warm = blockwise_claims('figure5_warm', 'ramp', ', warm-up 2%')

families = dict(dnt=dnt, figure6=figure6, figure6_vit=figure6_vit, stable_start=stable_start, vit_parts=vit_parts,
                figure5=figure5, figure5_warm=figure5_warm)


# ----------------------------------------------------------------------------- verdicts

class Test:
    """A claim's test. `p` is corrected by `test_all`. `open` says why the claim cannot be decided yet, and `has_run` whether
    all points and seeds of its rows have ended. `sweeps`: {name: see pages.py}, with `rows`, their `split` and the variances
    `known`."""

    def __init__(self, claim, sweeps):
        self.claim, self.p, self.estimate, used = claim, math.nan, None, {}

        def find(name):
            sweep, _, labels = name.partition('/')
            row = find_row(sweeps[sweep].rows, labels, 'contrast')
            used[row] = sweep
            return row

        try:
            weights = read_contrast(claim['contrast'], find)
        except ValueError:                              # a row has no runs yet
            self.open, self.has_run = 'not run', False
            return
        known = {row: value for sweep in {*used.values()} for row, value in sweeps[sweep].known.items()}
        splits = {sweeps[sweep].split for sweep in used.values()}
        if len(splits) > 1:
            raise ValueError(f'{claim["contrast"]}: compares losses of two splits')
        self.estimate = contrast(weights, *splits, known)
        self.open = next(filter(None, (why_open(row, *splits, seeds[sweep]) for row, sweep in used.items())), '')
        self.has_run = not self.open.endswith('have ended')
        if not self.open:
            e = self.estimate
            self.p = e.p if claim['sign'] else float(t.sf((claim['margin'] - abs(e.mean)) / e.error, e.df))

    def verdict(self):
        e, margin = self.estimate, self.claim.get('margin')
        if self.open:
            return self.open if self.open == 'not run' else f'open: {self.open}'
        if margin is None:
            return 'open' if not self.p < LEVEL else 'supported' if e.mean * self.claim['sign'] > 0 else 'contradicted'
        if self.p < LEVEL:
            return f'equal within ±{margin:g}'
        return f'contradicted: beyond ±{margin:g}' if e.low > margin or e.high < -margin else 'open'

    def line(self):
        """Return {column: cell} of the claim's table."""
        e, verdict = self.estimate, self.verdict()
        color = {'supported': '🟢 ', 'equal': '🟢 ', 'contradicted': '🔴 '}.get(verdict.split()[0].strip(':'), '⚪ ')
        p = '–' if math.isnan(self.p) else '< 0.001' if self.p < 0.001 else f'{self.p:.2g}'
        difference, n = (interval(e), str(e.n)) if e and e.n else ('–', '0')
        return {'claim': self.claim['text'], 'in the paper': self.claim.get('paper', ''), 'difference': difference, 'seeds': n,
                'p': p, 'verdict': color + verdict}


def why_open(row, split, wanted):
    """Return why no claim about the row can be decided yet, such as too few rates or losses, or ''."""
    lost, n = sum(row.compared.status != 'done'), len(row.losses(split))
    if 1 < len(row.points) and len(row.first) < 3:      # with fewer, a better one may lie between or beyond
        return f'fewer than 3 rates of {row} have ended'
    if row.is_at_edge():
        return f'the best rate of {row} is at the edge'
    if lost:
        return f'{lost} of {len(row.compared)} runs of {row} did not end'
    return f'{n} of {wanted} seeds of {row} have ended' if n < wanted else ''


def test_all(sweeps):
    """Return {family: its Tests}, with p-values corrected for the number of claims in the family."""
    tested = {name: [Test(claim, sweeps) for claim in family] for name, family in families.items()}
    for tests in tested.values():
        ps = corrected([1.0 if math.isnan(test.p) else test.p for test in tests])      # claims that are open count too
        for test, p in zip(tests, ps):
            test.p = math.nan if test.open else p
    return tested
