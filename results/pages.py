"""
Make the pictures of README.md, and the tables of README.md, claims.md, ../README.md and ../docs/placements.md, from csv/, which
has the runs of config/sweep/: `make results`. A table stands between <!-- NAME: made by results/pages.py --> and <!-- end -->.
"""
import itertools
import math
import re
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))
import matplotlib  # noqa: E402
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from scipy.stats import spearmanr  # noqa: E402

from engine.files import write_whole  # noqa: E402
from lab.plot import STYLE  # noqa: E402
from lab.sweep.plan import read_sweep, rows_of_file  # noqa: E402
from lab.sweep.table import Estimate, Results, contrast, find_row, interval, key_of  # noqa: E402
from lab.sweep.table import tolerance as width_of  # noqa: E402
from results.claims import SEEDS, Claim, by, gap, growth, lead, longer_gap, minus, started, test, test_all  # noqa: E402
from results.pictures import NAMES, OPTIMS, forest, matrix, scatter, side_by_side, tolerance  # noqa: E402

SWEEPS = [*SEEDS, 'figure5', 'decay', 'brackets', 'tolerance']
PREDICTED = ('starts', 'optimizers', 'ngpt', 'tokens_sgdw', 'ladder')       # sweeps with numbers written down before their runs
MARKS = dict(supported='🟢', equal='🟢', contradicted='🔴')         # by the first word of a verdict


class Sweep(Results):
    """The runs of csv/NAME.csv so far."""

    def __init__(self, name, **keys):
        self.name, self.keys = name, {**read_sweep(ROOT / 'config' / 'sweep' / f'{name}.py'), **keys}
        super().__init__(HERE / 'csv' / f'{name}.csv', self.keys)

    def missing(self):
        """Return how many runs the sweep's file plans that have not ended."""
        ended = {key_of(run): run for run in self.runs.to_dict('records')}
        return sum(row.left(ended) for row in rows_of_file(self.keys))


def markdown(table):
    """Return a frame of texts as a Markdown table."""
    lines = [[*table], ['---'] * table.shape[1], *table.values.tolist()]
    return '\n'.join('| ' + ' | '.join(cell.replace('|', r'\|') for cell in line) + ' |' for line in lines)


def claim_table(verdicts, columns=('claim', 'in the paper', 'difference', 'seeds', 'p', 'verdict')):
    lines = [{'claim': claim.text, 'in the paper': claim.paper,
              'predicted': claim.predicted + ', missed' * is_missed(claim, e, p),
              'difference': '–' if text.startswith('not run') else interval(e),
              'seeds': str(e.n if e else 0), 'p': '–' if p != p else '< 0.001' if p < 0.001 else f'{p:.2g}',
              'verdict': f'{MARKS.get(re.match("[a-z]+", text)[0], "⚪")} {text}'} for claim, e, p, text in verdicts]
    return markdown(pd.DataFrame(lines)[[*columns]])


def is_missed(claim, e, p):
    """Return whether all runs of a claim have ended, and the interval leaves out the number that was predicted."""
    return bool(claim.predicted) and p == p and not e.low <= float(claim.predicted.replace('−', '-')) <= e.high


def count(verdicts):
    words = [re.match('not run|[a-z]+', text)[0].replace('equal', 'supported') for *_, text in verdicts]
    return f'{len(words)} other claims, on figures of the papers: ' + ', '.join(
        f'{words.count(word)} {word}' for word in ('supported', 'contradicted', 'open', 'not run') if word in words)


def section(sweep, verdicts):
    """Return the command that prints a sweep's table and the differences of its claims, its table, and its claims."""
    if not sweep.rows:
        return f'`{sweep.name}.py` has no run yet.'
    own = [claim.contrast.replace(f'{sweep.name}/', '') for family in verdicts.values() for claim, e, *_ in family
           if e and {*re.findall(r'(\w+)/', claim.contrast)} == {sweep.name}]
    contrasts = " --contrast='\n        " + ';\n        '.join(own) + "'" if own else ''
    table = sweep.tables(sweep.keys['against'])[0]
    columns = ('claim', 'predicted' if sweep.name in PREDICTED else 'in the paper', 'difference', 'seeds', 'p', 'verdict')
    family = [claim_table(verdicts[sweep.name], columns)] if sweep.name in verdicts else []
    command = f'    python -m lab.sweep config/sweep/{sweep.name}.py --report=True{contrasts}'
    return '\n\n'.join([command, markdown(table), *family])


def by_loss(rows):
    return sorted(rows, key=lambda row: row.shown.test_loss.mean())


STARTS = dict(gpt2='GPT-2', normal='GPT-2', xavier='Xavier', stable='StableInit')     # by `init`


def starts():
    """Return {placement: whose rule its weights start by}, from the configs of placements.py."""
    rows = rows_of_file(read_sweep(ROOT / 'config' / 'sweep' / 'placements.py'))
    return {row.labels['arch']: STARTS[row.run_at(row.grid[0], 1)['config']['init']] for row in rows}


def times():
    """Return the milliseconds of an iteration, eager (False) and compiled (True), of each row of placements.py."""
    return pd.read_csv(HERE / 'csv' / 'placements_time.csv').pivot(index='arch', columns='compile', values='ms')


def ranking(sweep):
    """Return the table of the placements that have all their seeds. † : seed 1 alone chose decay and rate."""
    pre, start, lines = find_row(sweep.rows, sweep.keys['against']), starts(), []
    time = times()
    for row in by_loss(row for row in sweep.rows if len(row.losses()) >= SEEDS['placements']):
        arch, by_three = row.labels['arch'], any({1, 2, 3} <= {*at.seed} for at in row.points.values())
        ms = time.loc[str(row)] / time.loc[str(pre)] if str(row) in time.index else {}
        lines.append({
            'placement': f'`{arch}`', 'start': start.get(arch, 'GPT-2'),
            'decay, rate': ', '.join(row.best) + ' †' * (not by_three), 'test loss − pre':
                f'0 (its loss: {row.losses().mean():.3f})' if row is pre else interval(contrast({row: 1, pre: -1})),
            'time': f'{ms[False]:.2f}' if len(ms) else '–', 'compiled': f'{ms[True]:.2f}' if len(ms) else '–'})
    return markdown(pd.DataFrame(lines))


def one_seed(sweep):
    """Return the table of the placements that seed 1 alone has trained, by loss."""
    others = by_loss(row for row in sweep.rows if len(row.losses()) < SEEDS['placements'] and row.shown.test_loss.notna().any())
    pre = find_row(sweep.rows, sweep.keys['against']).first
    pre = pre[(pre.weight_decay == '0.1') & (pre.status == 'done')].sort_values('val_loss').iloc[0]
    return markdown(pd.DataFrame([
        {'placement': f'`{row.labels["arch"]}`', 'rate': row.best[-1] + ' (edge)' * row.is_at_edge(),
         'test loss': f'{row.shown.test_loss.iloc[0]:.3f}',
         '− that of `pre`': f'{row.shown.test_loss.iloc[0] - pre.test_loss:+.3f}'.replace('-', '−')} for row in others]))


def difference(text, sweeps):
    """Return the Estimate of a contrast whose rows are named as in a Claim."""
    return test(Claim('', text), sweeps)[0]


def placement(arch, over='pre', rows='placements/optim=adamw,arch='):
    return f'{rows}{arch} - {rows}{over}'


EXPLORATORY = {
    'DNT − Pre-LN': {'4.5M bytes': lead('DNT', 'Pre'), '0.5M parameters': lead('DNT', 'Pre', 'size/'),
                     '16M bytes': lead('DNT', 'Pre', 'tokens/'), 'English': lead('DNT', 'Pre', 'text/'),
                     '16M bytes, by mSGDW': lead('DNT', 'Pre', 'tokens_sgdw/optim=sgdw,')},
    'S1 − Pre-LN': {'4.5M bytes': lead('S1', 'Pre'), '0.5M parameters': lead('S1', 'Pre', 'size/'),
                    '16M bytes': lead('S1', 'Pre', 'tokens/')},
    'DNT − S1': {'4.5M bytes': lead('DNT', 'S1'), '16M bytes': lead('DNT', 'S1', 'tokens/'),
                 '16M bytes, by mSGDW': lead('DNT', 'S1', 'tokens_sgdw/optim=sgdw,')},
    '`value_residual` − Pre-LN': {'4.5M bytes': placement('value_residual'),
                                  '16M bytes': lead('value_residual', 'Pre', 'tokens/')},
    'S1 with larger embeddings − Pre-LN': {'4.5M bytes': lead('S1 large', 'Pre')},
    'cost of mSGDW': {'S1': gap('S1'), 'S1 with larger embeddings': gap('S1 large'), 'DNT': gap('DNT')},
    'cost of mSGDW after 16M bytes': {'Pre-LN': longer_gap('Pre')},
    'cost of mSGDW, after 16M bytes minus after 4.5M': {name: minus(longer_gap(name), gap(name)) for name in ('S1', 'DNT')},
    'from S1 to DNT, step by step': {
        'QK norm: S2 − S1': placement('s2', 's1'), 'InputNorm: S3 − S2': placement('s3', 's2'),
        'MidNorm: S4 − S3': placement('s4', 's3'), 'no PreNorm of the FFN: S5 − S4': placement('s5', 's4')},
    'by another start': {
        'Pre-LN by Xavier’s': started('pre', 'xavier', 'pre'), 'Peri-LN by Xavier’s': started('peri', 'xavier', 'peri'),
        'S1 by GPT-2’s': started('s1', 'gpt2', 's1'), 'DNT by GPT-2’s': started('s5', 'gpt2', 's5')}}


def exploratory(sweeps):
    return markdown(pd.DataFrame([
        {'difference': what, 'where': where, 'test loss': interval(difference(text, sweeps))}
        for what, texts in EXPLORATORY.items() for where, text in texts.items()]))


def leads_over_pre(sweep, archs, **labels):
    """Return {placement: Estimate of its loss minus that of pre}, of the rows with these labels, and the mean loss of pre. A row
    without all its seeds has None."""
    rows = {row.labels['arch']: row for row in sweep.rows
            if labels.items() <= row.labels.items() and len(row.losses()) >= SEEDS[sweep.name]}
    pre = rows.get('pre')
    return ({arch: contrast({rows[arch]: 1, pre: -1}) if pre and arch in rows else None for arch in archs},
            pre and pre.losses().mean())


OTHERS = ('value_residual', 's5', 'hybrid', 'post', 's1', 'peri')      # the placements of optimizers.py, beside pre


def by_optimizer(sweeps):
    """Return {optimizer: {placement: its lead}} and {optimizer: loss of pre}, of the optimizers that have pre."""
    found = {optim: leads_over_pre(sweeps['placements' if optim == 'adamw' else 'optimizers'], OTHERS, optim=optim)
             for optim in OPTIMS}
    return tuple({optim: pair[i] for optim, pair in found.items() if pair[1]} for i in (0, 1))


RUNGS = {'0.2M parameters,\n4 blocks,\n4.5M bytes': ('placements', dict(optim='adamw')),
         '0.7M parameters,\n6 blocks,\n14M bytes': ('ladder', dict(size='0.7M')),
         '3.1M parameters,\n10 blocks,\n49M bytes': ('ladder', dict(size='3.1M'))}


def at_larger(arch, size='0.7M'):
    return placement(arch, rows=f'ladder/size={size},arch=')


def change_to_larger(arch, size='0.7M'):
    return minus(at_larger(arch, size), placement(arch) if size == '0.7M' else at_larger(arch))


def by_size(sweeps):
    """Return {size: {placement: its lead}} of the sizes that have pre."""
    found = {size: leads_over_pre(sweeps[name], ('value_residual', 's5', 'peri'), **labels)
             for size, (name, labels) in RUNGS.items()}
    return {size: leads for size, (leads, loss) in found.items() if loss}


def leads_by_size(groups, sweeps):
    """Return what the picture of sizes shows, in words."""
    archs = list(next(iter(groups.values())))
    both = archs[:2]        # of these there are runs at 3.1M
    lines = [f'{NAMES.get(arch, f"`{arch}`")} ' + ', '.join(
        f'{interval(leads[arch])} at {size.split()[0]}' for size, leads in groups.items() if leads[arch]) for arch in archs]
    first = [interval(difference(change_to_larger(arch), sweeps)) for arch in archs]
    second = [interval(difference(change_to_larger(arch, '3.1M'), sweeps)) for arch in both]
    wider = []              # the intervals at 3.1M, if seeds there spread as at 0.7M
    for arch in both:
        middle, last = (difference(at_larger(arch, size), sweeps) for size in ('0.7M', '3.1M'))
        half = (middle.high - middle.mean) * math.sqrt(middle.n / last.n)
        wider.append(interval(last._replace(low=last.mean - half, high=last.mean + half)))
    return wrapped(
        f'Minus Pre-LN: {"; ".join(lines)}. From 0.2M to 0.7M these differences change, in this order, by {", ".join(first)}, '
        f'and from 0.7M to 3.1M the first two by {" and ".join(second)} (exploratory). If seeds at 3.1M were as far apart as '
        f'at 0.7M, the first two would be {" and ".join(wider)} there.')


def by_start(sweeps):
    """Return {whose start: {placement: its mean loss}} of the placements that have both."""
    groups = {'GPT-2’s start': {}, 'Xavier’s start': {}}
    for arch in 'pre', 'peri', 's1', 's5':
        own = find_row(sweeps['placements'].rows, f'optim=adamw,arch={arch}')
        other = next(row for row in sweeps['starts'].rows if row.labels['arch'] == arch)
        by = dict.fromkeys(groups, own)
        by['Xavier’s start' if other.labels['start'] == 'xavier' else 'GPT-2’s start'] = other
        for start, row in by.items():
            groups[start][arch] = contrast({row: 1})
    return groups


def correlations(leads):
    """Return a line on how alike each two optimizers with all their rows rank the placements: Spearman's correlation of their
    leads, pre's 0 among them, and the interval that holds 95% of 10,000 draws of the leads from their t-distributions."""
    rng, lines = np.random.default_rng(0), []
    for a, b in itertools.combinations([optim for optim in leads if all(leads[optim].values())], 2):
        found, drawn = [], []
        for of in leads[a], leads[b]:
            e = [of[arch] for arch in OTHERS]
            noise = rng.standard_t([x.df for x in e], (10_000, len(e))) * [x.error for x in e]
            found.append(np.array([0, *(x.mean for x in e)]))
            drawn.append(np.pad(noise, ((0, 0), (1, 0))) + found[-1])
        low, high = np.quantile([spearmanr(x, y)[0] for x, y in zip(*drawn)], [0.025, 0.975])
        lines.append(f'{OPTIMS[a]} and {OPTIMS[b]} {spearmanr(*found)[0]:.2f} [{low:.2f}, {high:.2f}]')
    return wrapped(f'Rank correlations of {len(OTHERS) + 1} placements: {"; ".join(lines)}.').replace('-', '−')


RISEN = 0.05                        # a score for copying above it counts as risen


def onset_of(scores):
    """Return the iteration at which a run's score rises above RISEN: between two checkpoints on a straight line, or the last
    checkpoint's if it does not. `scores`: {iteration: score}."""
    before = 0, 0.0
    for at in sorted(scores.items()):
        if at[1] > RISEN:
            return before[0] + (at[0] - before[0]) * (RISEN - before[1]) / (at[1] - before[1])
        before = at
    return before[0]


def onsets(sweep, path):
    """Return {placement: frame of the `onset` of copying and the `test_loss` of its seeds}, from the csv file of scores. Seed 1
    chose the rate in tokens.py, and is left out."""
    if not path.exists():
        return {}
    onset = pd.read_csv(path).groupby(['setting', 'seed'])[['iteration', 'score']].apply(
        lambda at: onset_of(dict(zip(at.iteration, at.score)))).rename('onset')
    runs = sweep.runs[sweep.runs.seed > 1].join(onset, on=['setting', 'seed'], how='inner')
    runs = runs.replace({'setting': dict(Pre='pre', S1='s1', DNT='s5')})
    return {arch: of[['onset', 'test_loss']] for arch, of in runs.groupby('setting') if len(of) >= 8}


def explained(of):
    """Return the R² of a straight line from the onset to the loss of seeds, and the bounds that hold 95% of 10,000 draws of the
    seeds with replacement."""
    x, y = of.to_numpy().T
    drawn = np.random.default_rng(0).integers(len(x), size=(10_000, len(x)))
    with np.errstate(invalid='ignore'):                 # a draw may hold one seed alone
        r2 = np.array([np.corrcoef(x[i], y[i])[0, 1] ** 2 for i in drawn])
    return (np.corrcoef(x, y)[0, 1] ** 2, *np.nanquantile(r2, [0.025, 0.975]))


def onset_table(found):
    """Return the table of the onset of copying."""
    lines = [{'placement': f'`{arch}`', 'seeds': str(len(of)),
              'onset, in iterations': f'{of.onset.min():.0f} to {of.onset.max():.0f}',
              'test loss': f'{of.test_loss.min():.3f} to {of.test_loss.max():.3f}',
              'slope, nats per 1000 iterations': f'{1000 * np.polyfit(of.onset, of.test_loss, 1)[0]:+.3f}'.replace('-', '−'),
              'R²': '{:.2f} [{:.2f}, {:.2f}]'.format(*explained(of))} for arch, of in found.items()]
    return markdown(pd.DataFrame(lines)) if lines else '`onset.py` has no run yet.'


def onset_claims(found):
    """Return lines for the table of claims: the onset was predicted to explain over 80% of the variance."""
    lines = []
    for arch in (arch for arch in ('pre', 's1') if arch in found):
        r2, low, high = explained(found[arch])
        verdict = '🟢 supported' if low > 0.8 else '🔴 contradicted' if high < 0.8 else '⚪ open'
        lines.append(f'| The onset of copying explains the loss of {NAMES[arch]} at 16M bytes | '
                     f'> 0.80{"" if r2 > 0.8 else ", missed"} | R² {r2:.2f} [{low:.2f}, {high:.2f}] | {verdict} |')
    return lines


def spreads(sweep):
    """Return a table of the lowest and highest test loss of each placement's seeds, by each optimizer."""
    rows = {(row.labels['optim'], row.labels['arch']): row.losses() for row in sweep.rows}
    return markdown(pd.DataFrame([
        {'placement': f'`{arch}`', **{OPTIMS[optim]: f'{losses.min():.3f} to {losses.max():.3f}' if len(
            losses := rows.get((optim, arch), ())) >= SEEDS['optimizers'] else 'not run' for optim in [*OPTIMS][1:]}}
        for arch in ('pre', *OTHERS)]))


NAMED = {       # config/arch/ → name, InputNorm, Pre (attention, FFN), QK, Mid, Post, norm
    's4': ('S4', 'yes', 'yes, yes', 'yes', 'yes', '', 'RMSNorm'),
    's5': ('S5 = DNT', 'yes', 'yes, no', 'yes', 'yes', '', 'RMSNorm'),
    's3': ('S3', 'yes', 'yes, yes', 'yes', '', '', 'RMSNorm'),
    'value_residual': ('Value residual', '', 'yes, yes', '', '', '', 'RMSNorm'),
    's2': ('S2', '', 'yes, yes', 'yes', '', '', 'RMSNorm'),
    's1': ("S1, DNT's baseline", '', 'yes, yes', '', '', '', 'RMSNorm'),
    'pre': ('Pre-LN, GPT-2', '', 'yes, yes', '', '', '', 'LayerNorm'),
    'peri': ('Peri-LN', '', 'yes, yes', '', 'yes', '', 'LayerNorm'),
    'post': ('Post-LN', '', '', '', '', 'yes', 'LayerNorm'),
    'hybrid': ('HybridNorm', '', '', 'yes, and V', '', 'attention', 'RMSNorm'),
    'stable': ('Stable-Transformer', '', 'yes, yes', 'yes', '', '', 'StableNorm')}
HEAD = ('name', 'Input', 'Pre (attention, FFN)', 'QK', 'Mid', 'Post', 'norm')


def named(sweeps):
    """Return the table of the placements that have a name in papers."""
    start, muon = starts(), {row.labels['arch']: row.text() for row in sweeps['optimizers'].rows
                             if row.labels['optim'] == 'muon' and len(row.losses()) >= SEEDS['optimizers']}
    return markdown(pd.DataFrame([
        {'`config/arch/`': f'`{row.labels["arch"]}`', **dict(zip(HEAD, NAMED[row.labels['arch']])),
         'start': start[row.labels['arch']], 'loss, AdamW': row.text() + ', one seed' * (len(row.shown) == 1),
         'loss, Muon': muon.get(row.labels['arch'], 'not run')}
        for row in by_loss(row for row in sweeps['placements'].rows if row.labels['arch'] in NAMED)]))


ANSWER = """
**Which norms, and where, give the lowest loss?** In GPTs of 0.2M parameters, by AdamW, on 4.5M bytes of Python, S4 and DNT
are {s5:<.2f} to {s4:<.2f} nats a byte better than Pre-LN. They norm embeddings, queries and keys, and the output of each
branch. `value_residual`, without these norms, is better by {value_residual:<.2f}. Post-LN equals Pre-LN, but only within
{octaves} octaves of its best rate. Peri-LN is {peri:>.2f} worse. {size} {time} At 0.2M parameters its lead is worth at most
{tokens:.2f} times the tokens.

**How much of this is the start?** S1 to S5 start by Xavier's rule, and most others by GPT-2's. S1 and `llama` have the same
norms in the same places, and S1 − `llama` is {s1_llama}. If S1 starts by GPT-2's rule, it is {s1_started}, so most of the
difference was the start. DNT − Pre-LN is {s5_gpt2} if both start by GPT-2's rule, and {s5_xavier} by Xavier's. By Xavier's
start Pre-LN is {pre_started:>.3f} worse and Peri-LN {peri_started:<.3f} better, and there Peri-LN − Pre-LN is {peri_pre}
([picture](claims.md#what-is-a-start-worth)).

**How much of it is the optimizer?** DNT is {sgdw_lead:<.2f} better than Pre-LN by momentum SGD, and {lion_s5:<.2f} by Lion. By
Lion, the other five minus Pre-LN are {lion_low:+.2f} to {lion_high:+.2f}. By Muon, DNT − Pre-LN is {muon_s5}, and DNT's seeds
spread over {muon_spread:.2f}. There Post-LN is {muon_post:>.2f} worse than Pre-LN, and `value_residual` {muon_value:<.2f} better.
Peri-LN is {sgdw_peri:>.2f} worse by momentum SGD. Muon itself gives Pre-LN {muon:.2f}. Momentum SGD costs DNT {sgdw_s5:>.2f} and
S1 {sgdw_s1:>.2f}; larger embeddings alone bring S1 to {sgdw_large:>.2f}. After 16M bytes it costs DNT {longer_s5} and S1
{longer_s1}, where two of S1's eight seeds by AdamW never
[begin to copy](claims.md#when-seeds-begin-to-copy).

**Do the leads last in larger models?** They shrink as size, depth and bytes grow together, with less tuning each time. At 0.7M
parameters, with 6 blocks and 14M bytes, DNT − Pre-LN is {ladder_s5} and `value_residual` − Pre-LN {ladder_value}, by AdamW and
3 seeds. These leads are {fall_s5:>.3f} and {fall_value:>.3f} smaller than the tuned ones at 0.2M. Peri-LN − Pre-LN was
{peri:+.3f} at 0.2M, and is {ladder_peri} at 0.7M.
{largest}
"""
SIZE = """
By AdamW, with rates chosen by seed 1 alone, DNT's lead over Pre-LN is {base:<.3f} at 0.2M parameters, {size:<.3f} at 0.5M,
{longer:<.3f} after 16M bytes, {ladder_s5:<.3f} with 6 blocks at 0.7M after 14M bytes, and {english:<.3f} on English.
"""
LARGEST = """
At 3.1M, with 10 blocks and 49M bytes, DNT − Pre-LN is {largest_s5} and `value_residual` − Pre-LN {largest_value}, by untuned
rates and 2 seeds, too few to be sure of an interval.
"""
TIME = 'An iteration of DNT takes {eager:.2f} times as long as one of Pre-LN, or {compiled:.2f} times if both are compiled.'


class Difference(NamedTuple):
    """A difference of losses in a sentence. {x}: with its interval. {x:+.2f}: with its sign. {x:<.2f} and {x:>.2f}: without it,
    but it must be below or above 0, so that no sentence says *better* once the runs say *worse*."""
    of: Estimate

    def __format__(self, form):
        if not form:
            return interval(self.of)
        if form[0] == '+':
            return f'{self.of.mean:{form}}'.replace('-', '−')
        if (self.of.mean < 0) != (form[0] == '<'):
            raise ValueError(f'the difference is {interval(self.of)}, and a sentence of the answer says {form[0]} 0: reword it')
        return f'{abs(self.of.mean):{form[1:]}}'


def answer(sweeps):
    """Return the paragraphs that results/README.md begins with, and their sentences on size and time."""
    texts = dict(
        s4=placement('s4'), s5=placement('s5'), value_residual=placement('value_residual'), peri=placement('peri'),
        base=lead('DNT', 'Pre'), size=lead('DNT', 'Pre', 'size/'), longer=lead('DNT', 'Pre', 'tokens/'),
        english=lead('DNT', 'Pre', 'text/'),
        s1_llama=placement('s1', 'llama'), s1_started=started('s1', 'gpt2', 'llama'), s5_gpt2=started('s5', 'gpt2', 'pre'),
        s5_xavier='placements/optim=adamw,arch=s5 - starts/optim=adamw,arch=pre,start=xavier',
        pre_started=started('pre', 'xavier', 'pre'), peri_started=started('peri', 'xavier', 'peri'),
        peri_pre='starts/optim=adamw,arch=peri,start=xavier - starts/optim=adamw,arch=pre,start=xavier', muon_s5=by('muon', 's5'),
        muon_post=by('muon', 'post'), muon_value=by('muon', 'value_residual'),
        sgdw_lead=by('sgdw', 's5'), sgdw_peri=by('sgdw', 'peri'), lion_s5=by('lion', 's5'),
        sgdw_s5=gap('DNT'), sgdw_s1=gap('S1'), sgdw_large=gap('S1 large'), longer_s5=longer_gap('DNT'),
        longer_s1=longer_gap('S1'), ladder_s5=at_larger('s5'), ladder_value=at_larger('value_residual'),
        ladder_peri=at_larger('peri'), fall_s5=change_to_larger('s5'), fall_value=change_to_larger('value_residual'),
        largest_s5=at_larger('s5', '3.1M'), largest_value=at_larger('value_residual', '3.1M'))
    numbers = {name: Difference(difference(text, sweeps)) for name, text in texts.items()}
    by_lion = [difference(by('lion', arch), sweeps).mean for arch in OTHERS if arch != 's5']
    numbers |= dict(lion_low=min(by_lion), lion_high=max(by_lion))
    # how many times the tokens Pre-LN would need for DNT's loss, if its loss falls with log tokens as from 4.5M to 16M bytes
    fall = (find_row(sweeps['base'].rows, 'optim=adamw,setting=Pre').losses().mean()
            - find_row(sweeps['tokens'].rows, 'setting=Pre').losses().mean()) / math.log(7812 / 2200)
    numbers['muon'] = find_row(sweeps['placements'].rows, 'optim=adamw,arch=pre').losses().mean() - find_row(
        sweeps['optimizers'].rows, 'optim=muon,arch=pre').losses().mean()
    of_dnt = find_row(sweeps['optimizers'].rows, 'optim=muon,arch=s5').losses()
    numbers['muon_spread'] = of_dnt.max() - of_dnt.min()
    numbers['tokens'] = math.exp(-numbers['base'].of.mean / fall)
    time = times()
    slower = time.loc['optim=adamw,arch=s5'] / time.loc['optim=adamw,arch=pre']
    numbers |= dict(eager=slower[False], compiled=slower[True])
    octaves = find_row(sweeps['tolerance'].rows, 'optim=adamw,arch=post').rate_cells()[1]
    size, largest, time = (text.strip().format(**numbers) for text in (SIZE, LARGEST, TIME))
    text = ANSWER.format(octaves=octaves, **{**numbers, 'size': size, 'largest': largest, 'time': time})
    return '\n\n'.join(map(wrapped, text.split('\n\n'))), wrapped(f'{size} {largest} {time}')


def wrapped(text):
    return textwrap.fill(' '.join(text.split()), 140, break_on_hyphens=False)


def tolerances(sweep):
    """Return a sentence on the tolerances of Pre-LN and DNT by AdamW: with more slack, and with the noise of a seed."""
    rng, wide, noise = np.random.default_rng(0), [], []
    for arch in 'pre', 's5':
        runs = find_row(sweep.rows, f'optim=adamw,arch={arch}').runs
        rates, losses = runs.learning_rate.astype(float).to_numpy(), runs.val_loss.fillna(9.0).to_numpy()
        wide.append(width_of(rates, losses, 0.2)[0])
        noise.append(np.std([width_of(rates, losses + 0.015 * rng.standard_normal(len(rates)))[0] for _ in range(2000)]))
    return (f'With a slack of 0.2 nats, Pre-LN has {wide[0]:.1f} octaves by AdamW, and DNT {wide[1]:.1f}. Losses redrawn with\n'
            f'the standard deviation of a seed, 0.015, move these tolerances by {min(noise):.1f} to {max(noise):.1f} octaves.')


def plain_welch(verdicts):
    """Return a list of the claims whose verdict is another one if no row's variance is shrunk."""
    sweeps = {name: Sweep(name) for name in SWEEPS}
    for row in (row for sweep in sweeps.values() for row in sweep.rows if row.spread):
        row.spread = row.losses().var(), len(row.losses()) - 1, (row,)
    pairs = [pair for plain, family in zip(test_all(sweeps).values(), verdicts.values()) for pair in zip(family, plain)]
    return '\n'.join(f'- {a.claim.text}: *{b.text.split(" (")[0]}* instead of *{a.text.split(" (")[0]}*' for a, b in pairs
                     if a.text.split()[0] != b.text.split()[0])


def archs():
    """Return the table of all placements, from the first lines and the keys of the files in config/arch/."""
    lines = []
    for path in sorted((ROOT / 'config' / 'arch').glob('*.py')):
        file = path.read_text(encoding='utf-8')
        base = re.search(r"^include\('config/arch/(\w+)\.py'\)", file, re.MULTILINE)
        keys = re.findall(r'^ *([a-z]\w*) = (?:.* if _vit else )?([^#\n]*[^#\s])', file, re.MULTILINE)      # those of train.py
        step = f'`{base[1]}`: ' + ' '.join(f'`{key}={value}`' for key, value in keys) if base else 'all keys'
        lines.append({'file': f'`{path.stem}`', 'what it is (source)': file.splitlines()[0].removeprefix('# '), 'the step': step})
    return markdown(pd.DataFrame(lines))


def fill(path, blocks):
    return re.sub(r'(<!-- (\w+): made by results/pages.py -->\n).*?(?=<!-- end -->)',
                  lambda match: f'{match[1]}{blocks[match[2]]}\n', path.read_text(encoding='utf-8'), flags=re.DOTALL)


def build():
    """Return {path: text} of all pages, and {name: matplotlib figure} of their pictures."""
    sweeps = {name: Sweep(name) for name in SWEEPS}
    verdicts, placements = test_all(sweeps), sweeps['placements']
    leads, losses = by_optimizer(sweeps)
    planned = {name: sweeps[name] for name in SEEDS} | dict(onset=Sweep('onset'))
    sizes, onset = by_size(sweeps), onsets(planned['onset'], HERE / 'csv' / 'onset_scores.csv')
    missing = ', '.join(f'`{name}.py` ({number})' for name, sweep in planned.items() if (number := sweep.missing()))
    shown = [verdict for name in (*PREDICTED, 'dnt') for verdict in verdicts[name]]
    others = [verdict for name, family in verdicts.items() for verdict in family if verdict not in shown]
    paragraphs, size_and_time = answer(sweeps)
    blocks = dict(
        answer=paragraphs, size_and_time=size_and_time, ranking=ranking(placements), one_seed=one_seed(placements),
        named=named(sweeps), ladder=leads_by_size(sizes, sweeps),
        archs=archs(), correlations=correlations(leads), spreads=spreads(sweeps['optimizers']), onset=onset_table(onset),
        exploratory=exploratory(sweeps),
        tolerances=tolerances(sweeps['tolerance']), welch=plain_welch(verdicts),
        batch='With 3.2 nats a byte as the limit no run of S1 by mSGDW counts as diverged, and the claim on the batch has the '
              f'difference {interval(difference(growth("S1"), {"batch": Sweep("batch", diverged_loss=3.2)}))}.',
        shown='\n'.join([claim_table(shown, ('claim', 'predicted', 'difference', 'verdict')), *onset_claims(onset)]),
        dnt_claims=claim_table(verdicts['dnt']),
        counts=f'[claims.md](claims.md) has seeds and p, and {count(others)}.',
        missing=f'Missing runs, of those that are planned: {missing}.' if missing else 'No planned run is missing.',
        **{f'sweep_{name}': section(sweep, verdicts) for name, sweep in sweeps.items()})
    pages = [HERE / 'README.md', HERE / 'claims.md', ROOT / 'README.md', ROOT / 'docs' / 'placements.md']
    with matplotlib.rc_context(STYLE):
        figures = dict(forest=forest(placements, SEEDS['placements']), matrix=matrix(leads, losses),
                       tolerance=tolerance(sweeps['tolerance']),
                       crossed=side_by_side(by_start(sweeps), 'test loss (nats a byte)'),
                       ladder=side_by_side(sizes, 'test loss − Pre-LN (nats a byte)'))
        if onset:
            figures['onset'] = scatter(onset)
        figures['ladder'].axes[0].axhline(0, color='gray', lw=0.8)
    return {path: fill(path, blocks) for path in pages}, figures


def main():
    pages, figures = build()
    for path, text in pages.items():
        write_whole(str(path), lambda f: f.write(text.encode()))
    for name, figure in figures.items():
        figure.savefig(HERE / 'img' / f'{name}.png', dpi=200)
    print(f'wrote {len(pages)} pages')


if __name__ == '__main__':
    main()
