"""Draw the pictures of results/README.md from the runs of results/csv/."""
import math

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lab.plot import COLORS, FULL, MARKERS
from lab.sweep.table import contrast, find_row, interval

NAMES = dict(pre='Pre-LN', s1='S1', s5='DNT', peri='Peri-LN', post='Post-LN', hybrid='HybridNorm')      # files of config/arch/
OPTIMS = dict(adamw='AdamW', muon='Muon', sgdw='mSGDW', lion='Lion')
LINE = 0.14                         # inches between two placements


def look(arch):
    """Return the label, color and marker of a placement, the same in each picture that tells them apart."""
    i = [*NAMES, 'value_residual'].index(arch)
    return dict(label=NAMES.get(arch, arch), color=COLORS[i], marker=MARKERS[i])


def forest(sweep, seeds):
    """Draw the test loss minus the mean of `pre`, with its 95% interval, of each placement that has as many losses as `seeds`."""
    pre = find_row(sweep.rows, sweep.keys['against'])
    rows = sorted((row for row in sweep.rows if len(row.losses()) >= seeds), key=lambda row: row.losses().mean())
    figure = Figure((FULL * 0.75, LINE * (len(rows) + 1) + 0.6), layout='constrained')
    ax = figure.subplots()
    ax.axvline(0, color='gray', lw=0.8)
    for y, row in enumerate(rows):
        if row is pre:
            ax.plot(0, y, 'o', color='black')
        else:
            e = contrast({row: 1, pre: -1})
            ax.errorbar(e.mean, y, xerr=[[e.mean - e.low], [e.high - e.mean]], fmt='o', color=COLORS[0], capsize=2)
    ax.set_yticks(range(len(rows)), [row.labels['arch'] for row in rows], fontsize=7)
    ax.set(ylim=(len(rows) - 0.4, -0.6), xlabel='test loss − pre (nats a byte), with 95% intervals')
    ax.tick_params('y', length=0)
    ax.grid(axis='y', visible=False)
    return figure


def matrix(leads, losses):
    """Draw each placement's test loss minus that of `pre` by the same optimizer as a table. `leads`: {optimizer: {placement:
    Estimate}}, in the order of rows and columns; `losses`: {optimizer: the mean loss of pre}. A cell whose interval leaves out 0
    is in bold letters and filled, blue below 0 and orange above."""
    archs = list(next(iter(leads.values())))
    figure = Figure((1.3 + 1.75 * len(leads), 0.27 * (len(archs) + 2)), layout='constrained')
    ax = figure.subplots()
    for x, (optim, of) in enumerate(leads.items()):
        for y, arch in enumerate(archs):
            e = of.get(arch)
            clear = bool(e) and e.low * e.high > 0
            if clear:
                ax.add_patch(Rectangle((x - 0.47, y - 0.42), 0.94, 0.84, color=COLORS[e.mean > 0], alpha=0.25, lw=0))
            ax.text(x, y, interval(e) if e else 'not run', ha='center', va='center', fontsize=8,
                    weight='bold' if clear else 'normal', color='black' if e else 'gray')
        ax.text(x, len(archs), f'{losses[optim]:.3f}', ha='center', va='center', fontsize=8)
    ax.axhline(len(archs) - 0.5, color='gray', lw=0.8)
    ax.set(xlim=(-0.5, len(leads) - 0.5), ylim=(len(archs) + 0.5, -0.5))
    ax.set_xticks(range(len(leads)), [OPTIMS[optim] for optim in leads])
    ax.set_yticks(range(len(archs) + 1), [*(NAMES.get(arch, arch) for arch in archs), 'loss of Pre-LN'])
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.grid(visible=False)
    for side in ax.spines.values():
        side.set_visible(False)
    return figure


def side_by_side(groups, ylabel):
    """Draw each placement's Estimates with their 95% intervals, side by side in each group, joined by lines that only guide the
    eye. `groups`: {name: {placement: Estimate}}, with the same placements in the same order."""
    figure = Figure((FULL * 0.6, 2.6), layout='constrained')
    ax = figure.subplots()
    archs = list(next(iter(groups.values())))
    for i, arch in enumerate(archs):
        points = [(x + 0.08 * (i - (len(archs) - 1) / 2), of[arch]) for x, of in enumerate(groups.values()) if of[arch]]
        ax.errorbar([x for x, _ in points], [e.mean for _, e in points], capsize=2, lw=0.8, **look(arch),
                    yerr=[[e.mean - e.low for _, e in points], [e.high - e.mean for _, e in points]])
    ax.set_xticks(range(len(groups)), list(groups))
    ax.set(xlim=(-0.4, len(groups) - 0.6), ylabel=ylabel)
    ax.legend()
    return figure


def scatter(onsets):
    """Draw the test loss of each seed against its onset of copying. `onsets`: {placement: frame with both}."""
    figure = Figure((FULL * 0.6, 2.6), layout='constrained')
    ax = figure.subplots()
    for arch, of in onsets.items():
        ax.plot(of.onset, of.test_loss, ls='', **look(arch))
    ax.set(xlabel='iteration at which the score for copying rises above 0.05', ylabel='test loss (nats a byte)')
    ax.legend()
    return figure


def tolerance(sweep):
    """Draw seed 1's validation loss against the learning rate, with a panel for each optimizer that has all six placements."""
    top = 3.0
    rows = {optim: {row.labels['arch']: row for row in sweep.rows if row.labels['optim'] == optim and len(row.runs) == 8}
            for optim in OPTIMS}
    rows = {optim: by_arch for optim, by_arch in rows.items() if by_arch.keys() == NAMES.keys()}
    figure = Figure((FULL, 3.8))
    for ax, (optim, by_arch) in zip(figure.subplots(1, len(rows), sharey=True, squeeze=False)[0], rows.items()):
        for i, arch in enumerate(NAMES):
            row, done, style = by_arch[arch], by_arch[arch].runs.status == 'done', look(arch)
            rates = row.runs.learning_rate.astype(float)
            losses, lost = row.runs.val_loss.where(done, math.nan), rates[~done]
            ax.plot(rates, losses, markersize=3, **style | dict(label=f'{style["label"]}: {row.rate_cells()[1]}'))
            ax.plot(lost * 1.12 ** (i - 2.5), [top] * len(lost), 'x', color=style['color'], markersize=5, clip_on=False)
        ax.set_xscale('log', base=2)
        ax.set_xticks(sorted(rates)[1::2], [f'{rate:g}' for rate in sorted(rates)[1::2]])
        ax.set(xlabel='learning rate', title=OPTIMS[optim])
        ax.legend(title='tolerance in octaves', loc='upper center', bbox_to_anchor=(0.5, -0.2), handlelength=1.5)
    figure.subplots_adjust(left=0.08, right=0.99, top=0.93, bottom=0.45, wspace=0.05)
    figure.axes[0].set(ylabel='validation loss (nats a byte)', ylim=(None, top))
    return figure
