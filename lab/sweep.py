"""
Trains a grid of runs, each with several seeds, and makes their table:

    python -m lab.sweep config/train_quick.py --arch=s1,s5 --optim=sgdw --learning_rate=0.1,0.3,1.0 --seeds=3
    python -m lab.sweep config/sweep/dnt.py                     # the same from a file, as results/ has them
    python -m lab.sweep config/sweep/dnt.py --against=arch=s1,optim=adamw
    python -m lab.sweep --report=out-sweep                      # the table again, without training

A key of train.py with several values is an axis of the grid. So are arch, optim and lr, folders of config/, with the names of
their files or `none` as values. Every run is a run of train.py in its own folder. Finished runs are not trained again: after an
interruption, the same command continues. The best learning rate of a row is the one with the fewest failed or diverged runs and,
among these, the lowest loss.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.sweep')

from configurator import ALIASES, ROOT, TRAIN, at_least, configure, keys_of, known, refuse, settle

import csv
import io
import itertools
import json
import math
import os
import re
import shlex
import signal
import statistics
import subprocess
import time
from contextlib import suppress
from dataclasses import fields

import torch
from scipy.stats import ttest_ind

from engine.checkpoint import write_whole
from engine.files import NUMBER, check_regular, fits, read_json, read_rows
from engine.keys import check_keys, group_settings
from engine.lock import lock_folder
from engine.process import say
from engine.runlog import last_iter
from engine.task import config_of, task_of
from model import GPTConfig
from vit import ViTConfig

# ----------------------------------------------------------------------------- keys
out_dir = 'out-sweep'               # the folder of all runs, and of sweep.json, table.txt, .md, .csv and sweep.png
arguments = ''                      # what every run of train.py gets first: config files and --key=value
grids = []                          # for a config file: dicts from an axis to a list of its values, or to {label: arguments}
seeds = 3                           # runs of each point, with seed and data_seed 1, 2, …
jobs = 0                            # runs at once, which share the cores; 0: one per GPU, or per core without GPUs
select = 'all'                      # all | best: the table shows every learning rate, or each row's best
against = ''                        # a row, as axis=value,…: how far the others differ from it, and when they reach its loss
diverged_loss = 0.0                 # a run that ends above this loss counts as diverged too; 0: only if train.py stopped it
report = ''                         # the folder of a sweep: make its table and run nothing
# -----------------------------------------------------------------------------

LR = 'learning_rate'
EVERY = 30.0                        # seconds between two lines about the current runs, at least


def split_arguments(arguments):
    """The command line → what is for this script, what is for train.py."""
    own = keys_of(__file__)[0]
    ours, theirs = [], []
    for arg in arguments:
        if arg.startswith('-'):
            mine = arg in ('-h', '--help') or arg[2:].partition('=')[0] in own
        else:
            text = open(arg, encoding='utf-8', errors='replace').read() if os.path.isfile(arg) else ''
            mine = re.search(r'^grids *=', text, re.MULTILINE)
        (ours if mine else theirs).append(arg)
    return ours, theirs


# ----------------------------------------------------------------------------- the grid

def words(key, text):
    """Splits the value of a key that holds arguments in one string → a list of them."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f'{key}={text!r} is no list of arguments: {error}') from error


def options(axis, values, defaults):
    """{label: arguments of train.py} for the values of an axis."""
    labelled = isinstance(values, dict) and all(isinstance(text, str) for text in values.values())
    if not isinstance(axis, str) or not values or not (labelled or isinstance(values, list)):
        raise ValueError(f'{axis}={values!r} in grids: wants a list of values, or {{label: arguments of train.py}}')
    if labelled:
        return {str(label): words(axis, text) for label, text in values.items()}
    folder = os.path.join(ROOT, 'config', axis)
    if os.path.isdir(folder):
        return {value: [] if value == 'none' else [os.path.relpath(os.path.join(folder, f'{value}.py'))] for value in values}
    if axis in ('seed', 'data_seed', 'eval_only', 'overwrite'):
        raise ValueError(f'{axis} cannot be an axis: seeds={seeds} gives seed and data_seed 1 to {seeds}, and all runs train')
    known(ALIASES.get(axis, (axis,))[0], defaults, 'the grid')
    return {str(value): [f'--{axis}={value}'] for value in values}


def plan(grids, first, more={}):
    """The runs of all grids, each with the axes `more` too: a list of dicts with the folder's name as `name`, the run's place on
    the axes as `labels`, its `arguments`, which start with `first`, and the `config` that results from them."""
    defaults, _ = keys_of(TRAIN, GPTConfig, ViTConfig)
    points = []
    for grid in grids:
        if not isinstance(grid, dict):
            raise ValueError(f'{grid!r} in grids: wants a dict from an axis to its values')
        grid = {**grid, **more}
        axes = {axis: options(axis, values, defaults) for axis, values in grid.items()}
        axes['seed'] = {str(seed): [f'--seed={seed}', f'--data_seed={seed}'] for seed in range(1, seeds + 1)}
        # files first, so that no file overrides a key of the grid
        in_order = sorted(axes, key=lambda axis: axis in {*defaults, *ALIASES} and isinstance(grid.get(axis, []), list))
        for labels in itertools.product(*axes.values()):
            labels = dict(zip(axes, labels))
            points.append((labels, [*first, *itertools.chain(*(axes[axis][labels[axis]] for axis in in_order))]))
    if len({LR in labels for labels, _ in points}) > 1:
        raise ValueError(f'{LR} is an axis of some grids and not of others: give it to all')
    axes = list(dict.fromkeys(axis for labels, _ in points for axis in labels))
    varies = [axis for axis in axes if axis == 'seed' or len({labels.get(axis) for labels, _ in points}) > 1]
    runs = {}
    for labels, args in points:
        labels = {axis: labels[axis] for axis in varies if axis in labels}
        name = re.sub(r'[^\w.,=+-]', '_', ','.join(f'{axis}={label}' for axis, label in labels.items()))
        config = settle(args, defaults)
        check_keys(config)                              # raises ValueError for a bad value
        config_of({**config})
        if config['init_from'] in ('resume', 'auto'):
            raise ValueError(f'init_from={config["init_from"]}: a sweep starts and resumes its runs itself, leave this key out')
        run = dict(name=name, labels=labels, arguments=args, config=config)
        if runs.setdefault(name, run)['config'] != config:
            raise ValueError(f'two runs of the grid are named {name}, and differ: give the axes other labels')
    return list(runs.values())


def is_number(text):
    with suppress(ValueError):
        return math.isfinite(float(text))
    return False


LABELS = {str: str, f'{LR}?': is_number}                # the values of a run on the axes
PLAN = dict(runs=[dict(name=str, labels=LABELS), 1], diverged_loss=NUMBER)
RESULT = {'status': ('done', 'diverged', 'failed').__contains__, 'seconds': NUMBER, 'last?': str}


def read_plan(path):
    """The sweep.json of --report. ValueError if there is none, or if it is damaged."""
    def shape(plan):
        return fits(plan, PLAN) and len({LR in run['labels'] for run in plan['runs']}) == 1

    plan = read_json(path, shape, 'start the sweep again by its own command, which keeps the runs that are done')
    if plan is None:
        raise ValueError(f'there is no {path}: {report!r} is not the folder of a sweep')
    return plan


def read_result(folder):
    """How a run has ended, {} if it has not."""
    return read_json(os.path.join(folder, 'result.json'), RESULT, 'remove it, and its run will be trained again') or {}


def check_folder(run, folder):
    """ValueError if the folder holds a run with another config."""
    there, here = read_json(os.path.join(folder, 'config.json'), dict, f'remove {folder}') or {}, {**run['config']}
    model_config = config_of(here)                      # which knows the vocab_size of the data
    brought = set() if here['init_from'] == 'scratch' else {f.name for f in fields(model_config)}
    for key in there.keys() - {'out_dir', 'debug', 'overwrite'} - brought:
        if there[key] != here.get(key):
            raise ValueError(f'{folder} holds a run with {key}={there[key]} instead of {here.get(key)}: '
                             f'choose another --out_dir, or remove it')


def check_data(config):
    """Raises the error with which train.py would refuse the data of a run. Pretrained weights decide the sizes themselves."""
    group_settings(config)
    if config['init_from'] == 'scratch':
        task = task_of(config)
        task.splits()
        task.augmentation()


def is_over(folder):
    """Whether a run has ended, so that the same command does not train it again"""
    return read_result(folder).get('status') in ('done', 'diverged')


# ----------------------------------------------------------------------------- running

def start(run, folder, slot, cores, gpus):
    """Starts train.py as a process. A run that was stopped continues from its checkpoint."""
    os.makedirs(folder, exist_ok=True)
    arguments = [*run['arguments'], '--overwrite=True']         # replaces a run that was killed before it saved
    if os.path.exists(os.path.join(folder, 'ckpt.pt')):
        arguments = [os.path.join(folder, 'config.json'), '--init_from=resume']
    env = {**os.environ, 'OMP_NUM_THREADS': str(cores), 'SWEEP_PID': str(os.getpid())}      # with which the run ends
    if gpus:
        env['CUDA_VISIBLE_DEVICES'] = gpus[slot]
    check_regular(os.path.join(folder, 'output.txt'))
    with open(os.path.join(folder, 'output.txt'), 'w') as output:
        return subprocess.Popen([sys.executable, TRAIN, *arguments, f'--out_dir={folder}'], env=env, stdout=output,
                                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)


def finish(folder, code, seconds):
    """Writes how a run ended into result.json in its folder, with its last line if training did not end, and returns this."""
    with open(os.path.join(folder, 'output.txt'), encoding='utf-8', errors='replace') as f:
        last = ([''] + [line.strip() for line in f if line.strip()])[-1]
    status = {0: 'done', 3: 'diverged'}.get(code, 'failed')
    result = dict(status=status, seconds=round(seconds, 1), last='' if code == 0 else last)
    write_text(os.path.join(folder, 'result.json'), json.dumps(result))
    return result


def where_is(run, folder):
    return f'{run["name"]} at iteration {max(0, last_iter(os.path.join(folder, "log.jsonl")))} of {run["config"]["max_iters"]}'


def interrupt(number, frame):
    raise KeyboardInterrupt


def stop_all(processes):
    """Lets each finish its step and save, for a minute or until the next Ctrl-C."""
    for process in processes:
        process.terminate()
    try:
        deadline = time.monotonic() + 60
        for process in processes:
            process.wait(max(0, deadline - time.monotonic()))
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        pass
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run_all(runs):
    """Trains the missing runs, several at once. A failed run is tried again by the next call, a diverged one is not."""
    folders = {run['name']: os.path.join(out_dir, run['name']) for run in runs}
    waiting = [run for run in runs if not is_over(folders[run['name']])]
    gpus = os.environ.get('CUDA_VISIBLE_DEVICES') or ','.join(str(i) for i in range(torch.cuda.device_count()))
    gpus = gpus.split(',') if torch.cuda.is_available() else []
    cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
    at_once = min(jobs or len(gpus) or cores, max(1, len(waiting)))
    gpus = [gpus[slot % len(gpus)] for slot in range(at_once)] if gpus else []
    say(f'{len(runs)} runs in {out_dir}, {len(waiting)} to do, {at_once} at once')

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupt)
    running, slots, took, todo, said = {}, list(range(at_once)), [], len(waiting), time.monotonic()
    try:
        while waiting or running:
            while waiting and slots:
                run, slot = waiting.pop(0), slots.pop(0)
                process = start(run, folders[run['name']], slot, max(1, cores // at_once), gpus)
                running[process] = run, slot, time.monotonic()
            time.sleep(0.1)
            if time.monotonic() - said >= EVERY:
                said = time.monotonic()
                say('running:', '; '.join(where_is(run, folders[run['name']]) for run, *_ in running.values()))
            for process in [process for process in running if process.poll() is not None]:
                run, slot, began = running.pop(process)
                slots.append(slot)
                took.append(time.monotonic() - began)
                folder = folders[run['name']]
                result = finish(folder, process.returncode, took[-1])
                done = result['status'] == 'done'
                how = f'val loss {curve(folder)[-1][1]:.4f}' if done else result['last'] or result['status']
                left = statistics.mean(took) * (todo - len(took)) / at_once / 60
                say(f'[{len(took)}/{todo}] {run["name"]}: {how}; {took[-1]:.0f} s, {left:.0f} min left')
    except KeyboardInterrupt:
        say(f'stopped with {len(took)} of {todo} runs done; the same command goes on', to=sys.stderr)
        sys.exit(130)
    finally:
        stop_all(running)


# ----------------------------------------------------------------------------- the table

def curve(folder):
    """[(iteration, validation loss)] of a run so far."""
    rows = read_rows(os.path.join(folder, 'log.jsonl'), {'iter': int, 'val_loss?': NUMBER})
    return [(row['iter'], row['val_loss']) for row in rows if 'val_loss' in row]


class Point:
    """The runs that differ only in their seeds."""

    def __init__(self, runs):
        self.labels = {axis: label for axis, label in runs[0]['labels'].items() if axis != 'seed'}
        self.row = {axis: label for axis, label in self.labels.items() if axis != LR}
        done = [run for run in runs if run['status'] == 'done']
        self.losses = [run['curve'][-1][1] for run in done]
        self.curve = [(at[0][0], statistics.mean(loss for _, loss in at)) for at in zip(*(run['curve'] for run in done))]
        self.n = len(runs)
        self.ended = {status: sum(run['status'] == status for run in runs) for status in ('diverged', 'failed', 'missing')}
        self.mean = statistics.mean(self.losses) if self.losses else math.inf
        self.error = statistics.stdev(self.losses) / math.sqrt(len(self.losses)) if len(self.losses) > 1 else math.nan

    def __str__(self):
        parts = [f'{self.mean:.3f}' + (f' ± {self.error:.3f}' if self.error == self.error else '')] if self.losses else []
        return ', '.join(parts + [f'{status} {k}/{self.n}' for status, k in self.ended.items() if k])

    def rank(self):
        return self.ended['diverged'] + self.ended['failed'], self.mean

    def reaches(self, loss):
        """The iteration at which the mean validation loss has fallen to this, by linear interpolation between evaluations."""
        for (it0, loss0), (it1, loss1) in zip(self.curve, self.curve[1:]):
            if loss0 > loss >= loss1:
                return it0 + (loss0 - loss) / (loss0 - loss1) * (it1 - it0)
        return math.inf


def compare(point, base):
    """How a point differs from another: the mean loss, Welch's t, its two-sided p, and the iterations to the other's loss."""
    if point is base or not point.losses or not base.losses:
        return [''] * 4
    t, p = math.nan, math.nan
    if min(len(point.losses), len(base.losses)) > 1:
        t, p = ttest_ind(point.losses, base.losses, equal_var=False)
    reached = point.reaches(base.mean)
    share = f'{reached:.0f} ({reached / base.curve[-1][0]:.0%})' if reached < math.inf else 'not reached'
    return [f'{point.mean - base.mean:+.3f}', f'{t:.1f}', f'{p:.2g}', share]


def find_row(best, wanted):
    """The one point among these with the labels of 'axis=value,…'."""
    found = []
    for point in best:
        rest = wanted
        for axis, label in point.row.items():
            rest = rest.replace(f'{axis}={label}', '', 1)
        if wanted and not rest.strip(','):
            found.append(point)
    if len(found) != 1:
        rows = '; '.join(','.join(f'{axis}={label}' for axis, label in point.row.items()) for point in best)
        raise ValueError(f'against={wanted!r} names {len(found)} rows of the table, wants one of: {rows}')
    return found[0]


def make_table(points):
    """The table's lines as lists of strings; the first is its head. A * marks the best learning rate of a row."""
    rows = {}
    for point in points:
        rows.setdefault(tuple(point.row.items()), []).append(point)
    best = [min(row, key=Point.rank) for row in rows.values()]
    axes = list(dict.fromkeys(axis for point in points for axis in point.row))
    rates = sorted({point.labels[LR] for point in points if LR in point.labels}, key=float)
    wide = rates and select == 'all'
    base = find_row(best, against) if against else None
    head = [*axes, *([f'lr {rate}' for rate in rates] if wide else [*([LR] if rates else []), 'validation loss']),
            *(['difference', 't', 'p', 'iterations to its loss'] if base else [])]
    lines = []
    for row, top in zip(rows.values(), best):
        at = {point.labels.get(LR): point for point in row}
        if wide:
            star = top.labels[LR] if len(row) > 1 and top.losses else None
            cells = [str(at.get(rate, '')) + ' *' * (rate == star) for rate in rates]
        else:
            cells = [*([top.labels[LR]] if rates else []), str(top)]
        lines.append([top.row.get(axis, '') for axis in axes] + cells + (compare(top, base) if base else []))
    return [head, *lines]


def write_text(path, text):
    write_whole(path, lambda f: f.write(text.encode()))


def write_plan(runs, diverged_loss):
    """sweep.json, from which --report works"""
    os.makedirs(out_dir, exist_ok=True)
    rows = [{key: value for key, value in run.items() if key != 'config'} for run in runs]
    write_text(os.path.join(out_dir, 'sweep.json'), json.dumps(dict(diverged_loss=diverged_loss, runs=rows)))


def points_of(runs, diverged_loss):
    """Reads the state of the runs → the points of the grid."""
    for run in runs:
        folder = os.path.join(out_dir, run['name'])
        result = read_result(folder)
        run.update(status=result.get('status', 'missing'), seconds=result.get('seconds', 0), curve=curve(folder))
        if run['status'] == 'done' and not run['curve']:
            raise ValueError(f'{folder} has lost its log.jsonl: remove the folder, and its run will be trained again')
        if run['status'] == 'done' and run['curve'][-1][1] > (diverged_loss or math.inf):
            run['status'] = 'diverged'
    groups = {}
    for run in runs:
        groups.setdefault(tuple((axis, label) for axis, label in run['labels'].items() if axis != 'seed'), []).append(run)
    return [Point(group) for group in groups.values()]


def write_report(runs, diverged_loss):
    """Prints the table of the runs so far, and writes it beside them."""
    points = points_of(runs, diverged_loss)
    table = make_table(points)
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths)] for line in table]
    text = '\n'.join('  '.join(line).rstrip() for line in padded)
    ruled = [padded[0], ['-' * width for width in widths], *padded[1:]]
    markdown = '\n'.join('| ' + ' | '.join(cell.replace('|', r'\|') for cell in line) + ' |' for line in ruled)
    hours = sum(run['seconds'] for run in runs) / 3600
    print(f'\nvalidation loss at the end, mean ± standard error over seeds; * best learning rate; {hours:.2f} hours of runs\n')
    print(text + '\n')
    write_plan(runs, diverged_loss)
    for name, content in (('table.txt', text), ('table.md', markdown)):
        write_text(os.path.join(out_dir, name), content + '\n')
    axes = list(dict.fromkeys(axis for point in points for axis in point.labels))
    text = io.StringIO(newline='')
    rows = csv.writer(text)
    rows.writerow([*axes, 'val_loss', 'standard_error', 'done', 'diverged', 'failed', 'missing'])
    rows.writerows([*(point.labels.get(axis, '') for axis in axes), point.mean, point.error, len(point.losses),
                    *point.ended.values()] for point in points)
    write_text(os.path.join(out_dir, 'table.csv'), text.getvalue())
    if any(point.losses for point in points):
        from lab.plot import draw
        draw('sweep', [out_dir], os.path.join(out_dir, 'sweep.png'))


def main():
    global out_dir
    if '--report' in sys.argv[1:-1]:
        at = sys.argv.index('--report')
        sys.argv[at:at + 2] = [f'--report={sys.argv[at + 1]}']
    sys.argv[1:], theirs = split_arguments(sys.argv[1:])
    at_least(configure(globals()), seeds=1, jobs=0, diverged_loss=0)
    if select not in ('all', 'best'):
        raise ValueError(f'select={select!r}: choose all or best')
    if report:
        refuse(('out_dir', 'arguments', 'seeds', 'jobs'), 'report only makes the table again')
        if theirs:
            raise ValueError(f'{theirs[0]}: report only makes the table again, leave it out')
        out_dir = report
        stored = read_plan(os.path.join(out_dir, 'sweep.json'))
        write_report(stored['runs'], diverged_loss or stored['diverged_loss'])
    else:
        split = [arg.removeprefix('--').partition('=')[::2] for arg in theirs if arg.startswith('--')]
        axes = {key: text.split(',') for key, text in split}
        files = [arg for arg in theirs if not arg.startswith('--')]
        runs = plan(grids or [{}], [*words('arguments', arguments), *files], axes)
        for run in runs:
            folder = os.path.join(out_dir, run['name'])
            check_folder(run, folder)
            if not is_over(folder):
                check_data(run['config'])
        make_table(points_of(runs, diverged_loss))      # raises now if a file is damaged or `against` is no row
        os.makedirs(out_dir, exist_ok=True)
        locked = lock_folder(out_dir, 'sweeping')       # noqa: F841, held until the end
        write_plan(runs, diverged_loss)
        run_all(runs)
        write_report(runs, diverged_loss)
        if all(run['status'] == 'failed' for run in runs):
            last = read_result(os.path.join(out_dir, runs[0]['name']))['last']
            raise ValueError(f'all {len(runs)} runs failed, the first with: {last}')


if __name__ == '__main__':
    main()
