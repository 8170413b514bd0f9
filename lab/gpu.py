"""
Measures how exact and how fast this repository is on a GPU, within nine minutes, and writes a page about it:

    python -m lab.gpu                       # results/gpu/<the GPU's name>.md and .json; `make gpu` does this
    python -m lab.gpu --only=headline       # steps whose title holds this word, printed and not written
    python -m lab.gpu --only=try            # choices to try, which the page does not have
    python -m lab.gpu --tiny=True           # small models, to try the script on any machine

The most valuable steps come first. Both files are written after each one. A step is made of commands in processes of their own,
has a limit of time, and keeps what it printed until it failed. data/pycode must be prepared.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.gpu')

from configurator import ROOT, configure
from engine.process import one_line

import json
import math
import os
import platform
import re
import signal
import statistics
import subprocess
import tempfile
import time
import warnings
from contextlib import suppress
from typing import NamedTuple

import torch
from torch.nn import functional as F
from torch.nn.attention import sdpa_kernel

from engine.checkpoint import write_whole
from engine.device import ATTENTION_BACKENDS, device_name, lacks_to_compile, pick_device
from engine.errors import read_rows
from engine.runlog import code_state
from model import GPTConfig, L2Attention

MODEL = 'config/train_gpt2_adamw.py --dataset=pycode --eval_iters=1 --log_interval=1'.split()       # 124M parameters
SMALL = '--n_layer=2 --n_head=2 --n_embd=32 --block_size=64 --vocab_size=256 --batch_size=2'.split()
QUICK = 'config/train_quick.py --max_iters=20 --eval_interval=10 --eval_iters=2 --warmup_iters=5 --log_interval=1'.split()


# ----------------------------------------------------------------------------- running a step

class Failed(Exception):
    """A command of a step has failed: the line that says why, and the end of its stderr."""

    def __init__(self, why, stderr=''):
        super().__init__(why)
        self.stderr = stderr.splitlines()[-40:]


class Run:
    """A step that runs: its folder to write in, more arguments for small models, the device's name, and the time.monotonic() at
    which it must have ended. `lines` are what the page will say."""

    def __init__(self, scratch, device, until):
        self.scratch, self.device, self.until, self.lines, self.outside = scratch, device, until, [], []
        self.more = [*(SMALL if tiny else []), f'--device={device}']
        self.compiles = not lacks_to_compile(torch.device(device)) and not no_compile

    def say(self, text):
        self.lines += text.strip('\n').splitlines()

    def check(self, name, value, limit):
        """Says whether a value is at most its limit, which was written down before any GPU ran this."""
        if not value <= limit:
            self.outside.append(name)
        self.say(f'{name}: {value:.2e}, {"within" if value <= limit else "OUTSIDE"} {limit:g}')

    def python(self, *arguments, **env):
        """What a script of the repository prints. Failed if it fails or takes too long; the lines so far are then said."""
        paths = [os.path.join(self.scratch, name) for name in ('stdout', 'stderr')]
        with open(paths[0], 'w') as out, open(paths[1], 'w') as err:
            process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=out, stderr=err, start_new_session=True,
                                       env={**os.environ, **env})
            try:
                code = process.wait(timeout=max(1.0, self.until - time.monotonic()))
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with suppress(ProcessLookupError):      # its ranks too
                    os.killpg(process.pid, signal.SIGKILL)
        out, err = (open(path, encoding='utf-8', errors='replace').read() for path in paths)
        if code != 0:
            self.say(out)
            raise Failed('took longer than the time it has' if code is None else error_line(err, code), err)
        return out.strip()

    def bench(self, *arguments, **env):
        """The lines of bench.py's tables"""
        compiled = [] if any(arg.startswith('--compile') for arg in arguments) else [f'--compile={self.compiles}']
        out = self.python('bench.py', *arguments, *self.more, *compiled, **env)
        self.say('\n'.join(line for line in out.splitlines() if 'first iteration' not in line and not line.startswith('wrote')))

    def train(self, name, *arguments, torchrun=False, compiled=None, device=None):
        """Runs train.py in the folder `name` → its rows with a loss"""
        folder = os.path.join(self.scratch, name)
        launch = ['-m', 'torch.distributed.run', '--standalone'] if torchrun else []
        self.python(*launch, 'train.py', *arguments, f'--device={device or self.device}', f'--out_dir={folder}',
                    f'--compile={self.compiles if compiled is None else compiled}')
        return [row for row in read_rows(os.path.join(folder, 'log.jsonl')) if 'loss' in row]


def error_line(stderr, code):
    """The line of a traceback that names the error. Behind it CUDA's have lines of advice, and torchrun's another traceback."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()] or [f'exit code {code}']
    errors = [line for line in lines if re.match(r'error: |(\w+\.)*\w*(Error|Exception|Interrupt)\b', line)]
    errors = [line for line in errors if 'ChildFailedError' not in line]
    return (errors or lines)[-1][:300]


def difference(rows, others):
    return max(abs(a['loss'] - b['loss']) for a, b in zip(rows, others, strict=True))


# ----------------------------------------------------------------------------- steps

def attention(run):
    run.say(run.python('-m', 'lab.gpu', '--only=attention table', f'--device={run.device}', f'--tiny={tiny}'))
    run.outside += [line for line in run.lines if 'OUTSIDE' in line]


def training(run):
    """The same 20 iterations again: with a stop, eager, and in float32 beside the CPU"""
    whole = run.train('whole', *QUICK)
    run.say(f'loss {whole[0]["loss"]:.4f} to {whole[-1]["loss"]:.4f} in 20 iterations')
    run.say('largest differences of its losses:')
    run.check('against the eager run', difference(whole, run.train('eager', *QUICK, compiled=False)), 5e-2)
    for keys, limit in ([], 2e-2), (['--deterministic=True'], 0.0):
        rows = run.train('exact', *QUICK, *keys) if keys else whole
        half = f'half{len(keys)}'
        run.train(half, *QUICK, *keys, '--max_iters=10', '--lr_decay_iters=20')
        resumed = run.train(half, *QUICK, *keys, '--init_from=resume')
        run.check(' '.join(['after a resumption', *keys]), difference(rows, resumed), limit)
    fp32 = [*QUICK, '--dtype=float32', '--tf32=False']
    ours, theirs = (run.train(f'fp32-{i}', *fp32, compiled=False, device=name) for i, name in enumerate((run.device, 'cpu')))
    run.check('float32 without TF32 against the CPU', difference(ours, theirs), 1e-3)


def headline(run):
    """train.py itself: an iteration of 16 micro-batches, its evaluation and its log left out"""
    run.say(f'{"":18}{"tokens/s":>12}{"first loss":>12}{"last loss":>11}')
    for optimizer in 'adamw', 'sgdw':
        for arch in 'pre', 's5', 'llama':
            keys = [*MODEL, f'config/arch/{arch}.py', f'config/optim/{optimizer}.py', '--max_iters=8', '--warmup_iters=4',
                    '--lr_decay_iters=8', '--eval_interval=100', '--vocab_size=50304', '--gradient_accumulation_steps=16',
                    *(SMALL if tiny else [])]
            rows = run.train(f'{arch}-{optimizer}', *keys)
            run.say(f'{arch + " " + optimizer:18}{statistics.median(row["tokens_per_s"] for row in rows[2:]):12,.0f}'
                    f'{rows[0]["loss"]:12.3f}{rows[-1]["loss"]:11.3f}')
            if not rows[-1]['loss'] < rows[0]['loss']:
                run.outside.append(f'the loss of {arch} by {optimizer} does not fall')


def micro_batches(run):
    for size in (12, 24, 32):
        run.say(f'micro-batches of {size}:')
        run.bench(*MODEL[:1], '--bench_iters=10', *([] if tiny else [f'--batch_size={size}']))


def shares(run):
    for arch in 'pre', 's5':
        run.say(f'{arch}:')
        run.bench(*MODEL[:1], f'config/arch/{arch}.py', '--bench_iters=5', f'--profile={run.scratch}/trace.json')
        run.lines = [line for line in run.lines if line.startswith(('share', 'pre', 's5', 'arch'))]


def optimizers(run):
    run.bench(*MODEL[:1], '--optimizers=adamw,sgdw,lion,adam_mini,muon')


def distributed(run):
    """torchrun with one process: its back end is NCCL on a GPU. fp16 with its loss scaling. Shards, which need safetensors"""
    whole = run.train('alone', *QUICK)
    run.check('DDP', difference(whole, run.train('ddp', *QUICK, torchrun=True)), 2e-2)
    run.check('FSDP', difference(whole, run.train('fsdp', *QUICK, '--parallel=fsdp', torchrun=True)), 2e-2)
    if run.device != 'cpu':
        run.check('fp16', difference(whole, run.train('fp16', *QUICK, '--dtype=float16')), 5e-2)
    sharded = [*QUICK, '--parallel=fsdp', '--save_shards=True']
    run.train('shards', *sharded, '--max_iters=10', '--lr_decay_iters=20', torchrun=True)
    run.check('shards, resumed', difference(whole, run.train('shards', *sharded, '--init_from=resume', torchrun=True)), 2e-2)


def placements(run):
    run.bench(*MODEL[:1], '--archs=s1,s2,s3,s4,s5,peri,post,stable', '--bench_iters=10')


def sampling(run):
    run.bench(*MODEL[:1], '--sampling=100')


def try_choices(run):
    """What may be faster on a GPU. Not here: a residual stream in bf16, which would need another model"""
    for backend in ('cudnn', 'flash') if run.device != 'cpu' else ('math',):
        run.say(f'attention by {backend}:')
        run.bench(*MODEL[:1], '--bench_iters=10', f'--attention_backend={backend}')
    run.say(run.python('-m', 'lab.gpu', '--only=qkv table', f'--device={run.device}', f'--tiny={tiny}'))
    run.say('max-autotune:')
    run.bench(*MODEL[:1], '--bench_iters=10', TORCHINDUCTOR_MAX_AUTOTUNE='1')


class Step(NamedTuple):
    title: str
    seconds: int            # its limit
    run: callable
    computed: str           # what was computed for an H100 before any GPU ran this


STEPS = [
    Step('attention kernels against float64', 40, attention, ''),
    Step('training: resumption, eager, CPU', 170, training, ''),
    Step('headline: train.py with 16 micro-batches of 30 windows, 124M parameters', 270, headline,
         'pre by AdamW: 510,000 to 555,000 tokens/s on paper, 430,000 to 490,000 to be expected; s5 1 ms a micro-batch more'),
    Step('micro-batches of 12, 24, 32', 120, micro_batches, '55 to 60 ms for 30 windows'),
    Step('where the time goes', 90, shares,
         'ms for 30 windows: products 31–35, attention 7–10, element-wise 11.7, head and loss 3.9, casts 1.0'),
    Step('optimizer steps', 90, optimizers, ''),
    Step('torchrun with one process: DDP, FSDP; fp16; shards', 120, distributed, ''),
    Step('placements', 150, placements, 's5 1 ms more than pre'),
    Step('sampling', 60, sampling, ''),
]
CHOICES_TO_TRY = Step('choices to try: attention backends, one product for q, k and v, max-autotune', 400, try_choices,
                      'cuDNN against flash: 2 to 3 ms; one product: 0.5 to 1.5 ms; max-autotune: 0 to 2 ms')


# ----------------------------------------------------------------------------- tables

LIMITS = {torch.float32: 1e-4, torch.bfloat16: 3e-2}     # of the largest error, relative to the largest entry


def attention_table(device, size, head_dim):
    """A line per kind of attention, dtype and kernel: the largest error of its output and of dq, dk and dv against float64,
    relative to the largest entry, and the milliseconds of a forward and backward pass; or why the kernel refuses."""
    lines = [f'{"attention":11}{"dtype":10}{"kernel":11}{"output":>10}{"dq":>10}{"dk":>10}{"dv":>10}{"ms":>9}']
    rng = torch.Generator().manual_seed(0)
    q, k, v, weights = torch.randn(4, 4, 12, size, head_dim, generator=rng, dtype=torch.float64)
    future = torch.full((size, size), -torch.inf, dtype=torch.float64).triu(1)
    l2 = L2Attention(GPTConfig(attention='l2', n_head=1, n_embd=head_dim, block_size=size))        # `attend` has no weights
    for kind in ('dot', 'stable', 'l2'):
        scale = 1.618 * math.log2(size) if kind == 'stable' else head_dim ** -0.5
        exact = [(F.normalize(x, dim=-1) if kind == 'stable' and x is not v else x).requires_grad_() for x in (q, k, v)]
        logits = -scale * torch.cdist(*exact[:2]).square() if kind == 'l2' else scale * exact[0] @ exact[1].mT
        wanted = (logits + future).softmax(-1) @ exact[2]
        wanted = [wanted.detach(), *torch.autograd.grad((wanted * weights).sum(), exact)]
        for dtype, limit in LIMITS.items():
            inputs = [x.detach().to(dtype).to(device).requires_grad_() for x in exact]
            for name, (backend, _) in ATTENTION_BACKENDS.items():

                def call(inputs=inputs, kind=kind, scale=scale, dtype=dtype):
                    out = l2.attend(*inputs) if kind == 'l2' else \
                        F.scaled_dot_product_attention(*inputs, is_causal=True, scale=scale)
                    return [out, *torch.autograd.grad((out * weights.to(dtype).to(device)).sum(), inputs)]

                line = f'{kind:11}{str(dtype)[6:]:10}{name:11}'
                try:
                    with warnings.catch_warnings(record=True) as reasons, sdpa_kernel(backend):
                        warnings.simplefilter('always')
                        errors = [((x.detach().cpu().double() - y).abs().max() / y.abs().max()).item()
                                  for x, y in zip(call(), wanted)]
                        line += ''.join(f'{error:10.1e}' for error in errors) + f'{milliseconds(call, device):9.3f}'
                        line += '' if max(errors) <= limit else f'  OUTSIDE {limit:g}'
                except RuntimeError as error:           # out of memory is one too
                    why = [str(w.message).partition(' (Triggered')[0] for w in reasons]
                    why = [text for text in why if 'because' not in text] or [one_line(error)]
                    line += f'  refuses: {why[0].partition(". ")[0][:100]}'
                lines.append(line)
    return '\n'.join(lines)


def qkv_table(device, tokens, width):
    """The milliseconds of the products for queries, keys and values, forward and backward, as three and as one"""
    x = torch.randn(tokens, width, device=device, dtype=torch.bfloat16, requires_grad=True)
    matrices = [torch.randn(n * width, width, device=device, dtype=torch.bfloat16, requires_grad=True) for n in (1, 1, 1, 3)]

    def products(parts):
        sum(F.linear(x, w).sum() for w in parts).backward()

    times = [milliseconds(lambda: products(parts), device) for parts in (matrices[:3], matrices[3:])]
    return f'q, k and v of {tokens:,} tokens of width {width}: three products {times[0]:.3f} ms, one {times[1]:.3f} ms'


def milliseconds(call, device, repeats=10):
    synchronize = getattr(torch, device.type).synchronize if device.type != 'cpu' else lambda: None
    call()
    synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    synchronize()
    return 1000 * (time.perf_counter() - began) / repeats


# ----------------------------------------------------------------------------- keys
device = 'auto'                     # auto | cpu | cuda | cuda:1 | mps …
minutes = 9.0                       # the time for all steps
name = ''                           # of the page; empty: the GPU's
out_dir = 'results/gpu'             # where it goes
only = ''                           # steps whose title holds this; try: choices to try
tiny = False                        # small models
no_compile = False                  # nothing is compiled
# -----------------------------------------------------------------------------


def main():
    config = configure(globals())
    if config['minutes'] <= 0:
        raise ValueError(f'minutes={config["minutes"]}: wants a positive number')
    at = pick_device(device)
    if only == 'attention table':
        print(attention_table(at, 64 if tiny else 1024, 64))
        return
    if only == 'qkv table':
        print(qkv_table(at, *((256, 64) if tiny else (30 * 1024, 768))))
        return
    steps = [CHOICES_TO_TRY] if only == 'try' else [step for step in STEPS if only in step.title]
    if not steps:
        raise ValueError(f'only={only!r}: choose try, or a part of one of: {"; ".join(step.title for step in STEPS)}')
    deadline = time.monotonic() + 60 * minutes
    about = dict(machine=device_name(at), torch=torch.__version__, cuda=torch.version.cuda, python=platform.python_version(),
                 platform=platform.platform(), commit=code_state()[0][:12],
                 command=' '.join(['python -m lab.gpu', *sys.argv[1:]]))
    path = os.path.join(out_dir, name or re.sub(r'[^a-z0-9]+', '-', about['machine'].lower()).strip('-'))
    rows = []
    for step in steps:
        rows.append(row_of(step, str(at), deadline))
        print(as_text(rows[-1]), flush=True)
        if not only:
            write_page(path, about, rows, steps[len(rows):])
    if not only:
        print(f'wrote {path}.md and {path}.json')
    failed = [row['step'] for row in rows if not row['ok']]
    if failed:
        raise ValueError(f'{len(failed)} of {len(rows)} steps failed or are outside their limits: {"; ".join(failed)}')


def row_of(step, device, deadline):
    """Runs a step → what the page says of it"""
    began, error, stderr = time.monotonic(), '', []
    with tempfile.TemporaryDirectory() as scratch:
        run = Run(scratch, device, min(deadline, began + step.seconds))
        try:
            if began >= deadline:
                raise Failed(f'the {minutes:g} minutes were over')
            step.run(run)
            error = f'outside its limits: {"; ".join(run.outside)}' if run.outside else ''
        except Failed as failure:
            error, stderr = str(failure), failure.stderr
        except (OSError, ValueError, KeyError, IndexError, statistics.StatisticsError) as failure:     # of what a run has left
            error = f'{type(failure).__name__}: {failure}'
    return dict(step=step.title, ok=not error, error=error, computed=step.computed, lines=run.lines, stderr=stderr,
                seconds=round(time.monotonic() - began, 1))


def as_text(row):
    """A section of the page"""
    lines = [f'## {row["step"][0].upper()}{row["step"][1:]}', '']
    lines += [f'Computed before, for an H100: {row["computed"]}.', ''] if row['computed'] else []
    lines += [f'**Failed:** {row["error"]}', ''] if row['error'] else []
    lines += [*(f'    {line}'.rstrip() for line in row['lines']), ''] if row['lines'] else []
    return '\n'.join([*lines, f'{row["seconds"]} s in all.', ''])


def write_page(path, about, rows, left):
    """`path`.json with all so far, and `path`.md to read."""
    os.makedirs(os.path.dirname(path) or '.', exist_ok=True)
    write_whole(path + '.json', lambda f: f.write(json.dumps(dict(about, steps=rows), indent=1).encode()))
    page = [f'# {about["machine"]}', '', f'PyTorch {about["torch"]}, CUDA {about["cuda"]}, Python {about["python"]}, '
            f'commit {about["commit"]}. By', '', f'    {about["command"]}', '', *map(as_text, rows)]
    page += [f'Not run when this was written: {"; ".join(step.title for step in left)}.', ''] if left else []
    write_whole(path + '.md', lambda f: f.write('\n'.join(page).encode()))


if __name__ == '__main__':
    main()
