"""The largest logits and the entropy of attention, of each head."""
from functools import partial

import torch

from engine.stats import logits_and_entropies
from lab.measure.tools import attention_inputs, measurement, table
from lab.plot import along_depth

LARGEST, ENTROPY = 'largest attention logit', 'entropy of attention'


def show_attention(result):
    for key, title in (('max_logit', LARGEST), ('entropy', f'mean {ENTROPY}, over that of equal weights')):
        table(title, [{f'head {h}': value for h, value in enumerate(heads)} for heads in result[key]], 'layer')


@measurement(show_attention, partial(along_depth, what='attention', linear=2,
                                     shown={LARGEST: 'max_logit', f'{ENTROPY},\nover that of equal weights': 'entropy'}))
@torch.no_grad()
def attention(model, batches, rng):
    """The largest logit of each head, and the mean entropy of its attention weights, over that of equal weights, in each block.

    The entropy is that of the training log: 1 attends to all tokens alike, 0 to one. The logits of L2 attention are without
    −‖q‖², which cancels in the softmax. Empty if a layer's queries are not known."""
    largest, entropy = [], []
    for x, _ in batches:
        with attention_inputs(*model.h) as seen:
            model.hidden(x)
        if len(seen) < len(model.h):
            return {}
        logits, entropies = zip(*(logits_and_entropies(*inputs) for inputs in seen))
        q, _, _, causal = seen[0]
        lengths = torch.arange(1, q.size(2) + 1) if causal else torch.tensor([q.size(2)])
        largest.append(torch.stack(logits).amax(1))     # (layers, H)
        entropy.append(torch.stack(entropies).mean(1) / lengths.log().mean())
    return dict(max_logit=torch.stack(largest).amax(0).tolist(), entropy=torch.stack(entropy).mean(0).tolist())
