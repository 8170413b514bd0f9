"""
Make the pictures of README.md, and the tables of README.md, claims.md, ../README.md and ../docs/placements.md, from csv/, which
has the runs of config/sweep/: `make results`. A table stands between <!-- NAME: made by results/pages.py --> and <!-- end -->.
"""
import math
import re
import sys
from pathlib import Path
from statistics import fmean

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))
import matplotlib  # noqa: E402
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from scipy.stats import t  # noqa: E402

from engine.files import write_whole  # noqa: E402
from lab.plot import STYLE  # noqa: E402
from lab.sweep.plan import read_sweep, rows_of_file  # noqa: E402
from lab.sweep.table import Results, contrast, find_row, interval, key_of  # noqa: E402
from results.claims import SEEDS, Claim, lead, test, test_all  # noqa: E402
from results.pictures import forest, tolerance  # noqa: E402

SWEEPS = [*SEEDS, 'decay', 'brackets', 'tolerance']
MARKS = dict(supported='🟢', equal='🟢', contradicted='🔴')         # by the first word of a verdict


class Sweep(Results):
    """The runs of csv/NAME.csv so far."""

    def __init__(self, name):
        self.name, self.keys = name, read_sweep(ROOT / 'config' / 'sweep' / f'{name}.py')
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
    lines = [{'claim': claim.text, 'in the paper': claim.paper, 'difference': interval(e) if e and e.n else '–',
              'seeds': str(e.n if e else 0), 'p': '–' if p != p else '< 0.001' if p < 0.001 else f'{p:.2g}',
              'verdict': f'{MARKS.get(re.match("[a-z]+", text)[0], "⚪")} {text}'} for claim, e, p, text in verdicts]
    return markdown(pd.DataFrame(lines)[[*columns]])


def count(verdicts):
    words = [re.match('not run|[a-z]+', text)[0].replace('equal', 'supported') for *_, text in verdicts]
    return f'{len(words)} other claims, about figures of the papers: ' + ', '.join(
        f'{words.count(word)} {word}' for word in ('supported', 'contradicted', 'open', 'not run') if word in words)


def section(sweep, verdicts):
    """Return the command that prints a sweep's table and the differences of its claims, its table, and its claims."""
    if not sweep.rows:
        return 'No run yet.'
    own = [claim.contrast.replace(f'{sweep.name}/', '') for family in verdicts.values() for claim, e, *_ in family
           if e and {*re.findall(r'(\w+)/', claim.contrast)} == {sweep.name}]
    contrasts = " --contrast='\n        " + ';\n        '.join(own) + "'" if own else ''
    table = sweep.tables(sweep.keys['against'])[0]
    family = [claim_table(verdicts[sweep.name])] if sweep.name in verdicts else []
    command = f'    python -m lab.sweep config/sweep/{sweep.name}.py --report=True{contrasts}'
    return '\n\n'.join([command, markdown(table), *family])


def by_loss(rows):
    return sorted(rows, key=lambda row: row.shown.test_loss.mean())


def ranking(sweep):
    """Return the table of the placements that have all their seeds."""
    pre = find_row(sweep.rows, sweep.keys['against'])
    return markdown(pd.DataFrame([
        {'placement': f'`{row.labels["arch"]}`', 'decay, rate': ', '.join(row.best),
         'test loss − pre': f'0 (its loss: {row.losses().mean():.3f})' if row is pre else interval(contrast({row: 1, pre: -1}))}
        for row in by_loss(row for row in sweep.rows if len(row.losses()) >= SEEDS['placements'])]))


def noise(sweep):
    """Return the lines on what a choice by one seed costs, in tuning and in the screen (seed 1 at a decay of 0.1, nGPT of 0), and
    on what placements cost. Leads over pre are fitted to those of the screen by least squares through 0, with a t-interval."""
    pre, gains, leads = find_row(sweep.rows, sweep.keys['against']), [], []
    ranked = [row for row in sweep.rows if len(row.losses()) >= SEEDS['placements']]
    screened = {row: min(((run.val_loss, run.test_loss) for run in row.first.itertuples()
                          if run.weight_decay in ('0', '0.1') and run.status == 'done'), default=(0, math.nan))[1]
                for row in ranked}
    for row in ranked:
        by_seed = {point: dict(zip(at.seed, at.val_loss)) for point, at in row.points.items()}
        means = {point: fmean(at[seed] for seed in (1, 2, 3)) for point, at in by_seed.items() if {1, 2, 3} <= at.keys()}
        if len(means) > 1:
            gains.append(means[min(means, key=lambda point: by_seed[point][1])] - means[row.best])
        if row is not pre:
            leads.append((screened[row] - screened[pre], row.losses().mean() - pre.losses().mean()))
    x, y = np.array(leads).T
    slope, df = (x @ y) / (x @ x), len(x) - 1
    half = t.ppf(0.975, df) * math.sqrt(((y - slope * x) ** 2).sum() / df / (x @ x))
    cost = pd.read_csv(HERE / 'csv' / 'placements_time.csv', index_col='arch')
    flops, times = (', '.join(f'`{arch}` {ratio:.2f}' for arch, ratio in (values / values['pre']).items() if ratio > 1.05)
                    for values in (cost.flops_per_token, cost.time_ratio))
    better = [gain for gain in gains if gain > 0]
    return (f'- Of {len(gains)} placements whose close points have seeds 1 to 3, these chose another than seed 1 for '
            f'{len(better)}' + f', better by {fmean(better or [0]):.3f} on their mean' * bool(better) + f""".
- Leads of one seed shrink over 8 seeds to {slope:.0%} [{slope - half:.0%}, {slope + half:.0%}], over {len(x)} placements.
- FLOPs over those of `pre`: {flops}; of others at most 1.05. Time over that of `pre`, eager on 2 cores: {times}.""")


def longer(sweeps):
    """Return the table of two differences in runs of 4.5M and of 16M bytes."""
    own = 'placements/optim=adamw,arch=value_residual - placements/optim=adamw,arch=pre'
    found = {'DNT − S1': (lead('DNT', 'S1'), lead('DNT', 'S1', 'tokens/')),
             '`value_residual` − Pre-LN': (own, lead('value_residual', 'Pre', 'tokens/'))}
    return markdown(pd.DataFrame([
        {'difference': name, **{f'after {size} bytes': interval(test(Claim(name, text), sweeps)[0])
                                for size, text in zip(('4.5M', '16M'), texts)}} for name, texts in found.items()]))


NAMED = {       # config/arch/ → name, InputNorm, Pre (attention, FFN), QK, Mid, Post, norm
    's4': ('S4', 'yes', 'yes, yes', 'yes', 'yes', '', 'RMSNorm'),
    's5': ('S5 = DNT', 'yes', 'yes, no', 'yes', 'yes', '', 'RMSNorm'),
    's3': ('S3', 'yes', 'yes, yes', 'yes', '', '', 'RMSNorm'),
    's2': ('S2', '', 'yes, yes', 'yes', '', '', 'RMSNorm'),
    's1': ("S1, DNT's baseline", '', 'yes, yes', '', '', '', 'RMSNorm'),
    'pre': ('Pre-LN, GPT-2', '', 'yes, yes', '', '', '', 'LayerNorm'),
    'peri': ('Peri-LN', '', 'yes, yes', '', 'yes', '', 'LayerNorm'),
    'post': ('Post-LN', '', '', '', '', 'yes', 'LayerNorm'),
    'hybrid': ('HybridNorm', '', '', 'yes, and V', '', 'attention', 'RMSNorm'),
    'stable': ('Stable-Transformer', '', 'yes, yes', 'yes', '', '', 'StableNorm')}
HEAD = ('name', 'Input', 'Pre (attention, FFN)', 'QK', 'Mid', 'Post', 'norm')


def named(sweep):
    """Return the table of the placements that have a name in papers."""
    return markdown(pd.DataFrame([
        {'`config/arch/`': f'`{row.labels["arch"]}`', **dict(zip(HEAD, NAMED[row.labels['arch']])),
         'test loss': row.text() + ', one seed' * (len(row.shown) == 1)}
        for row in by_loss(row for row in sweep.rows if row.labels['arch'] in NAMED)]))


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


def induction(sweep):
    """Return how many seeds of a placement have a head that copies, and how its score goes with the test loss."""
    scores = pd.read_csv(HERE / 'csv' / 'induction.csv')
    runs = scores.merge(sweep.runs[sweep.runs.seed > 3], 'left', left_on=['entry', 'seed'], right_on=['arch', 'seed'])
    return markdown(pd.DataFrame([{
        'placement': f'`{arch}`', 'seeds': str(len(of)), 'with a score above 0.05': str(sum(of.induction_score > 0.05)),
        'rank correlation': f'{of.induction_score.corr(of.test_loss, "spearman"):.2f}'.replace('-', '−')}
        for arch, of in runs.groupby('entry', sort=False)]))


def fill(path, blocks):
    return re.sub(r'(<!-- (\w+): made by results/pages.py -->\n).*?(?=<!-- end -->)',
                  lambda match: f'{match[1]}{blocks[match[2]]}\n', path.read_text(encoding='utf-8'), flags=re.DOTALL)


def build():
    """Return {path: text} of all pages, and {name: matplotlib figure} of their pictures."""
    sweeps = {name: Sweep(name) for name in SWEEPS}
    verdicts, placements = test_all(sweeps), sweeps['placements']
    missing = {name: number for name in SEEDS if (number := sweeps[name].missing())}
    others = [verdict for name, family in verdicts.items() if name != 'dnt' for verdict in family]
    blocks = dict(
        ranking=ranking(placements), noise=noise(placements), named=named(placements), induction=induction(placements),
        longer=longer(sweeps), archs=archs(),
        dnt=claim_table(verdicts['dnt'], ('claim', 'difference', 'verdict')), dnt_claims=claim_table(verdicts['dnt']),
        counts=f'[claims.md](claims.md) has seeds and p, and {count(others)}.',
        missing=', '.join(f'`{name}.py` ({number})' for name, number in missing.items()) or 'None.',
        **{f'sweep_{name}': section(sweep, verdicts) for name, sweep in sweeps.items()})
    pages = [HERE / 'README.md', HERE / 'claims.md', ROOT / 'README.md', ROOT / 'docs' / 'placements.md']
    with matplotlib.rc_context(STYLE):
        figures = dict(forest=forest(placements, SEEDS['placements']), tolerance=tolerance(sweeps['tolerance']))
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
