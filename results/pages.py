"""
Write README.md, claims.md and placements.md of this folder, their pictures in img/, docs/placements.md, and the table of the front
page, from the numbers in csv/:

    python results/pages.py                 # `make results` does the same
    python results/pages.py --check=True    # change nothing, and fail if a page does not match the numbers

csv/NAME.csv has the runs of config/sweep/NAME.py. claims.py tests the claims. All other comparisons are marked exploratory.
"""
import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))
from configurator import configure  # noqa: E402

import matplotlib  # noqa: E402
import pandas as pd  # noqa: E402
import torch  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from engine.files import write_whole  # noqa: E402
from engine.keys import gpt_config  # noqa: E402
from lab.plot import STYLE  # noqa: E402
from lab.sweep.plan import read_sweep, rows_of_file  # noqa: E402
from lab.sweep.table import (  # noqa: E402
    SPLITS,
    Tuning,
    contrast,
    find_row,
    interval,
    key_of,
    labels_of,
    markdown,
    moderated,
    read_contrast,
    read_csv,
    rows_of,
    runs_of,
    signed,
    split_of,
)
from model import GPT  # noqa: E402
from results.claims import seeds, test_all  # noqa: E402
from results.pictures import PICTURES  # noqa: E402

check = False                       # change nothing, and fail if a page is out of date
MADE = '<!-- Made by `python results/pages.py` from results/csv/. Edit that file. -->\n'      # begins a page


class Sweep:
    """The runs of a sweep so far: its `rows`, and the variances `known` of a loss on `split`, the test split if there is one."""

    def __init__(self, name):
        self.name, self.keys = name, read_sweep(ROOT / 'config' / 'sweep' / f'{name}.py')
        path = HERE / 'csv' / f'{name}.csv'
        runs = runs_of(read_csv(path), path, *(self.keys[key] for key in ('diverged_loss', 'diverged_rise', 'codes')))
        self.runs = runs[runs.status != 'failed']       # failed runs are tried again
        self.rows, self.split = rows_of(self.runs, Tuning.of(self.keys)), split_of(self.runs)
        self.known = moderated(self.rows, self.split)

    def missing(self):
        """Return how many runs the sweep's file plans that have not ended."""
        ended = {key_of(labels_of(run)): run for run in self.runs.to_dict('records')}
        return sum(row.left(ended) for row in rows_of_file(self.keys))

    def difference(self, text):
        """Return '−0.123 [−0.150, −0.096]' for a contrast of the rows, or 'not run'."""
        try:
            return interval(contrast(read_contrast(text, lambda name: find_row(self.rows, name)), self.split, self.known))
        except ValueError:
            return 'not run'

    def loss(self, row):
        """Return a row's final loss at its best point."""
        return find_row(self.rows, row).text(self.split)

    def octaves(self, row):
        """Return a row's tolerance in octaves."""
        return find_row(self.rows, row).rate_cells()[1]

    def table(self):
        """Return the command that prints this table, where the runs come from, and a table of the rows at their best points."""
        if not self.rows:
            return 'No run yet.'
        lines = [{**row.labels, **row.point_text(), f'{SPLITS[self.split]} loss': row.text(self.split),
                  'runs': str(len(row.shown)), 'points': str(len(row.points)),
                  **dict(zip(('rate sensitivity', 'tolerance in octaves'), row.rate_cells()))} for row in self.rows]
        kinds = sorted({f'commit {run["commit"][:7]}{"-dirty" * run["commit"].endswith("-dirty")}, {run["machine"]}, '
                        f'PyTorch {run["torch"]}, {run["precision"]}' for run in self.runs.to_dict('records')})
        table = pd.DataFrame(lines).fillna('')
        return (f'    python -m lab.sweep config/sweep/{self.name}.py --report=True\n\n{len(self.runs)} runs: {"; ".join(kinds)}.'
                f'\n\n{markdown(table.loc[:, (table != "").any()])}')


def claim_table(tests):
    """Return a table of the claims of a family that have run, with their verdicts."""
    lines = [test.line() for test in tests if test.has_run]
    return markdown(pd.DataFrame(lines)) if lines else 'No claim of this family has all its runs yet.'


def count(*families):
    """Count the verdicts on the claims of these families."""
    marks = [test.verdict().split()[0].strip(':') for tests in families for test in tests if test.has_run]
    supported = marks.count('supported') + marks.count('equal')
    return f'{len(marks)} claims: {supported} supported, {marks.count("contradicted")} contradicted, {marks.count("open")} open'


# ----------------------------------------------------------------------------- results/README.md

def readme(sweeps, tests, figures):
    base, decay, tolerance = sweeps['base'], sweeps['decay'], sweeps['tolerance']

    def adamw(a, b):
        return base.difference(f'optim=adamw,setting={a} - optim=adamw,setting={b}')

    def loss(setting):
        return base.loss(f'optim=adamw,setting={setting}')

    left = [f'- {test.claim["text"]}' for family in tests.values() for test in family if not test.has_run]
    missing = {name: sweeps[name].missing() for name in PLAN}
    if any(missing.values()):
        left += [f'- runs missing, by sweep: {", ".join(f"`{name}.py` ({n})" for name, n in missing.items() if n)}']
    leads = """
## Do the leads hold at 0.5M parameters?

![Differences of placements at 0.2M and 0.5M parameters](img/leads.png)
""" * ('leads' in figures)
    batch = """
## What momentum SGDW costs, against the batch

![The loss by mSGDW minus that by AdamW, of S1 and DNT, for 0.5K to 32K tokens a batch](img/batch.png)
""" * ('batch' in figures)
    of_s1, of_s1_too = 'DNT with the decay of S1', 'DNT with the decay and rate of S1'
    return f"""# Results

By AdamW, DNT beats S1 after 4.5M bytes, over 12 seeds, and momentum SGDW costs it less. Whether its lead lasts is open. What is neither in the table of
claims nor in [placements.md](placements.md) is one seed, or exploratory. *S1* is Pre-LN with RMSNorm and Xavier's initialization,
*DNT* the Deeply Normalized Transformer, *mSGDW* momentum SGD with decoupled weight decay. The models have 0.2M parameters (4 blocks of
width 64) and read 4.5M bytes of Python sources, on 2 CPU cores. Losses are in nats a byte. The claims in the table were written down
before their runs. [claims.md](claims.md) has the method and all numbers, [placements.md](placements.md) a ranking of placements.

## Where DNT's lead comes from

![From S1 to DNT in steps: the loss by AdamW, and what momentum SGDW adds to it](img/waterfall.png)

By AdamW, DNT − S1 is {adamw('DNT', 'S1')}, and DNT − Pre-LN {adamw('DNT', 'Pre')}, exploratory.
The bars add DNT's parts in one order, each step at its own learning rate: first the InputNorm, then the other norms, then DNT's own
weight decay and rate. Intervals are 95%, over 12 seeds. The last step has two parts: at the decay of S1 (0.1), the rate of S1 (0.008)
instead of the best one there (0.016) brings {adamw(of_s1_too, of_s1)}, and then the decay of
DNT (0.3) {adamw('DNT', of_s1_too)}, both exploratory.

By mSGDW the steps are larger (right): it costs S1 {base.difference('optim=sgdw,setting=S1 - optim=adamw,setting=S1')}, and DNT
{base.difference('optim=sgdw,setting=DNT - optim=adamw,setting=DNT')}, exploratory. DNT by mSGDW is about as good as S1 by AdamW.

On English prose (`text.py`) the lead over Pre-LN is smaller: DNT − Pre-LN is {sweeps['text'].difference('setting=DNT - setting=Pre')},
exploratory.

All of this is after 4.5M bytes, 20 for each parameter. Earlier runs at other rates had DNT − S1 −0.064 [−0.074, −0.053] after 4.5M
bytes and −0.012 [−0.050, +0.026] after 16M (`git show d1b869c:results/first/README.md`). So the lead may be one of short runs.
`config/sweep/tokens.py` will decide. DNT also takes more time: an iteration takes 1.41 times that of Pre-LN in eager mode and 1.07
times compiled, on one core of an AMD EPYC
(`python bench.py config/base/pysource.py config/optim/adamw.py --archs=pre,s5 --compiles=False,True`).

No interval here includes the noise of tuning. DNT has a loss of 1.428 at a rate of 0.008 and 1.443 at 0.004, and two draws of seed 1
chose one of these each. Hence DNT − Pre-LN is −0.046 here and −0.031 in [placements.md](placements.md).

Without any new norm, S1 with embeddings that start with a standard deviation of 0.3 (dashed) gains too: S1 large − S1 is
{adamw('S1 large', 'S1')}, exploratory. This overlaps with the InputNorm: S1+InputNorm − S1 large is
{adamw('S1+InputNorm', 'S1 large')}, exploratory. So the first step may be an InputNorm or larger embeddings.
Pre-LN has LayerNorm and GPT-2's initialization, rescaled to this width: Pre-LN − S1 is
{adamw('Pre', 'S1')}, exploratory.
{leads}
## How far may the learning rate be off?

![Validation loss against the learning rate, six placements by AdamW and Muon](img/tolerance.png)

*Tolerance* is the width, in octaves (factors of 2), of the range of rates whose loss is within 0.1 of the lowest. × is a run that
diverged: it stopped, ended above 3, or its training loss once rose by more than 0.5. Crosses at one rate stand side by side. Each
point is one seed, so these are observations. By AdamW the widest and the narrowest range are
{tolerance.octaves('arch=s5,optim=adamw')} octaves for DNT and {tolerance.octaves('arch=post,optim=adamw')} for Post-LN; Pre-LN has
{tolerance.octaves('arch=pre,optim=adamw')}. DNT's advantage over Pre-LN lies above the best rate. Far below it Pre-LN is better, and
the other measure of claims.md, rate sensitivity, prefers Pre-LN. So does a slack of 0.3 instead of 0.1. HybridNorm's lowest loss by
AdamW is as low as DNT's, as far as one seed can tell, but its range has only {tolerance.octaves('arch=hybrid,optim=adamw')} octaves;
it has no runs over 12 seeds. All have weight decay 0.1 with AdamW and Muon.
{batch}
## Which seeds have a lower loss?

![Test loss against the highest induction score of a head, for the seeds of six placements](img/induction.png)

In four of six placements, the seeds with a head that copies more from the context. This is exploratory:
[claims.md](claims.md#seeds-with-a-higher-induction-score-have-a-lower-loss) has the prediction, which failed, and what was seen instead.

## What to use

For 0.2M parameters, 4.5M tokens (bytes) and Python sources; test losses:

| if you | take | evidence |
| --- | --- | --- |
| train by AdamW | DNT, decay 0.3, rate 0.008 | {loss('DNT')}; Pre-LN {loss('Pre')}, S1 {loss('S1')}, each at its own decay; 12 seeds |
| train by AdamW, and may change more than norms | `value_residual` | [placements.md](placements.md), 8 seeds; DNT is in it too |
| train by Muon | DNT or Peri-LN | {tolerance.loss('arch=s5,optim=muon')}, {tolerance.loss('arch=peri,optim=muon')
    }; S1 {tolerance.loss('arch=s1,optim=muon')}; too close for one seed |
| train by mSGDW | DNT, decay 0.006, rate 0.2 | {base.loss('optim=sgdw,setting=DNT')}; Post-LN {base.loss('optim=sgdw,setting=Post')
    }, S1 {base.loss('optim=sgdw,setting=S1')}, each at its own decay; 12 seeds |
| may set the rate too high | perhaps DNT | the picture above; one seed |
| compare placements by AdamW | each at its own weight decay and rate | DNT at its own − DNT at the decay of S1: {
    adamw('DNT', of_s1)}; 12 seeds |

One seed misleads. The seed that chose the decays has {decay.loss('setting=DNT,optim=adamw,weight_decay=0.3')} for DNT by AdamW, below
all 12 others, and {decay.loss('setting=S1,optim=sgdw,weight_decay=0.002')} for S1 by mSGDW, whose other seeds have
{base.loss('optim=sgdw,setting=S1')}.

## The claims

Tested so far, of thirteen: {count(tests['dnt'])}. The paper's differences are per token, at 124M, 774M and 1436M
parameters.

{claim_table(tests['dnt'])}

🟢 supported, 🔴 contradicted, ⚪ open. p is corrected for all thirteen. [claims.md](claims.md) also tests single figures of the papers,
{count(*(family for name, family in tests.items() if name != 'dnt'))}.

## What was not run, and limits

Claims without a verdict yet:

{chr(10).join(left) or 'All have run.'}

No GPU has run these sweeps, and their largest model has 0.6M parameters. Placements may rank differently at 124M. In the tests over 12
seeds, each placement has its own weight decay and learning rate; all share batch, warm-up and β. The lowest decay tried was the best
one for Post-LN by AdamW, and for Pre-LN, Peri-LN and S1 with large embeddings by mSGDW.
"""


PLAN = ('base', 'text', 'figure5_warm', 'batch', 'tokens', 'size', 'placements')       # sweeps with planned runs


# ----------------------------------------------------------------------------- results/placements.md

def flops_of(config):
    """Return the FLOPs of all matrix products of a forward and backward pass, per token."""
    model = GPT(config)
    x = torch.zeros((1, config.block_size), dtype=torch.long)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(x, x)[1].backward()
    return counter.get_total_flops() / x.numel()


def ranking(sweep):
    """Return the table of the placements with several seeds, the lowest loss first, and a table of the others."""
    pre = find_row(sweep.rows, sweep.keys['against'])
    measured = pd.read_csv(HERE / 'csv' / 'placements_time.csv', index_col='arch')
    planned = {row.labels['arch']: row for row in rows_of_file(sweep.keys)}
    flops = {arch: flops_of(gpt_config(row.run_at(row.grid[0], 1)['config'])) for arch, row in planned.items()}
    flops |= {arch: number for arch, number in measured.flops_per_token.items() if arch not in flops}
    lines, others, screen = [], [], pre.first[pre.first.weight_decay.astype(float) == 0.1]
    for row in sorted(sweep.rows, key=lambda row: row.shown.test_loss.mean()):
        arch, losses, decay, rate = row.labels['arch'], row.losses('test'), *row.point_text().values()
        if len(losses) < 2:
            others.append({'placement': f'`{arch}`', 'test loss': row.text('test'), 'rate': rate,
                           'test loss − pre': signed(row.shown.test_loss.mean() - screen.test_loss[screen.val_loss.idxmin()])})
            continue
        e = contrast({row: 1, pre: -1}, 'test', sweep.known) if row is not pre else None
        lines.append({'placement': f'`{arch}`', 'test loss − pre': interval(e) if e else f'0 (its loss: {losses.mean():.3f})',
                      'seeds': str(len(losses)), 'sd': f'{losses.std():.3f}', 'decay': decay, 'rate': rate,
                      'parameters': f'{row.runs.parameters.max():,.0f}', 'FLOPs / pre': f'{flops[arch] / flops["pre"]:.2f}',
                      'time / pre': f'{measured.time_ratio[arch]:.2f}' if arch in measured.index else ''})
    return markdown(pd.DataFrame(lines)), markdown(pd.DataFrame(others))


def placements(sweep):
    ranked, others = ranking(sweep)
    return f"""# Where should the norms stand, and which?

Placements on the body of GPT-2: 0.22M parameters, 4.5M bytes of Python sources as bytes, AdamW, half an hour a placement on one core.
FFN, positions and tied head are those of `pre`, so that LLaMA's relatives bring their norms and starts, but neither RoPE nor SwiGLU.
Losses are in nats a byte.

    python -m lab.sweep config/sweep/placements.py --report=True

{ranked}

- **Tuning.** Each placement has its own weight decay and learning rate. Seed 1 trains decays 0.03, 0.1 and 0.3 at rates 0.004, 0.008
  and 0.016, and then each neighbour of the best point, until all are known. Points within 0.01 of the best get seeds 2 and 3 too, and
  the mean of the three chooses. The seeds above 3 at the chosen point are compared, and no others. Rows of an earlier plan were chosen
  by seed 1 alone, and some await seeds 2 and 3.
- **Intervals** are 95%, by Welch's t-test with moderated variances (Smyth 2004). They do not include the noise of tuning: which of two
  rates seed 1 chose moved DNT (`s5`) by 0.015.
- *sd* is the standard deviation of a placement's own seeds. That of `hyper` and `parallel` is four times that of `pre`: their seeds with
  a head that copies have the lower loss ([claims.md](claims.md#seeds-with-a-higher-induction-score-have-a-lower-loss)).
- *FLOPs* are those of all matrix products. *Time* is that of an iteration in eager mode, in turns with `pre` on one machine (2 cores,
  AMD EPYC). Neither is limited. Parameters are within 5% of those of `pre`.
- In `hyper` and `value_residual` the norms are RMSNorm, and matrices start as those of `pre`, but W_o and W_2 without the factor 1/√(2L).
- `tempered` is an edit: a LayerNorm that keeps the fourth root of the scale, γ ⊙ (x − mean) / (var + ε)^(3/8). Its code is not kept.

## Add yours

1. Write `config/arch/NAME.py`, or edit `model.py` and give the edit a key.
2. Add its name to `_names` in `config/sweep/placements.py`. Give `_starts` and `_d_ff` a value if yours needs one.
3. `python -m lab.sweep config/sweep/placements.py --arch=NAME` trains about 25 runs, half an hour on one core.
4. If you edited code, its rows are refused until `codes` in that file names its hash. Name it if a run of `pre` repeats digit by digit:
   `python -m lab.sweep config/sweep/placements.py --arch=pre --weight_decay=0.03 --learning_rate=0.008 --seeds=1 --csv=out-pre/runs.csv`
   has to give the validation loss 1.48656 in two minutes; its csv has the hash, `code`.
5. `python results/pages.py` makes this page with your row.

What earlier ideas taught: a screen with one seed says little where seeds differ much (`parallel` led `pre` by 0.089 with seed 1, and by
0.009 over 8 seeds), and a norm that puts out another scale at the start is also another start (`tempered`).

## One seed each, not ranked

At a weight decay of 0.1, although placements want different ones. Seed 1 chose the rate, and the column on the right compares its test
loss with that of seed 1 of `pre` at the same decay. The loss of one seed has a standard deviation of about 0.013 (base.py), and a
difference of two has 0.018. The best of 39 equal placements would lead the mean by about 0.03 by chance alone.

{others}
"""


# ----------------------------------------------------------------------------- results/claims.md

def claims(sweeps, tests):
    def figure(title, name, before='', after=''):
        """Return the section of a sweep that repeats a figure of a paper."""
        return f'### {title}\n\n{before}{sweeps[name].table()}\n\n{claim_table(tests[name])}\n\n{after}' * bool(sweeps[name].rows)

    stable_at_once = sweeps['vit_parts'].difference(
        'model=StableViT,setting=no warm-up, at 0.032 - model=ViT,setting=no warm-up, at 0.032')
    own = '\n\n'.join(sweeps[name].table() for name in ('base', 'text', 'batch', 'tokens', 'size') if sweeps[name].rows)
    return f"""# Claims and tables

This page says how the claims of `results/claims.py` are tested, and has every table behind [README.md](README.md). The claims were
written down before their runs. The runs are those of `config/sweep/`, and their numbers are in `csv/`. Earlier results, whose learning
rates were chosen in other ways, are in commit d1b869c: `git show d1b869c:results/halving/README.md` and
`git show d1b869c:results/first/README.md`.

**How a claim is tested.** Seed 1 trains at three or more learning rates, a factor of 2 apart, to the end, and its validation loss
chooses one. If that is at the edge of the grid, more rates are tried. The other seeds train at the chosen rate. They alone are
compared, by their loss on a test split on which no choice was made. Where one rate was fixed before, all seeds count, unless seed 1
chose that rate in another sweep (`base.py`). The sweeps on images have no test split: there seed 1 chooses by the images on which the
other seeds are compared.

- The means are compared as independent: a seed sets the weights and the order of the data, but pairing by it hardly lowers a variance
  here. Variances are moderated over the rows of one optimizer and size (Smyth 2004). Brackets are 95% intervals.
- Each claim has one p: of the difference, or for a claim of equality the larger of two one-sided tests of ±δ. The p-values of a
  family of claims, a table here, are corrected together (Benjamini and Hochberg 1995). Claims that are not decided count as p = 1.
- *Supported* or *contradicted*: the difference has the claimed sign or the other one, and p is below 0.05. *Equal within ±δ*: p is
  below 0.05. A claim of equality is *contradicted* if its whole interval lies beyond ±δ. *Open*: none of these, or the best rate is
  at the edge, or some runs are missing. *Exploratory*: no claim said it before.
- A run counts as diverged if training stopped, if it ended above 3 nats a byte, or if its training loss once rose by more than 0.5.
- *Points* are the values of the tuned keys that seed 1 tried. *Rate sensitivity* (Wortsman et al. 2023) is the mean over the rates of
  min(L, L₀), minus the lowest L. L is seed 1's final validation loss, and L₀ the loss of the untrained model. A run that `train.py`
  stopped has L₀. Compare only rows with as many points.
- *Tolerance in octaves* is log₂ of the ratio of the ends of the interval around the best rate within which min(L, L₀), interpolated
  linearly in the logarithm of the rate, is at most the lowest L + 0.1. "≥": the interval meets an end of the grid.

The models read Python sources (`data/pysource`) or English documentation (`data/pydocs`) as bytes, 20 for each parameter unless a sweep
says otherwise. Losses are in nats a byte. ± is a standard error. The runs of each sweep are of one code, by its hash, and each row names
a commit that has it: a checkout of that commit trains it again.

## Which weight decay does each placement want?

{sweeps['decay'].table()}

`brackets.py` tries one more decay where the best one above is the largest or the smallest, and adds Post-LN.

{sweeps['brackets'].table()}

One seed, so this chooses decays and tests nothing. With both optimizers the best decay of DNT is three times that of S1. For Post-LN
by AdamW, and for Pre-LN, S1 large and Peri-LN by momentum SGDW, the best decay is the lowest that was tried. The next one is worse
by at most 0.013.

## Does a placement buy loss, or tolerance?

The other 31 runs of this grid, by momentum SGDW, are not planned, because no claim needs them. Each row is one seed.

{sweeps['tolerance'].table()}

## Figures of the papers, run again

Each of these sweeps was written, with its claims, from a figure of a paper. Of five seeds the first chooses the rate, so that four are
left. The planned tests paired the seeds, and left out a fifth one where no rate was chosen. The tests here do neither, and claims with a
sign have no margin any more.

{figure('Stable-Transformer with the embedding of its Code 1', 'stable_start', after='''With a warm-up Stable-Transformer and GPT-2 are
too close to tell apart. Leaving it out costs Stable-Transformer more, and at the two large rates GPT-2 is better, against the claims.

''')}{figure('S1 to S5 at one learning rate, as in the paper', 'figure6', 'The rate is 0.4 for all, the best one of S1.' + chr(10) * 2,
'''In the paper S3 is better than S1 and S2, and S4 and S5 are best. Here S3 is better than S2 too, but S3 and S5 are too close to tell
apart, and whether S4 and S5 are equal is open.

''')}{figure('S1 to S5 on images', 'figure6_vit', '''The images are scikit-learn's handwritten digits, of 8 × 8 pixels.

''', '''In the paper S3 is better than S5 on images. At one rate for all it is here too, and whether it is at the best rate of each is open.
S5 is better than S1 at both.

''')}{figure('The parts of Stable-Transformer on images', 'vit_parts', 'On the same digits.' + chr(10) * 2,
f'''More heads lower the loss. The paper's figure speaks of stability, and that the loss follows is our reading. All other claims are open.
At a large rate StableViT loses less than ViT without a warm-up: {stable_at_once}, exploratory.

''')}{figure('Blockwise LR against size', 'figure5', '''**These runs have a schedule that the paper does not have.** Their warm-up is 10% of
the run, and the paper's is 2%. With `blockwise=ramp` a block type warms up until it reaches its own multiple of the rate. So the
embeddings, at 10 times the rate, never end their warm-up and keep 9.9 times the base rate while all others decay, and W_q and W_k, at 8
times, peak at 80% of the run. Read these rows and claims as exploratory. `figure5_warm.py` has the same claims with the paper's
proportion.

''', '''All four claims are open: no gain of Blockwise LR can be told from none at these sizes. At 0.6M the means are 0.015 apart, where the
paper has a speed-up of nearly 2. At 0.6M this test is weak: with Blockwise LR the seeds lie between 1.17 and 1.26, and without it seed 1,
which chose the rate of 0.002, is 0.034 better at it than the best other seed.

''')}{figure('Blockwise LR against size, with a warm-up of 2%', 'figure5_warm', '''`ramp` and `jump` are the forms of the authors' code and of
the paper's text.

''')}## DNT: its parts, momentum SGDW, size, batch, tokens and text

The claims are on [README.md](README.md#the-claims).

{own}

## Seeds with a higher induction score have a lower loss

![Test loss against the highest induction score of a head, for the seeds of six placements](img/induction.png)

*A point is a confirming seed of [placements.md](placements.md). The score is the mean attention weight from a token of the repetition to
the one that followed it the first time. `python -m lab.measure --what=copying --out_dir=RUN` feeds random tokens, and then the same again.*

`csv/induction.csv` has the losses and the highest score in each run's `measure.json` (2 CPU cores, AMD EPYC, PyTorch 2.13).

In the screen of seed 1, the three placements with the lowest loss had something in common: a head of their last block had begun to copy
from the context (an induction head, Olsson et al. 2022). The loss of the repetition is lower by 0.86 nats for parallel, 0.60 for
value_residual and 0.94 for hyper, and the highest induction scores of their heads are 0.21, 0.13 and 0.16. Six others (s4, s5, resi_dual,
siamese, subln, seednorm) have 0.10 to 0.27 nats, and scores of at most 0.04. Equal attention to all tokens would have 0.01. This was found
by looking.

**Predicted** when the screen's leaders had been looked at, and before their confirming seeds ran: each seed of hyper, value_residual and
parallel has a head whose score is above 0.05, and no seed of `pre` and s4 has one. (Those of `pre` and six of s4 had run then, and had not
been measured.)

**What came out:** the prediction failed. A head with such a score is in 7 of 8 seeds of value_residual, and in only 5 of 8 of hyper and of
parallel. None is in 8 seeds of s4, in 8 of s5, and in 6 of `pre`, which were drawn at random and trained again. The seeds of hyper and
parallel differ among each other much more than those of `pre`, and seed 1, which chose them, was one of the better ones.

Exploratory, as it was not predicted: within a placement, seeds with a higher score have a lower loss. The rank correlation is −0.83 to
−0.93 in each of four placements with 8 seeds (value_residual, hyper, s4, parallel), and weak in s5 and `pre`, whose scores are all small.
So at this size, and after 2200 iterations, how far a head has learned to copy goes with much of the difference between two seeds, and
between `pre` and the leaders. This does not say which causes which. The norms of DNT gain without it: s4 and s5 are better than `pre` at
scores as small.
"""


# ----------------------------------------------------------------------------- docs/placements.md

def all_placements():
    """Return the text of docs/placements.md, from the first lines and the keys of the files in config/arch/."""
    text = """# All placements

Each file in `config/arch/` sets every key of an architecture but the sizes. `pre.py` is complete. Each other file includes the
one that it is a step away from, and shows that step. They work in `train.py` and `vision.train`, and stack on any config:

    python train.py config/train_quick.py config/arch/hyper.py --out_dir=out-hyper

`python results/pages.py` makes this page.

| file | what it is (source) | the step |
| --- | --- | --- |
"""
    for path in sorted((ROOT / 'config' / 'arch').glob('*.py')):
        file = path.read_text(encoding='utf-8')
        header = file.splitlines()[0].removeprefix('# ').replace('|', '\\|')
        base = re.search(r"^include\('config/arch/(\w+)\.py'\)", file, re.MULTILINE)
        lines = re.findall(r'^ *([a-z]\w*) = (?:.* if _vit else )?([^#\n]*[^#\s])', file, re.MULTILINE)     # those of train.py
        keys = ' '.join(f'`{key}={value}`' for key, value in lines)
        text += f'| `{path.stem}` | {header} | {f"`{base[1]}`: {keys}" if base else "all keys"} |\n'
    return text


# ----------------------------------------------------------------------------- README.md's table

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


def front_page(sweep):
    """Return README.md's text with the table of named placements, the lowest test loss first."""
    rows = {row.labels['arch']: row for row in sweep.rows if row.labels['arch'] in NAMED and row.labels['optim'] == 'adamw'}
    lines = [{'`config/arch/`': f'`{arch}`', **dict(zip(HEAD, NAMED[arch])),
              'test loss': row.text('test') + ', one seed' * (len(row.shown) == 1)}
             for arch, row in sorted(rows.items(), key=lambda item: item[1].shown.test_loss.mean())]
    several = [row.losses('test').std() for row in rows.values() if len(row.losses('test')) > 1]
    text = f"""{markdown(pd.DataFrame(lines))}

*Nats per byte of Python sources: 0.2M parameters, 4.5M bytes, AdamW, each at its own learning rate, and with several seeds at its own weight
decay. ± is a standard error. One seed has a standard deviation of {min(several):.3f} to {max(several):.3f}, so differences of single seeds
below 0.05 may be chance (`python results/pages.py` makes this table).*
"""
    before, start, rest = (ROOT / 'README.md').read_text(encoding='utf-8').partition('<!-- placements: made by results/pages.py -->\n')
    return before + start + text + rest[rest.index('<!-- end -->'):]


def build():
    """Return {path: text} for all pages, and {path: matplotlib figure} for their pictures."""
    names = sorted({path.stem for path in (HERE / 'csv').glob('*.csv')} - {'induction', 'placements_time'} | {*PLAN})
    sweeps = {name: Sweep(name) for name in names}
    tests = test_all(sweeps)
    with matplotlib.rc_context(STYLE):
        figures = {name: draw(sweeps, seeds) for name, draw in PICTURES.items()}
    figures = {name: figure for name, figure in figures.items() if figure}
    pages = {'README.md': readme(sweeps, tests, figures), 'claims.md': claims(sweeps, tests),
             'placements.md': placements(sweeps['placements'])}
    pages = {HERE / name: MADE + text for name, text in pages.items()}
    pages |= {ROOT / 'docs' / 'placements.md': all_placements(), ROOT / 'README.md': front_page(sweeps['placements'])}
    return pages, {HERE / 'img' / f'{name}.png': figure for name, figure in figures.items()}


def main():
    configure(globals())
    pages, figures = build()
    for path, text in pages.items():
        if not check:
            write_whole(str(path), lambda f: f.write(text.encode()))
        elif not path.exists() or path.read_text(encoding='utf-8') != text:
            raise ValueError(f'{path} does not match the numbers: run  python results/pages.py')
    for path, figure in figures.items() if not check else ():
        os.makedirs(path.parent, exist_ok=True)
        figure.savefig(path, dpi=200)
    print(f'{len(pages)} pages agree with the numbers' if check else f'wrote {len(pages)} pages')


if __name__ == '__main__':
    main()
