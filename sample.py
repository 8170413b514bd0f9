"""
Continues a text with a trained model, as it is drawn:

    python sample.py --out_dir=out-quick --start='def main(' --num_samples=3
"""
import codecs
import os
import sys

import torch

from configurator import configure
from dataset import read_meta, tokenizer
from device import autocast, pick_device, pick_dtype
from model import GPT, GPTConfig, load_checkpoint

# ----------------------------------------------------------------------------- keys
out_dir = 'out'                     # a run's folder
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

for key, low in dict(num_samples=1, max_new_tokens=1, top_k=0, seed=0).items():
    if config[key] < low:
        raise ValueError(f'{key}={config[key]}: wants at least {low}')
path = os.path.join(out_dir, checkpoint)
if not os.path.exists(path):
    raise ValueError(f'there is no {path} to sample from: train first, or check out_dir and checkpoint')
device = pick_device(device)
dtype = pick_dtype(dtype, device)
torch.manual_seed(seed)

state = load_checkpoint(path, device)
model = GPT(GPTConfig(**{key: value for key, value in state['config'].items() if key in GPTConfig.__dataclass_fields__}))
model.load_state_dict(state['model'])
model.to(device).eval()

encode, decode = tokenizer(read_meta(state['config']['dataset']))
if start.startswith('FILE:'):
    with open(start[5:], encoding='utf-8') as f:
        start = f.read()
prompt = encode(start)
if not prompt:
    raise ValueError('start is empty: give at least one character to continue')
prompt = torch.tensor(prompt, device=device).repeat(num_samples, 1)

samples = []                                            # (num_samples, 1) tokens, one step after another
utf8 = codecs.getincrementaldecoder('utf-8')('replace')     # a character may span tokens
with autocast(device, dtype):
    for new in model.stream(prompt, max_new_tokens, temperature, top_k or None, top_p):
        sys.stdout.write('' if samples else start)
        samples.append(new)
        sys.stdout.write(utf8.decode(decode(new[0].tolist())))
        sys.stdout.flush()
    print(utf8.decode(b'', final=True))
for ids in torch.cat(samples, dim=1)[1:].tolist():
    print('---------------')
    print(start + decode(ids).decode('utf-8', 'replace'))
