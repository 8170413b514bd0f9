"""
Continue a text with a trained model, and print it as it is sampled:

    python sample.py --out_dir=out-quick --start='def main(' --num_samples=3
"""
from configurator import at_least, configure

import os
import sys
from contextlib import closing

import torch

from data.text import load_tokenizer
from engine.checkpoint import load_run, meta_of
from engine.device import Machine
from engine.run import progress

# ----------------------------------------------------------------------------- keys
init_from = 'resume'                # resume: the run in out_dir | gpt2, …, gpt2-xl | a run, a model, or nanoGPT's ckpt.pt
out_dir = 'out'                     # the run's folder
checkpoint = 'best.pt'              # best.pt: the lowest validation loss | ckpt.pt: the latest | ckpt-000500.pt: a kept one
start = '\n'                        # the text to continue, or FILE:path; '<|endoftext|>' starts a document, for GPT-2's tokens
num_samples = 3                     # number of samples, drawn together; the first is printed as it grows
max_new_tokens = 500                # tokens per sample
temperature = 0.8                   # 0: always the likeliest token
top_k = 200                         # draw from the k likeliest tokens; 0: from all
top_p = 1.0                         # draw from the likeliest tokens that together reach this probability
seed = 1337                         # the same seed gives the same text
device = 'auto'                     # auto | cpu | cuda | cuda:1 | mps …
dtype = 'auto'                      # auto | float32 | bfloat16 | float16
# -----------------------------------------------------------------------------
config = configure(globals())

at_least(config, num_samples=1, max_new_tokens=1, top_k=0, seed=0)
if temperature != 0 and temperature < 1e-6:
    raise ValueError(f'temperature={temperature}: must be at least 1e-6, or 0 for the likeliest token')
if not 0 < top_p <= 1:
    raise ValueError(f'top_p={top_p}: must be above 0 and at most 1')
machine = Machine(device, dtype)

path = os.path.join(out_dir if init_from == 'resume' else init_from, checkpoint)
if init_from == 'resume' or os.path.exists(path):
    model, state = load_run(path, machine.device)
    meta = meta_of(state)
    tokenizer = load_tokenizer(meta['tokenizer'], meta['chars'])
else:
    from lab.convert.pretrained import load_gpt, tokenizer_of
    model, tokenizer = load_gpt(init_from), load_tokenizer(*tokenizer_of(init_from))
model.to(machine.device).eval()
torch.manual_seed(seed)                                 # after building the model, which may draw too

if start.startswith('FILE:'):
    with open(start[5:], encoding='utf-8-sig') as f:
        start = f.read()
prompt = []
for i, part in enumerate(start.split(tokenizer.end_text) if tokenizer.end_text else [start]):
    prompt += [tokenizer.end] * (i > 0) + tokenizer.encode(part)        # such as '<|endoftext|>', where a document ends
if not prompt:
    raise ValueError('start is empty: give at least one character to continue')
if max(prompt) >= model.config.vocab_size:
    raise ValueError(f'start holds token {max(prompt)}, but vocab_size={model.config.vocab_size}: was the data prepared again?')
ids = torch.tensor(prompt, device=machine.device).repeat(num_samples, 1)
prompt_length = len(tokenizer.decode(prompt))           # decoding may not give `start` back exactly


def text_of(ids):
    return start + tokenizer.decode(ids.tolist())[prompt_length:]


shown = 0
with machine.autocast(), closing(model.sample(ids, max_new_tokens, temperature, top_k or None, top_p)) as drawn:
    for new in progress(drawn, 'tokens', max_new_tokens, shown=sys.stderr.isatty() and not sys.stdout.isatty()):
        ids = torch.cat((ids, new), dim=1)
        text = text_of(ids[0])
        if not text.endswith('\N{REPLACEMENT CHARACTER}'):      # wait for the rest of an incomplete character
            print(text[shown:], end='', flush=True)
            shown = len(text)
print(text[shown:])
for others in ids[1:]:
    print('---------------')
    print(text_of(others))
