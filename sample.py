"""
Continues a text with a trained model, as it is drawn:

    python sample.py --out_dir=out-quick --start='def main(' --num_samples=3
"""
import os

import torch

from configurator import at_least, configure
from dataset import read_meta
from device import autocast, pick_device, pick_dtype
from model import GPT, OPENAI_MODELS, GPTConfig, config_of, load_checkpoint, load_weights
from text import load_tokenizer

# ----------------------------------------------------------------------------- keys
init_from = 'resume'                # resume: a run | Hugging Face's GPT-2: gpt2, gpt2-medium, gpt2-large, gpt2-xl, a folder
out_dir = 'out'                     # the run's folder
checkpoint = 'best.pt'              # best.pt | ckpt.pt: of the lowest validation loss, or the latest
start = '\n'                        # the text to continue, or FILE:path
num_samples = 3                     # drawn together; the first is shown as it grows
max_new_tokens = 500                # of each sample
temperature = 0.8                   # 0: always the likeliest token
top_k = 200                         # draw from the k likeliest tokens; 0: from all
top_p = 1.0                         # draw from the likeliest tokens that together reach this probability
seed = 1337                         # the same seed draws the same text
device = 'auto'                     # auto | cpu | cuda | cuda:1 | mps …
dtype = 'auto'                      # auto | float32 | bfloat16 | float16
# -----------------------------------------------------------------------------
config = configure(globals())

at_least(config, num_samples=1, max_new_tokens=1, top_k=0, seed=0)
if 0 < temperature < 1e-6:
    raise ValueError(f'temperature={temperature}: wants at least 1e-6, or 0 for the likeliest token')
device = pick_device(device)
dtype = pick_dtype(dtype, device)

if init_from == 'resume':
    path = os.path.join(out_dir, checkpoint)
    if not os.path.exists(path):
        raise ValueError(f'there is no {path} to sample from: train first, or check out_dir and checkpoint')
    state = load_checkpoint(path, device)
    model_config = config_of(state['config'])
    if not isinstance(model_config, GPTConfig):
        raise ValueError(f'{path} is of a model of images, which draws no text')
    model = GPT(model_config)
    load_weights(model, state, path)
    meta = read_meta(state['config']['dataset'])
    tokenizer = load_tokenizer(meta['tokenizer'], meta['chars'])
else:
    model = GPT.from_pretrained(init_from)
    tokenizer = load_tokenizer('gpt2' if init_from in OPENAI_MODELS else init_from)
model.to(device).eval()
torch.manual_seed(seed)                                 # here, so that the draws do not depend on how a model is made

if start.startswith('FILE:'):
    try:
        with open(start[5:], encoding='utf-8') as f:
            start = f.read()
    except UnicodeDecodeError as error:
        raise ValueError(f'{start[5:]} is not UTF-8: {error}') from error
prompt = tokenizer.encode(start)
if not prompt:
    raise ValueError('start is empty: give at least one character to continue')
if max(prompt) >= model.config.vocab_size:
    raise ValueError(f'start holds token {max(prompt)}, but vocab_size={model.config.vocab_size}: was the data prepared again?')
ids = torch.tensor(prompt, device=device).repeat(num_samples, 1)
given = len(tokenizer.decode(prompt))                   # which need not be `start`, to the letter


def text_of(ids):
    return start + tokenizer.decode(ids.tolist())[given:]


shown = 0
with autocast(device, dtype):
    for new in model.stream(ids, max_new_tokens, temperature, top_k or None, top_p):
        ids = torch.cat((ids, new), dim=1)
        text = text_of(ids[0])
        if not text.endswith('\N{REPLACEMENT CHARACTER}'):      # half of a character, whose other tokens are to come
            print(text[shown:], end='', flush=True)
            shown = len(text)
print(text[shown:])
for others in ids[1:]:
    print('---------------')
    print(text_of(others))
