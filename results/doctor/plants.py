# The runs on which lab.doctor is tuned: plants, each made sick on purpose by keys or by edits of code, and healthy runs
#     python -m lab.doctor.trials
# Write a file of the same form for runs that the doctor has not seen: python -m lab.doctor.trials --table=FILE --csv=CSV
COMMON = ('config/base/pysource.py --dtype=float32 --batch_size=4 --max_iters=300 --warmup_iters=30 --log_interval=1 '
          '--eval_interval=100 --eval_iters=25')

# ----------------------------------------------------------------------------- healthy runs
# Decays are seven times those of config/sweep/tolerance.py, whose runs are seven times as long.
OPTIMIZERS = {'adamw': 'config/optim/adamw.py --min_lr=0 --weight_decay=0.7',
              'muon': 'config/optim/muon.py --min_lr=0 --weight_decay=0.7',
              'sgdw': 'config/optim/sgdw.py --min_lr=0 --weight_decay=0.015'}
SIZES = {'': '', '-wide': ' --n_embd=96 --n_layer=6'}           # beside width 64 and 4 layers
GAIN = '--init_gain=3.46'       # gives GPT-2's matrices at a width of 64 the gain that they have at 768
GPT2 = f'--emb_std=0.08 {GAIN}'
ARCHS = {           # what to add to the arch file, and the middle one of three learning rates by optimizer
    'pre': (GPT2, dict(adamw=6e-3, muon=1.6e-2, sgdw=0.2)),
    's5': ('', dict(adamw=8e-3, muon=1.6e-2, sgdw=0.1)),
    'peri': (GPT2, dict(adamw=6e-3, muon=1.6e-2, sgdw=0.1)),
    'llama': (GPT2, dict(adamw=6e-3, muon=1.6e-2, sgdw=0.2)),
    'post': (GPT2, dict(adamw=6e-3, muon=8e-3, sgdw=0.2)),
    'hybrid': (GPT2, dict(adamw=6e-3)),
    'dyt': (GAIN, dict(adamw=1e-3)),
    'olmo2': (GPT2, dict(adamw=6e-3)),
    'gemma3': (GAIN, dict(muon=8e-3)),
    'hyper': (GPT2, dict(muon=8e-3)),
    'gated': (GPT2, dict(muon=1.6e-2)),
    'deepnorm': ('--emb_std=0.08', dict(sgdw=0.2)),
    'resi_dual': (GPT2, dict(sgdw=0.2)),
    'lns': (GPT2, dict(sgdw=0.2)),
}
HEALTHY = {         # name → (arguments, learning rates, of which the one with the lowest validation loss is healthy)
    f'{arch}-{optim}{size}': (f'{COMMON} config/arch/{arch}.py {more} {OPTIMIZERS[optim]}{keys}', [rate / 2, rate, 2 * rate])
    for size, keys in SIZES.items() for arch, (more, rates) in ARCHS.items() for optim, rate in rates.items()}

# ----------------------------------------------------------------------------- plants
MODEL, TRAIN, OPTIM, DATA = 'model.py', 'train.py', 'optim.py', 'data/tokens.py'
# texts that several edits replace
STEP = '_, loss = train_model(x, y)'
ROWS = 'for i in starts]).astype(np.int64)'
BATCH = 'return self.read(shuffled_starts(self.length, self.block_size, first, count, seed))'
READ = 'x, y = self.read(shuffled_starts(self.length, self.block_size, first, count, seed))\n        return '
NUMBER = 'number * batch_size, batch_size, data_seed'
BLOCK = 'x, v1 = block(x, x0, v1, '
ADD = 'return torch.add(self.skip(x), f, alpha=self.dt)'
STD = 'std *= width_ratio_in ** -0.5'
QK = 'q, k = self.queries_keys(x)'
DECAY = 'weight_decay=weight_decay * decay_ratio / scale if decayed else 0.0'
RATE = 'lr_scale=scale,\n'
FROZEN = 'self.wte.requires_grad_(False)\n        '
UPDATE = 'scaler.update()\n'
AT_200 = 'scaler.update()\n    if it == 200:\n        '

# cause → (name, twin, what is planted): keys, and edits (file, old text, new text). An old text occurs once in its file.
PLANTS = {
    'labels': (
        ('copied-in-data', 'pre-adamw', (DATA, 'rows[:, 1:].copy()', 'rows[:, :-1].copy()')),
        ('two-ahead-in-data', 'peri-muon', (DATA, 'rows[:, 1:].copy()', 'np.roll(rows, -1, axis=1)[:, 1:].copy()')),
        ('two-ahead-in-loss', 'llama-muon', (MODEL, 'targets.flatten(), ignore', 'targets.roll(-1, 1).flatten(), ignore')),
        ('two-ahead-in-loop', 's5-adamw', (TRAIN, STEP, '_, loss = train_model(x, y.roll(-1, 1))')),
        ('of-another-row', 'post-sgdw', (TRAIN, STEP, '_, loss = train_model(x, y.flip(0))')),
    ),
    'leak': (
        ('smeared', 'pre-adamw', (MODEL, 'self.wte(idx))', 'self.wte(idx) + self.wte(idx.roll(-1, 1)))')),
        ('no-mask', 'pre-muon', (MODEL, 'is_causal=self.causal and q.size(2) > 1', 'is_causal=False')),
        ('both-directions', 'peri-muon', (MODEL, 'causal: ClassVar[bool] = True', 'causal: ClassVar[bool] = False')),
        ('targets-in-stream', 's5-adamw',
         (MODEL, 'self.output(self.hidden(idx), targets)',
          'self.output(self.hidden(idx) + (0 if targets is None else self.wte(targets)), targets)')),
        ('next-value', 'llama-sgdw', (MODEL, 'y = self.attend(q, k, values)', 'y = self.attend(q, k, values.roll(-1, 2))')),
        ('ffn-of-next', 'post-muon', (MODEL, 'x_in if self.parallel_ffn else x))', 'x.roll(-1, 1)))')),
    ),
    'repeats': (
        ('first-batch', 'pre-adamw', (TRAIN, NUMBER, '0, batch_size, data_seed')),
        ('eight-batches', 's5-sgdw', (TRAIN, NUMBER, 'number % 8 * batch_size, batch_size, data_seed')),
        ('each-50-times', 'llama-adamw', (TRAIN, NUMBER, 'number // 50 * batch_size, batch_size, data_seed')),
        ('32-windows', 'peri-muon', (DATA, 'int(order[number % windows])', 'int(order[number % 32])')),
        ('first-windows', 'post-adamw', (DATA, 'permutation((length - 1) // block_size)',
                                         'permutation((length - 1) // block_size) % 16')),
    ),
    'padding': (
        ('short-rows', 'pre-adamw', (DATA, ROWS, ROWS + ' * (np.arange(self.block_size + 1) < 32)')),
        ('blank-inputs', 's5-muon', (DATA, 'rows[:, :-1].copy()', 'np.full_like(rows[:, :-1], 32)')),
        ('short-in-loop', 'llama-sgdw', (TRAIN, STEP, '_, loss = train_model(x * (torch.arange(block_size) < 24), y)')),
        ('blank-rows', 'peri-adamw', (DATA, ROWS, ROWS + ' * (np.arange(len(starts)) % 4 == 0)[:, None]')),
        ('few-letters', 'post-adamw', (DATA, ROWS, ROWS + '.clip(max=40)')),
    ),
    'frozen': (
        ('embedding', 'pre-adamw', (MODEL, 'self.emb_scale = ', FROZEN + 'self.emb_scale = ')),
        ('cut-embedding', 'llama-adamw', (MODEL, 'run_blocks(self.h, x, x0', 'run_blocks(self.h, x.detach(), x0')),
        ('cut-queries', 'peri-muon', (MODEL, QK, 'q, k = (y.detach() for y in self.queries_keys(x))')),
        ('cut-ffn', 's5-muon', (MODEL, 'y = self.activation(self.w1(x))', 'y = self.activation(self.w1(x)).detach()')),
        ('no-optimizer', 'post-sgdw', (OPTIM, 'kind = block_type(name, types, p)',
                                       "if (kind := block_type(name, types, p)) == 'ffn':\n            continue")),
        ('one-block', 'llama-muon', (MODEL, 'for i, block in enumerate(blocks):', 'for i, block in enumerate(blocks[:1]):')),
    ),
    'embeddings': (
        ('large-start', 'pre-adamw', '--emb_std=3.0'),
        ('large-start-s5', 's5-sgdw', '--emb_std=2.0'),
        ('small-start', 'peri-sgdw', '--emb_std=0.00001'),
        ('std-1', 'pre-muon', (MODEL, 'p.normal_(std=c.emb_std or 0.02, generator', 'p.normal_(generator')),
        ('scaled', 'llama-adamw', (MODEL, 'self.emb_scale(self.wte(idx))', '100 * self.emb_scale(self.wte(idx))')),
        ('large-positions', 'peri-adamw', (MODEL, 'x = x + self.wpe(', 'x = x + 30 * self.wpe(')),
    ),
    'logits': (
        ('root-for-inverse', 'pre-adamw', (MODEL, 'self.scale = config.logit_scale', 'self.scale = config.head_dim ** 0.5')),
        ('no-scale', 's5-adamw', (MODEL, 'self.scale = config.logit_scale', 'self.scale = 2.0')),
        ('large-start-qk', 'llama-muon', (MODEL, STD, "std *= 6.0 if module in ('attn.wq', 'attn.wk') else 1.0")),
        ('growing', 'llama-adamw', (MODEL, STD, "std *= 1 / 12 if module in ('attn.wq', 'attn.wk') else 1.0"),
         (MODEL, QK, 'q, k = (12 * y for y in self.queries_keys(x))')),
        ('mup-head-dim', 'pre-sgdw', '--mup_base_width=64 --mup_base_head_dim=65536'),
        ('large-tau', 'post-muon', '--attention=stable --attn_tau=30.0'),
    ),
    'no_norm': (
        ('no-pre', 'pre-sgdw', '--attn_pre_norm=False --ffn_pre_norm=False'),
        ('none', 'post-adamw', '--post_norm=False'),
        ('none-but-qk', 's5-sgdw', '--input_norm=False --mid_norm=False'),
        ('none-final', 'pre-muon', '--attn_pre_norm=False --ffn_pre_norm=False --final_norm=False'),
        ('gain-alone', 'llama-adamw', (MODEL, 'F.rms_norm(x, gain.shape, gain, self.eps)', 'gain * x')),
        ('mean-alone', 'peri-sgdw', (MODEL, 'F.layer_norm(x, gain.shape, gain, bias, self.eps)',
                                     'gain * (x - x.mean(-1, keepdim=True))')),
    ),
    'branches': (
        ('dt-20', 'pre-adamw', '--residual_scale=20.0'),
        ('dt-30', 'peri-muon', '--residual_scale=30.0'),
        ('dt-20-post', 'post-sgdw', '--residual_scale=20.0'),
        ('skip-8', 'llama-adamw', '--skip_scale=keel'),
        ('large-ffn', 'llama-sgdw', (MODEL, 'return self.dropout(self.w2(', 'return 20 * self.dropout(self.w2(')),
        ('start-up-with-depth', 'pre-muon', (MODEL, '(2 * c.n_layer / c.depth_growth) ** -0.5', '2 * c.n_layer')),
        ('dt-25', 's5-adamw', (MODEL, ADD, 'return torch.add(self.skip(x), f, alpha=25 * self.dt)')),
    ),
    'depth': (
        ('vanishing', 'llama-sgdw', (MODEL, BLOCK, 'x, v1 = block(0.1 * x + 0.9 * x.detach(), x0, v1, ')),
        ('vanishing-s5', 's5-adamw', (MODEL, BLOCK, 'x, v1 = block(1e-4 * x + (1 - 1e-4) * x.detach(), x0, v1, ')),
        ('exploding-post', 'post-sgdw', (MODEL, BLOCK, 'x, v1 = block(8 * x - 7 * x.detach(), x0, v1, ')),
        ('exploding', 'peri-sgdw', (MODEL, BLOCK, 'x, v1 = block(4 * x - 3 * x.detach(), x0, v1, ')),
        ('weak-skip', 'pre-sgdw', (MODEL, ADD, 'return torch.add(0.1 * self.skip(x), f, alpha=self.dt)')),
    ),
    'decay': (
        ('on-every-norm', 'pre-adamw', (OPTIM, "or decay_norms and kind == 'norm'", "or kind == 'norm'")),
        ('on-norms-s5', 's5-adamw', '--decay_norms=True --wd_norm=30.0'),
        ('on-norms-peri', 'peri-muon', '--decay_norms=True --wd_norm=30.0'),
        ('exchanged', 'llama-adamw', (OPTIM, DECAY, DECAY.replace('if decayed', 'if not decayed'))),
        ('missing-blocks', 'post-adamw', (MODEL, "DECAYED = {*MATRICES, 'emb'", "DECAYED = {'emb'")),
        ('missing', 'pre-muon', '--weight_decay=0.0'),
        ('missing-post', 'post-sgdw', '--weight_decay=0.0'),
    ),
    'balance': (
        ('slow-ffn', 'pre-adamw', '--r_ffn=0.01'),
        ('fast-ffn', 's5-muon', '--blockwise=jump --r_ffn=20.0'),
        ('slow-head', 'llama-sgdw', '--r_head=0.01'),
        ('slow-embedding', 'peri-adamw', (OPTIM, RATE, "lr_scale=scale * (0.01 if kind == 'emb' else 1),\n")),
        ('fast-embedding', 'post-adamw', (OPTIM, RATE, "lr_scale=scale * (20 if kind == 'emb' else 1),\n")),
        ('slow-matrices', 'pre-muon', (OPTIM, '0.2 * math.sqrt(max(n_out, n_in))', '0.002 * math.sqrt(max(n_out, n_in))')),
    ),
    'step': (
        ('high-rate', 'pre-adamw', '--learning_rate=0.08'),
        ('high-rate-sgdw', 'pre-sgdw', '--learning_rate=5.0'),
        ('no-warmup', 'post-adamw', '--learning_rate=0.016 --warmup_iters=0'),
        ('low-rate', 'llama-adamw', '--learning_rate=0.0002'),
        ('clipped', 's5-sgdw', '--grad_clip=0.003'),
        ('large-eps', 's5-adamw', (OPTIM, 'EPS = 1e-8 ', 'EPS = 1e-2 ')),
        ('stuck-schedule', 'peri-adamw', (TRAIN, "rate(it, group['lr_ratio'])", "rate(0, group['lr_ratio'])")),
        ('small-loss', 'post-sgdw', (TRAIN, 'loss) / len(micro_batches)).backward()', 'loss) / 1000).backward()')),
        ('always-clipped', 'llama-sgdw', (TRAIN, "grad_clip or float('inf')", '0.001')),
    ),
    'betas': (
        ('slow-mean', 'pre-adamw', '--beta1=0.999'),
        ('no-memory', 'llama-adamw', '--beta1=0.0 --beta2=0.0'),
        ('slow-momentum', 's5-sgdw', '--momentum=0.995'),
        ('one-minus', 'peri-adamw', (OPTIM, "return c.get('beta1', 0.9), c.get('beta2', 0.95)",
                                     "return 1 - c.get('beta1', 0.9), 1 - c.get('beta2', 0.95)")),
        ('slow-muon', 'post-muon', (OPTIM, "Muon(groups, c['learning_rate'], c.get('momentum', 0.9)",
                                    "Muon(groups, c['learning_rate'], 0.998")),
        ('slow-mean-post', 'post-adamw', (OPTIM, 'betas(c), EPS, fused=True', '(0.9975, 0.95), EPS, fused=True')),
    ),
    'spike_batch': (
        ('reversed-targets', 'pre-adamw',
         (TRAIN, STEP, '_, loss = train_model(x, y if it != 200 else y.flip(1))')),
        ('random-targets', 'llama-muon',
         (DATA, BATCH, READ + 'x, torch.randint_like(y, 256) if first == 800 else y')),
        ('one-target', 's5-sgdw', (DATA, BATCH, READ + 'x, torch.full_like(y, 255) if first == 600 else y')),
        ('reversed-inputs', 'post-adamw',
         (TRAIN, STEP, '_, loss = train_model(x.flip(1) if it % 90 == 80 else x, y)')),
        ('random-bytes', 'peri-adamw',
         (DATA, BATCH, READ + '(x, y) if first // 12 != 50 else (torch.randint_like(x, 256), torch.randint_like(y, 256))')),
    ),
    'spike_weights': (
        ('large-w2', 'pre-adamw', (TRAIN, UPDATE, AT_200 + 'raw_model.h[1].ffn.w2.weight.data.mul_(30)\n')),
        ('one-large-step', 'llama-muon', (TRAIN, "rate(it, group['lr_ratio'])",
                                          "rate(it, group['lr_ratio']) * (40 if it == 200 else 1)")),
        ('lost-squares', 's5-adamw',
         (TRAIN, UPDATE, AT_200 + "[state['exp_avg_sq'].zero_() for state in opt.state.values()]\n")),
        ('one-token', 'post-sgdw', (TRAIN, UPDATE, AT_200 + 'raw_model.wte.weight.data[32] += 3\n')),
        ('one-gain', 'peri-muon', (TRAIN, UPDATE, AT_200 + 'raw_model.final_norm.weight.data[7] = 200\n')),
    ),
}
