"""
The placement track: entries change the block of a GPT, and nothing else. results/track/README.md has the rules.

    python -m lab.track                                                     # the tables
    python -m lab.track --screen config/arch/s1.py                          # three rates, one seed, beside pre: four minutes
    python -m lab.track --new=NAME config/arch/s1.py --qk_norm=True         # make an entry of these keys and of your model.py
    python -m lab.track --check=results/track/laptop/NAME                   # verify an entry, and repeat one of its runs
    python -m lab.track --time=results/track/laptop/NAME                    # measure its time again, in turns with pre

--new trains the tuning runs. Then merge the entry's folder into main, whose commit gives the confirming seeds, and give the same
command again. It continues after a stop, and says what is left.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.track')

from configurator import ROOT, TRAIN, configure, defaults_of, is_help
from engine.process import say

import hashlib
import math
import os
from pathlib import Path

from engine.code import code_hash
from lab.sweep.table import read_runs
from lab.track.check import repeat_runs, verify
from lab.track.entry import Division, Entry, chosen, sweep
from lab.track.table import division_table

# ----------------------------------------------------------------------------- keys
division = 'laptop'                 # a file of config/track/
new = ''                            # make this entry, or continue it
screen = False                      # train three rates with one seed, and compare the best with pre; make no entry
check = ''                          # the folder of an entry to verify
repeat = 1                          # check: confirming runs to repeat, drawn at random; all 8 say most
here = False                        # check: repeat them by this working tree's code, and keep the rows, as the page needs of pre
time = ''                           # the folder of an entry whose time is measured again
jobs = 0                            # runs at the same time; 0: one per GPU, or per core without GPUs
# -----------------------------------------------------------------------------


def split_arguments(arguments):
    """Split the command line into arguments of this script and of train.py."""
    own = defaults_of(__file__)
    arguments = [f'{arg}=True' if arg == '--screen' else arg for arg in arguments]
    ours = [arg for arg in arguments if arg.startswith('-') and (is_help(arg) or arg[2:].partition('=')[0] in own)]
    return ours, [arg for arg in arguments if arg not in ours]


def enter(entry, arguments):
    """Make the entry, or continue it: tuning runs, then a freeze by main, confirming runs, measurements."""
    if not entry.bytes_of('config.py'):
        entry.create(arguments)
        say(f'made {entry.folder}')
    elif arguments and entry.division.changed(arguments) != entry.keys():
        raise ValueError(f'{entry.folder} has the keys {entry.keys()}: choose another name, or give --new={entry.name} alone')
    if code_hash(TRAIN) != entry.probe()['code']:
        say('this working tree has other code than the entry, which keeps the code of its commit and its code.patch')
    frozen = entry.frozen_at()
    if frozen:
        entry.check_frozen(frozen)
    seeds = entry.seeds(frozen)
    say(f'commit {frozen[:12]} of main froze it: left are the confirming seeds {", ".join(map(str, seeds))}' if frozen else
        'left: tuning, then a commit of main that freezes it (not before tuning has ended), and confirming seeds')
    entry.train(seeds, jobs)
    best = chosen(entry.runs())
    say(f'its decay is {best.labels["weight_decay"]}, its rate {best.best}')
    if not frozen:
        say('left: fill in its README.md, commit this folder and merge it into main, git fetch, and run the same command again')
        return
    if not entry.bytes_of('measured.json'):
        entry.measure()
    say(f'{division_table(entry.division)}\n\nleft: python -m lab.track --check={entry.folder}, make results, and a commit')


def screen_run(of, arguments, decay):
    """Train a screen's three rates by this working tree's code. Return them as chosen does."""
    of.changed(arguments)                               # fail early on a key that is not free
    name = '-'.join([*(Path(arg).stem for arg in arguments if not arg.startswith('--')),
                     hashlib.sha256(repr((arguments, decay, code_hash(TRAIN))).encode()).hexdigest()[:8]])
    out = os.path.join(ROOT, 'out-track', 'screen', name)
    csv, grid = os.path.join(out, 'runs.csv'), dict(weight_decay=[decay], learning_rate=of.rates, seeds=1)
    sweep([of.file, *arguments], [grid], out, csv, ROOT, jobs, extend=0)
    return chosen(read_runs(csv))


def compare_screen(of, arguments):
    """Print the best validation loss of three rates beside pre's, and whether the difference passes the gate."""
    entry, decay = of.entry('pre'), of.config['weight_decay']
    pre = chosen(entry.runs()) if os.path.exists(entry.csv) else screen_run(of, [], decay)
    decay = pre.labels.get('weight_decay', decay)
    idea = screen_run(of, arguments, decay)
    loss, pre_loss = (row.tuning.val_loss.min() for row in (idea, pre))
    off, gate = loss - pre_loss, -2 * math.sqrt(2) * (of.noise or (math.nan, 0))[0]
    say(f'one seed, decay {decay}: validation loss {loss:.4f} at rate {idea.rate_text()}; pre has {pre_loss:.4f} at rate '
        f'{pre.rate_text()}')
    say(f'difference {off:+.4f}, {"better" if off < 0 else "worse"} than pre: it {"passes" if off < gate else "does not pass"} '
        f'the gate, {gate:.4f} (2σ)')


def main():
    sys.argv[1:], arguments = split_arguments(sys.argv[1:])
    configure(globals())
    if sum(map(bool, (new, screen, check, time))) > 1:
        raise ValueError('new, screen, check and time: choose one of them')
    if arguments and not (new or screen):
        raise ValueError(f'{arguments[0]}: only new and screen take configs')
    if new:
        enter(Division(division).entry(new), arguments)
    elif screen:
        compare_screen(Division(division), arguments)
    elif check:
        entry = Entry(check)
        try:
            confirmed = verify(entry)
            text = repeat_runs(entry, repeat, jobs, here) if repeat else 'no run was repeated'
        except ValueError as error:
            raise ValueError(f'{entry.folder}: {error}') from error
        say(f'{entry.folder} keeps the rules' + '; its confirming seeds are left' * (not confirmed) + f'; {text}')
    elif time:
        Entry(time).measure()
        say(division_table(Entry(time).division))
    else:
        for path in sorted(Path(ROOT, 'config', 'track').glob('*.py')):
            say(f'{path.stem}\n\n{division_table(Division(path.stem))}\n')


if __name__ == '__main__':
    main()
