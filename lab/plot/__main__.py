"""
Draw pictures of runs. The ending of --out chooses the format: .png, .svg or .pdf.

    python -m lab.plot out-quick                                    # the loss: out-quick/loss.png
    python -m lab.plot out-a out-b --out=loss.pdf --labels=Pre-LN,DNT         # several runs, with names of your own
    python -m lab.plot out-a out-b --ylim=2,3                       # also --xlim
    python -m lab.plot out-a out-b --hide=lr,loss                   # the validation loss alone
    python -m lab.plot out-a out-b --what=gradients                 # another picture of the list below
    python -m lab.plot out-a out-b --what=grad_norm                 # any number of log.jsonl or measure.jsonl
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.plot')

from engine.process import begin

import os

from lab.coordinates import plot_coordinates
from lab.measure import MEASUREMENTS
from lab.plot import draw, plot_heat, plot_key, plot_loss
from lab.runs import argument_parser

PICTURES = {'loss': plot_loss, 'heat': plot_heat, **{name: measure.plot for name, measure in MEASUREMENTS.items()},
            'coordinates': plot_coordinates}


def low_high(text):
    """'2,3' → (2.0, 3.0); either may be left out, as in '2,' and ',3'"""
    low, high = (float(part) if part else None for part in text.split(','))
    return low, high


def main():
    about = {name: plot.__doc__ for name, plot in PICTURES.items()} | {'KEY': plot_key.__doc__}
    parser = argument_parser('lab.plot', __doc__, 'out_dir of each run', epilog='pictures:\n' + '\n'.join(
        f'  {name:16} {text.partition(chr(10))[0]}' for name, text in about.items()))
    parser.add_argument('--what', default='loss', metavar='PICTURE|KEY', help='default: loss')
    parser.add_argument('--out', help='.png, .svg or .pdf; default: WHAT.png in the first folder')
    parser.add_argument('--labels', default='', metavar='A,B', help='names of the curves, not folders and keys')
    parser.add_argument('--hide', default='', choices=('lr', 'loss', 'lr,loss'), help='no learning rate, no training loss')
    parser.add_argument('--xlim', type=low_high, metavar='LOW,HIGH', help='limits of the axis; one may be left out: --xlim=100,')
    parser.add_argument('--ylim', type=low_high, metavar='LOW,HIGH', help='of the first panel, and of those that share its axis')
    args = parser.parse_args()
    begin()
    what, out = PICTURES.get(args.what, args.what), args.out or os.path.join(args.folders[0], f'{args.what}.png')
    draw(what, args.folders, out, labels=args.labels, hide=args.hide, xlim=args.xlim, ylim=args.ylim)


if __name__ == '__main__':
    main()
