"""The largest logits and the entropy of attention, of each head."""
import math

import torch

from lab.measure.tools import attention_inputs, attention_logits, table
from lab.plot.measured import along_depth
from model import at_least_fp32


@torch.no_grad()
def attention(model, batches, rng):
    """For each head of each layer, the largest logit, and the mean entropy of its rows in nats (at most the log of the row's
    length). L2 attention's logits are without −‖q‖², which cancels in the softmax. Empty if a layer's queries are not known."""
    largest, entropy = None, None
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
        tops, entropies = torch.stack(tops), torch.stack(entropies)             # (layers, H)
        largest = tops if largest is None else torch.maximum(largest, tops)
        entropy = entropies if entropy is None else entropy + entropies
    return dict(max_logit=largest.tolist(), entropy=(entropy / len(batches)).tolist())


def show_attention(result):
    for key, title in (('max_logit', 'largest attention logit'), ('entropy', 'mean entropy of attention, nats')):
        heads = result[key]
        table(title, ['layer', *(f'head {h}' for h in range(len(heads[0])))],
              [[str(i), *layer] for i, layer in enumerate(heads, 1)])


def plot_attention(folders):
    """The largest attention logit and the mean entropy of the attention weights, in each block.

    A point is the mean over the heads of a block. Its bar reaches from the lowest head to the highest."""
    panels = {'largest attention logit': 'max_logit', 'entropy of attention (nats)': 'entropy'}
    picture = along_depth(folders, 'attention', panels, log='')
    picture.legend = 'run; a bar reaches from the lowest head to the highest'
    return picture
