"""
Writes a csv with a row for each run: its findings, and the worst value of each rule's quantity that lasted. Thresholds are
tuned on it:

    python -m lab.doctor.collect out-* --csv=doctor.csv
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.doctor.collect')

from engine.process import begin

import argparse

import pandas as pd

from engine.log import progress
from lab.doctor.case import Case
from lab.doctor.reference import add_clean, add_usual

from lab.doctor.report import MOST, examine, extreme
from lab.doctor.rules import RULES


def row_of(folder, iters):
    """Return the row of a run."""
    case = Case.of_run(folder)
    add_clean(case, iters=iters)
    add_usual(case)
    add_future(case)
    causes = [finding.rule.cause for finding in examine(case)[0]]
    losses = case.table('val_loss').get('', pd.Series([float('nan')]))
    names = dict(run=folder, status=case.status, iterations=case.it, val_loss=losses.iloc[-1])
    findings = {f'finding {i + 1}': cause for i, cause in enumerate(causes[:MOST])}
    return {**names, **findings, **{f'{rule.cause}: {rule.what}': f'{extreme(case, rule):.4g}' for rule in RULES}}


def main():
    parser = argparse.ArgumentParser(prog='python -m lab.doctor.collect', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = lambda message: sys.exit(f'error: {message}; --help tells more')
    parser.add_argument('folders', nargs='+', help='the out_dir of each run')
    parser.add_argument('--csv', default='doctor.csv', help='the file to write; default: doctor.csv')
    parser.add_argument('--iters', type=int, default=40, help='iterations of the reference by clean code; default: 40')
    args = parser.parse_args()
    begin()
    rows = pd.DataFrame([row_of(folder, args.iters) for folder in progress(args.folders, 'runs')])
    columns = ['run', 'status', 'iterations', 'val_loss', *(f'finding {i + 1}' for i in range(MOST))]
    rows.reindex(columns=dict.fromkeys([*columns, *rows.columns])).to_csv(args.csv, index=False)
    print(f'wrote {args.csv}')


if __name__ == '__main__':
    main()
