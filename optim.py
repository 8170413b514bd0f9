"""Optimizers over groups by block type, and the schedules of their learning rates."""
import functools
import math
import re

import torch
import torch.distributed as dist
from torch.nn import functional as F

from model import check_rows, row_of

EPS = 1e-8                  # ε beside the root of Adam's second moments


def param_groups(model, weight_decay, ratios={}, decay_ratios={}, decay_norms=False, keys=None):
    """Return one group per (block type, decayed or not) of a model's parameters, for any torch optimizer.

    Matrices decay if their row in PARAMS says so. Vectors do not decay, except norm gains with decay_norms=True. `ratios` and
    `decay_ratios` map a block type to a factor on its learning rate (Blockwise LR, sharpness disparity) and on its weight decay.
    A group holds its `block_type`, its `lr_ratio`, an `lr_scale` on the whole schedule, whether it is for `muon`, and `params`,
    pairs (name, parameter), from which torch makes `param_names`. muP needs the `keys` of train.py; see split_by_mup.
    """
    groups, types = {}, [*dict.fromkeys(row.type for row in model.config.params.values())]
    for kind in (*ratios, *decay_ratios):
        if kind not in types:
            raise ValueError(f'ratios: {kind!r} is no block type: choose among {", ".join(types)}')
    check_rows(model, model.config.params)
    for name, p in model.named_parameters():
        row = row_of(name, model.config.params)
        kind, decayed = row.type, row.decays and p.dim() > 1 or decay_norms and row.type == 'norm'
        is_matrix = row.muon and name.endswith('.weight')
        group = groups.setdefault((kind, decayed, is_matrix), dict(
            params=[], block_type=kind, muon=is_matrix, lr_ratio=ratios.get(kind, 1.0), lr_scale=1.0,
            weight_decay=weight_decay * decay_ratios.get(kind, 1.0) if decayed else 0.0))
        group['params'].append((name, p))
    kinds, decayed_kinds = {key[0] for key in groups}, {key[0] for key in groups if key[1]}
    for kind, ratio in decay_ratios.items():
        if ratio != 1 and kind in kinds - decayed_kinds:
            raise ValueError(f'wd_{kind}={ratio}: the parameters of type {kind} do not decay, see PARAMS in model.py')
    uses_mup = model.config.mup_base_width or model.config.mup_base_depth
    return split_by_mup(groups.values(), model.config, keys) if uses_mup else list(groups.values())


# ----------------------------------------------------------------------------- muP and CompleteP

# Factors on the learning rate (Yang et al. 2022, table 8; for the depth Dey et al. 2025, table 1): of a matrix of a block, where
# a model is w times as wide and d times as deep as its base, and of another parameter, v times as long as there. Outside blocks
# d is 1. c: the keys of train.py.
MUP_RATES = {
    'adamw': (lambda w, d, c: 1 / w, lambda v, d: 1.0),
    'adam_mini': (lambda w, d, c: 1 / w, lambda v, d: 1.0),
    'lion': (lambda w, d, c: 1 / w, lambda v, d: 1.0),
    'sgdw': (lambda w, d, c: d, lambda v, d: v * d),    # a branch and its gradient are both 1/d as large
    # an update's spectral norm should be in proportion to √(n_out / n_in) (Yang et al. 2023), as with Jordan's scale
    'muon': (lambda w, d, c: 1.0 if c['muon_scale'] == 'original' else w ** -0.5, lambda v, d: 1.0),
}


def mup_scales(name, kind, is_matrix, p, config, keys):
    """Return muP's factors on the learning rate and on ε of a parameter p. ε shrinks as the gradient does (Dey et al. 2025, eq.
    40)."""
    if keys is None or keys['optimizer'] not in MUP_RATES:
        given = 'no optimizer is given to param_groups' if keys is None else f'optimizer={keys["optimizer"]} has no rates for it'
        raise ValueError(f'mup_base_width={config.mup_base_width}, mup_base_depth={config.mup_base_depth}: {given}; add them '
                         f'to MUP_RATES in optim.py, which has {", ".join(MUP_RATES)}')
    matrix_rate, vector_rate = MUP_RATES[keys['optimizer']]
    w, d = config.width_growth, config.depth_growth if name.startswith('h.') else 1.0
    if is_matrix:
        return matrix_rate(w, d, keys), 1 / (w * d)
    v = w
    if p.numel() == 1 or kind == 'head' and name.endswith('.bias'):
        v = 1.0
    elif config.mup_base_width and re.search(r'attn\.[qkv]_norm\.', name):
        v = config.head_dim / config.mup_base_head_dim
    if re.match(r'h\.\d+\.((attn|ffn)_post_norm\.|x0?_gain$)', name):
        # These multiply the stream itself, one after another, and not a branch: the gradient of each is as large at every depth.
        # There are d times as many, so each gets 1/d of the rate.
        return vector_rate(v, 1.0) / d, 1 / v
    return vector_rate(v, d), 1 / (v * d)


def split_by_mup(groups, config, keys):
    """Split param_groups' groups by muP's factors: set `lr_scale` and `eps`, and divide the decay by lr_scale, so that rate times
    decay stays."""
    found = {}
    for group in groups:
        for name, p in group['params']:
            scale, eps = mup_scales(name, group['block_type'], group['muon'], p, config, keys)
            key = group['block_type'], group['weight_decay'], group['muon'], scale, eps
            part = found.setdefault(key, group | dict(params=[], lr_scale=scale, weight_decay=group['weight_decay'] / scale))
            part['params'].append((name, p))
            if eps != 1:
                part['eps'] = eps * EPS
    return list(found.values())


# ----------------------------------------------------------------------------- optimizers

def decay(w, lr, weight_decay):
    """w ← (1 − lr·λ) w"""
    if weight_decay:
        torch._foreach_mul_(w, 1 - lr * weight_decay)


def subtract(w, lr, update):
    if isinstance(lr, float):
        torch._foreach_add_(w, update, alpha=-lr)
    else:                                               # as alpha, lr would be a constant of the compiled step
        torch._foreach_sub_(w, torch._foreach_mul(update, lr))


# Under --parallel=fsdp a parameter is a DTensor, of which each rank of the mesh holds some rows. Elsewhere mesh is None.

def local(t):
    """Return this rank's rows of a tensor, without copying."""
    return t.to_local() if hasattr(t, 'to_local') else t


def mesh_of(p):
    return getattr(p, 'device_mesh', None)


def moved(x, mesh, split, to, shape):
    """Return this rank's part of a tensor of this shape that is split over dimension `to`, from its part x of one that is split
    over dimension `split`. None: each rank has the whole tensor."""
    from torch.distributed.tensor import DTensor, Replicate, Shard  # here, because it takes a second
    places = [[Replicate() if dim is None else Shard(dim)] for dim in (split, to)]
    stride = torch.empty(shape, device='meta').stride()
    tensor = DTensor.from_local(x.contiguous(), mesh, places[0], run_check=False, shape=torch.Size(shape), stride=stride)
    return tensor.redistribute(placements=places[1]).to_local()


def on_matrices(function, x, mesh, rows):
    """Return function(x) for a stack x of matrices (N, rows, m), of which this rank may hold some rows. The ranks share the work:
    each computes some of the matrices."""
    if mesh is not None:
        shape = (len(x), rows, x.size(2))
        return moved(function(moved(x, mesh, 1, 0, shape)), mesh, 0, 1, shape)
    if not dist.is_initialized():
        return function(x)
    share = -(-len(x) // dist.get_world_size())         # DDP
    padded = F.pad(x, (0, 0, 0, 0, 0, dist.get_world_size() * share - len(x)))
    gathered, first = torch.empty_like(padded), dist.get_rank() * share
    dist.all_gather_into_tensor(gathered, function(padded[first:first + share]).contiguous())
    return gathered[:len(x)]


def apply_updates(updates):
    for update, *arguments in updates:
        update(*arguments)


@functools.cache
def compiled_updates():
    return torch.compile(apply_updates, dynamic=False)


def without_compiler(optimizer_class):
    """Undo decorators of torch's optimizers that import its compiler, a second of a start. Only a compiled `step` needs them."""
    for name in ('add_param_group', 'state_dict', 'load_state_dict', 'zero_grad'):
        setattr(optimizer_class, name, getattr(torch.optim.Optimizer, name).__wrapped__)
    return optimizer_class


@without_compiler
class AdamW(torch.optim.AdamW):
    step = torch.no_grad()(torch.optim.AdamW.step.__wrapped__)


@without_compiler
class ListOptimizer(torch.optim.Optimizer):
    """Base class of SGDW, Lion, AdamMini and Muon. A subclass has static methods that update lists of tensors: the weights w, by
    their gradients g and states, with the group's learning rate lr and weight decay λ. Its updates_for(group, params, scalar)
    yields such a method and its arguments. With compile=True, torch.compile fuses all updates, so that each tensor is read once;
    the first step of a model of 48 layers then takes a minute or two. Set on_shards = True in a subclass, it is not inherited, if
    stepping a rank's rows equals sharding the full step, for --parallel=fsdp."""
    on_shards = False

    def __init__(self, params, compile, **defaults):
        super().__init__(params, defaults)
        self.defaults['compile'] = compile              # a copy of the optimizer keeps its defaults, and no other attribute
        if any(mesh_of(p) for group in self.param_groups for p in group['params']) and not vars(type(self)).get('on_shards'):
            name = type(self).__name__                  # a promise is not inherited
            raise ValueError(f'parallel=fsdp: {name} may need whole matrices, and each rank has only some rows of them; use '
                             f'parallel=ddp, or promise by on_shards = True in the class {name} that its step is right on rows')

    @torch.no_grad()
    def step(self, closure=None):
        compile, updates = self.defaults['compile'], []
        for group in self.param_groups:
            params = [p for p in group['params'] if p.grad is not None]
            if params:                                  # a tensor can change without compiling again
                updates += self.updates_for(group, params, torch.tensor if compile else float)
        (compiled_updates() if compile else apply_updates)(updates)

    def tensors_for(self, params, *keys, make=torch.zeros_like):
        """Return the parameters, their gradients and these tensors of their states, as lists of this rank's tensors."""
        for key in keys:
            for p in params:
                if key not in self.state[p]:
                    self.state[p][key] = make(p)
        # DDP's gradients become views of its buckets after the first iteration. Detached, they look the same to torch.compile,
        # which would otherwise compile the step a second time.
        plain = (lambda t: local(t).detach()) if self.defaults['compile'] else local
        return [list(map(plain, tensors)) for tensors in (
            params, [p.grad for p in params], *([self.state[p][key] for p in params] for key in keys))]

    def by_count(self, params):
        """Count this step in the state of each parameter, and yield (count, parameters): one pair, unless a parameter had no
        gradient in some step."""
        for p in params:
            self.state[p]['step'] = self.state[p].get('step', 0) + 1
        for t in {self.state[p]['step'] for p in params}:
            yield t, [p for p in params if self.state[p]['step'] == t]

    def names(self, group):
        """Return {parameter: its name}."""
        if not {'param_names', 'block_type'} <= group.keys():
            kind = type(self).__name__
            raise ValueError(f'{kind} needs the names of the parameters: pass it param_groups(model, weight_decay)')
        return dict(zip(group['params'], group['param_names']))


class SGDW(ListOptimizer):
    """SGD with momentum and decoupled weight decay (Loshchilov and Hutter 2019; DNT). Unlike in torch.optim.SGD, the decay is not
    added to g, so it never enters the momentum. State: m from 0, 4 bytes per parameter in fp32."""
    on_shards = True

    @staticmethod
    def update(w, g, m, lr, weight_decay, momentum):
        decay(w, lr, weight_decay)
        torch._foreach_mul_(m, momentum)                # m ← μ m + g
        torch._foreach_add_(m, g)
        subtract(w, lr, m)                              # w ← w − lr·m

    def __init__(self, params, lr, momentum=0.9, weight_decay=0.0, compile=False):
        super().__init__(params, compile, lr=lr, momentum=momentum, weight_decay=weight_decay)

    def updates_for(self, group, params, scalar):
        yield (self.update, *self.tensors_for(params, 'momentum_buffer'), scalar(group['lr']), group['weight_decay'],
               group['momentum'])


class Lion(ListOptimizer):
    """The sign of a momentum, with decoupled weight decay (Chen et al. 2023). State: m from 0, 4 bytes per parameter in fp32."""
    on_shards = True

    @staticmethod
    def update(w, g, m, lr, weight_decay, beta1, beta2):
        decay(w, lr, weight_decay)
        direction = torch._foreach_lerp(m, g, 1 - beta1)        # w ← w − lr·sign(β₁ m + (1 − β₁) g)
        torch._foreach_sign_(direction)
        subtract(w, lr, direction)
        torch._foreach_lerp_(m, g, 1 - beta2)                   # m ← β₂ m + (1 − β₂) g

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0, compile=False):
        super().__init__(params, compile, lr=lr, betas=betas, weight_decay=weight_decay)

    def updates_for(self, group, params, scalar):
        yield self.update, *self.tensors_for(params, 'exp_avg'), scalar(group['lr']), group['weight_decay'], *group['betas']


class AdamMini(ListOptimizer):
    """AdamW with one second moment for each block b of weights (Zhang et al. 2024, the partition of version 1.1): each head_dim
    rows of W_q and W_k, each row of any other matrix, the whole of wpe or a norm's gain, each element of a bias. `params` must be
    param_groups(model, …), because the blocks depend on the parameters' names. State: m and all v_b from 0, slightly more than 4
    bytes per parameter in fp32. Under FSDP each rank holds its rows of m, and all v_b."""
    on_shards = True

    @staticmethod
    def update(w, g, m, v, shapes, lr, weight_decay, beta1, beta2, eps, bias1, bias2):
        w, g, m = ([x.view(-1, width) for x, (_, _, width) in zip(xs, shapes)] for xs in (w, g, m))     # a block is some rows
        decay(w, lr, weight_decay)
        torch._foreach_lerp_(m, g, 1 - beta1)                   # m ← β₁ m + (1 − β₁) g
        for weights, grad, mean, moments, (mesh, rows, _) in zip(w, g, m, v, shapes):
            squares = grad.square().mean(1)                     # v_b ← β₂ v_b + (1 − β₂) mean_b(g²)
            squares = squares if mesh is None else moved(squares, mesh, 0, None, [rows])
            moments.lerp_(squares.view(len(moments), -1).mean(1), 1 - beta2)
            rates = lr / bias1 / ((moments / bias2).sqrt() + eps)
            rates = rates[:, None].expand(-1, rows // len(moments)).reshape(-1)         # of each row
            rates = rates if mesh is None else moved(rates, mesh, None, 0, [rows])
            weights.addcmul_(mean, rates[:, None], value=-1)    # w ← w − lr·m̂ / (√v̂_b + ε), both corrected for bias

    def __init__(self, params, lr, head_dim, betas=(0.9, 0.95), eps=EPS, weight_decay=0.0, compile=False):
        super().__init__(params, compile, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, head_dim=head_dim)
        for group in self.param_groups:
            for p, name in self.names(group).items():
                num_blocks(group['block_type'], name, p, head_dim)      # raises if head_dim does not fit

    def updates_for(self, group, params, scalar):
        names = self.names(group)
        for t, ps in self.by_count(params):
            w, g, m = self.tensors_for(ps, 'exp_avg')
            _, _, v = self.tensors_for(ps, 'exp_avg_sq', make=lambda p: local(p).new_zeros(
                num_blocks(group['block_type'], names[p], p, group['head_dim'])))
            rows = [len(p) if mesh_of(p) else len(moments) for p, moments in zip(ps, v)]        # of a block, if all are here
            shapes = [(mesh_of(p), count, p.numel() // count) for p, count in zip(ps, rows)]
            yield (self.update, w, g, m, v, shapes, scalar(group['lr']), group['weight_decay'], *group['betas'], group['eps'],
                   *(scalar(1 - beta ** t) for beta in group['betas']))


def num_blocks(kind, name, p, head_dim):
    """Return how many second moments AdamMini keeps for a parameter p."""
    if name.endswith('.bias'):
        return p.numel()
    if kind in ('norm', 'pos'):
        return 1
    if kind == 'qk' and p.size(0) % head_dim:
        raise ValueError(f'head_dim={head_dim} does not divide the {p.size(0)} rows of {name}')
    return p.size(0) // head_dim if kind == 'qk' else p.size(0)


MUON_SCALES = {     # the factor s on an orthogonalized (n_out, n_in), by the names of torch.optim.Muon
    # Liu et al. 2025: updates as large as AdamW's, so that AdamW's lr and λ fit
    'match_rms_adamw': lambda n_out, n_in: 0.2 * math.sqrt(max(n_out, n_in)),
    'original': lambda n_out, n_in: math.sqrt(max(1, n_out / n_in)),            # Jordan 2024
}


def newton_schulz(x):
    """(N, n, m) → about U Vᵀ of each matrix x = U S Vᵀ, in x's precision. Jordan's coefficients raise small singular values fast,
    and do not converge to 1: those of at least 0.01 ‖x‖ end between 0.68 and 1.14."""
    a, b, c = 3.4445, -4.7750, 2.0315
    if x.size(-2) > x.size(-1):
        return newton_schulz(x.mT).mT
    norm = torch.linalg.matrix_norm(x.to(torch.promote_types(x.dtype, torch.float32)), keepdim=True)
    x = (x / (norm + 1e-7)).to(x.dtype)
    for _ in range(5):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)      # a x + b (x xᵀ) x + c (x xᵀ)² x
    return x


class Muon(ListOptimizer):
    """Orthogonalized momentum for the matrices of the blocks (Jordan 2024, kellerjordan.github.io/posts/muon), with decoupled
    weight decay (Liu et al. 2025, "Muon is Scalable for LLM Training", arXiv:2502.16982).

    Weights whose row in PARAMS says so are orthogonalized, W_q, W_k and W_v each by itself. All other parameters take AdamW's
    step with `betas` and `eps`: embeddings, positions, the head, norms, gains, biases, and the matrices of hyper-connections,
    which start at 0 and are no modules. `params` must be param_groups(model, …).
    Ranks share the work of newton_schulz. It computes in bfloat16, as both publications do, or with bf16=False in the parameters'
    precision. State: m from 0, 4 bytes per parameter in fp32, and 8 per parameter of AdamW's.
    """
    on_shards = True

    @staticmethod
    def update(w, g, m, mesh, rows, lr, weight_decay, momentum, scale, dtype):
        """Update matrices of one shape, or this rank's rows of such."""
        decay(w, lr, weight_decay)
        torch._foreach_mul_(m, momentum)                        # m ← μ m + g
        torch._foreach_add_(m, g)
        directions = torch.stack(torch._foreach_add(g, m, alpha=momentum)).to(dtype)
        directions = on_matrices(newton_schulz, directions, mesh, rows)         # w ← w − lr·s·NS(g + μ m)
        subtract(w, lr, (scale * directions.to(w[0].dtype)).unbind())

    @staticmethod
    def adamw_update(w, g, m, v, lr, weight_decay, beta1, beta2, eps, bias1, bias2):
        decay(w, lr, weight_decay)
        torch._foreach_lerp_(m, g, 1 - beta1)                   # m ← β₁ m + (1 − β₁) g
        torch._foreach_mul_(v, beta2)                           # v ← β₂ v + (1 − β₂) g²
        torch._foreach_addcmul_(v, g, g, 1 - beta2)
        for weights, mean, square in zip(w, m, v):              # w ← w − lr·m̂ / (√v̂ + ε)
            weights.addcmul_(mean, lr / bias1 / ((square / bias2).sqrt() + eps), value=-1)

    def __init__(self, params, lr, momentum=0.95, betas=(0.9, 0.95), eps=EPS, weight_decay=0.0, scale='match_rms_adamw',
                 bf16=True, compile=False):
        super().__init__(params, compile, lr=lr, momentum=momentum, betas=betas, eps=eps, weight_decay=weight_decay)
        self.defaults.update(scale=scale, bf16=bf16)
        for group in self.param_groups:
            self.names(group)

    def updates_for(self, group, params, scalar):
        rates = scalar(group['lr']), group['weight_decay']
        for shape in dict.fromkeys(p.shape for p in params if group['muon']):
            ps = [p for p in params if p.shape == shape]
            yield (self.update, *self.tensors_for(ps, 'momentum_buffer'), mesh_of(ps[0]), shape[0], *rates, group['momentum'],
                   MUON_SCALES[self.defaults['scale']](*shape), torch.bfloat16 if self.defaults['bf16'] else ps[0].dtype)
        for t, ps in self.by_count([] if group['muon'] else params):
            yield (self.adamw_update, *self.tensors_for(ps, 'exp_avg', 'exp_avg_sq'), *rates, *group['betas'], group['eps'],
                   *(scalar(1 - beta ** t) for beta in group['betas']))


# Makes an optimizer from param_groups and the keys of train.py, where dtype is the torch.dtype in use. All take learning_rate,
# and weight_decay by their groups; adamw, lion and adam_mini take beta1 and beta2; sgdw takes momentum; muon takes momentum and
# muon_scale, and for its AdamW beta1 and beta2.
OPTIMIZERS = {
    'adamw': lambda groups, c: AdamW(groups, c['learning_rate'], betas(c), EPS, fused=True),
    'sgdw': lambda groups, c: SGDW(groups, c['learning_rate'], c.get('momentum', 0.9), compile=c.get('compile', False)),
    'lion': lambda groups, c: Lion(groups, c['learning_rate'], betas(c), compile=c.get('compile', False)),
    'adam_mini': lambda groups, c: AdamMini(groups, c['learning_rate'], c['n_embd'] // c['n_head'], betas(c),
                                            compile=c.get('compile', False)),
    'muon': lambda groups, c: Muon(groups, c['learning_rate'], c.get('momentum', 0.9), betas(c),
                                   scale=c.get('muon_scale', 'match_rms_adamw'), bf16=c.get('dtype') == torch.bfloat16,
                                   compile=c.get('compile', False)),
}


def betas(c):
    return c.get('beta1', 0.9), c.get('beta2', 0.95)


class Keys(dict):
    def __missing__(self, key):
        raise ValueError(f'optimizer={self["optimizer"]} needs a key {key}: add it, with its default, at the top of train.py')


def make_optimizer(groups, keys):
    """Return the optimizer that the key `optimizer` names, as OPTIMIZERS says."""
    return OPTIMIZERS[keys['optimizer']](groups, Keys(keys))


# ----------------------------------------------------------------------------- schedules

SCHEDULES = {       # a value of 0 is min_lr, of 1 the peak; p goes from 0 at the start of the decay to 1 at its end
    'cosine': lambda p: 0.5 + 0.5 * math.cos(math.pi * p),
    'wsd': lambda p: 1 - p,
    'linear': lambda p: 1 - p,
    'constant': lambda p: 1.0,
}


def lr_at(it, keys, ratio=1.0):
    """Return the learning rate of iteration `it`, from 0, for a block type whose Blockwise LR is `ratio` times the base. `keys`:
    those of train.py.

    blockwise='ramp': the warm-up goes on at the base's slope up to ratio · learning_rate; all types then decay to the same min_lr
    (the code of sharpness disparity). 'peak': the type has a peak of its own, ratio · learning_rate, with the same warm-up and
    min_lr (another argument of that code). 'jump': after the warm-up, ratio multiplies the base's rate, min_lr too (the paper's
    text). 'merge', for schedule='wsd': as 'ramp', but before the decay, for as long as the decay, each type's rate goes in a
    straight line to the base's rate (the paper's code for WSD, where both parts take a third of the run).
    """
    base, warmup_iters, decay_frac = keys['learning_rate'], keys['warmup_iters'], keys['decay_frac']
    last, blockwise = keys['lr_decay_iters'] or keys['max_iters'], keys['blockwise']
    if blockwise == 'jump':
        lr = lr_at(it, {**keys, 'blockwise': 'ramp'})
        return lr if it < warmup_iters else ratio * lr
    if blockwise == 'peak':
        ratio, base = 1.0, ratio * base
    peak, warmup = ratio * base, max(0.0, ratio * (warmup_iters + 1) - 1)
    # 1) linear warm-up
    if it < warmup:
        return base * (it + 1) / (warmup_iters + 1)
    # 2) the schedule ('wsd' is constant until its last decay_frac), 3) min_lr from `last` on
    begin = max(warmup, (1 - decay_frac) * last) if keys['schedule'] == 'wsd' else warmup
    if blockwise == 'merge':
        start = max(warmup, (1 - 2 * decay_frac) * last)
        peak += min(1.0, max(0.0, it - start) / max(1, begin - start)) * (base - peak)
    progress = min(1.0, max(0.0, it - begin) / max(1, last - begin))
    floor = min(keys['min_lr'], peak)
    return floor + SCHEDULES[keys['schedule']](progress) * (peak - floor)
