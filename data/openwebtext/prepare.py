"""
OpenWebText in GPT-2's BPE, with nanoGPT's split: about 9 billion training and 4.4 million validation tokens.

    python data/openwebtext/prepare.py                  # needs the network, and tens of GB of disk; the tokens alone take 18 GB
    python data/openwebtext/prepare.py --limit=10000    # a trial
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from configurator import at_least, configure  # noqa: E402

from data.prepare import prepare_hub  # noqa: E402

tokenizer = 'gpt2'                  # bytes | char | a tiktoken name | a Hugging Face name or folder
limit = 0                           # only this many documents, for a trial; 0: all

if __name__ == '__main__':
    at_least(configure(globals()), limit=0)
    prepare_hub(Path(__file__).parent, 'Skylion007/openwebtext', tokenizer, limit, count=8_013_769)
