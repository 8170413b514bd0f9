"""Copying from the context: the loss of a repetition, and induction heads (Olsson et al. 2022)."""
from functools import partial

import torch
from torch.nn import functional as F

from lab.measure.tools import attention_inputs, attention_logits, measurement, table
from lab.plot import along_depth
from model import at_least_fp32

SCORE = 'induction score'


def show_copying(result):
    table('loss of random tokens, nats', {'the first time': dict(loss=result['first']), 'again': dict(loss=result['again'])})
    heads = [{f'head {h}': score for h, score in enumerate(scores)} for scores in result['induction']]
    table(f'{SCORE} of each head', heads, 'layer')


@measurement(show_copying, partial(along_depth, what='copying', shown={SCORE: 'induction'}, linear=1))
@torch.no_grad()
def copying(model, batches, rng):
    """The loss of random tokens and of their repetition, and the induction score of each head (Olsson et al. 2022).

    A sequence is n random tokens, twice. `first` and `again` are mean losses in nats of the first and of the second time, each
    without its first token. `again` is lower if the model copies from the first time, and a little lower if it only learns which
    tokens occur. A head's score is its mean attention weight from a token of the second time to the one that followed it in the
    first; that of equal weights is about 0.7/n. Tokens are drawn from those of the batches, and n is half of their length. The
    result is empty for images and for sequences below four tokens, and the scores are empty if a layer's queries are not known.
    """
    n = batches[0][0].size(1) // 2
    if batches[0][0].is_floating_point() or n < 2:
        return {}
    first, again, scores, kinds = [], [], [], torch.cat([x.flatten() for x, _ in batches]).unique()
    for x, _ in batches:
        once = kinds[torch.randint(len(kinds), (len(x), n), generator=rng, device=x.device)]
        twice = torch.cat((once, once), dim=1)
        with attention_inputs(*model.h) as seen:
            logits = model(twice)[0]
        losses = F.cross_entropy(at_least_fp32(logits[:, :-1]).mT, twice[:, 1:], reduction='none')      # (B, 2n − 1)
        first.append(losses[:, :n - 1].mean())
        again.append(losses[:, n:].mean())
        if len(seen) == len(model.h):
            future = torch.ones(2 * n, 2 * n, dtype=torch.bool, device=x.device).triu(1)
            logits = (attention_logits(at_least_fp32(q), at_least_fp32(k), scale) for q, k, scale, _ in seen)
            weights = (layer.masked_fill(future, -torch.inf).softmax(-1) for layer in logits)           # (B, H, 2n, 2n)
            scores.append(torch.stack([w.diagonal(1 - n, -2, -1)[..., 1:-1].mean((0, -1)) for w in weights]))
    return dict(first=torch.stack(first).mean().item(), again=torch.stack(again).mean().item(),
                induction=torch.stack(scores).mean(0).tolist() if scores else [])
