"""
make attack: many kills and other keys, drawn at random, where the tests try a few.

    make attack ARGS="--kills=300 --changes=200 --seed=0"
    make attack ARGS="--seed=0 --only=kill-17"                          # one of them again, with all that it said

Each attack depends only on the seed and its number, but for the instant of a kill after some seconds.

    kill    a run is killed, by SIGKILL at one of its writes or after some seconds, one rank of it or all, and called again,
            until it ends: its last checkpoint is never lost, and the end is bit for bit that of an uninterrupted run
    change  one rank of two, or a run that is resumed, is given another value of a key: the ranks end with one line, and a
            resumed run names the key, or is refused and leaves its files as they are

The exit code is 1 if an attack succeeded.
"""
from configurator import TRAIN, defaults_of

import argparse
import itertools
import os
import random
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

import helpers
import torch
from helpers import TINY, Alone, flags, killed, rows, run_ranks, write_walk

import model
from engine.checkpoint import load_checkpoint
from engine.keys import CHOICES
from engine.log import progress
from optim import OPTIMIZERS

KEYS = {**TINY, 'n_layer': 1, 'n_embd': 8, 'block_size': 8, 'max_iters': 8, 'eval_interval': 2, 'eval_iters': 1,
        'lr_decay_iters': 8, 'gradient_accumulation_steps': 2, 'batch_size': 2}
FSDP = ['--parallel=fsdp']
WAYS = {'one process': (0, []), 'ddp': (2, []), 'fsdp': (2, FSDP), 'shards': (2, [*FSDP, '--save_shards=True']),
        'shards of one': (1, [*FSDP, '--save_shards=True'])}         # name → (ranks, arguments)


def run(script, *arguments, ranks=0, **more):
    """In a process of its own, or in so many ranks → (exit code, stdout, stderr)"""
    return run_ranks(ranks, script, *arguments, **more) if ranks else Alone(script, *arguments, **more).end()


# ----------------------------------------------------------------------------- kills

class Runs:
    """Runs of each optimizer in each of the WAYS, in the folder `place`. Of each there is one that nothing has interrupted."""

    def __init__(self, place):
        self.place, self.known = place, {}
        write_walk(place)

    def uninterrupted(self, optimizer, way):
        """Its folder, and the seconds that it took"""
        if (optimizer, way) not in self.known:
            name, began = f'{optimizer}-{way.replace(" ", "-")}', time.monotonic()
            code, out, err = self.train(name, optimizer, way)
            assert code == 0, out + err
            self.known[optimizer, way] = self.place / name, time.monotonic() - began
        return self.known[optimizer, way]

    def train(self, name, optimizer, way, *arguments, through=()):
        ranks, more = WAYS[way]
        return run('train.py', *flags(**KEYS, optimizer=optimizer, out_dir=name), *more, '--init_from=auto', *arguments,
                   ranks=ranks, through=through, cwd=self.place)

    def saved(self, name):
        """The iteration of the latest checkpoint of a run, here or set aside, -1 if there is none. All that there are load."""
        folders = [self.place / name / 'old-run', self.place / name]
        found = [load_checkpoint(str(folder / file))['iter'] for folder in folders for file in ('best.pt', 'ckpt.pt')
                 if (folder / file).exists()]
        return found[-1] if found else -1

    def same(self, name, whole):
        """The logs and checkpoints of a run are those of the uninterrupted one."""
        assert rows(self.place / name) == rows(whole), 'log.jsonl differs'
        for file in ('ckpt.pt', 'best.pt'):
            ours, theirs = ({**load_checkpoint(str(folder / file)), 'path': '', 'start': 0}
                            for folder in (self.place / name, whole))
            ours['config']['out_dir'] = theirs['config']['out_dir']
            different(ours, theirs, file)
        ours, theirs = ({file.name for file in folder.iterdir() if not file.name.startswith(('shards-', 'old-run'))}
                        for folder in (self.place / name, whole))
        assert ours == theirs, f'the files differ: {ours ^ theirs}'
        assert len(list((self.place / name).glob('shards-*'))) <= 2, 'shards that no checkpoint names were left'


def different(ours, theirs, name):
    """AssertionError, which names the place, if two nested values are not bit for bit the same."""
    if isinstance(theirs, (dict, list)):
        keys = theirs if isinstance(theirs, dict) else range(len(theirs))
        assert type(ours) is type(theirs) and len(ours) == len(theirs), f'{name} differs'
        for key in keys:
            different(ours[key], theirs[key], f'{name}, {key}')
    else:
        assert torch.equal(ours, theirs) if torch.is_tensor(theirs) else ours == theirs, f'{name} differs'


def killed_after(seconds):
    """SIGKILL from another process"""
    victim = os.getpid()
    if not os.fork():
        time.sleep(seconds)
        if os.getppid() == victim:
            os.kill(victim, 9)
        os._exit(0)


def of_rank(rank, does, *arguments):
    """does(*arguments) in this rank, or in each for -1."""
    if rank in (-1, int(os.environ.get('RANK', '0'))):
        does(*arguments)


def drawn_run(draw, runs):
    optimizer, way = draw.choice(list(OPTIMIZERS)), draw.choice(list(WAYS))
    return optimizer, way, *runs.uninterrupted(optimizer, way), draw.randrange(-1, max(1, WAYS[way][0]))


def kill(draw, number, runs):
    """Up to three kills of one run → how many there were"""
    name, kills = f'kill-{number}', 0
    optimizer, way, whole, seconds, rank = drawn_run(draw, runs)
    anew = ['--init_from=scratch', '--overwrite=True']
    arguments = draw.choice([[], [], [], anew])
    if arguments:                                       # the folder holds such a run, which must not be lost either
        shutil.copytree(whole, runs.place / name)
    for _ in range(draw.randint(1, 3)):
        does = (killed, draw.randrange(40))
        if draw.random() < 0.5:                         # not one rank before the others know it: they would wait for long
            does = killed_after, draw.uniform(0 if rank < 0 else seconds / 2, seconds)
        before = runs.saved(name)
        code, out, err = runs.train(name, optimizer, way, *arguments, through=(of_rank, rank, *does))
        assert code in (0, -9) and 'Traceback' not in out + err, f'exit code {code}: {out}{err}'
        kills += code == -9
        after = runs.saved(name)
        assert after >= before or arguments and after >= 0, f'the checkpoint of iteration {before} is lost, there is {after}'
        started_anew = arguments and not (runs.place / name / 'ckpt.pt').exists()
        arguments = anew if started_anew else []
    code, out, err = runs.train(name, optimizer, way, *arguments)
    assert code == 0, f'exit code {code}: {out}{err}'
    runs.same(name, whole)
    shutil.rmtree(runs.place / name)
    return kills


def one_line(out, err, ranks=0):
    """A script that failed has said why in one line; of several ranks each may say its own."""
    lines = [line for line in err.splitlines() if not re.match(r'.*: \d+ of \d+, ', line)]       # of progress
    errors = [line for line in lines if re.match(r'(\[rank\d\]: )?(error|diverged): ', line)]       # torch names the rank
    assert 'Traceback' not in out + err, out + err
    assert len(lines) == len(errors) == 1 or ranks and errors, f'more or less than one line: {out}{err}'


# ----------------------------------------------------------------------------- other keys

def other_value(draw, key, value):
    """A value of a key that is not this one"""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        names = CHOICES.get(key) or model.CHOICES.get(key) or [value + '-other']
        return draw.choice([name for name in names if name != value])
    return value + draw.choice([1, 2]) if isinstance(value, int) else value * 0.5 + 0.125


def change(draw, number, runs):
    defaults, name = {**defaults_of(TRAIN, model.GPTConfig), **KEYS}, f'change-{number}'
    free = {'out_dir', 'device', 'debug', 'overwrite', 'eval_only', 'wandb_log', 'init_from'}
    key = draw.choice(sorted(defaults.keys() - free))
    other = f'--{key}={other_value(draw, key, defaults[key])}'
    if draw.random() < 0.5:
        code, out, err = run_ranks(2, 'train.py', *flags(**KEYS, out_dir=name), of_last=[other], cwd=runs.place, LOCAL_RANK='0')
        assert code == 1 and not (runs.place / name).exists(), f'{other}, exit code {code}: {out}{err}'
        one_line(out, err, 2)
        return 1
    whole, _ = runs.uninterrupted('sgdw', 'one process')
    shutil.copytree(whole, runs.place / name)
    before = {file.name: file.read_bytes() for file in (runs.place / name).iterdir()}
    code, out, err = run('train.py', f'{name}/config.json', f'--out_dir={name}', '--init_from=resume', '--max_iters=10', other,
                         cwd=runs.place)
    if code:
        assert code in (1, 3), f'{other}, exit code {code}: {out}{err}'
        one_line(out, err)
        assert code == 3 or before == {file.name: file.read_bytes() for file in (runs.place / name).iterdir()}, f'{other} wrote'
    else:
        assert re.search(f'changed since the checkpoint: .*\\b{key} ', out), f'{other} was not told: {out}'
    shutil.rmtree(runs.place / name)
    return 1


# ----------------------------------------------------------------------------- all of them

def attacks(kinds, seed, only):
    """Makes the attacks → (how many were made of each kind, [(name, what went wrong)])"""
    made, failed = dict.fromkeys(kinds, 0), []
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder) / 'runs')
        do = dict(kill=kill, change=change)
        for kind, wanted in kinds.items():
            numbers = itertools.takewhile(lambda _: made[kind] < wanted, itertools.count())
            for number in [int(only.split('-')[1])] if only else progress(numbers, f'{kind}s', wanted):
                try:
                    made[kind] += do[kind](random.Random(f'{seed} {kind} {number}'), number, runs)
                except Exception as error:
                    made[kind] += 1
                    failed.append((f'{kind}-{number}', str(error) or repr(error)))
                    print(f'{kind}-{number}: {" ".join(failed[-1][1].split())[:300]}', flush=True)
    return made, failed


def main(arguments):
    """→ the exit code"""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for kind, default in (('kills', 300), ('changes', 200)):
        parser.add_argument(f'--{kind}', type=int, default=default)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--only', default='', help='kill-N or change-N: this one alone')
    args = parser.parse_args(arguments)
    kinds = {args.only.split('-')[0]: 1} if args.only else dict(kill=args.kills, change=args.changes)
    made, failed = attacks(kinds, args.seed, args.only)
    print(', '.join(f'{count} {kind}s' for kind, count in made.items()) + f': {len(failed)} failed')
    for name, why in failed:
        print(why if args.only else f'    make attack ARGS="--seed={args.seed} --only={name}"')
    return bool(failed)


if __name__ == '__main__':
    helpers.HANG = 60
    helpers.PRELOADED += 'safetensors.torch',
    sys.exit(main(sys.argv[1:]))
