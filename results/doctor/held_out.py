"""
Hold out runs from lab.doctor: whoever wrote its rules has not seen these plants and healthy runs.

    python -m lab.doctor.trials --table=results/doctor/held_out.py --csv=results/doctor/held_out.csv --out_dir=out-held

Prepare the data first, all but the last without the network; the English text is the help of Vim 9.0 (Debian 12's vim-runtime):

    python data/pycode/prepare.py
    python data/textfiles/prepare.py --tokenizer=char --val_fraction=0.05 \
        --files='/usr/share/vim/vim90/doc/usr_*.txt,/usr/share/vim/vim90/doc/[b-ceg-q]*.txt'
    python data/pysource/prepare.py
    python data/pysource/prepare.py --bpe=1024 --folder=data/pysource-bpe1024
"""
COMMON = 'config/base/pysource.py --log_interval=1 --eval_iters=20'

# ----------------------------------------------------------------------------- healthy runs
OPTIMIZERS = {      # arguments, and the middle one of three learning rates
    'adamw': ('config/optim/adamw.py --min_lr=0 --weight_decay=0.4', 6e-3),
    'adam_mini': ('config/optim/adam_mini.py --min_lr=0 --weight_decay=0.4', 6e-3),
    'lion': ('config/optim/lion.py --min_lr=0 --weight_decay=2.0', 1e-3),
    'muon': ('config/optim/muon.py --min_lr=0 --weight_decay=0.4', 1.6e-2),
    'sgdw': ('config/optim/sgdw.py --min_lr=0 --weight_decay=0.008', 0.2),
}
FACTORS = {'dyt': 1 / 4, 'derf': 1 / 4, 'post': 1 / 2, 'b2t': 1 / 2}   # on the middle rate; of DyT's, see config/arch/dyt.py
SIZES = {           # keys of a size, a text and a length, and its runs: arch files by optimizer
    'short': ('--n_embd=128 --n_layer=2 --n_head=4 --block_size=64 --batch_size=8 --dtype=float32 --max_iters=150 '
              '--warmup_iters=15 --eval_interval=50',
              dict(adamw='s1 stable dyt hyper attnres', muon='s2 mhc_lite', lion='peri siamese', adam_mini='pre')),
    'narrow': ('--n_embd=48 --n_layer=3 --block_size=256 --batch_size=4 --dataset=pycode --max_iters=250 --warmup_iters=20 '
               '--eval_interval=125',
               dict(adamw='s3 gemma3 parallel gpas', muon='olmo2 simplenorm', lion='s4 llama', adam_mini='embskip',
                    sgdw='peri')),
    'deep': ('--n_embd=48 --n_layer=8 --block_size=96 --batch_size=4 --dataset=textfiles --vocab_size=0 --dtype=float32 '
             '--max_iters=200 --warmup_iters=30 --eval_interval=100',
             dict(adamw='peri resi_dual keel mixln', muon='s5 gpas hybrid', lion='lns', adam_mini='post', sgdw='s1')),
    'deepest': ('--n_embd=48 --n_layer=12 --n_head=3 --block_size=64 --batch_size=6 --max_iters=150 --warmup_iters=20 '
                '--eval_interval=75',
                dict(adamw='s5 deepnorm llama', muon='peri pre', lion='olmo2', adam_mini='subln', sgdw='s2')),
    'bpe': ('--n_embd=128 --n_layer=3 --n_head=4 --batch_size=4 --dataset=pysource-bpe1024 --vocab_size=0 --max_iters=200 '
            '--warmup_iters=20 --eval_interval=100',
            dict(adamw='seednorm gatednorm norm_gain layerscale b2t', muon='stable value_residual dyt', lion='s5',
                 adam_mini='peri', sgdw='pre')),
    'long': ('--n_embd=48 --n_layer=2 --block_size=32 --batch_size=6 --dataset=textfiles --vocab_size=0 --dtype=float32 '
             '--max_iters=1000 --warmup_iters=50 --eval_interval=250 --log_interval=5',
             dict(adamw='s4 derf', muon='gated', lion='pre', sgdw='s3')),
}
MORE = {            # further settings: name → (keys, factor on the middle rate)
    'llama-adamw-bpe-blockwise': ('config/lr/blockwise.py --warmup_iters=8', 1 / 3),
    'peri-adam_mini-narrow-blockwise': ('config/lr/blockwise_adam_mini.py --warmup_iters=10', 1 / 3),
    's1-muon-narrow-wsd': ('config/lr/wsd.py', 1),
    'pre-adamw-short-dropout': ('--dropout=0.1 --bias=True --gradient_accumulation_steps=2 --schedule=linear', 1),
    'llama-muon-short-grouped': ('--n_kv_head=1 --vocab_size=320 --d_ff=352 --schedule=constant', 1 / 2),
    'pre-adamw-deep-l2': ('--attention=l2 --ffn=relu --mup_base_width=64 --mup_base_head_dim=32', 1),
}


def healthy(arch, optim, size, keys='', factor=1):
    """Return the arguments of a run, and its three learning rates."""
    width = int(SIZES[size][0].partition('--n_embd=')[2].split()[0])
    start = f'--init_gain={(768 / width) ** 0.5:.2f}'           # the gain that GPT-2's matrices have at a width of 768
    if arch in ('s1', 's2', 's3', 's4', 's5', 'stable', 'simplenorm'):
        start = ''
    elif arch not in ('dyt', 'derf', 'gemma3'):                 # these scale embeddings themselves
        start = '--emb_std=0.08 ' + start * (arch not in ('deepnorm', 'subln'))
    arguments, rate = OPTIMIZERS[optim]
    rate *= FACTORS.get(arch, 1) * factor
    parts = COMMON, f'config/arch/{arch}.py', start, arguments, SIZES[size][0], keys
    return ' '.join(filter(None, parts)), [float(f'{rate * step:.3g}') for step in (1 / 2, 1, 2)]


HEALTHY = {f'{arch}-{optim}-{size}': healthy(arch, optim, size)
           for size, (_, runs) in SIZES.items() for optim, archs in runs.items() for arch in archs.split()}
HEALTHY |= {name: healthy(*name.split('-')[:3], *more) for name, more in MORE.items()}

# ----------------------------------------------------------------------------- plants
MODEL, TRAIN, OPTIM, DATA, DEVICE = 'model.py', 'train.py', 'optim.py', 'data/tokens.py', 'engine/device.py'
# texts that several edits replace
STEP = '_, loss = train_model(x, y)'
ROWS = 'for i in starts]).astype(np.int64)\n'
STARTS = 'shuffled_starts(self.length, self.block_size, first, count, seed)'
READ = f'return self.read({STARTS})'
MASK = 'is_causal=self.causal and q.size(2) > 1'
KERNEL = f'return self.kernel(q, k, v, {MASK},'
LOSS = 'at_least_fp32(logits).flatten(0, 1), targets.flatten()'
VALUES = 'self.heads(self.wv(x))'
HEADS = 'q, k, values = (y.transpose(1, 2) for y in (q, k, v))'
TYPE = 'kind = block_type(name, types, p)\n'
EMBEDDING = 'x = self.emb_scale(self.wte(idx))'
QK = 'q, k = self.queries_keys(x)\n'
ADD = 'return torch.add(self.skip(x), f, alpha=self.dt)'
DECAYED = "decayed = kind in DECAYED and p.dim() > 1 or decay_norms and kind == 'norm'"
RATE = "rate(it, group['lr_ratio'])"
OPT = 'check_on_shards(opt)\n'
BUILT = 'raw_model.to(machine.device)\n'
CLIPPED = 'scaler.step(opt)'
UPDATE = 'scaler.update()\n'


def batch(window, then):
    """Return an edit that gives `then`, instead of (x, y), as the batch that begins with this window of the run."""
    return DATA, READ, f'x, y = self.read({STARTS})\n        return (x, y) if first != {window} else ({then})'


def after(iteration, statement):
    """Return an edit that executes a statement once, behind the step of this iteration."""
    return TRAIN, UPDATE, f'{UPDATE}    if it == {iteration}:\n        {statement}\n'


# cause → (name, twin, what is planted): keys, and edits (file, old text, new text). An old text occurs once in its file.
PLANTS = {
    'labels': (
        ('shifted-twice', 's1-adamw-short',
         (MODEL, LOSS, 'at_least_fp32(logits)[:, :-1].flatten(0, 1), targets[:, 1:].flatten()')),
        ('not-shifted', 'gemma3-adamw-narrow', (TRAIN, STEP, '_, loss = train_model(x, x)')),
        ('shifted-back', 'peri-lion-short', (TRAIN, STEP, '_, loss = train_model(x, x.roll(1, 1))')),
        ('inputs-permuted', 'stable-muon-bpe',
         (DATA, 'rows[:, :-1].copy())', 'rows[:, :-1].copy())[torch.randperm(len(rows))]')),
        ('two-too-long', 'resi_dual-adamw-deep', (DATA, 'i + self.block_size + 1]', 'i + self.block_size + 2]'),
         (DATA, 'rows[:, :-1].copy()', 'rows[:, :-2].copy()'), (DATA, 'rows[:, 1:].copy()', 'rows[:, 2:].copy()')),
    ),
    'leak': (
        ('mask-one-late', 's2-muon-short', (DEVICE, '.triu(1)', '.triu(2)')),
        ('convolved-values', 'llama-lion-narrow',
         (MODEL, VALUES, 'self.heads(self.wv(x + F.pad(x, (0, 0, 0, 1))[:, 1:]))')),
        ('mask-in-training-alone', 'parallel-adamw-narrow', (MODEL, MASK, f'{MASK} and self.training')),
        ('mask-in-evaluation-alone', 's5-lion-bpe', (MODEL, MASK, f'{MASK} and not self.training')),
        ('prefix', 'pre-adam_mini-short',
         (MODEL, KERNEL, 'seen = torch.arange(k.size(2))\n        seen = (seen <= seen[:, None]) | (seen < len(seen) // 2)\n'
                         '        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen,')),
    ),
    'repeats': (
        ('one-shard', 's5-muon-deep', (DATA, READ, READ.replace('self.length', '20 * self.block_size'))),
        ('seeded-by-worker', 'gatednorm-adamw-bpe', (DATA, READ, READ.replace('first,', 'first // count % 4 * count,'))),
        ('micro-batch-alone', 'pre-adamw-short-dropout',
         (TRAIN, 'number = it * gradient_accumulation_steps + j', 'number = j')),
        ('one-row', 'peri-adam_mini-bpe',
         (DATA, READ, 'return self.read(count * shuffled_starts(self.length, self.block_size, first // count % 30, 1, seed))')),
        ('stuck-iterator', 'peri-adamw-deep',
         (TRAIN, 'number * batch_size, batch_size, data_seed', 'min(number, 30) * batch_size, batch_size, data_seed')),
    ),
    'padding': (
        ('lines', 's5-adamw-deepest', (DATA, ROWS, f'{ROWS}        rows *= np.cumsum(rows == 10, axis=1) == 0\n')),
        ('ragged', 'mixln-adamw-deep',
         (DATA, ROWS, f'{ROWS}        rows *= np.arange(self.block_size + 1) < 20 + 50 * rows[:, :1] % 41\n')),
        ('on-the-left', 'olmo2-lion-deepest', (DATA, ROWS, f'{ROWS}        rows[:, :self.block_size // 2] = 32\n')),
        ('unknown-tokens', 'norm_gain-adamw-bpe', (DATA, ROWS, f'{ROWS}        rows[rows > 100] = 0\n')),
        ('wrong-dtype', 'mhc_lite-muon-short',
         (DATA, "map_file(self.path, meta['dtype'], (self.length,), meta)",
          "map_file(self.path, meta['dtype'], (self.length,), meta).view(np.uint8)")),
    ),
    'frozen': (
        ('frozen-head', 'llama-lion-narrow', (TRAIN, BUILT, f'{BUILT}raw_model.lm_head.requires_grad_(False)\n')),
        ('frozen-first-blocks', 'gpas-muon-deep', (TRAIN, BUILT, f'{BUILT}raw_model.h[:7].requires_grad_(False)\n')),
        ('cached-keys-values', 's1-adamw-short', (MODEL, HEADS, f'{HEADS}\n        k, values = k.detach(), values.detach()')),
        ('tied-too-late', 'pre-adam_mini-short',
         (TRAIN, OPT, f'{OPT}raw_model.lm_head.weight = torch.nn.Parameter(raw_model.wte.weight.detach().clone())\n')),
        ('left-out-attention', 's4-lion-narrow', (OPTIM, TYPE, f"{TYPE}        if '.attn.w' in name:\n            continue\n")),
        ('forgotten-ffn', 'seednorm-adamw-bpe',
         (MODEL, 'x = self.ffn_residual(x, self.ffn_branch', 'self.ffn_residual(x, self.ffn_branch')),
    ),
    'embeddings': (
        ('std-1-tied', 'peri-adam_mini-bpe', '--emb_std=1.0'),
        ('std-1-post', 'b2t-adamw-bpe', (MODEL, 'p.normal_(std=c.emb_std or 0.02, generator', 'p.normal_(generator')),
        ('by-vocabulary', 'pre-sgdw-bpe', (MODEL, EMBEDDING, f'{EMBEDDING} / self.config.vocab_size')),
        ('raw-positions', 's1-adamw-short', (MODEL, EMBEDDING, f'{EMBEDDING} + torch.arange(start, end)[:, None]')),
        ('scaled-twice', 'dyt-adamw-short', '--emb_scale=True'),
    ),
    'logits': (
        ('tau-linear', 'stable-adamw-short', (MODEL, 'math.log2(config.block_size)', 'config.block_size')),
        ('times-head-dim', 'olmo2-muon-narrow', (MODEL, QK, f'{QK}        q = q * self.head_dim\n')),
        ('loaded-queries', 'deepnorm-adamw-deepest',
         (TRAIN, BUILT, f'{BUILT}for block in raw_model.h:\n    block.attn.wq.weight.data *= 40\n')),
        ('annealed', 'peri-lion-short',
         (MODEL, 'y = self.attend(q', 'self.scale *= 1.04 if self.training else 1\n        y = self.attend(q')),
        ('base-of-heads', 'llama-adamw-deepest', '--mup_base_width=48 --mup_base_head_dim=10000'),
    ),
    'no_norm': (
        ('no-pre-deepest', 'llama-adamw-deepest', '--attn_pre_norm=False --ffn_pre_norm=False --final_norm=False'),
        ('none-built', 'peri-muon-deepest', (MODEL, 'config) if on else nn.Identity()\n\n\ndef make_head_norm',
                                             'config) if on and dim else nn.Identity()\n\n\ndef make_head_norm')),
        ('skipped-in-bf16', 's3-adamw-narrow', (MODEL, 'return self.normalize(x, self.gain.to(x.dtype))',
                                                'return x * self.gain.to(x.dtype)')),
        ('no-mid', 'olmo2-lion-deepest', '--mid_norm=False'),
        ('no-post', 'b2t-adamw-bpe', '--post_norm=False'),
        ('no-attn-post', 'hybrid-muon-deep', '--attn_post_norm=False --final_norm=False'),
    ),
    'branches': (
        ('added-twice', 'mixln-adamw-deep', (MODEL, ADD, ADD.replace('self.skip(x)', 'x + self.skip(x)'))),
        ('by-depth', 'subln-adam_mini-deepest', (MODEL, 'math.log(2 * c.n_layer) ** 0.5', '2 * c.n_layer')),
        ('large-layerscale', 'layerscale-adamw-bpe', (MODEL, '0.1 if config.n_layer <= 18', '30.0 if config.n_layer <= 18')),
        ('times-depth', 's5-adamw-deepest', (MODEL, 'self.dt, self.streams = config.branch_scale,',
                                             'self.dt, self.streams = config.branch_scale * 2 * config.n_layer,')),
        ('dt-25-dual', 'resi_dual-adamw-deep', '--residual_scale=25.0'),
    ),
    'depth': (
        ('no-skip', 'pre-muon-deepest', (MODEL, ADD, 'return self.dt * f')),
        ('detached-skip', 's1-sgdw-deep', (MODEL, ADD, ADD.replace('self.skip(x)', 'self.skip(x.detach())'))),
        ('scaled-gradients', 's2-sgdw-deepest',
         (MODEL, 'x_in = x\n', 'x_in = x\n        if x.requires_grad:\n            x.register_hook(lambda grad: 3 * grad)\n')),
        ('inverse-alpha', 'keel-adamw-deep',
         (MODEL, "'keel': lambda n_layer: 2.0 * n_layer", "'keel': lambda n_layer: 0.5 / n_layer")),
        ('inverse-alpha-deepnorm', 'deepnorm-adamw-deepest', (MODEL, '(2 * n_layer) ** 0.25,', '(2 * n_layer) ** -0.75,')),
    ),
    'decay': (
        ('on-everything', 's4-adamw-long', (OPTIM, DECAYED, 'decayed = True')),
        ('on-gains', 'derf-adamw-long',
         (OPTIM, DECAYED, DECAYED.replace("decay_norms and kind == 'norm'", "kind in ('norm', 'gain')"))),
        ('on-norms-stable', 'stable-adamw-short', '--decay_norms=True --wd_norm=15.0'),
        ('missing-long', 'gated-muon-long', '--weight_decay=0.0'),
        ('by-squared-rate', 'pre-lion-long', (OPTIM, 'torch._foreach_mul_(w, 1 - lr * weight_decay)',
                                              'torch._foreach_mul_(w, 1 - lr * lr * weight_decay)')),
        ('missing-in-blocks', 's5-muon-deep', '--wd_qk=0.0 --wd_vo=0.0 --wd_ffn=0.0'),
    ),
    'balance': (
        ('slow-values', 'peri-sgdw-narrow', '--r_vo=0.02'),
        ('fast-head', 'llama-adamw-deepest', '--r_head=30.0 --blockwise=jump'),
        ('fast-norms', 's1-adamw-short', '--r_norm=100.0 --blockwise=jump'),
        ('slow-attention', 'seednorm-adamw-bpe',
         (OPTIM, 'lr_scale=scale,\n', "lr_scale=scale * (0.01 if kind in ('qk', 'vo') else 1),\n")),
        ('fast-adam-part', 'simplenorm-muon-narrow', (OPTIM, '((square / bias2).sqrt() + eps), value=-1)',
                                                      '((square / bias2).sqrt() + eps), value=-30)')),
    ),
    'step': (
        ('decay-in-epochs', 'embskip-adam_mini-narrow', '--lr_decay_iters=30'),
        ('warmup-of-another-run', 'attnres-adamw-short', '--warmup_iters=2000'),
        ('clipped-by-value', 'peri-sgdw-narrow',
         (TRAIN, CLIPPED, 'torch.nn.utils.clip_grad_value_(raw_model.parameters(), 1e-4)\n    ' + CLIPPED)),
        ('eps-1e-2', 'post-adam_mini-deep', (OPTIM, 'EPS = 1e-8 ', 'EPS = 1e-2 ')),
        ('undivided', 'pre-sgdw-bpe', (TRAIN, 'loss) / len(micro_batches)).backward()', 'loss)).backward()'),
         '--batch_size=1 --gradient_accumulation_steps=8 --grad_clip=0.0'),
        ('rate-of-adamw', 'llama-lion-narrow', '--learning_rate=0.012'),
        ('rate-of-adamw-by-sgd', 's1-sgdw-deep', '--learning_rate=0.002'),
        ('no-warmup-b2t', 'b2t-adamw-bpe', '--warmup_iters=0 --learning_rate=0.03'),
        ('counted-in-micro-batches', 'subln-adam_mini-deepest', (TRAIN, RATE, RATE.replace('it,', '4 * it,'))),
    ),
    'betas': (
        ('exchanged-default', 'gpas-adamw-narrow', '--beta1=0.999 --beta2=0.9'),
        ('short-squares', 'stable-adamw-short', '--beta1=0.99 --beta2=0.5'),
        ('slow-lion', 's4-lion-narrow', '--beta1=0.998 --beta2=0.998'),
        ('never-forgets', 'peri-sgdw-narrow', (OPTIM, 'torch._foreach_mul_(m, momentum)                # m ←',
                                               'torch._foreach_mul_(m, 1.0)                # m ←')),
        ('no-momentum', 'pre-sgdw-bpe', '--momentum=0.0'),
        ('slow-mean-mini', 'peri-adam_mini-bpe',
         (OPTIM, "c['n_embd'] // c['n_head'], betas(c),", "c['n_embd'] // c['n_head'], (0.999, 0.9),")),
    ),
    'spike_batch': (
        ('hole-in-file', 's1-adamw-short', batch(800, 'torch.zeros_like(x), torch.zeros_like(y)')),
        ('other-tokenizer', 'seednorm-adamw-bpe', batch(480, '(x + 300) % 1024, (y + 300) % 1024')),
        ('noisy-labels', 'hyper-adamw-short',
         (TRAIN, STEP, '_, loss = train_model(x, y if it not in (100, 101) else torch.randint_like(y, 250))')),
        ('shuffled-words', 's5-muon-deep', batch(480, 'x[:, torch.randperm(x.size(1))], y[:, torch.randperm(y.size(1))]')),
        ('mislabelled', 's2-sgdw-deepest', (TRAIN, STEP, '_, loss = train_model(x, y if it % 60 != 45 else (y + 128) % 256)')),
    ),
    'spike_weights': (
        ('embedding-reset', 'parallel-adamw-narrow', after(150, 'raw_model.wte.weight.data.normal_(std=0.08)')),
        ('flipped-bit', 'lns-lion-deep', after(120, 'raw_model.h[5].ffn.w2.weight.data[3, 5] = 1e4')),
        ('reversed-momentum', 's5-adamw-deepest', after(90, "[state['exp_avg'].mul_(-30) for state in opt.state.values()]")),
        ('not-unscaled', 'pre-sgdw-bpe',
         (TRAIN, CLIPPED, 'if it == 120:\n        [p.grad.mul_(64) for p in raw_model.parameters()]\n    ' + CLIPPED)),
        ('loaded-again', 'gatednorm-adamw-bpe', after(130, 'raw_model.load_state_dict(build().state_dict())')),
    ),
}
