"""
Trains a grid of runs, each with several seeds, and makes their table:

    python -m lab.sweep config/train_quick.py --arch=s1,s5 --optim=sgdw --learning_rate=0.1,0.3,1.0 --seeds=3
    python -m lab.sweep config/sweep/dnt.py                     # the same from a file, as results/ has them
    python -m lab.sweep config/sweep/dnt.py --against=arch=s1,optim=adamw
    python -m lab.sweep config/sweep/dnt.py --halving=0.25,0.5 --extend=1 --seeds=5       # less time for bad learning rates
    python -m lab.sweep --report=out-sweep                      # the table again, without training
    python -m lab.sweep --report=out-sweep/runs.csv             # the same from the numbers of the runs alone

A key of train.py with several values is an axis of the grid. So are arch, optim and lr, folders of config/, with the names of
their files or `none` as values. Every run is a run of train.py in its own folder. Finished runs are not trained again: after an
interruption, the same command continues. The best learning rate of a row is the one with the fewest failed or diverged runs and,
among these, the lowest validation loss.

lab/sweep_plan.py says what is run, and lab/sweep_table.py makes the tables.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.sweep')

from configurator import TRAIN, at_least, configure, flags, keys_of, refuse

import glob
import json
import math
import os
import re
import signal
import statistics
import subprocess
import time
from dataclasses import fields

import torch

from engine.files import NUMBER, check_regular, fits, read_json
from engine.keys import group_settings
from engine.lock import lock_folder
from engine.process import say
from engine.runlog import last_iter
from engine.task import config_of, task_of
from lab.sweep_plan import loss_at, plan, read_shares, rows_of_plan, words
from lab.sweep_table import (
    LR,
    from_text,
    is_number,
    make_tables,
    read_result,
    read_runs,
    read_state,
    runs_csv,
    write_report,
    write_text,
)

# ----------------------------------------------------------------------------- keys
out_dir = 'out-sweep'               # the folder of all runs, and of sweep.json, runs.csv, table.txt, .md, .csv and sweep.png
arguments = ''                      # what every run of train.py gets first: config files and --key=value
grids = []                          # for a config file: dicts from an axis to a list of its values, or to {label: arguments}
seeds = 3                           # runs of each point, with seed and data_seed 1, 2, …
halving = ''                        # stop the worse half of each row's rates at these shares of max_iters, as 0.25,0.5; '': none
extend = 0                          # add at most so many rates at each side of a row's grid, while its best rate is at the edge
jobs = 0                            # runs at once, which share the cores; 0: one per GPU, or per core without GPUs
select = 'all'                      # all | best: the table shows every learning rate, or each row's best and its rate sensitivity
against = ''                        # a row, as axis=value,…: how far the others differ from it, and when they reach its loss
contrast = ''                       # 'ROW - ROW - ROW + ROW', rows as in against: a difference of differences; more after a ;
diverged_loss = 0.0                 # a run that ends above this loss counts as diverged too; 0: only if train.py stopped it
report = ''                         # the folder of a sweep, or its runs.csv: make the table and run nothing
# -----------------------------------------------------------------------------

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


LABELS = {str: str, 'seed': str, f'{LR}?': is_number}   # the values of a run on the axes
PLAN = dict(runs=[dict(name=str, labels=LABELS), 1], diverged_loss=NUMBER)


def read_plan(path):
    """The sweep.json of --report. ValueError if there is none, or if it is damaged."""
    def shape(plan):
        return fits(plan, PLAN) and len({LR in run['labels'] for run in plan['runs']}) == 1

    plan = read_json(path, shape, 'start the sweep again by its own command, which keeps the runs that are done')
    if plan is None:
        raise ValueError(f'there is no {path}: {report!r} is not the folder of a sweep')
    return plan


def check_folder(run, folder):
    """ValueError if the folder holds a run with another config. A run that halving has stopped is a part of this one."""
    there, here = read_json(os.path.join(folder, 'config.json'), dict, f'remove {folder}') or {}, {**run['config']}
    it = there.get('max_iters')
    if isinstance(it, int) and it < here['max_iters'] and read_result(folder).get('status') != 'done':
        leg = leg_of(run, it)
        here.update(leg if there.get('lr_decay_iters') == leg['lr_decay_iters'] else {})
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


def say_others(states):
    """Says which runs in out_dir are not of this plan: after an edit of the grid, they may be those that it meant to keep."""
    ended = glob.glob(os.path.join(glob.escape(out_dir), '*', 'result.json'))
    others = sorted({os.path.basename(os.path.dirname(path)) for path in ended} - {*states})
    if others:
        say(f'{out_dir} has {len(others)} other runs, such as {others[0]}: they stay, but are no part of this grid. '
            f'A run is named after the axes that have several values')


# ----------------------------------------------------------------------------- running

def leg_of(run, it):
    """The keys with which the run goes to an iteration, by the schedule of the whole run"""
    config = run['config']
    last, decay = config['max_iters'], config['lr_decay_iters']
    return dict(max_iters=it, lr_decay_iters=decay if it == last else decay or last)


def start(run, it, folder, slot, cores, gpus):
    """Starts train.py as a process, up to an iteration. A run that was stopped continues from its checkpoint."""
    os.makedirs(folder, exist_ok=True)
    arguments = [*run['arguments'], '--overwrite=True']         # replaces a run that was killed before it saved
    if os.path.exists(os.path.join(folder, 'ckpt.pt')):
        arguments = [os.path.join(folder, 'config.json'), '--init_from=resume']
    if it < run['config']['max_iters'] or '--init_from=resume' in arguments:
        arguments += [f'--{key}={value}' for key, value in leg_of(run, it).items()]
    env = {**os.environ, 'OMP_NUM_THREADS': str(cores), 'SWEEP_PID': str(os.getpid())}      # with which the run ends
    if gpus:
        env['CUDA_VISIBLE_DEVICES'] = gpus[slot]
    check_regular(os.path.join(folder, 'output.txt'))
    with open(os.path.join(folder, 'output.txt'), 'w') as output:
        return subprocess.Popen([sys.executable, TRAIN, *arguments, f'--out_dir={folder}'], env=env, stdout=output,
                                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)


def write_result(folder, status, seconds, last=''):
    """Writes result.json: how a run ended, with its last line if that is an error. Returns this."""
    result = dict(status=status, seconds=round(seconds, 1), last=last)
    write_text(os.path.join(folder, 'result.json'), json.dumps(result))
    return result


def finish(folder, code, seconds, whole):
    """Notes how a run ended. `whole`: whether it was to go to its end, and not only to where halving compares it."""
    with open(os.path.join(folder, 'output.txt'), encoding='utf-8', errors='replace') as f:
        last = ([''] + [line.strip() for line in f if line.strip()])[-1]
    before = read_result(folder)
    if before.get('status') == 'stopped':               # this process has gone on from there
        seconds += before['seconds']
    status = {0: 'done' if whole else 'stopped', 3: 'diverged'}.get(code, 'failed')
    return write_result(folder, status, seconds, '' if code == 0 else last)


def folder_of(run):
    return os.path.join(out_dir, run['name'])


def where_is(run):
    at = max(0, last_iter(os.path.join(folder_of(run), 'log.jsonl')))
    return f'{run["name"]} at iteration {at} of {run["config"]["max_iters"]}'


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


def wanted_of(rows, states):
    """The runs that are wanted so far, and the first of them to do: [(run, the iteration to which it shall go)]."""
    wanted, todo = zip(*(row.next(states) for row in rows))
    return sum(wanted, []), sum(todo, [])


def run_all(rows, states, more):
    """Trains what the rows want, several runs at once. A failed run is tried again by the next call, a diverged one is not.
    `more`: whether more may be wanted later. Returns the runs."""
    wanted, waiting = wanted_of(rows, states)
    gpus = os.environ.get('CUDA_VISIBLE_DEVICES') or ','.join(str(i) for i in range(torch.cuda.device_count()))
    gpus = gpus.split(',') if torch.cuda.is_available() else []
    cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
    most = sum(states[run['name']]['status'] not in ('done', 'diverged')
               for row in rows for rate in row.grid for run in row.rates[rate])
    at_once = min(jobs or len(gpus) or cores, max(1, most))
    gpus = [gpus[slot % len(gpus)] for slot in range(at_once)] if gpus else []
    say(f'{len(wanted)} runs in {out_dir}, {len(waiting)} to do, {at_once} at once' + '; more may follow' * more)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupt)
    running, slots, took, said = {}, list(range(at_once)), [], time.monotonic()
    try:
        while waiting or running:
            while waiting and slots:
                (run, it), slot = waiting.pop(0), slots.pop(0)
                process = start(run, it, folder_of(run), slot, max(1, cores // at_once), gpus)
                running[process] = run, it, slot, time.monotonic()
            time.sleep(0.1)
            if time.monotonic() - said >= EVERY:
                said = time.monotonic()
                say('running:', '; '.join(where_is(run) for run, *_ in running.values()))
            for process in [process for process in running if process.poll() is not None]:
                run, it, slot, began = running.pop(process)
                slots.append(slot)
                took.append(time.monotonic() - began)
                result = finish(folder_of(run), process.returncode, took[-1], it == run['config']['max_iters'])
                state = states[run['name']] = read_state(folder_of(run), diverged_loss)
                if state['status'] == 'stopped' and loss_at(state, it) == math.inf:
                    raise ValueError(f'{folder_of(run)}/log.jsonl has no val_loss of iteration {it}: remove the folder')
                ended = result['status'] in ('done', 'stopped')
                how = f'val loss {state["curve"][-1][1]:.4f}' if ended else result['last'] or result['status']
                how += f' at iteration {it}' * (result['status'] == 'stopped')
                before = len(wanted)
                wanted, todo = wanted_of(rows, states)
                if len(wanted) > before:
                    write_plan(wanted)
                names = {run['name'] for run, *_ in running.values()}
                waiting = [(run, it) for run, it in todo if run['name'] not in names]
                total = len(took) + len(running) + len(waiting)
                left = statistics.mean(took) * (total - len(took)) / at_once / 60
                say(f'[{len(took)}/{total}{"+" * more}] {run["name"]}: {how}; {took[-1]:.0f} s, {left:.0f} min left')
    except KeyboardInterrupt:
        say(f'stopped with {len(took)} of {len(took) + len(running) + len(waiting)} runs done; the same command goes on',
            to=sys.stderr)
        sys.exit(130)
    finally:
        stop_all(running)
    for run in wanted:
        if states[run['name']]['status'] == 'missing':  # halving has stopped it, and a sweep that was killed did not note it
            write_result(folder_of(run), 'stopped', 0.0)
    return wanted


def write_plan(runs):
    """sweep.json, from which --report works"""
    rows = [{key: value for key, value in run.items() if key != 'config'} for run in runs]
    write_text(os.path.join(out_dir, 'sweep.json'), json.dumps(dict(diverged_loss=diverged_loss, runs=rows)))


def write_tables(runs):
    """The report of the runs so far, beside them"""
    text = runs_csv(runs, out_dir, diverged_loss)
    numbers = from_text(text)
    tables = make_tables(numbers, select, against, contrast)    # raises for bad input before a file is touched
    write_plan(runs)
    write_text(os.path.join(out_dir, 'runs.csv'), text)
    write_report(numbers, *tables, out_dir)


def main():
    global out_dir, diverged_loss
    if '--report' in sys.argv[1:-1]:
        at = sys.argv.index('--report')
        sys.argv[at:at + 2] = [f'--report={sys.argv[at + 1]}']
    sys.argv[1:], theirs = split_arguments(sys.argv[1:])
    at_least(configure(globals()), seeds=1, jobs=0, diverged_loss=0, extend=0)
    shares = read_shares(halving)
    if select not in ('all', 'best'):
        raise ValueError(f'select={select!r}: choose all or best')
    if report:
        numbers = report.endswith('.csv')
        refuse(('arguments', 'seeds', 'jobs', 'halving', 'extend', *([] if numbers else ['out_dir'])),
               'report only makes the table again')
        if theirs:
            raise ValueError(f'{theirs[0]}: report only makes the table again, leave it out')
        if numbers:
            found = read_runs(report, diverged_loss)
            write_report(found, *make_tables(found, select, against, contrast), out_dir if 'out_dir' in flags() else '')
        else:
            stored, out_dir = read_plan(os.path.join(report, 'sweep.json')), report
            diverged_loss = diverged_loss or stored['diverged_loss']
            write_tables(stored['runs'])
    else:
        split = [arg.removeprefix('--').partition('=')[::2] for arg in theirs if arg.startswith('--')]
        axes = {key: text.split(',') for key, text in split}
        if 'seeds' in flags():
            axes['seeds'] = seeds                       # before those of the grids in a file
        files = [arg for arg in theirs if not arg.startswith('--')]
        rows = rows_of_plan(plan(grids or [{}], [*words('arguments', arguments), *files], axes, seeds), shares, extend)
        states = {}
        for run in [run for row in rows for runs in row.rates.values() for run in runs]:
            check_folder(run, folder_of(run))
            state = states[run['name']] = read_state(folder_of(run), diverged_loss)
            if state['status'] not in ('done', 'diverged'):
                check_data(run['config'])
            if state['status'] == 'failed':
                state['status'] = 'missing'             # it is tried again
        runs = wanted_of(rows, states)[0]
        make_tables(from_text(runs_csv(runs, out_dir, diverged_loss)), select, against, contrast)   # raises now for bad input
        os.makedirs(out_dir, exist_ok=True)
        locked = lock_folder(out_dir, 'sweeping')       # noqa: F841, held until the end
        say_others(states)
        write_plan(runs)
        runs = run_all(rows, states, more=bool(shares or extend))
        write_tables(runs)
        if all(states[run['name']]['status'] == 'failed' for run in runs):
            last = read_result(folder_of(runs[0]))['last']
            raise ValueError(f'all {len(runs)} runs failed, the first with: {last}')


if __name__ == '__main__':
    main()
