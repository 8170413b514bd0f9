"""
Your own text. Each .txt file is a document, and so is each row of a .jsonl or .parquet file, or of the .arrow files that
save_to_disk of `datasets` writes. They are split as in nanoGPT, or by --val_fraction.

    python data/textfiles/prepare.py --files='books/*.txt,more/**/*.jsonl' --tokenizer=gpt2
    python data/textfiles/prepare.py --files=books --tokenizer=gpt2             # all such files in a folder and its subfolders
    python data/textfiles/prepare.py --files=news.parquet --column=body --tokenizer=char --folder=data/news
    python train.py config/train_quick.py --dataset=news --vocab_size=0         # 0: the vocabulary of the data
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from configurator import at_least, configure  # noqa: E402

from data.prepare import from_files, split, write_text  # noqa: E402

files = ''                          # paths, patterns or folders, separated by commas
tokenizer = 'gpt2'                  # bytes | char | a tiktoken name | a Hugging Face name or folder
column = 'text'                     # the field or column of a row that holds its text
folder = ''                         # where the tokens go; empty: data/textfiles
limit = 0                           # only this many documents, for a trial; 0: all
val_fraction = 0.0                  # share of the documents (or of the only one) for validation; 0: nanoGPT's, 0.0005 (or 0.1)

if __name__ == '__main__':
    at_least(configure(globals()), limit=0)
    if not files:
        raise ValueError("files is empty: name some, as in --files='books/*.txt,more.jsonl'")
    documents = from_files([name for name in files.split(',') if name], column, limit)
    write_text(folder or Path(__file__).parent, split(documents, val_fraction), tokenizer)
