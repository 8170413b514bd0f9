"""The claims that the runs of results/csv/ test, written down before their runs, and their verdicts. See claims.md."""
import math
from collections import namedtuple
from typing import NamedTuple

from scipy.stats import t

from lab.sweep.table import contrast, corrected, find_row, read_contrast

LEVEL = 0.05
# the losses that each row of a sweep needs: its seeds, without those that chose its rate or decay
SEEDS = dict(base=12, size=8, batch=4, text=8, tokens=8, figure5_warm=4, figure6=5, figure6_vit=4, stable_start=4,
             vit_parts=4, placements=8, starts=8, optimizers=8, ngpt=8, tokens_sgdw=4, ladder=2)       # at 0.7M ladder.py has 3


class Claim(NamedTuple):
    text: str
    contrast: str           # 'ROW - ROW' or 'ROW - ROW - ROW + ROW', of final losses. A ROW is SWEEP/axis=value,…
    sign: int = -1          # -1: the difference is below 0; 1: above 0; 0: within ±margin nats
    paper: str = ''         # its numbers in the paper
    margin: float = 0.04
    predicted: str = ''     # the difference that was expected, where a number was


def minus(a, b):
    """Return the contrast a − b, of rows or contrasts."""
    return f'{a} - ' + ' '.join({'-': '+', '+': '-'}.get(word, word) for word in b.split(' '))


def lead(setting, over, rows='base/optim=adamw,'):
    """Return a placement's loss minus another's."""
    return f'{rows}setting={setting} - {rows}setting={over}'


def gap(setting, sweep='base', more=''):
    """Return a placement's loss by momentum SGDW minus that by AdamW."""
    return f'{sweep}/optim=sgdw,setting={setting}{more} - {sweep}/optim=adamw,setting={setting}{more}'


def growth(setting):
    """Return how much more momentum SGDW costs with 32K tokens a batch than with 0.5K."""
    return minus(gap(setting, 'batch', ',batch=32K'), gap(setting, 'batch', ',batch=0.5K'))


# DNT: its parts, momentum SGDW, size, batch, tokens and text
PAPER = '−0.004, −0.011, −0.039'        # nats a token, at 124M, 774M and 1436M parameters
dnt = [
    Claim('DNT is better than S1 by AdamW', lead('DNT', 'S1'), paper=PAPER),
    # worded after its runs had ended: at first it named the row that has the decay of S1 at another rate
    Claim('DNT is better at its own decay and rate than at those of S1', lead('DNT', 'DNT with the decay and rate of S1')),
    Claim('mSGDW costs DNT less than S1', minus(gap('DNT'), gap('S1')), paper='−0.053, −0.030, −0.025'),
    Claim('DNT by mSGDW is better than S1 by AdamW', 'base/optim=sgdw,setting=DNT - base/optim=adamw,setting=S1',
          paper='−0.018, +0.011, −0.027 (our reading of its table)'),
    Claim('Post-LN by mSGDW is better than DNT by mSGDW', lead('Post', 'DNT', 'base/optim=sgdw,')),
    Claim('DNT − S1 is the same at 0.5M parameters as at 0.2M', minus(lead('DNT', 'S1', 'size/'), lead('DNT', 'S1')), sign=0),
    Claim('S1 − Pre-LN is the same at 0.5M parameters as at 0.2M', minus(lead('S1', 'Pre', 'size/'), lead('S1', 'Pre')), sign=0),
    Claim('mSGDW costs S1 more with 32K tokens a batch than with 0.5K', growth('S1'), sign=1),
    Claim('DNT − Pre-LN is the same on prose as on Python', minus(lead('DNT', 'Pre', 'text/'), lead('DNT', 'Pre')), sign=0),
    Claim('DNT is better than S1 at 16M bytes', lead('DNT', 'S1', 'tokens/'), paper=PAPER),
    Claim('DNT’s lead over S1 is smaller at 16M bytes than at 4.5M',
          minus(lead('DNT', 'S1', 'tokens/'), lead('DNT', 'S1')), sign=1),
    Claim('value_residual’s lead over Pre-LN is smaller at 16M bytes than at 4.5M', minus(
        lead('value_residual', 'Pre', 'tokens/'),
        'placements/optim=adamw,arch=value_residual - placements/optim=adamw,arch=pre'), sign=1)]

# what placements.py leaves open: whether norms or starts make the difference, and whether other optimizers agree
EQUAL = 0.015               # the margin of claims of equality since then


def started(arch, start, other):
    """Return a placement's loss by another start minus that of a row of placements.py."""
    return f'starts/optim=adamw,arch={arch},start={start} - placements/optim=adamw,arch={other}'


starts = [
    Claim('S1 by GPT-2’s start is like LLaMA’s norms by it', started('s1', 'gpt2', 'llama'), 0, margin=EQUAL,
          predicted='0'),
    Claim('DNT is as good by GPT-2’s start as by Xavier’s', started('s5', 'gpt2', 's5'), 0, margin=EQUAL, predicted='0')]


def by(optim, arch, other='pre'):
    return f'optimizers/optim={optim},arch={arch} - optimizers/optim={optim},arch={other}'


optimizers = [
    Claim('By Muon, Peri-LN is better than Pre-LN', by('muon', 'peri'), predicted='−0.03'),
    Claim('By Muon, HybridNorm is like Pre-LN', by('muon', 'hybrid'), 0, margin=EQUAL, predicted='0'),
    Claim('By Muon, DNT is better than Pre-LN', by('muon', 's5'), predicted='−0.05'),
    Claim('By Muon, Post-LN is worse than Pre-LN', by('muon', 'post'), 1, predicted='+0.09')]
ngpt = [Claim('nGPT is within 0.03 of LLaMA, on the body of LLaMA', 'ngpt/arch=ngpt - ngpt/arch=llama', 0, margin=0.03,
              predicted='0')]


def longer_gap(setting):
    """Return a placement's loss by momentum SGDW minus that by AdamW, after 16M bytes."""
    return f'tokens_sgdw/optim=sgdw,setting={setting} - tokens/setting={setting}'


tokens_sgdw = [
    *(Claim(f'After 16M bytes mSGDW costs {name}', longer_gap(name), 1, predicted=cost)
      for name, cost in (('DNT', '+0.02'), ('S1', '+0.10'))),
    Claim('After 16M bytes mSGDW costs S1 with larger embeddings', gap('S1 large', 'tokens_sgdw'), 1, predicted='+0.06')]
ladder = [Claim(f'At {size} parameters {name} is better than Pre-LN',
                f'ladder/size={size},arch={arch} - ladder/size={size},arch=pre', predicted=lead)
          for size, name, arch, lead in (
              ('0.7M', 'DNT', 's5', '−0.045'), ('0.7M', 'value_residual', 'value_residual', '−0.035'),
              ('3.1M', 'DNT', 's5', '−0.035'), ('3.1M', 'value_residual', 'value_residual', '−0.03'))]

# figures of the papers
figure6 = [Claim(f'S{a} is better than S{b}' if sign else f'S{a} and S{b} are equal',
                 f'figure6/arch=s{a} - figure6/arch=s{b}', sign, 'figure 6')
           for a, b, sign in ((3, 2, -1), (5, 3, -1), (5, 1, -1), (1, 2, 0), (4, 5, 0))]
figure6_vit = [Claim(f'S{a} is better than S{b} on images, rate: {rate}', paper='figure 6',
                     contrast=f'figure6_vit/arch=s{a},rate={rate} - figure6_vit/arch=s{b},rate={rate}')
               for a, b in ((3, 5), (5, 1)) for rate in ('0.1 for all', 'best')]


def stable(setting, other='GPT-2', model='Stable'):
    return f'stable_start/model={model},setting={setting} - stable_start/model={other},setting={setting}'


stable_start = [
    Claim('With a warm-up, Stable-Transformer is better than GPT-2', stable('warm-up'),
          paper='−0.021 (350M: −0.010, 774M: −0.013)'),
    Claim('Leaving out the warm-up costs Stable-Transformer less than GPT-2',
          minus(stable('no warm-up'), stable('warm-up')), paper='figure 9, of ViT-g'),
    *(Claim(f'At a rate of {rate}, Stable-Transformer is better than GPT-2', stable(f'warm-up, at {rate}'),
            paper='figure 6, without GPT-2') for rate in (0.032, 0.064)),
    *(Claim(f'Stable-Transformer is as good with {factor} times τ', stable('warm-up', 'Stable', f'Stable, τ × {factor}'), 0,
            'figure 7') for factor in (0.5, 2))]


def on_images(name, other, setting='no warm-up'):
    return f'vit_parts/model={name},setting=no warm-up - vit_parts/model={other},setting={setting}'


vit_parts = [
    *(Claim(f'{better} on images without a warm-up', on_images(name, other), paper=f'figure {figure}, of stability')
      for better, name, other, figure in (
          ('StableInit is better than Xavier', 'StableInit', 'Xavier', 2), ('α 0.25 is better than α 0.5', 'α 0.25', 'α 0.5', 3),
          ('α 0.25 is better than α 0', 'α 0.25', 'α 0', 3), ('8 heads are better than 1 head', '8 heads', '1 heads', 4),
          ('StableAtten is better than ViT', 'StableAtten', 'ViT', 4))),
    Claim('StableViT without a warm-up is better than ViT with one', on_images('StableViT', 'ViT', 'warm-up'),
          paper='ViT-L: 82.4 against 81.3%, ViT-H: 81.8 against 80.5% (figures 1 and 8)')]


def blockwise(sweep, lr):
    """Return the claims of Blockwise LR against size. `lr`: the label of its rows in the sweep."""
    gain = {size: f'{sweep}/lr={lr},size={size} - {sweep}/lr=none,size={size}' for size in ('0.2M', '0.3M', '0.6M')}
    return [*(Claim(f'Blockwise LR is better than one rate for all at {size}', gain[size]) for size in gain),
            Claim('Blockwise LR gains more at 0.6M than at 0.2M', minus(gain['0.6M'], gain['0.2M']), paper='figure 5')]


# the runs of figure5.py were known when the claims on figure5_warm.py were written
FAMILIES = dict(dnt=dnt, starts=starts, optimizers=optimizers, ngpt=ngpt, tokens_sgdw=tokens_sgdw, ladder=ladder,
                figure6=figure6, figure6_vit=figure6_vit, stable_start=stable_start, vit_parts=vit_parts,
                figure5_warm=blockwise('figure5_warm', 'ramp'))


# ----------------------------------------------------------------------------- verdicts

# estimate: None if a row has no runs yet; p: corrected within the family, NaN while the claim cannot be decided
Verdict = namedtuple('Verdict', 'claim estimate p text')


def test(claim, sweeps):
    """Return the Estimate of a claim's difference, its p, and why it cannot be decided yet, or ''. `sweeps`: {name: Results}.
    A claim of equality has the larger p of two one-sided t-tests of ±margin (Schuirmann 1987)."""
    used = {}

    def find(name):
        sweep, _, labels = name.partition('/')
        row = find_row(sweeps[sweep].rows, labels, 'contrast')
        used[row] = sweep
        return row

    try:
        weights = read_contrast(claim.contrast, find)
    except ValueError:                                  # a row has no runs yet
        return None, 1.0, 'not run'
    assert len({row.split for row in used}) == 1
    e, why = contrast(weights), next(filter(None, (why_open(row, SEEDS[sweep]) for row, sweep in used.items())), '')
    return e, 1.0 if why else e.p if claim.sign else float(t.sf((claim.margin - abs(e.mean)) / e.error, e.df)), why


def why_open(row, wanted):
    """Return why no claim about the row can be decided yet, or ''."""
    lost, n, name = sum(row.compared.status != 'done'), len(row.losses()), ', '.join(row.labels.values())
    if 1 < len(row.points) and len(row.first) < 3:      # with fewer, a better one may lie between or beyond
        return f'not run: fewer than 3 rates of {name} have ended'
    if row.is_at_edge():
        return f'open: the best rate of {name} is at the edge'
    if lost:
        return f'open: {lost} of {len(row.compared)} runs of {name} diverged'
    return f'not run: {n} of {wanted} seeds of {name} have ended' if n < wanted else ''


def decide(claim, e, p):
    """Return the verdict on a claim whose runs have all ended. An open claim of equality has the p of a difference from 0 too."""
    if claim.sign:
        return 'open' if not p < LEVEL else 'supported' if e.mean * claim.sign > 0 else 'contradicted'
    if p < LEVEL:
        return f'equal within ±{claim.margin}'
    if e.low > claim.margin or e.high < -claim.margin:
        return f'contradicted: beyond ±{claim.margin}'
    return 'open' + f' (exploratory: other than 0, p {e.p:.1g})' * (e.p < LEVEL)


def test_all(sweeps, families=FAMILIES):
    """Return {family: its Verdicts}. Claims that cannot be decided yet have p = 1, so that later runs take no verdict back."""
    found = {}
    for name, claims in families.items():
        tests = [test(claim, sweeps) for claim in claims]
        found[name] = [Verdict(claim, e, math.nan if why else p, why or decide(claim, e, p))
                       for claim, (e, _, why), p in zip(claims, tests, corrected([p for _, p, _ in tests]))]
    return found
