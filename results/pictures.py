"""Draw the pictures of the pages from the runs of results/csv/. A picture is None until its runs have ended."""
import math
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from lab.plot import COLORS, FULL, MARKERS
from lab.sweep.table import contrast, find_row, signed

HERE = Path(__file__).resolve().parent
NAMES = dict(pre='Pre-LN', s1='S1', s5='DNT', peri='Peri-LN', post='Post-LN', hybrid='HybridNorm')      # files of config/arch/
OPTIMIZERS = dict(adamw='AdamW', muon='Muon', sgdw='mSGDW')
STEPS = {'S1': 'S1', 'S1+InputNorm': 'S1 +\nInputNorm', 'DNT with the decay of S1': 'DNT at the\ndecay of S1', 'DNT': 'DNT'}
LEADS = [('DNT', 'S1'), ('DNT', 'Pre'), ('S1', 'Pre')]
GAP = 'test loss by mSGDW − by AdamW\n(nats a byte)'
BATCHES = {'0.5K': 512, '2K': 2048, '32K': 32768}           # tokens


def estimate(sweeps, seeds, *terms):
    """Estimate Σ weight × mean loss, for terms (weight, 'sweep/axis=label,…'). Return None while a row lacks seeds."""
    weights, known = {}, {}
    for weight, name in terms:
        sweep, _, labels = name.partition('/')
        try:
            row = find_row(sweeps[sweep].rows, labels)
        except ValueError:
            return None
        weights[row], known = weight, known | sweeps[sweep].known
        if len(row.losses('test')) < seeds[sweep]:
            return None
    return contrast(weights, 'test', known)


def bars(axes, x, estimates, **style):
    """Draw means with their 95% intervals."""
    axes.errorbar(x, [e.mean for e in estimates], [[e.mean - e.low for e in estimates], [e.high - e.mean for e in estimates]],
                  **{'marker': 'o', 'ls': '', 'markersize': 4, 'capsize': 2, **style})


def draw_steps(axes, levels, large):
    """Draw a bar from each level to the next, with the difference, and a dashed line at `large`, if given."""
    white = dict(facecolor='white', edgecolor='none', pad=0.5)          # behind a label, so that the grid does not cross it
    for x, (before, after) in enumerate(zip(levels.values(), [*levels.values()][1:]), 1):
        axes.bar(x, after.mean - before.mean, 0.5, before.mean, color=COLORS[2 if after.mean < before.mean else 1], alpha=0.5)
        axes.annotate(signed(after.mean - before.mean), (x, min(before.mean, after.low)), (0, -4), ha='center', va='top',
                      textcoords='offset points', fontsize=8, bbox=white)
    bars(axes, range(len(levels)), levels.values(), color='black')
    axes.margins(y=0.1)                                 # room for the lowest label
    if large:
        axes.axhline(large.mean, color=COLORS[0], ls='--', lw=1, zorder=0)
        axes.annotate('S1 with large embeddings', (len(levels) - 0.6, large.mean), (0, 4), ha='right',
                      textcoords='offset points', color=COLORS[0], fontsize=8, bbox=white)
    axes.set_xticks(range(len(levels)), [STEPS[name] for name in levels])


def waterfall(sweeps, seeds):
    """Draw the steps from S1 to DNT: AdamW's loss, and the extra loss by momentum SGDW."""
    def losses(names, *optims):
        return {name: estimate(sweeps, seeds, *((weight, f'base/optim={optim},setting={name}') for weight, optim in optims))
                for name in names}

    steps = [name for name in STEPS if name != 'DNT with the decay of S1']
    adamw = losses([*STEPS, 'S1 large'], (1, 'adamw'))
    gap = losses(steps, (1, 'sgdw'), (-1, 'adamw'))
    panels = [(levels, y) for levels, y in ((adamw, 'test loss by AdamW\n(nats a byte)'), (gap, GAP))
              if None not in levels.values()]
    if not panels:
        return None
    figure = Figure((FULL if len(panels) > 1 else FULL * 0.6, 2.8), layout='constrained')
    figure.get_layout_engine().set(w_pad=0.12)
    for axes, (levels, y) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
        large = levels.pop('S1 large', None)
        draw_steps(axes, levels, large)
        axes.set_ylabel(y)
    return figure


def rate_curves(sweeps, seeds):
    """Draw loss against learning rate, with a panel for each optimizer whose runs have all ended."""
    rows = {}
    for row in sweeps['tolerance'].rows:
        if len(row.runs) == 8:
            rows.setdefault(row.labels['optim'], {})[row.labels['arch']] = row
    rows = {optim: rows[optim] for optim in OPTIMIZERS if rows.get(optim, {}).keys() == NAMES.keys()}
    if not rows:
        return None
    figure, top = Figure((FULL, 3.8)), 3.0
    for axes, (optim, by_arch) in zip(figure.subplots(1, len(rows), sharey=True, squeeze=False)[0], rows.items()):
        for i, (arch, name) in enumerate(NAMES.items()):
            row, done = by_arch[arch], by_arch[arch].runs.status == 'done'
            rates = row.runs.learning_rate.astype(float)
            losses, lost = row.runs.val_loss.where(done, math.nan), rates[~done]
            axes.plot(rates, losses, marker=MARKERS[i], color=COLORS[i], markersize=3, lw=1.2,
                      label=f'{name}: {row.rate_cells()[1]}')
            axes.plot(lost * 1.12 ** (i - 2.5), [top] * len(lost), 'x', color=COLORS[i], markersize=5, clip_on=False)
        axes.set_xscale('log', base=2)
        axes.set_xticks(sorted(rates)[1::2], [f'{rate:g}' for rate in sorted(rates)[1::2]])
        axes.set(xlabel='learning rate', title=OPTIMIZERS[optim])
        axes.legend(title='tolerance in octaves', loc='upper center', bbox_to_anchor=(0.5, -0.2), handlelength=1.5)
    figure.subplots_adjust(left=0.08, right=0.99, top=0.93, bottom=0.45, wspace=0.05)
    figure.axes[0].set(ylabel='validation loss (nats a byte)', ylim=(None, top))
    return figure


def leads(sweeps, seeds):
    """Draw differences between placements by AdamW, at 0.2M parameters (base) and at 0.5M (size)."""
    both = [[estimate(sweeps, seeds, (1, f'{prefix}setting={a}'), (-1, f'{prefix}setting={b}')) for a, b in LEADS]
            for prefix in ('base/optim=adamw,', 'size/')]
    if None in (*both[0], *both[1]):
        return None
    figure = Figure((FULL * 0.6, 2.5), layout='constrained')
    axes = figure.subplots()
    for shift, (estimates, size) in enumerate(zip(both, ('0.2M parameters', '0.5M parameters'))):
        bars(axes, [x + 0.2 * shift - 0.1 for x in range(len(LEADS))], estimates, color=COLORS[shift], marker=MARKERS[shift],
             label=size)
    axes.axhline(0, color='gray', lw=0.8)
    axes.set_xticks(range(len(LEADS)), [f'{a.replace("S1+", "S1 + ")}\n− {b}' for a, b in LEADS])
    axes.set_ylabel('difference in test loss\n(nats a byte)')
    axes.legend()
    return figure


def gaps(sweeps, seeds):
    """Draw the extra loss of S1 and DNT by momentum SGDW against the tokens per batch; base.py has 2K."""
    def gap(setting, batch):
        sweep, more = ('base', '') if batch == '2K' else ('batch', f',batch={batch}')
        return estimate(sweeps, seeds, *((weight, f'{sweep}/optim={optim},setting={setting}{more}')
                                         for weight, optim in ((1, 'sgdw'), (-1, 'adamw'))))

    found = {setting: [gap(setting, batch) for batch in BATCHES] for setting in ('S1', 'DNT')}
    if None in (*found['S1'], *found['DNT']):
        return None
    figure = Figure((FULL * 0.6, 2.5), layout='constrained')
    axes = figure.subplots()
    for color, marker, (setting, estimates) in zip(COLORS, MARKERS, found.items()):
        bars(axes, BATCHES.values(), estimates, color=color, marker=marker, ls='-', lw=1.2, label=setting)
    axes.set_xscale('log')
    axes.set_xticks([*BATCHES.values()], BATCHES, minor=False)
    axes.minorticks_off()
    axes.set(xlabel='tokens a batch', ylabel=GAP)
    axes.legend()
    return figure


def induction(sweeps, seeds):
    """Draw test loss against the highest induction score of a head, a point for each seed of placements.csv that was measured."""
    scores = pd.read_csv(HERE / 'csv' / 'induction.csv').rename(columns={'entry': 'arch'})
    confirming = sweeps['placements'].runs[['arch', 'seed', 'test_loss']][lambda runs: runs.seed > 3]
    figure = Figure((FULL * 0.8, 3.0), layout='constrained')
    axes = figure.subplots()
    for color, marker, (name, measured) in zip(COLORS, MARKERS, scores.groupby('arch', sort=False)):
        runs = measured.merge(confirming, 'left', validate='1:1')
        rho = spearmanr(runs.induction_score, runs.test_loss).statistic
        axes.plot(runs.induction_score, runs.test_loss, marker, color=color, ls='none', markersize=4,
                  label=f'{name}: {len(runs)}, ρ = {rho:.2f}'.replace('-', '−'))
    axes.set_xscale('log')
    axes.set(xlabel='highest induction score of a head', ylabel='test loss (nats a byte)')
    figure.legend(title='placement: seeds, rank correlation', loc='outside right upper')
    return figure


PICTURES = dict(waterfall=waterfall, tolerance=rate_curves, leads=leads, batch=gaps, induction=induction)   # results/img/NAME.png
