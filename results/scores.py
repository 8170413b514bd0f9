"""
Write csv/onset_scores.csv from the runs of config/sweep/onset.py: the score for copying of each kept checkpoint, of the head with
the highest one. `python -m lab.measure --what=copying` explains the score.

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
    rows = []
    for run in sorted(Path('out-sweep/onset').glob('setting=*')):
        labels = dict(label.split('=') for label in run.name.split(','))
        for path in sorted([*run.glob('ckpt-*.pt'), run / 'ckpt.pt']):
            iteration, value = score(str(path))
            rows.append((labels['setting'], labels['seed'], iteration, round(value, 5)))
    if not rows:
        sys.exit('error: out-sweep/onset has no checkpoint: first run  python -m lab.sweep config/sweep/onset.py')
    text = pd.DataFrame(sorted(rows), columns=('setting', 'seed', 'iteration', 'score')).to_csv(index=False, lineterminator='\n')
    write_whole(str(HERE / 'csv' / 'onset_scores.csv'), lambda f: f.write(text.encode()))


if __name__ == '__main__':
    main()
