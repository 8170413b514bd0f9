"""
Draws pictures of runs. Each is written as PNG and, beside it, as SVG:

    python -m lab.plot out-quick                                    # the loss: out-quick/loss.png and loss.svg
    python -m lab.plot out-a out-b out-c --out=abc.png              # several runs in one picture
    python -m lab.plot out-a out-b --out=loss.html                  # a page to zoom and hover in; it needs requirements-lab.txt
    python -m lab.plot out-a out-b --ylim=2,3 --smooth=100          # also --xlim, and --log=y; --watch=True draws again and again
    python -m lab.plot out-a --what=residual                        # the residual stream of each block, or --what=logits
    python -m lab.plot out-a --what=heat                            # all that is logged per layer, layers × iterations
    python -m lab.plot out-a out-b --what=gradients                 # another picture of the list below
    python -m lab.plot out-a out-b --what=grad_norm                 # any number of log.jsonl over the iterations
    python -m lab.plot out-a out-b --what=updates.qk                # any number of measure.jsonl
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.plot')

from engine.process import begin

import argparse
import os
import textwrap
import time

from data.lock import is_locked
from lab.plot import OVER_TIME, draw, pictures
from lab.plot.runs import over_iterations

EVERY = 5.0             # seconds between two looks of --watch at the logs


def limits(text):
    """'2,3' → (2.0, 3.0); either may be left out, as in '2,' and ',3'"""
    try:
        low, high = (float(part) if part else None for part in text.split(','))
        if None not in (low, high) and not low < high:
            raise ValueError
        return low, high
    except ValueError:
        raise ValueError(f'{text!r}: wants LOW,HIGH, as 2,3 or 2, or ,3') from None


def watch(folders, draw_once):
    """Draw, and again when a run's log or measurements have grown, until no run goes on any more."""
    files = [os.path.join(folder, name) for folder in folders for name in ('log.jsonl', 'measure.jsonl')]
    before = None
    while True:
        going_on = any(map(is_locked, folders))         # looked at first, so that the last rows are drawn too
        state = [os.stat(file).st_size for file in files if os.path.exists(file)]
        if state != before and (any(state) or not going_on):
            draw_once()
        if not going_on:
            return
        before = state
        time.sleep(EVERY)


def main():
    first, _, rest = over_iterations.__doc__.partition('\n')
    lines = {name: plot.__doc__.partition('\n')[0] for name, plot in pictures().items()} | {'KEY': first}
    about = '\n'.join(f'  {name:16} {line}' for name, line in lines.items())
    parser = argparse.ArgumentParser(
        prog='python -m lab.plot', description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f'pictures:\n{about}\n\n{textwrap.dedent(rest).strip()}\nAn unknown KEY is answered with the keys that there are.')
    parser.error = lambda message: sys.exit(f'error: {message}; --help tells more')         # in one line
    parser.add_argument('folders', nargs='+', help='out_dir of each run, or sweep')
    parser.add_argument('--what', default='loss', metavar='PICTURE|KEY',
                        help='a picture of the list below; default: loss. All except loss, residual, logits, heat, sweep and KEY '
                             'need python -m lab.measure')
    parser.add_argument('--out', help='the picture, .html for a page to zoom and hover in; default: WHAT.png in the first folder')
    parser.add_argument('--xlim', metavar='LOW,HIGH', help='limits of the axis; one may be left out, as in --xlim=100,')
    parser.add_argument('--ylim', metavar='LOW,HIGH', help='the same of the first panel, and of those that share its axis')
    parser.add_argument('--log', default='', choices=('x', 'y', 'xy'), help='logarithmic axes')
    parser.add_argument('--smooth', default=0, type=int, metavar='N', help='each point is the mean over the last N iterations; '
                        'of the picture of the loss, those of the training loss')
    parser.add_argument('--watch', default='False', metavar='True', help='draw again as the runs go on, until they end')
    parser.add_argument('--debug', default=False, type=lambda text: text.lower() == 'true', help='show the traceback of an error')
    args = parser.parse_args()
    begin(args.debug)
    if args.smooth < 0 or args.smooth and args.what in pictures() and args.what not in OVER_TIME:
        raise ValueError(f'smooth={args.smooth}: wants a number of iterations, for a KEY or one of {", ".join(OVER_TIME)}')
    out = args.out or os.path.join(args.folders[0], f'{args.what}.png')
    xlim, ylim = (limits(text) if text else None for text in (args.xlim, args.ylim))

    def draw_once():
        draw(args.what, args.folders, out, smooth=args.smooth, xlim=xlim, ylim=ylim, log=args.log)

    if args.watch.lower() == 'true':
        watch(args.folders, draw_once)
    else:
        draw_once()


if __name__ == '__main__':
    main()
