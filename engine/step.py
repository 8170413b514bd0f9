"""One training step, shared by benchmarks and measurements. train.py shows its own; a test compares them."""
import torch

from engine.device import autocast
from engine.stats import block_norms, params_of


def training_step(model, raw_model, optimizer, batches, grad_clip=0.0, dtype=torch.float32):
    """Run forward and backward passes on micro-batches [(inputs, targets), …], clip, and step with the groups' current learning
    rates. Return the mean loss, a scalar. `model` is raw_model, possibly compiled."""
    loss_sum = 0.0
    for x, y in batches:
        raw_model.aux.clear()
        raw_model.logged.clear()
        with autocast(x.device, dtype, cache=not raw_model.recompute):
            loss = model(x, y)[1]
        aux = dict(raw_model.aux)
        (sum(aux.values(), loss) / len(batches)).backward()
        loss_sum += loss.detach() / len(batches)
    grad_norm = torch.linalg.vector_norm(block_norms(params_of(optimizer), lambda p: p.grad))
    torch.nn.utils.clip_grads_with_norm_(raw_model.parameters(), grad_clip or float('inf'), grad_norm)
    optimizer.step()
    raw_model.after_step()
    optimizer.zero_grad(set_to_none=True)
    return loss_sum
