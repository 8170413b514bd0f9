"""
Hold out further plants from lab.doctor, on the healthy runs of held_out.py: whoever wrote these has not seen its rules, and
whoever wrote the rules has not seen these.

    python -m lab.doctor.trials --table=results/doctor/held_out_2.py --csv=results/doctor/held_out_2.csv --out_dir=out-held

held_out.py says how to prepare the data.
"""
from pathlib import Path
from runpy import run_path

HELD_OUT = run_path(str(Path(__file__).with_name('held_out.py')))
HEALTHY, batch, after = (HELD_OUT[name] for name in ('HEALTHY', 'batch', 'after'))
NAMES = 'MODEL TRAIN OPTIM DATA STEP ROWS STARTS READ MASK LOSS EMBEDDING QK OPT BUILT CLIPPED'
MODEL, TRAIN, OPTIM, DATA, STEP, ROWS, STARTS, READ, MASK, LOSS, EMBEDDING, QK, OPT, BUILT, CLIPPED = (
    HELD_OUT[name] for name in NAMES.split())

# ----------------------------------------------------------------------------- plants
# further texts that several edits replace
KERNEL = f'return self.kernel(q, k, v, {MASK},'
SCALED = 'return F.scaled_dot_product_attention(q, k, v, attn_mask=seen,'
TOKENS = "self.tokens = map_file(self.path, meta['dtype'], (self.length,), meta)\n"
NUMBER = 'number * batch_size, batch_size'
ZEROS = "p = torch.zeros(shape, dtype=torch.float32, device='cpu')\n"
DECAY = 'torch._foreach_mul_(w, 1 - lr * weight_decay)'
GROUP_RATE = "group['lr'] = group['lr_scale'] * rate(it, group['lr_ratio'])"
BLOCK = 'x, v1 = block(x, x0, v1, caches[i] if caches else None)\n'

# cause → (name, twin, what is planted): keys, and edits (file, old text, new text). An old text occurs once in its file.
PLANTS = {
    'labels': (
        ('shift-right', 's3-adamw-narrow', (MODEL, EMBEDDING, EMBEDDING.replace('idx', 'F.pad(idx, (1, -1))'))),
        ('time-first', 'value_residual-muon-bpe',
         (MODEL, LOSS, 'at_least_fp32(logits).transpose(0, 1).flatten(0, 1), targets.flatten()')),
        ('masked-the-wrong-way', 'peri-adam_mini-narrow-blockwise',
         (TRAIN, STEP, '_, loss = train_model(x, y.masked_fill(y != x, -1))')),
        ('targets-of-last-batch', 'hyper-adamw-short',
         (TRAIN, STEP, f"stale, kept = (kept if it else y), y\n            {STEP.replace('y)', 'stale)')}")),
    ),
    'leak': (
        ('triangle-upside-down', 'peri-adamw-deep', (MODEL, 'y = self.attend(q, k, values).transpose',
                                                     'y = self.attend(q.flip(2), k.flip(2), values.flip(2)).flip(2).transpose')),
        ('mask-of-ones', 'siamese-lion-short',
         (MODEL, KERNEL, f'seen = q.new_ones(q.size(2), k.size(2)).tril()        # added to the logits\n        {SCALED}')),
        ('chunks', 'layerscale-adamw-bpe',
         (MODEL, KERNEL, f'seen = torch.arange(k.size(2)) // 8\n        seen = seen <= seen[:, None]\n        {SCALED}')),
        ('scheduled-sampling', 'gatednorm-adamw-bpe',
         (TRAIN, STEP, '_, loss = train_model(torch.where(torch.rand(x.shape) < 0.4, y, x), y)')),
    ),
    'repeats': (
        ('forgot-batch-size', 's2-muon-short', (TRAIN, NUMBER, 'number, batch_size')),
        ('forgot-block-size', 's4-lion-narrow', (DATA, 'starts.append(shift + block_size * int', 'starts.append(shift + int')),
        ('until-learned', 'gpas-adamw-narrow', (TRAIN, OPT, f'{OPT}learned = 0\n'),
         (TRAIN, NUMBER, 'learned * batch_size, batch_size'), (TRAIN, STEP, f'{STEP}\n        learned += loss.item() < 1')),
        ('duplicated-files', 'stable-adamw-short',
         (DATA, TOKENS, f"{TOKENS}        if split == 'train':\n"
                        '            self.tokens = np.resize(self.tokens[:1500], self.length)\n')),
    ),
    'padding': (
        ('dropped-words', 'hyper-adamw-short', (TRAIN, STEP, '_, loss = train_model(x * (torch.rand(x.shape) < 0.1), y)')),
        ('unfilled-file', 'post-adam_mini-deep',
         (DATA, TOKENS, f'{TOKENS}        self.tokens = self.tokens * (np.arange(self.length) < self.length // 10)\n')),
        ('mask-for-ids', 'dyt-adamw-short', (DATA, ROWS, f'{ROWS}        rows = np.ones_like(rows)\n')),
        ('ignored-as-zero', 'gemma3-adamw-narrow',
         (TRAIN, STEP, '_, loss = train_model(x, y.masked_fill(torch.arange(block_size) < 150, 0))')),
    ),
    'frozen': (
        ('both-zero', 'seednorm-adamw-bpe',
         (MODEL, ZEROS, f"{ZEROS}    if module in ('attn.wv', 'attn.wo'):\n        return p\n")),
        ('all-but-norms', 'embskip-adam_mini-narrow',
         (TRAIN, BUILT, f"{BUILT}for name, p in raw_model.named_parameters():\n    p.requires_grad_('norm' in name)\n")),
        ('frozen-early', 'resi_dual-adamw-deep',
         (TRAIN, CLIPPED, f"if it > 40:\n        [setattr(p, 'grad', None) for p in raw_model.h.parameters()]\n    {CLIPPED}")),
        ('zero-rates', 'hybrid-muon-deep', '--r_qk=0.0 --r_vo=0.0 --r_ffn=0.0'),
    ),
    'embeddings': (
        ('raw-ids', 'value_residual-muon-bpe', (MODEL, EMBEDDING, f'{EMBEDDING} + idx[..., None]')),
        ('max-norm', 'pre-adamw-short-dropout', (MODEL, 'self.wte = nn.Embedding(config.vocab_size, config.n_embd)',
                                                 'self.wte = nn.Embedding(config.vocab_size, config.n_embd, max_norm=0.01)')),
        ('times-position', 'lns-lion-deep', (MODEL, EMBEDDING, f'{EMBEDDING} * torch.arange(start + 1, end + 1)[:, None]')),
        ('tied-later', 'simplenorm-muon-narrow', '--tie_weights=True'),
    ),
    'logits': (
        ('gains-of-qk', 's5-lion-bpe',
         (TRAIN, BUILT, f'{BUILT}for block in raw_model.h:\n    block.attn.q_norm.weight.data *= 10\n'
                        '    block.attn.k_norm.weight.data *= 10\n')),
        ('by-length', 'gatednorm-adamw-bpe',
         (MODEL, QK, f'{QK}        q = q * torch.arange(1, q.size(1) + 1)[:, None, None]\n')),
        ('cosines-times-dim', 'pre-adam_mini-short',
         (MODEL, QK, f'{QK}        q, k = (self.head_dim * F.normalize(y, dim=-1) for y in (q, k))\n')),
        ('yarn', 'attnres-adamw-short', (MODEL, 'x1, x2 = x.chunk(2, dim=-1)', 'x1, x2 = (8 * x).chunk(2, dim=-1)')),
    ),
    'no_norm': (
        ('no-linear-norm', 'simplenorm-muon-narrow', '--linear_norm=False'),
        ('no-sub', 'subln-adam_mini-deepest', '--sub_norm=False --attn_pre_norm=False --ffn_pre_norm=False'),
        ('no-tanh', 'dyt-muon-bpe', (MODEL, 'y = torch.tanh(self.alpha.to(x.dtype) * x)', 'y = self.alpha.to(x.dtype) * x')),
        ('root-for-inverse-root', 's1-muon-narrow-wsd',
         (MODEL, 'return F.rms_norm(x, gain.shape, gain, self.eps)',
          'return gain * x * (x.square().mean(-1, keepdim=True) + self.eps).sqrt()')),
    ),
    'branches': (
        ('sign-of-gpas', 'gpas-muon-deep', (MODEL, 'return y - F.silu(self.gate).to(y.dtype) * y.detach()',
                                            'return y + (1 - F.silu(self.gate).to(y.dtype)) * y.detach()')),
        ('stream-times-10', 'embskip-adam_mini-narrow', (MODEL, 'for start in (1.0, 0.0))', 'for start in (10.0, 0.0))')),
        ('dt-0.001', 's4-lion-narrow', '--residual_scale=0.001'),
        ('gains-of-40', 'olmo2-muon-narrow',
         (TRAIN, BUILT, f'{BUILT}for block in raw_model.h:\n    block.ffn_mid_norm.weight.data.fill_(40.0)\n')),
    ),
    'depth': (
        ('sigmoid-stream', 'peri-adamw-deep', (MODEL, BLOCK, f'{BLOCK}            x = torch.sigmoid(x)\n')),
        ('no-skip-around-ffn', 's5-muon-deep', (MODEL, 'x = self.ffn_residual(x, self', 'x = self.ffn_residual(0 * x, self')),
        ('decay-by-layer-reversed', 's1-sgdw-deep',
         (TRAIN, BUILT, f'{BUILT}for i, block in enumerate(raw_model.h):\n    for p in block.parameters():\n'
                        '        p.register_hook(lambda grad, i=i: grad * 0.2 ** (i - 7))\n')),
    ),
    'decay': (
        ('coupled', 'norm_gain-adamw-bpe', (OPTIM, 'class AdamW(torch.optim.AdamW)', 'class AdamW(torch.optim.Adam)')),
        ('on-out-norms', 'olmo2-muon-narrow', '--decay_norms=True --wd_out_norm=25.0'),
        ('without-the-rate', 'peri-sgdw-narrow', (OPTIM, DECAY, DECAY.replace('lr * ', ''))),
        ('plus-for-minus', 'stable-muon-bpe', (OPTIM, DECAY, DECAY.replace('1 - ', '1 + '))),
    ),
    'balance': (
        ('fast-gains', 'layerscale-adamw-bpe', '--r_gain=100.0 --blockwise=jump'),
        ('fast-positions', 'pre-adamw-short-dropout', '--r_pos=100.0 --blockwise=jump'),
        ('divided-gradient', 'pre-sgdw-bpe',
         (TRAIN, BUILT, f'{BUILT}raw_model.wte.weight.register_hook(lambda grad: grad / 200)\n')),
        ('over-fan-in', 'attnres-adamw-short',
         (OPTIM, 'return 1.0, 1.0\n', 'return (1 / p.size(-1) if kind in MATRICES and p.dim() > 1 else 1.0), 1.0\n')),
    ),
    'step': (
        ('rising-cosine', 'gatednorm-adamw-bpe',
         (OPTIM, '0.5 + 0.5 * math.cos(math.pi * p)', '0.5 - 0.5 * math.cos(math.pi * p)')),
        ('compounded', 'norm_gain-adamw-bpe',
         (TRAIN, GROUP_RATE, "group['lr'] *= rate(it, group['lr_ratio']) / learning_rate")),
        ('no-sign', 's5-lion-bpe', (OPTIM, '        torch._foreach_sign_(direction)\n', '')),
        ('adamw-at-sgds-rate', 'peri-sgdw-narrow', '--optimizer=adamw'),
    ),
    'betas': (
        ('squares-added', 'peri-adam_mini-bpe',
         (OPTIM, 'moments.lerp_(squares.mean(1, keepdim=True) if s.group else squares, 1 - beta2)',
          'moments.add_(squares.mean(1, keepdim=True) if s.group else squares)')),
        ('slow-adam-part', 'dyt-muon-bpe', '--beta1=0.998'),
        ('half-life-in-rows', 's3-adamw-narrow', (OPTIM, "return c.get('beta1', 0.9), c.get('beta2', 0.95)",
                                                  "return c.get('beta1', 0.9) ** (1 / 64), c.get('beta2', 0.95) ** (1 / 64)")),
    ),
    'spike_batch': (
        ('flipped-case', 'peri-lion-short', batch(800, 'x ^ 32, y ^ 32')),
        ('bad-shard', 'parallel-adamw-narrow',
         (DATA, READ, f'x, y = self.read({STARTS})\n        return x, y.roll(100, 1) if 600 <= first < 640 else y')),
        ('binary-table', 'stable-adamw-short',
         batch(640, '7 * torch.arange(64).expand_as(x) % 256, 7 * torch.arange(1, 65).expand_as(y) % 256')),
    ),
    'spike_weights': (
        ('rounded', 'llama-muon-short-grouped', after(100, '[p.data.mul_(4).round_().div_(4) for p in raw_model.parameters()]')),
        ('negated-gain', 'keel-adamw-deep', after(130, 'raw_model.h[-1].ffn_post_norm.weight.data.neg_()')),
        ('rows-rolled', 'embskip-adam_mini-narrow',
         after(170, 'raw_model.wte.weight.data = raw_model.wte.weight.data.roll(1, 0)')),
        ('perturbation-not-undone', 'mhc_lite-muon-short',
         after(100, '[p.data.add_(torch.randn_like(p), alpha=0.3) for p in raw_model.parameters()]')),
    ),
}
