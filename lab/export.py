"""
Write a run's model, with its tokenizer, as a folder that transformers loads:

    python -m lab.export --out_dir=out-quick --to=out-hf-quick
    python -m lab.export --out_dir=out-llama --to=out-hf-llama --format=llama       # an error if it is no LLaMA

--init_from of train.py and sample.py, and --out_dir of lab.evaluate, take such folders, and those of Hugging Face's models.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.export')

from configurator import configure

import os
import shutil
from contextlib import contextmanager

from data.text import load_tokenizer
from data.tokens import is_prepared
from engine.checkpoint import load_run, meta_of
from lab.convert.hub import obstacles, write_model, write_own, write_tokenizer
from lab.convert.nanogpt import load_nanogpt
from lab.convert.pretrained import FAMILIES, load_gpt, tokenizer_of

# ----------------------------------------------------------------------------- keys
out_dir = 'out'                     # the run's folder, or nanoGPT's with --checkpoint=ckpt.pt
checkpoint = 'best.pt'              # best.pt: the lowest validation loss | ckpt.pt: the latest | ckpt-000500.pt: a kept one
to = ''                             # the folder to write
format = 'auto'                     # gpt2 | llama | qwen3 | olmo2 | nanonorm, with its code | auto: the first that is equal
# -----------------------------------------------------------------------------


@contextmanager
def new_folder(path):
    """Within this context, write into a temporary folder, which becomes `path` at the end. An error leaves no folder."""
    if os.path.lexists(path):
        raise ValueError(f'{path} exists: choose another name, or remove it')
    part = path.rstrip('/') + '.tmp'
    shutil.rmtree(part, ignore_errors=True)
    os.makedirs(part)
    try:
        yield part
        os.replace(part, path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def main():
    configure(globals())
    choices = ('auto', *FAMILIES, 'nanonorm')
    if format not in choices:
        raise ValueError(f'format={format!r}: choose one of {", ".join(choices)}')
    if not to:
        raise ValueError('to is empty: name the folder to write, as in --to=out-hf')
    path = os.path.join(out_dir, checkpoint)
    model, state = (load_gpt(path), None) if load_nanogpt(path) else load_run(path)
    in_the_way = {family: obstacles(model.config, family) for family in FAMILIES}
    equal = [family for family in FAMILIES if not in_the_way[family]]
    family = format if format != 'auto' else equal[0] if equal else 'nanonorm'
    if in_the_way.get(family):
        raise ValueError(f"{out_dir} is not a {FAMILIES[family].label} in Hugging Face's sense, which has "
                         f"{', '.join(in_the_way[family])}: --format=nanonorm takes any model")
    note, end = '', None
    with new_folder(to) as folder:
        if state and is_prepared(state['config']['dataset']):
            meta_of(state)                              # raises if the data have been prepared anew
        try:
            tokenizer = tokenizer_of(path)
            write_tokenizer(folder, *tokenizer)
            end = load_tokenizer(*tokenizer).end
        except (ValueError, OSError) as error:
            note = f' It has no tokenizer: {error}'
        if family == 'nanonorm':
            write_own(model, folder, end)
        else:
            write_model(model, folder, family, end)
    print(f'wrote {to}, {model.num_params():,} parameters as {family}.{note}')


if __name__ == '__main__':
    main()
