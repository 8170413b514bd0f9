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

from configurator import TRAIN, defaults_of, parse_args
from engine.process import ROOT, begin

import argparse
import json
import os
import tempfile

import matplotlib

from engine.checkpoint import write_whole
from engine.log import finite
from lab.doctor.case import Case
from lab.doctor.reference import add_clean, add_replay, train_briefly

from lab.doctor.report import MOST, examine, named, picture, text_of
from lab.doctor.rules import RULES
from lab.plot import write
from lab.plot.lines import STYLE
from model import GPTConfig

CHECK_UP_ITERS = 30     # in which the rate rises from 0 to HIGHEST times the config's
HIGHEST = 4.0


def tell(case, findings, missing):
    """Print the verdict."""
    about = f'{case.folder} ({case.status}, iteration {case.it})'
    checked = sum(bool(rule.values(case).size) for rule in RULES)
    if not findings:
        print(f'{about}: healthy in all {checked} quantities that were checked, of data, gradients, starts, growth and steps')
    else:
        print(f'{about}: {findings[0].rule.cause}')
        for number, finding in enumerate(findings[:MOST], 1):
            print('\n'.join(text_of(case, finding, number)))
            if finding.rule.cause.startswith('a spike'):
                print(f'   {replay_spike(case, finding.since)}')
    if missing:
        print(f'not checked, because the log lacks them or the data are not here: {"; ".join(missing)}')
    for line in case.notes:
        print(line)


def draw(case, findings, out):
    """Write the picture as an image and as a page."""
    drawn = picture(case, findings[:MOST])
    with matplotlib.rc_context(STYLE):
        write(drawn.figure(), out)
    try:
        from lab.plot.page import write_page
        write_page(drawn, 'doctor', os.path.splitext(out)[0] + '.html')
    except ModuleNotFoundError:
        print('doctor.html needs plotly: pip install -r requirements-lab.txt')


def diagnose(folder, args):
    case = Case.of_run(folder)
    add_replay(case)
    add_clean(case, args.reference)
    findings, missing = examine(case)
    tell(case, findings, missing)
    found = [dict(cause=f.rule.cause, quantity=f.rule.what, where=named(f.places), since=f.since, value=float(f.value),
                  healthy=list(f.rule.healthy)) for f in findings[:MOST]]
    text = json.dumps(finite(dict(findings=found, not_checked=missing)), ensure_ascii=False)
    write_whole(os.path.join(folder, 'doctor.json'), lambda f: f.write(text.encode()))
    if findings:
        draw(case, findings, args.out or os.path.join(folder, 'doctor.png'))


def check_up(arguments, out):
    """Train a config for a few iterations while the rate rises, and say what goes first."""
    config = parse_args(arguments, defaults_of(TRAIN, GPTConfig))
    rate = config['learning_rate']
    with tempfile.TemporaryDirectory() as folder:
        case = train_briefly(ROOT, config, folder, os.getcwd(), max_iters=CHECK_UP_ITERS, warmup_iters=CHECK_UP_ITERS - 1,
                             lr_decay_iters=10 ** 9, learning_rate=HIGHEST * rate, log_interval=1, eval_interval=5)
    if isinstance(case, str):
        raise ValueError(f'{" ".join(arguments)} does not train: {case}')
    case.folder, case.keys_file, case.config = 'out-checked', ' '.join(arguments), {**case.config, 'learning_rate': rate}
    case.read_data()
    add_usual(case)
    findings, _ = examine(case, [rule for rule in RULES if not rule.beside])
    rates = case.table('lr')['']
    first = [finding for finding in findings if finding.since == 0]
    later = sorted((finding for finding in findings if finding.since), key=lambda finding: finding.since)
    print(f'{CHECK_UP_ITERS} iterations, in which the rate rises to {HIGHEST:g} × {rate:g}')
    for number, finding in enumerate(first[:MOST], 1):
        print('\n'.join(text_of(case, finding, number)))
    if not first:
        print('the start is healthy')
    for finding in later[:1]:
        where = f' ({named(finding.places)})' if named(finding.places) else ''
        print(f'what goes first: {finding.rule.cause}, by the {finding.rule.what}{where}, at a rate of about '
              f'{rates.asof(finding.since):.2g}')
    steps = next(rule for rule in RULES if rule.what.startswith('update over weights'))
    updates = steps.values(case)
    limit = (steps.sick[1] / updates.iloc[-5:].div(rates.reindex(updates.index[-5:]), axis=0).median()).sort_values()
    print(f'steps become a share {steps.sick[1]:g} of the weights at a rate of about '
          f'{", ".join(f"{value:.2g} ({kind})" for kind, value in limit.items())}. This is rough: it extrapolates '
          f'{CHECK_UP_ITERS} iterations in proportion to the rate, and may be off by several times')
    if out:
        draw(case, first + later, out)


def main():
    parser = argparse.ArgumentParser(prog='python -m lab.doctor', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = lambda message: sys.exit(f'error: {message}; --help tells more')         # in one line
    parser.add_argument('what', nargs='+', help='the out_dir of a run, or config files and --key=value of train.py')
    parser.add_argument('--out', default='', help='the picture; default: doctor.png in the run\'s folder')
    parser.add_argument('--reference', default='', metavar='COMMIT', help='clean code; default: the commit that run.json names')
    parser.add_argument('--iters', type=int, default=40, help='iterations of the reference; default: 40')
    parser.add_argument('--debug', default=False, type=lambda text: text.lower() == 'true', help='show the traceback of an error')
    args, keys = parser.parse_known_args()
    begin(args.debug)
    if os.path.isdir(args.what[0]):
        if keys or args.what[1:]:
            raise ValueError(f'{" ".join([*args.what[1:], *keys])}: a run is read with its own keys; name one folder')
        diagnose(args.what[0], args)
    else:
        check_up([*args.what, *keys], args.out)


if __name__ == '__main__':
    main()
