"""
Write csv/onset_scores.csv from the runs of config/sweep/onset.py that have ended: the score for copying of each kept checkpoint,
of the head with the highest one. `python -m lab.measure --what=copying` explains the score. The file keeps the scores of runs
that are not on this machine.

    python results/scores.py
"""
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import pandas as pd  # noqa: E402
import torch  # noqa: E402

from data.tokens import Tokens  # noqa: E402
from engine.checkpoint import check_data, load_run  # noqa: E402
from engine.files import write_whole  # noqa: E402
from lab.measure import measure  # noqa: E402

ITERATIONS = 7812                   # of a run that has ended


def score(path):
    """Return (iteration, score) of a checkpoint, by 8 batches of the run's training data."""
    model, state = load_run(path)
    config = state['config']
    windows = Tokens(config['dataset'], 'train', model.config.block_size, model.config.vocab_size)
    check_data(state, windows.fingerprint)
    batches = [tuple(windows.read(starts)) for starts in windows.eval_batches(8, config['batch_size'])]
    heads = measure(model, batches, ['copying'], config['seed'])['copying']['induction']
    return state['iter'], torch.tensor(heads).max().item()


def main():
    path = HERE / 'csv' / 'onset_scores.csv'
    rows = {tuple(row[:3]): row[3] for row in pd.read_csv(path).values.tolist()} if path.exists() else {}
    for run in sorted(Path('out-sweep/onset').glob('setting=*')):
        labels = dict(label.split('=') for label in run.name.split(','))
        scores = dict(score(str(at)) for at in [*run.glob('ckpt-*.pt'), *run.glob('ckpt.pt')])
        if ITERATIONS in scores:
            rows |= {(labels['setting'], int(labels['seed']), at): round(value, 5) for at, value in scores.items()}
    if not rows:
        sys.exit('error: out-sweep/onset has no run that has ended: first run  python -m lab.sweep config/sweep/onset.py')
    table = pd.DataFrame([(*key, rows[key]) for key in sorted(rows)], columns=('setting', 'seed', 'iteration', 'score'))
    write_whole(str(path), lambda f: f.write(table.to_csv(index=False, lineterminator='\n').encode()))


if __name__ == '__main__':
    main()
