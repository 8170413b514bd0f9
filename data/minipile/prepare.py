"""
MiniPile (Kaddour 2023) in GPT-2's BPE, with its own split: a million documents of the Pile for training, 500 for validation.

    python data/minipile/prepare.py                     # needs the network
    python data/minipile/prepare.py --limit=10000       # a trial
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from configurator import at_least, configure  # noqa: E402

from data.text import from_hub, load_tokenizer, write_text  # noqa: E402

tokenizer = 'gpt2'                  # bytes | char | a tiktoken name | a Hugging Face name or folder
limit = 0                           # only this many documents of each split, for a trial; 0: all
processes = 0                       # processes that tokenize; 0: one per core

if __name__ == '__main__':
    at_least(configure(globals()), limit=0, processes=0)
    load_tokenizer(tokenizer)           # raises for a wrong tokenizer before the documents are fetched
    theirs = {'train': 'train', 'val': 'validation'}
    splits = {name: from_hub('JeanKaddour/minipile', theirs[name], limit, processes) for name in theirs}
    write_text(Path(__file__).parent, splits, tokenizer, processes)
