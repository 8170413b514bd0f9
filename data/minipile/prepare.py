"""
MiniPile (Kaddour 2023) in GPT-2's BPE, with its own split: a million documents of the Pile for training, 500 for validation.

    python data/minipile/prepare.py                     # needs the network
    python data/minipile/prepare.py --limit=10000       # a trial
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from configurator import at_least, configure  # noqa: E402

from data.prepare import prepare_hub  # noqa: E402

tokenizer = 'gpt2'                  # bytes | char | a tiktoken name | a Hugging Face name or folder
limit = 0                           # only this many documents of each split, for a trial; 0: all

if __name__ == '__main__':
    at_least(configure(globals()), limit=0)
    prepare_hub(Path(__file__).parent, 'JeanKaddour/minipile', tokenizer, limit, ['train', 'validation'])
