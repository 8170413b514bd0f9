"""Optimizers over groups by block type, and the schedules of their learning rates."""
import functools
import math
import re

import torch
import torch.distributed as dist
from torch.nn import functional as F

from model import check_rows, row_of

EPS = 1e-8                  # ε beside the root of Adam's second moments
TINY = 1e-30                # beside a norm that may be 0


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
MUP_RATES['normuon'] = MUP_RATES['muon']


def mup_scales(name, kind, is_matrix, p, config, keys):
    """Return muP's factors on the learning rate and on ε of a parameter p. ε shrinks as the gradient does (Dey et al. 2025, eq.
    40)."""
    if keys is None or keys['optimizer'] not in MUP_RATES:
        given = 'no optimizer is given to param_groups' if keys is None else f'optimizer={keys["optimizer"]} has no rates for it'
        raise ValueError(f'mup_base_width={config.mup_base_width}, mup_base_depth={config.mup_base_depth}: {given}; add them '
                         f'to MUP_RATES in optim.py, which has {", ".join(MUP_RATES)}')
    if keys.get('hyperball'):
        raise ValueError('hyperball=True: its rate turns a matrix by an angle, which muP does not scale; set mup_base_width=0')
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


def descend(w, u, lr, rule, rates=None):
    """w ← (1 − lr·λ) w − lr·u. `rule` is ListOptimizer.rule's. `rates` (each to be broadcast to a tensor of u) replaces lr·u by
    rates · u."""
    weight_decay, cautious, radii, mesh = rule
    if radii is not None:                               # R N(w − lr·R·N(u)), N(x) = x / ‖x‖_F
        steps = list(torch._foreach_mul(u, lr)) if rates is None else [x * rate for x, rate in zip(u, rates)]
        sizes = norms(steps, mesh)
        for x, step, size, radius in zip(w, steps, sizes, radii):
            x.sub_(step * (lr * radius / (size + TINY)))
        for x, size, radius in zip(w, norms(w, mesh), radii):
            x.mul_(radius / size)
        return
    if cautious:                                        # decays only where w and u have the same sign
        for x, y in zip(w, u):
            x.mul_(1 - lr * weight_decay * (x * y >= 0))
    else:
        decay(w, lr, weight_decay)
    if rates is None:
        subtract(w, lr, u)
    else:
        for x, y, rate in zip(w, u, rates):
            x.addcmul_(y, rate, value=-1)


def norms(tensors, mesh):
    """Return the Frobenius norm of each tensor, of which each rank of the mesh holds some rows."""
    found = torch.stack(torch._foreach_norm(tensors))
    if mesh is not None:
        found = moved(found.square()[None], mesh, 0, None, [mesh.size(), len(found)]).sum(0).sqrt()
    return found.unbind()


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
    """Base class of SGDW, Lion, AdamMini, Muon and ListAdamW. A subclass has static methods that update lists of tensors: the
    weights w, by their gradients g and states, with the group's learning rate lr and weight decay λ; `descend` takes their step.
    Its updates_for(group, params, scalar) yields such a method and its arguments. With compile=True, torch.compile fuses all
    updates, so that each tensor is read once; the first step of a model of 48 layers then takes a minute or two. Set on_shards =
    True in a subclass, it is not inherited, if stepping a rank's rows equals sharding the full step, for --parallel=fsdp.

    cautious_decay: decay a weight only where it has the sign of its update (Chen et al. 2025, arXiv:2510.12402). hyperball: keep
    the Frobenius norm of each matrix of a block as it was at the first step, by w ← R N(w − lr·R·N(u)) with R = ‖w‖ and
    N(x) = x/‖x‖, in place of weight decay (arXiv:2606.16899); embeddings, head, norms and gains step as without it."""
    on_shards = False

    def __init__(self, params, compile=False, cautious_decay=False, hyperball=False, **defaults):
        super().__init__(params, defaults)              # a copy of the optimizer keeps its defaults, and no other attribute
        self.defaults.update(compile=compile, cautious_decay=cautious_decay, hyperball=hyperball)
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

    def rule(self, group, params):
        """Return what `descend` needs to know of these parameters of a group: λ, whether it decays with caution, and with
        hyperball the norms that they keep and their mesh."""
        if not (self.defaults['hyperball'] and group.get('muon')):
            return group['weight_decay'], self.defaults['cautious_decay'] and group['weight_decay'] > 0, None, None
        return 0.0, False, self.tensors_for(params, 'radius', make=radius_of)[2], mesh_of(params[0])

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


def radius_of(p):
    radius = norms([local(p)], mesh_of(p))[0]
    if not radius > 0:
        raise ValueError(f'hyperball=True: a matrix {tuple(p.shape)} starts at 0 and would stay there: give it another start, or '
                         f"a row in PARAMS that is no MATRIX")
    return radius


class SGDW(ListOptimizer):
    """SGD with momentum and decoupled weight decay (Loshchilov and Hutter 2019; DNT). Unlike in torch.optim.SGD, the decay is not
    added to g, so it never enters the momentum. State: m from 0, 4 bytes per parameter in fp32."""
    on_shards = True

    @staticmethod
    def update(w, g, m, lr, rule, momentum):
        torch._foreach_mul_(m, momentum)                # m ← μ m + g
        torch._foreach_add_(m, g)
        descend(w, m, lr, rule)                         # w ← w − lr·m

    def __init__(self, params, lr, momentum=0.9, weight_decay=0.0, **more):
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay, **more)

    def updates_for(self, group, params, scalar):
        yield (self.update, *self.tensors_for(params, 'momentum_buffer'), scalar(group['lr']), self.rule(group, params),
               group['momentum'])


class Lion(ListOptimizer):
    """The sign of a momentum, with decoupled weight decay (Chen et al. 2023). State: m from 0, 4 bytes per parameter in fp32."""
    on_shards = True

    @staticmethod
    def update(w, g, m, lr, rule, beta1, beta2):
        direction = torch._foreach_lerp(m, g, 1 - beta1)        # w ← w − lr·sign(β₁ m + (1 − β₁) g)
        torch._foreach_sign_(direction)
        descend(w, direction, lr, rule)
        torch._foreach_lerp_(m, g, 1 - beta2)                   # m ← β₂ m + (1 − β₂) g

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0, **more):
        super().__init__(params, lr=lr, betas=betas, weight_decay=weight_decay, **more)

    def updates_for(self, group, params, scalar):
        yield self.update, *self.tensors_for(params, 'exp_avg'), scalar(group['lr']), self.rule(group, params), *group['betas']


class ListAdamW(ListOptimizer):
    """AdamW (Loshchilov and Hutter 2019), for what torch's fused step cannot do. State: m and v from 0, 8 bytes per parameter in
    fp32."""
    on_shards = True

    @staticmethod
    def adamw_update(w, g, m, v, lr, rule, beta1, beta2, eps, bias1, bias2):
        torch._foreach_lerp_(m, g, 1 - beta1)                   # m ← β₁ m + (1 − β₁) g
        torch._foreach_mul_(v, beta2)                           # v ← β₂ v + (1 − β₂) g²
        torch._foreach_addcmul_(v, g, g, 1 - beta2)
        rates = (lr / bias1 / ((square / bias2).sqrt() + eps) for square in v)
        descend(w, m, lr, rule, rates)                          # w ← w − lr·m̂ / (√v̂ + ε)

    def __init__(self, params, lr, betas=(0.9, 0.95), eps=EPS, weight_decay=0.0, **more):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, **more)

    def updates_for(self, group, params, scalar):
        for t, ps in self.by_count(params):
            yield (self.adamw_update, *self.tensors_for(ps, 'exp_avg', 'exp_avg_sq'), scalar(group['lr']), self.rule(group, ps),
                   *group['betas'], group['eps'], *(scalar(1 - beta ** t) for beta in group['betas']))


class AdamMini(ListOptimizer):
    """AdamW with one second moment for each block b of weights (Zhang et al. 2024, the partition of version 1.1): each head_dim
    rows of W_q and W_k, each row of any other matrix, the whole of wpe or a norm's gain, each element of a bias. `params` must be
    param_groups(model, …), because the blocks depend on the parameters' names. State: m and all v_b from 0, slightly more than 4
    bytes per parameter in fp32. Under FSDP each rank holds its rows of m, and all v_b."""
    on_shards = True

    @staticmethod
    def update(w, g, m, v, shapes, lr, rule, beta1, beta2, eps, bias1, bias2):
        w, g, m = ([x.view(-1, width) for x, (_, _, width) in zip(xs, shapes)] for xs in (w, g, m))     # a block is some rows
        torch._foreach_lerp_(m, g, 1 - beta1)                   # m ← β₁ m + (1 − β₁) g
        all_rates = []
        for grad, moments, (mesh, rows, _) in zip(g, v, shapes):
            squares = grad.square().mean(1)                     # v_b ← β₂ v_b + (1 − β₂) mean_b(g²)
            squares = squares if mesh is None else moved(squares, mesh, 0, None, [rows])
            moments.lerp_(squares.view(len(moments), -1).mean(1), 1 - beta2)
            rates = lr / bias1 / ((moments / bias2).sqrt() + eps)
            rates = rates[:, None].expand(-1, rows // len(moments)).reshape(-1)         # of each row
            all_rates.append((rates if mesh is None else moved(rates, mesh, None, 0, [rows]))[:, None])
        descend(w, m, lr, rule, all_rates)                      # w ← w − lr·m̂ / (√v̂_b + ε), both corrected for bias

    def __init__(self, params, lr, head_dim, betas=(0.9, 0.95), eps=EPS, weight_decay=0.0, **more):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, head_dim=head_dim, **more)
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
            yield (self.update, w, g, m, v, shapes, scalar(group['lr']), self.rule(group, ps), *group['betas'], group['eps'],
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


class Muon(ListAdamW):
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
    def update(w, g, m, v, mesh, rows, lr, rule, momentum, scale, dtype, beta2):
        """Update matrices of one shape, or this rank's rows of such. v is NorMuon's."""
        torch._foreach_mul_(m, momentum)                        # m ← μ m + g
        torch._foreach_add_(m, g)
        directions = torch.stack(torch._foreach_add(g, m, alpha=momentum)).to(dtype)
        directions = on_matrices(newton_schulz, directions, mesh, rows).to(w[0].dtype)
        if v is not None:
            directions = normalize_rows(directions, v, mesh, rows, beta2)
        descend(w, (scale * directions).unbind(), lr, rule)     # w ← w − lr·s·NS(g + μ m)

    def __init__(self, params, lr, momentum=0.95, betas=(0.9, 0.95), eps=EPS, weight_decay=0.0, scale='match_rms_adamw',
                 bf16=True, **more):
        super().__init__(params, lr, betas, eps, weight_decay, momentum=momentum, **more)
        self.defaults.update(scale=scale, bf16=bf16)
        for group in self.param_groups:
            self.names(group)

    def updates_for(self, group, params, scalar):
        for shape in dict.fromkeys(p.shape for p in params if group['muon']):
            ps = [p for p in params if p.shape == shape]
            yield (self.update, *self.tensors_for(ps, 'momentum_buffer'), self.row_moments(ps), mesh_of(ps[0]), shape[0],
                   scalar(group['lr']), self.rule(group, ps), group['momentum'], MUON_SCALES[self.defaults['scale']](*shape),
                   torch.bfloat16 if self.defaults['bf16'] else ps[0].dtype, group['betas'][1])
        yield from super().updates_for(group, [] if group['muon'] else params, scalar)

    def row_moments(self, params):
        return None


class NorMuon(Muon):
    """Muon whose orthogonalized rows, one an output, are divided by the root of a running mean v of their squares, with the decay
    `betas[1]`; the matrix keeps the Frobenius norm of an orthogonal one (Li et al. 2025, arXiv:2510.05491; the momentum is
    Nesterov's, as in Muon). State: Muon's, and v from 0, a number per row."""
    on_shards = True

    def row_moments(self, params):
        return self.tensors_for(params, 'row_moments', make=lambda p: local(p).new_zeros(len(p)))[2]


def normalize_rows(x, v, mesh, rows, beta2):
    """Divide the rows of a stack x (N, rows, m) by the roots of their running mean squares v, which this updates, and scale each
    matrix to the norm √min(rows, m). A rank may hold some rows of x, and has v (rows,) whole."""
    squares, shape = x.square().mean(2), [len(x), rows]
    squares = squares if mesh is None else moved(squares, mesh, 1, None, shape)
    torch._foreach_lerp_(v, squares.unbind(), 1 - beta2)
    factors = 1 / (torch.stack(v).sqrt() + EPS)
    norm = (x.size(2) * squares * factors.square()).sum(1, keepdim=True).sqrt()
    factors = factors if mesh is None else moved(factors, mesh, None, 1, shape)
    return x * factors[..., None] * (math.sqrt(min(rows, x.size(2))) / (norm + TINY))[..., None]


# Makes an optimizer from param_groups and the keys of train.py, where dtype is the torch.dtype in use. All take learning_rate,
# and weight_decay by their groups; adamw, lion and adam_mini take beta1 and beta2; sgdw takes momentum; muon and normuon take
# momentum and muon_scale, and for their AdamW beta1 and beta2.
OPTIMIZERS = {
    'adamw': lambda groups, c: (ListAdamW(groups, c['learning_rate'], betas(c), **changes(c)) if any(map(c.get, CHANGES)) else
                                AdamW(groups, c['learning_rate'], betas(c), EPS, fused=True)),
    'sgdw': lambda groups, c: SGDW(groups, c['learning_rate'], c.get('momentum', 0.9), **changes(c)),
    'lion': lambda groups, c: Lion(groups, c['learning_rate'], betas(c), **changes(c)),
    'adam_mini': lambda groups, c: AdamMini(groups, c['learning_rate'], c['n_embd'] // c['n_head'], betas(c), **changes(c)),
    'muon': lambda groups, c: make_muon(Muon, groups, c),
    'normuon': lambda groups, c: make_muon(NorMuon, groups, c),
}
CHANGES = 'cautious_decay', 'hyperball'         # what a ListOptimizer changes in its steps, by the keys of train.py


def betas(c):
    return c.get('beta1', 0.9), c.get('beta2', 0.95)


def changes(c):
    return dict(compile=c.get('compile', False), **{key: c.get(key, False) for key in CHANGES})


def make_muon(kind, groups, c):
    return kind(groups, c['learning_rate'], c.get('momentum', 0.9), betas(c), scale=c.get('muon_scale', 'match_rms_adamw'),
                bf16=c.get('dtype') == torch.bfloat16, **changes(c))


class Keys(dict):
    def __missing__(self, key):
        raise ValueError(f'optimizer={self["optimizer"]} needs a key {key}: add it, with its default, at the top of train.py')


def make_optimizer(groups, keys):
    """Return the optimizer that the key `optimizer` names, as OPTIMIZERS says. Raise ValueError if it would pass over a key."""
    optimizer = OPTIMIZERS[keys['optimizer']](groups, Keys(keys))
    for key in CHANGES:
        if keys.get(key) and not optimizer.defaults.get(key):
            raise ValueError(f'{key}=True: optimizer={keys["optimizer"]} does not know it; choose another, or pass **changes(c) '
                             f'on to a ListOptimizer whose updates end with descend')
    return optimizer


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
