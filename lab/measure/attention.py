"""The largest logits and the entropy of attention, of each head; and copying by induction heads (Olsson et al. 2022)."""
import torch
from torch.nn import functional as F

from engine.stats import capture_attention_inputs, logits_and_entropies
from lab.measure.tools import measurement, table
from lab.plot import along_depth
from model import at_least_fp32

LARGEST, ENTROPY, SCORE = 'largest attention logit', 'entropy of attention', 'induction score'


def attention_logits(q, k, scale):
    """Return the attention logits, (B, H, T, T)."""
    return scale * q @ k.repeat_interleave(q.size(1) // k.size(1), dim=1).mT


def table_of_heads(title, layers):
    table(title, [{f'head {h}': value for h, value in enumerate(heads)} for heads in layers], 'layer')


def show_attention(result):
    table_of_heads(LARGEST, result['max_logit'])
    table_of_heads(f'mean {ENTROPY}, over that of equal weights', result['entropy'])


@measurement(show_attention, along_depth, linear=2,
             shown={LARGEST: 'max_logit', f'{ENTROPY},\nover that of equal weights': 'entropy'})
@torch.no_grad()
def attention(model, batches, rng):
    """The largest logit of each head, and the mean entropy of its attention weights, over that of equal weights, in each block.

    An entropy of 1 attends to all tokens alike, 0 to one. The logits of L2 attention are without −‖q‖², which cancels in the
    softmax."""
    largest, entropy = [], []
    for x, _ in batches:
        seen = []
        with capture_attention_inputs(model.h, lambda *inputs: seen.append(inputs)):
            model.hidden(x)
        if len(seen) < len(model.h):                    # an edited attention
            return {}
        logits, entropies = zip(*(logits_and_entropies(*inputs) for inputs in seen))
        q, _, _, causal = seen[0]
        lengths = torch.arange(1, q.size(2) + 1) if causal else torch.tensor([q.size(2)])
        largest.append(torch.stack(logits).amax(1))     # (layers, H)
        entropy.append(torch.stack(entropies).mean(1) / lengths.log().mean())
    return dict(max_logit=torch.stack(largest).amax(0).tolist(), entropy=torch.stack(entropy).mean(0).tolist())


def show_copying(result):
    table('loss of random tokens, nats', {'the first time': dict(loss=result['first']), 'again': dict(loss=result['again'])})
    table_of_heads(f'{SCORE} of each head', result['induction'])


@measurement(show_copying, along_depth, linear=1, shown={SCORE: 'induction'})
@torch.no_grad()
def copying(model, batches, rng):
    """The loss of random tokens and of their repetition, and the induction score of each head (Olsson et al. 2022).

    A sequence is n random tokens of the batches, twice. `first` and `again` are mean losses in nats, each time without the first
    token. `again` is lower if the model copies, and a little lower if it only learns which tokens occur. A head's score is its
    mean attention weight from a token of the second time to the one that followed it in the first; that of equal weights is about
    0.7/n."""
    n = batches[0][0].size(1) // 2
    if batches[0][0].is_floating_point() or n < 2:
        return {}
    first, again, scores, kinds = [], [], [], torch.cat([x.flatten() for x, _ in batches]).unique()
    for x, _ in batches:
        once = kinds[torch.randint(len(kinds), (len(x), n), generator=rng, device=x.device)]
        twice, seen = torch.cat((once, once), dim=1), []
        with capture_attention_inputs(model.h, lambda *inputs: seen.append(inputs)):
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
