"""
The English part of C4 (Raffel et al. 2020), in T5's vocabulary of 32100 tokens, with C4's own validation split.

    python data/c4/prepare.py                           # needs the network; the first 160 of its 1024 files
    python data/c4/prepare.py --limit=10000             # a trial
    python data/c4/prepare.py --tokenizer=gpt2          # in GPT-2's BPE instead
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from configurator import at_least, configure  # noqa: E402

from data.prepare import prepare_hub  # noqa: E402

tokenizer = 'google-t5/t5-base'     # bytes | char | a tiktoken name | a Hugging Face name or folder
files = 160                         # training files, of some 150 million tokens each: enough for the largest config
limit = 0                           # only this many documents of each split, for a trial; 0: all

if __name__ == '__main__':
    at_least(configure(globals()), limit=0)
    if not 1 <= files <= 1024:
        raise ValueError(f'files={files}: C4 has 1024 files, choose from 1 to 1024')
    theirs = {'train': [f'en/c4-train.{i:05}-of-01024.json.gz' for i in range(files)],
              'val': ['en/c4-validation.00000-of-00008.json.gz']}
    prepare_hub(Path(__file__).parent, 'allenai/c4', tokenizer, limit, ['train', 'val'], data_files=theirs)
