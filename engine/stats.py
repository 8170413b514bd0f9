"""
Numbers that the log has beside the loss: the norms of gradient, weights and update, and each block's residual stream, branches,
attention and FFN. They draw no random numbers and change no loss. lab/measure/ uses the hooks.
"""
import functools
import math
import re
from contextlib import ExitStack, contextmanager

import torch
import torch.distributed as dist

from model import at_least_fp32

MAX, SUM = dist.ReduceOp.MAX, dist.ReduceOp.SUM
NEVER = 2 ** 62
DEAD = 0.01         # a unit of the FFN is dead if it never reaches this share of the RMS of all units


# ----------------------------------------------------------------------------- weights, gradients, updates

def params_of(optimizer, by_layer=False):
    """Return {block type: its parameters} of an optimizer of param_groups; with by_layer {(block type, layer from 0): those in a
    block}."""
    params = {}
    for group in optimizer.param_groups:
        for name, p in zip(group['param_names'], group['params']):
            layer = re.match(r'h\.(\d+)\.', name)
            if layer or not by_layer:
                params.setdefault((group['block_type'], int(layer[1])) if by_layer else group['block_type'], []).append(p)
    return params


def block_norms(params, tensor_of):
    """Return the norm of tensor_of(p) over the parameters of each entry of params_of, (entries,), on the device."""
    # without frozen parameters, which have no gradient
    tensors_of = [[t for t in map(tensor_of, of_type) if t is not None] for of_type in params.values()]
    norms = [torch.nn.utils.get_total_norm(tensors) for tensors in tensors_of]
    device = next(iter(params.values()))[0].device
    return torch.stack([(norm.full_tensor() if hasattr(norm, 'full_tensor') else norm).to(device) for norm in norms])


class StepStats:
    """What the log says of a step: the mean loss, `aux` and `logged` over micro-batches and ranks; the norms of gradient, weights
    and update by block type, and with by_layer of each layer too; and which step was the first with a loss or a gradient that is
    not finite. Every rank must call the same methods. `micro_batches`: their number in an iteration, over all ranks."""

    def __init__(self, model, optimizer, machine, micro_batches, by_layer=False):
        self.model, self.machine, self.micro_batches, self.sums, self.names = model, machine, micro_batches, {}, []
        self.types, self.layers = params_of(optimizer), params_of(optimizer, by_layer=True) if by_layer else {}
        self.first_bad = {name: torch.full((), NEVER, device=machine.device) for name in ('loss', 'gradient')}

    def begin(self):
        """Begin an iteration."""
        self.sums = {}

    def add(self, loss):
        """Add a micro-batch's loss and the scalar tensors of the model's dicts aux and logged to the means; of `logged`, keep the
        largest too. Raise ValueError for other values, or other names than in the micro-batch before."""
        terms = {'loss': loss} | {f'{kind}.{name}': term for kind in ('aux', 'logged')
                                  for name, term in getattr(self.model, kind).items()}
        if self.sums and (other := {name for name in self.sums if not name.startswith('logged_max.')} ^ terms.keys()):
            raise ValueError(f'{min(other)}: set it in every micro-batch, or the log would have no mean of it')
        for name, term in terms.items():
            if not torch.is_tensor(term) or term.numel() != 1:
                shape = tuple(term.shape) if torch.is_tensor(term) else type(term).__name__
                raise ValueError(f'{name} is {shape}: must be a tensor of one number')
            term = at_least_fp32(term.detach())
            self.sums[name] = self.sums.get(name, 0.0) + term / self.micro_batches
            if name.startswith('logged.'):
                largest = name.replace('logged.', 'logged_max.', 1)
                self.sums[largest] = torch.maximum(self.sums.get(largest, term), term)

    @torch.no_grad()
    def gradient_norm(self, it, logs, copies):
        """Return the norm of the gradient of iteration `it`, a tensor on the device, which nothing waits for. `logs`: whether
        row() follows the step; `copies`: whether it says how far the step moved the weights."""
        norms = block_norms(self.types, lambda p: p.grad)
        total = torch.linalg.vector_norm(norms)
        for name, value in dict(loss=self.sums['loss'], gradient=total).items():
            self.first_bad[name] = torch.where(torch.isfinite(value), self.first_bad[name], self.first_bad[name].clamp(max=it))
        if logs:
            self.norms, self.of_layers = dict(grad_norms=norms), dict(grad_norms=self.by_layer(lambda p: p.grad))
            self.copies = {p: p.detach().clone() for params in self.types.values() for p in params} if copies else {}
        return total

    def by_layer(self, tensor_of):
        """Return {block type: [the norm of tensor_of(p) in each layer]}, None in a layer without parameters of this type."""
        depth, norms = 1 + max((layer for _, layer in self.layers), default=0), {}
        for (kind, layer), norm in zip(self.layers, block_norms(self.layers, tensor_of).tolist() if self.layers else ()):
            norms.setdefault(kind, [None] * depth)[layer] = norm
        return norms

    @torch.no_grad()
    def row(self):
        """Return what to log after the step: the means, grad_norm, grad_norms, weight_norms, and with copies update_norms."""
        if self.machine.largest(int(sorted(self.sums) != self.names)):  # new names on some rank
            self.names = sorted(self.sums)
            first, *others = self.machine.gather(self.names)
            if other := [names for names in others if names != first]:  # sums would mix them, or wait forever
                raise ValueError(f'the ranks have put other names into aux or logged: {first} on rank 0, {other[0]} on another')
        means = {name: self.machine.sum(self.sums[name].to(self.machine.device), MAX if name.startswith('logged_max.') else SUM)
                 for name in self.names}
        tensors_of = dict(weight_norms=lambda p: p.detach())
        if self.copies:
            tensors_of['update_norms'] = lambda p: p.detach() - self.copies[p]
        for name, tensor_of in tensors_of.items():
            self.norms[name], self.of_layers[name] = block_norms(self.types, tensor_of), self.by_layer(tensor_of)
        self.copies = {}
        return {**{name: mean.item() for name, mean in means.items()},
                'grad_norm': torch.linalg.vector_norm(self.norms['grad_norms']).item(),
                **{name: dict(zip(self.types, values.tolist())) for name, values in self.norms.items()},
                **(dict(layers=self.of_layers) if self.layers else {})}


@torch.no_grad()
def tell_unused(model, ddp, say):
    """Name the parameters that got no gradient in the first step: nothing trains them. Raise ValueError with DDP, which would
    not reduce the other gradients in their buckets."""
    unused = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    if not unused:
        return
    more = f' and {len(unused) - 3} more' if len(unused) > 3 else ''
    line = (f'no gradient reaches {", ".join(unused[:3])}{more}, and nothing trains them: leave such parameters out, set their '
            f'requires_grad to False, or refuse these keys together in check_config')
    if ddp:
        raise ValueError(line)
    say(line)


# ----------------------------------------------------------------------------- each block

@contextmanager
def collected(modules, pick):
    """Yield one list per module, to which each forward pass inside the context adds pick(arguments, output)."""
    seen = [[] for _ in modules]
    with ExitStack() as stack:
        for module, values in zip(modules, seen):
            hook = module.register_forward_hook(lambda _, args, out, values=values: values.append(pick(args, out).detach()))
            stack.callback(hook.remove)
        yield seen


@contextmanager
def capture_attention_inputs(blocks, see):
    """Within this context, each block's attention calls see(q, k, scale, causal) with its kernel's inputs, q (B, H, T, E) and
    k (B, K, T, E). An edited attention without a kernel, or with a mask of its own, does not call `see`."""
    blocks = [block for block in blocks if hasattr(getattr(block, 'attn', None), 'kernel')]
    kernels = [(block.attn.kernel, vars(block.attn).get('kernel')) for block in blocks]

    def seen(block, kernel, q, k, v, **more):
        if more.get('attn_mask') is None:
            first = int(getattr(block.attn, 'sink', None) is not None)          # a sink is the first key
            q_seen, k_seen = (x[:, :, first:].detach() for x in (q, k))
            see(q_seen, k_seen, more.get('scale') or q.size(-1) ** -0.5, more.get('is_causal', False))
        return kernel(q, k, v, **more)

    try:
        for block, (kernel, _) in zip(blocks, kernels):
            block.attn.kernel = functools.partial(seen, block, kernel)
        yield
    finally:
        for block, (_, own) in zip(blocks, kernels):
            del block.attn.kernel
            vars(block.attn).update({} if own is None else dict(kernel=own))


def logits_and_entropies(q, k, scale, causal):
    """Return the largest attention logit and the mean entropy of the rows of the attention weights, in nats, of each head: (B, H)
    each. Go through one head of one sequence at a time to save memory."""
    k = k.repeat_interleave(q.size(1) // k.size(1), dim=1)
    future = torch.full((q.size(2), k.size(2)), causal, device=q.device).triu(1)
    heads = []
    with torch.autocast(q.device.type, enabled=False):
        for queries, keys in zip(at_least_fp32(q).flatten(0, 1), at_least_fp32(k).flatten(0, 1)):
            logits = (scale * queries @ keys.mT).masked_fill(future, -math.inf)
            heads.append(torch.stack((logits.amax(), torch.special.entr(logits.softmax(-1)).sum(-1).mean())))
    return torch.stack(heads).unflatten(0, q.shape[:2]).unbind(-1)


def attention_health(q, k, scale, causal):
    """Return the largest logit, and the mean entropy over that of equal weights."""
    logits, entropies = logits_and_entropies(q, k, scale, causal)
    lengths = torch.arange(1, q.size(2) + 1) if causal else torch.tensor([k.size(2)])
    return logits.amax(), entropies.mean() / lengths.float().log().mean()


def rms(x):
    return x.float().square().mean().sqrt()


def dead_units(h):
    """Return the share of dead units in an FFN's activations h (B, T, d_ff)."""
    return (h.abs().flatten(0, -2).amax(0) <= DEAD * rms(h)).float().mean()


NUMBERS = {         # name → modules of the block ('': the block itself), of which the first that is there says the number
    'residual_rms': {'': lambda args, out: rms(out[0] if isinstance(out, tuple) else out)},
    'attn_rms': {'attn_residual': lambda args, out: rms(args[1]), 'attn_mid_norm': lambda args, out: rms(out)},
    'ffn_rms': {'ffn_residual': lambda args, out: rms(args[1]), 'ffn_mid_norm': lambda args, out: rms(out)},
    'dead_units': dict.fromkeys(('ffn.inner_norm', 'ffn.w2'), lambda args, out: dead_units(args[0])),
}
OF_ATTENTION = ('max_logits', 'attn_entropy')


@torch.no_grad()
def block_stats(model, x):
    """Return {name: [a number for each block]} for inputs x:

    residual_rms    the root mean square of the residual stream after the block, over channels and tokens
    attn_rms        that of attention's branch, before Δt
    ffn_rms         that of the FFN's branch
    dead_units      the share of dead units in the FFN
    max_logits      the largest attention logit; L2 attention's logits omit −‖q‖², which cancels in the softmax
    attn_entropy    the mean entropy of the attention weights, over that of equal weights

    None stands for a block without the number: its attention has no kernel, or it was edited not to call these modules. The model
    must not be compiled; its mode is restored."""
    blocks, training = [], model.training
    model.eval()
    try:
        with ExitStack() as stack:
            for block in model.h:
                modules, seen = dict(block.named_modules()), {}
                for name, picks in NUMBERS.items():
                    for path in [path for path in picks if path in modules][:1]:
                        seen[name], = stack.enter_context(collected([modules[path]], picks[path]))
                stack.enter_context(capture_attention_inputs([block], lambda *inputs, seen=seen: seen.update(
                    {name: [number] for name, number in zip(OF_ATTENTION, attention_health(*inputs))})))
                blocks.append(seen)
            model.hidden(x)
    finally:
        model.train(training)
    return {name: [seen[name][0].item() if seen.get(name) else None for seen in blocks] for name in (*NUMBERS, *OF_ATTENTION)
            if any(seen.get(name) for seen in blocks)}
