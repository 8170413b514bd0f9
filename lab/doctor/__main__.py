"""
Says why a run trains badly, or checks a config up before its run:

    python -m lab.doctor out-quick                              # a run: finished, running, stopped, diverged or killed
    python -m lab.doctor out-quick --reference=main             # against this commit's code, where the edit is committed
    python -m lab.doctor config/train_quick.py config/arch/pre.py --learning_rate=1       # what would go first, at which rate

A verdict has at most three findings, the most likely cause first. The run's folder gets doctor.json, and with a
finding doctor.png and doctor.html.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.doctor')

from configurator import ROOT, TRAIN, defaults_of, parse_args
from engine.process import begin

import argparse
import json
import os
from contextlib import suppress

import matplotlib

from engine.checkpoint import write_whole
from engine.log import finite
from lab.doctor.case import Case
from lab.doctor.reference import compare, train_briefly
from lab.doctor.report import MOST, examine, extremes, named, picture, text_of
from lab.doctor.rules import CAUSES, SPIKE_BATCH, SPIKE_WEIGHTS
from lab.doctor.spike import replay_spike
from lab.plot import write
from lab.plot.lines import STYLE
from model import GPTConfig

CHECK_UP_ITERS = 30     # in which the rate rises from 0 to HIGHEST times the config's
HIGHEST = 4.0


def diagnose(folder, reference):
    """Print the verdict on a run, and write it and its picture into the run's folder."""
    case = Case.of_run(folder)
    case.read_data()
    compare(case, reference)
    findings, unknown = examine(case)
    healthy = f'healthy: none of {len(CAUSES) - len(unknown)} causes of bad training is found'
    print(f'{folder} ({case.status}, iteration {case.it}): {findings[0].rule.cause if findings else healthy}')
    for number, finding in enumerate(findings[:MOST], 1):
        print('\n'.join(text_of(case, finding, number)))
        if finding.rule.cause in (SPIKE_BATCH, SPIKE_WEIGHTS):
            print('   ' + replay_spike(case, finding.since))
    if unknown:
        print(f'not checked, because the log or the data lack what it takes: {"; ".join(unknown)}')
    for line in case.notes:
        print(line)
    found = [dict(cause=f.rule.cause, quantity=f.rule.what, where=named(f.places), since=f.since, value=f.value,
                  healthy=f.rule.healthy) for f in findings[:MOST]]
    text = json.dumps(finite(dict(findings=found, not_checked=unknown, extremes=extremes(case))), ensure_ascii=False)
    write_whole(os.path.join(folder, 'doctor.json'), lambda f: f.write(text.encode()))
    if findings:
        drawn = picture(case, findings[:MOST])
        with matplotlib.rc_context(STYLE):
            write(drawn.figure(), os.path.join(folder, 'doctor.png'))
        with suppress(ModuleNotFoundError):             # plotly is optional
            from lab.plot.page import write_page
            write_page(drawn, 'doctor', os.path.join(folder, 'doctor.html'))


def check_up(arguments):
    """Train a config for a few iterations while the rate rises, and say what goes first."""
    config = parse_args(arguments, defaults_of(TRAIN, GPTConfig))
    rate = config['learning_rate']
    case = train_briefly(ROOT, config, max_iters=CHECK_UP_ITERS, warmup_iters=CHECK_UP_ITERS - 1, lr_decay_iters=10 ** 9,
                         learning_rate=HIGHEST * rate, log_interval=1, eval_interval=5)
    if isinstance(case, str):
        raise ValueError(f'{" ".join(arguments)} does not train: {case}')
    case.folder, case.keys_file, case.config = 'out-checked', ' '.join(arguments), {**case.config, 'learning_rate': rate}
    case.read_data()
    findings = sorted(examine(case)[0], key=lambda finding: finding.since > 0)          # those of the start first
    print(f'{CHECK_UP_ITERS} iterations, in which the rate rises to {HIGHEST:g} × {rate:g}'
          f'{": the start is healthy" * (not findings or findings[0].since > 0)}')
    for number, finding in enumerate(findings[:MOST], 1):
        if finding.since:
            reached = case.table('lr')[''].asof(finding.since)
            print(f'what goes first: {finding.rule.cause}, by the {finding.rule.what}, at a rate of about {reached:.2g}')
            break
        print('\n'.join(text_of(case, finding, number)))
    else:
        print(f'nothing goes up to a rate of {HIGHEST * rate:g}')


def main():
    parser = argparse.ArgumentParser(prog='python -m lab.doctor', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = lambda message: sys.exit(f'error: {message}; --help tells more')         # in one line
    parser.add_argument('what', nargs='+', help='the out_dir of a run, or config files and --key=value of train.py')
    parser.add_argument('--reference', default='', metavar='COMMIT', help='clean code; default: the commit that run.json names')
    parser.add_argument('--debug', default=False, type=lambda text: text.lower() == 'true', help='show the traceback of an error')
    args, keys = parser.parse_known_args()
    begin(args.debug)
    if not os.path.isdir(args.what[0]):
        check_up([*args.what, *keys])
    elif keys or args.what[1:]:
        raise ValueError(f'{" ".join([*args.what[1:], *keys])}: a run is read with its own keys; name one folder')
    else:
        diagnose(args.what[0], args.reference)


if __name__ == '__main__':
    main()
