"""
FineWeb's sample of 10 billion tokens (Penedo et al. 2024) in GPT-2's BPE: English web pages. FineWeb has no splits: 0.05% of
the documents are drawn for validation as for OpenWebText, and as many for test, about 5 million tokens each.

    python data/fineweb/prepare.py                  # needs the network, and some 100 GB of disk; the tokens alone take 21 GB
    python data/fineweb/prepare.py --limit=10000    # a trial
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
    prepare_hub(Path(__file__).parent, 'HuggingFaceFW/fineweb', tokenizer, limit, test=True, count=14_868_862, name='sample-10BT')
