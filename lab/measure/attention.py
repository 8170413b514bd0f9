"""The largest logits and the entropy of attention, of each head."""
import math
from functools import partial

import torch

from lab.measure.tools import attention_inputs, attention_logits, measurement, table
from lab.plot.measured import along_depth
from model import at_least_fp32

LARGEST, ENTROPY = 'largest attention logit', 'entropy of attention'


def show_attention(result):
    for key, title in (('max_logit', LARGEST), ('entropy', f'mean {ENTROPY}, nats')):
        table(title, [{f'head {h}': value for h, value in enumerate(heads)} for heads in result[key]], 'layer')


@measurement(show_attention, partial(along_depth, what='attention', linear=2,
                                     panels={LARGEST: 'max_logit', f'{ENTROPY} (nats)': 'entropy'}))
@torch.no_grad()
def attention(model, batches, rng):
    """The largest logit of each head, and the mean entropy of the rows of its attention weights, in each block.

    The entropy is in nats, at most the log of the row's length. L2 attention's logits are without −‖q‖², which cancels in the
    softmax. Empty if a layer's queries are not known."""
    largest, entropy = [], []
    for x, _ in batches:
        with attention_inputs(*model.h) as seen:
            model.hidden(x)
        if len(seen) < len(model.h):
            return {}
        tops, entropies = [], []
        for q, k, scale, causal in seen:
            future = torch.full((q.size(2), k.size(2)), causal, device=q.device).triu(1)
            logits = attention_logits(at_least_fp32(q), at_least_fp32(k), scale).masked_fill(future, -math.inf)
            tops.append(logits.amax((0, 2, 3)))
            entropies.append(torch.special.entr(logits.softmax(-1)).sum(-1).mean((0, 2)))
        largest.append(torch.stack(tops))               # (layers, H)
        entropy.append(torch.stack(entropies))
    return dict(max_logit=torch.stack(largest).amax(0).tolist(), entropy=torch.stack(entropy).mean(0).tolist())
