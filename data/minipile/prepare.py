"""
MiniPile (Kaddour 2023) in GPT-2's BPE, with its own validation split: a million documents of the Pile, and 500.

    python data/minipile/prepare.py                     # needs the network
    python data/minipile/prepare.py --limit=10000       # a trial
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from configurator import at_least, configure  # noqa: E402
from data.text import from_hub, load_tokenizer, write_text  # noqa: E402

tokenizer = 'gpt2'                  # bytes | char | a name of tiktoken's | a name or folder of Hugging Face's
limit = 0                           # so many documents of each split, for a trial; 0: all
processes = 0                       # that tokenize; 0: one a core

if __name__ == '__main__':
    at_least(configure(globals()), limit=0, processes=0)
    load_tokenizer(tokenizer)           # should it be at fault, then before the documents are fetched
    theirs = {'train': 'train', 'val': 'validation'}
    splits = {name: from_hub('JeanKaddour/minipile', theirs[name], limit, processes) for name in theirs}
    write_text(Path(__file__).parent, splits, tokenizer, processes)
