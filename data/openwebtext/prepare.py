"""
OpenWebText in GPT-2's BPE, with nanoGPT's split: about 9 billion training and 4.4 million validation tokens.

    python data/openwebtext/prepare.py          # needs the network, and tens of GB of disk; the tokens alone take 18 GB
"""
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from dataset import write_tokens  # noqa: E402


def prepare(documents, encoding, folder, processes=1):
    """documents: a datasets.Dataset with a column 'text'; encoding: a tiktoken.Encoding."""
    from tqdm import tqdm

    def tokenize(document):
        return {'ids': encoding.encode_ordinary(document['text']) + [encoding.eot_token]}

    def chunks(split, count=1024):
        count = min(count, len(split))
        for i in tqdm(range(count), desc='writing'):
            yield from split.shard(count, i, contiguous=True).with_format('numpy')['ids']

    splits = documents.train_test_split(test_size=0.0005, seed=2357, shuffle=True)
    splits = splits.map(tokenize, remove_columns=documents.column_names, desc='tokenizing', num_proc=processes)
    write_tokens(folder, {'train': chunks(splits['train']), 'val': chunks(splits['test'])}, encoding.n_vocab, encoding.name)


if __name__ == '__main__':
    import tiktoken
    from datasets import load_dataset
    processes = max(1, (os.cpu_count() or 1) // 2)
    try:
        encoding = tiktoken.get_encoding('gpt2')
        # the converted branch: the main one holds a loading script, which `datasets` no longer runs
        documents = load_dataset('Skylion007/openwebtext', revision='refs/convert/parquet', split='train', num_proc=processes)
    except OSError as error:
        sys.exit(f'error: could not reach the source of GPT-2\'s vocabulary or of OpenWebText '
                 f'({type(error).__name__}): this needs the network')
    if len(documents) < 8_000_000:
        sys.exit(f'error: the source holds {len(documents):,} documents, OpenWebText has 8,013,769: the copy is not whole')
    prepare(documents, encoding, Path(__file__).parent, processes)
