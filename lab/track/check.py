"""Verify an entry of the track, and repeat one of its runs."""
from configurator import ROOT

import math
import os
import shutil

import pandas as pd
import torch

from engine.code import git
from engine.errors import read_json, read_rows
from engine.keys import gpt_config
from lab.sweep.run import digits
from lab.sweep.table import CELLS, LR, TUNING_SEED, labels_of, name_of, read_csv, read_runs, write_csv
from lab.track.entry import DECAYS, TODO, chosen, merge_base, sweep
from model import GPT

LARGEST = 200_000           # bytes of an entry's folder
LARGEST_PATCH = 20_000      # bytes of its code.patch, which a reviewer reads and which could hold trained weights
MORE_PARAMETERS = 0.05      # than pre has, or fewer, as a share


def require(holds, fault):
    if not holds:
        raise ValueError(fault)


def check_files(entry):
    """The folder, its keys, and that its code is that of a commit of main but for model.py"""
    for name in 'config.py', 'README.md', 'runs.csv':
        require(entry.bytes_of(name), f'it has no {name}')
    require(TODO not in entry.bytes_of('README.md').decode(), f'README.md still says {TODO}')
    size = sum(os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(entry.path('')) for name in names)
    require(size <= LARGEST, f'it has {size / 1000:.0f} KB, more than {LARGEST / 1000:.0f}')
    commit = entry.stated().get('_commit', '')
    require(commit and merge_base(commit) == commit, f'its _commit {commit[:12]} is not on main')
    if entry.bytes_of('code.patch'):
        require(os.path.getsize(entry.patch) <= LARGEST_PATCH, f'code.patch has more than {LARGEST_PATCH // 1000} KB')
        patched = [line.split()[-1] for line in git('apply', '--numstat', entry.patch).decode().splitlines()]
        require(patched == ['model.py'], 'code.patch edits more than model.py, or is no patch')


def check_runs(entry, runs):
    """The data and tokens of each run, and that its log has the losses of its row. Other columns would be axes, which split it"""
    require([*read_csv(entry.csv)] == ['weight_decay', LR, 'seed', *CELLS], 'runs.csv has other columns than lab.track writes')
    config, pre = entry.division.config, entry.division.entry('pre')
    data = entry.division.data or pre.runs().data.iloc[0]
    tokens = config['gradient_accumulation_steps'] * config['batch_size'] * config['block_size']
    for run in runs.to_dict('records'):
        name, ended = name_of(labels_of(run)), run['status'] != 'done' or run['iterations'] == config['max_iters']
        require(run['status'] != 'failed', f'{name} has failed')
        require(run['data'] == data, f'{name} has the data {run["data"]}, its division {data}')
        require(run['tokens_per_iteration'] == tokens and ended, f'{name} has {run["iterations"]:.0f} iterations of '
                f'{run["tokens_per_iteration"]:.0f} tokens, its division {config["max_iters"]} of {tokens}')
        rows = read_rows(entry.log_of(run)) or [{}]
        curve = [(row['iter'], digits(row['val_loss'])) for row in rows if math.isfinite(row.get('val_loss', math.nan))]
        require(rows[-1].get('iter') == run['iterations'] and curve == [(it, digits(loss)) for it, loss in run['_curve']]
                and digits(rows[-1].get('test_loss', math.nan)) == digits(run['test_loss'])
                and (run['status'] != 'done' or curve[-1][1] == digits(run['val_loss']) and digits(run['test_loss'])),
                f'the log of {name} ends elsewhere, or has other losses than its row')


def check_choices(entry, runs, commit):
    """Tuning: all decays, each at the division's rates and others a factor of 2 apart, and worse rates on both sides of the best
    one. There: no confirming run, or those of all seeds that the freezing commit gives. Return whether they have run."""
    tuning, confirming, best = runs[runs.seed == TUNING_SEED], runs[runs.seed != TUNING_SEED], chosen(runs)
    require(sorted(map(float, tuning.weight_decay.unique())) == DECAYS, f'it lacks tuning runs at one of the decays {DECAYS}')
    for decay, group in tuning.groupby('weight_decay'):
        rates = sorted(group._rate)
        require({*entry.division.rates} <= {*rates} and all(abs(b / a - 2) < 0.02 for a, b in zip(rates, rates[1:])),
                f'decay {decay} lacks one of the rates {entry.division.rates}, or has one that is not twice the one before')
    require(not best.is_at_edge(), f'its best rate {best.best} is not bracketed: no rate beyond it was tried')
    require(all((confirming.weight_decay == best.labels['weight_decay']) & (confirming[LR] == best.best)),
            f'its confirming runs are not all at decay {best.labels["weight_decay"]} and rate {best.best}')
    require({*confirming.seed} in (set(), {*entry.seeds(commit)}),
            f'its confirming seeds are not those of the commit of main that first contains it ({commit[:12] or "none does"})')
    return len(confirming) > 0


def check_code(entry, runs):
    """What the code itself says: its hash, the keys of each run, its parameters and FLOPs, and that no block sees the future"""
    rows, fixed = runs.to_dict('records'), entry.division.config
    found, commit = entry.probe(rows), entry.stated()['_commit'][:12]
    entry.division.check_free(key for key, value in found['config'].items() if value != fixed.get(key))
    require({*runs.code} == {found['code']},
            f'its runs have the code {", ".join({*runs.code})}; commit {commit} with code.patch is {found["code"]}')
    for run, keys in zip(rows, found['keys']):
        require(run['keys'] == keys, f'{name_of(labels_of(run))} had other keys than config.py and its division')
    number = found['parameters']
    require({*runs.parameters} == {number}, f'its runs state other parameters than the {number:,} of its code')
    with torch.device('meta'):
        pre = GPT(gpt_config(fixed)).num_params()
    require(abs(number / pre - 1) <= MORE_PARAMETERS,
            f'its {number:,} parameters differ by more than {MORE_PARAMETERS:.0%} from the {pre:,} of pre')
    flops = (read_json(entry.path('measured.json'), 'measure it again by --time') or found)['flops_per_token']
    require(abs(flops / found['flops_per_token'] - 1) < 0.01, 'measured.json has other FLOPs than its code')
    require(not found['faults'], '; '.join(found['faults']))


def verify(entry):
    """Raise ValueError for the first fault, apart from losses that a repetition would not give. Return whether the confirming
    seeds have run."""
    check_files(entry)
    commit, runs = entry.frozen_at(), entry.runs()
    if commit:
        entry.check_frozen(commit)
    check_runs(entry, runs)
    confirmed = check_choices(entry, runs, commit)
    check_code(entry, runs)
    return confirmed


def repeat_runs(entry, number, jobs=0, here=False):
    """Train again so many confirming runs, or else one tuning run, drawn at random. Raise ValueError if a loss, or their mean, is
    too far off. `here`: by this working tree's code, and keep the rows in repeats.csv. Return a sentence."""
    require(entry.division.tolerance, f'{entry.division.file} states no _tolerance yet: give --repeat=0')
    runs, out = entry.runs(), f'{entry.out}-repeated'
    runs = runs[runs.status == 'done']
    drawn = runs[runs.seed != TUNING_SEED] if any(runs.seed != TUNING_SEED) else runs.sample(1)
    drawn = drawn.sample(min(number, len(drawn)))
    place = {axis: drawn[axis].iloc[0] for axis in ('weight_decay', LR)}
    shutil.rmtree(out, ignore_errors=True)
    csv, grid = os.path.join(out, 'runs.csv'), {axis: [value] for axis, value in place.items()} | {'seeds': drawn.seed.tolist()}
    sweep([entry.division.file, entry.config], [grid], out, csv, ROOT if here else entry.checkout(), jobs)
    again, drawn = read_runs(csv), drawn.reset_index(drop=True)
    off = again[['val_loss', 'test_loss']] - drawn[['val_loss', 'test_loss']]
    same = all((again[what] == drawn[what]).all() for what in ('machine', 'torch'))
    each = entry.division.tolerance['same' if same else 'other']
    mean = each / math.sqrt(len(off))                   # differences of seeds are independent
    seeds, new, old = (', '.join(map(str, column)) for column in (drawn.seed, again.test_loss, drawn.test_loss))
    text = (f'seeds {seeds} have the test losses {new} on {again.machine[0]}, and {old} in their rows; the tolerance is {each}, '
            f'and {mean:.4f} for the mean')
    require((off.abs() <= each).all(axis=None) and (off.mean().abs() <= mean).all(), text)
    if here:
        kept = entry.path('repeats.csv')
        write_csv(kept, pd.concat([read_csv(kept), read_csv(csv).assign(**place)]))
    return text
