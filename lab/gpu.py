"""
Measures how fast and how exact this repository is on a GPU, within ten minutes, and writes a page about it:

    python -m lab.gpu                       # results/gpu/<the GPU's name>.md and .json; `make gpu` does this
    python -m lab.gpu --only=training       # one step, printed and not written
    python -m lab.gpu --tiny=True           # small models, to try the script on any machine

Each step is a command or two in processes of their own, so that one that fails does not end the others. The page shows what it
said. data/pycode must be prepared.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.gpu')

from configurator import ROOT, configure

import json
import math
import os
import platform
import re
import signal
import subprocess
import tempfile
import time
from contextlib import suppress

import torch
from torch.nn import functional as F
from torch.nn.attention import sdpa_kernel

from engine.checkpoint import write_whole
from engine.device import ATTENTION_BACKENDS, device_name, pick_device
from engine.errors import read_rows
from engine.runlog import code_state
from model import GPTConfig, L2Attention

SMALL = '--n_layer=2 --n_head=2 --n_embd=32 --block_size=64 --vocab_size=256 --batch_size=2 --compile=False'.split()
QUICK = 'config/train_quick.py --max_iters=20 --eval_interval=10 --eval_iters=2 --warmup_iters=5 --log_interval=1'.split()


def python(*arguments, until):
    """What a script of the repository prints. RuntimeError with its last line if it fails, or does not end `until` then (of
    time.monotonic)."""
    process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               start_new_session=True)
    try:
        out, err = process.communicate(timeout=max(1.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise RuntimeError('took longer than the time that was left') from None
    finally:
        with suppress(ProcessLookupError):              # its ranks too
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise RuntimeError((err.strip().splitlines() or [f'exit code {process.returncode}'])[-1])
    return out.strip()


def losses(folder):
    return [row['loss'] for row in read_rows(os.path.join(folder, 'log.jsonl')) if 'loss' in row]


def largest_difference(a, b):
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


# ----------------------------------------------------------------------------- steps
# Each takes (scratch, sizes, device, until): a folder to write in, more arguments for bench.py, the device's name, and the
# time.monotonic() at which it must have ended. It returns the text for the page.

def bench(*arguments):
    return lambda scratch, sizes, device, until: python(
        'bench.py', *arguments, *sizes, f'--device={device}', until=until)


def kernels(scratch, sizes, device, until):
    return python('-m', 'lab.gpu', '--only=attention', f'--device={device}', f'--tiny={bool(sizes)}', until=until)


def shares(scratch, sizes, device, until):
    out = bench('config/train_ldnt_sgd.py', '--bench_iters=3', f'--profile={scratch}/trace.json')(scratch, sizes, device, until)
    return '\n'.join(line for line in out.splitlines() if line.startswith('share'))


def training(scratch, sizes, device, until):
    """Twenty iterations, and the same with a stop and a resumption; then with fully_shard on one rank"""
    whole, half, fsdp = (os.path.join(scratch, name) for name in ('whole', 'half', 'fsdp'))
    more = [*QUICK, f'--device={device}']
    python('train.py', *more, f'--out_dir={whole}', until=until)
    python('train.py', *more, f'--out_dir={half}', '--max_iters=10', '--lr_decay_iters=20', until=until)
    python('train.py', *more, f'--out_dir={half}', '--init_from=resume', until=until)
    python('-m', 'torch.distributed.run', '--standalone', 'train.py', *more, f'--out_dir={fsdp}', '--parallel=fsdp',
           until=until)
    return (f'loss {losses(whole)[0]:.4f} to {losses(whole)[-1]:.4f} in 20 iterations\n'
            f'largest difference after a resumption {largest_difference(losses(whole), losses(half)):.2e}\n'
            f'largest difference under fsdp on one rank {largest_difference(losses(whole), losses(fsdp)):.2e}')


def parity(scratch, sizes, device, until):
    """The same iterations in float32 on the CPU and on the device, which may take TF32"""
    runs = [os.path.join(scratch, f'parity-{name}') for name in ('cpu', device)]
    for run, name in zip(runs, ('cpu', device)):
        python('train.py', *QUICK, f'--device={name}', '--dtype=float32', '--compile=False', f'--out_dir={run}',
               '--overwrite=True', until=until)
    return f'largest difference of 20 losses {largest_difference(*map(losses, runs)):.2e}'


STEPS = {
    'attention kernels, error against float64': kernels,
    'an iteration of train_ldnt_sgd': bench('config/train_ldnt_sgd.py'),
    'an iteration of train_gpt2_adamw': bench('config/train_gpt2_adamw.py'),
    'where the time goes': shares,
    'S1 to S5': bench('config/train_ldnt_sgd.py', '--archs=s1,s2,s3,s4,s5', '--bench_iters=10'),
    'micro-batches of 10': bench('config/train_ldnt_sgd.py', '--batch_size=10'),
    'optimizer steps': bench('config/train_ldnt_sgd.py', '--optimizers=adamw,sgdw,lion,adam_mini,muon'),
    'training, resumption, fsdp': training,
    'float32 beside the CPU': parity,
    'sampling': bench('config/train_gpt2_adamw.py', '--sampling=100'),
}


# ----------------------------------------------------------------------------- attention

def attention_table(device, size, head_dim):
    """A line per kind of attention, dtype and kernel: the largest error of its output against float64, relative to the largest
    output, and the milliseconds of a forward and backward pass."""
    lines = [f'{"attention":12}{"dtype":10}{"kernel":11}{"error":>10}{"ms":>9}']
    rng = torch.Generator().manual_seed(0)
    normal = torch.randn(3, 4, 12, size, head_dim, generator=rng, dtype=torch.float64)
    future = torch.full((size, size), -torch.inf, dtype=torch.float64).triu(1)
    l2 = L2Attention(GPTConfig(attention='l2', n_head=1, n_embd=head_dim, block_size=size))        # `attend` has no weights
    for kind in ('dot', 'stable', 'l2'):
        q, k, v = normal
        scale = head_dim ** -0.5
        if kind == 'stable':
            q, k, scale = F.normalize(q, dim=-1), F.normalize(k, dim=-1), 1.618 * math.log2(size)
        logits = -scale * torch.cdist(q, k).square() if kind == 'l2' else scale * q @ k.mT
        exact = (logits + future).softmax(-1) @ v
        for dtype in (torch.float32, torch.bfloat16):
            inputs = [x.to(dtype).to(device).requires_grad_() for x in (q, k, v)]
            for name, (backend, _) in ATTENTION_BACKENDS.items():

                def call(inputs=inputs, kind=kind, scale=scale):
                    if kind == 'l2':
                        return l2.attend(*inputs)
                    return F.scaled_dot_product_attention(*inputs, is_causal=True, scale=scale)

                try:
                    with sdpa_kernel(backend):
                        error = (call().detach().cpu().double() - exact).abs().max() / exact.abs().max()
                        ms = milliseconds(lambda: call().sum().backward(), device)
                except RuntimeError:
                    continue                            # this kernel does not take these
                lines.append(f'{kind:12}{str(dtype)[6:]:10}{name:11}{error:10.1e}{ms:9.3f}')
    return '\n'.join(lines)


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
device = 'auto'                     # auto | cpu | cuda | cuda:1 | mps
minutes = 10.0                      # the time for all steps
name = ''                           # of the page; empty: the GPU's
out_dir = 'results/gpu'             # where it goes
only = ''                           # a step of this name alone, or of one that contains it; or attention
tiny = False                        # small models
# -----------------------------------------------------------------------------


def main():
    config = configure(globals())
    if config['minutes'] <= 0:
        raise ValueError(f'minutes={config["minutes"]}: wants a positive number')
    at = pick_device(device)
    if only == 'attention':
        print(attention_table(at, 64 if tiny else 1024, 64))
        return
    steps = {title: step for title, step in STEPS.items() if only in title}
    if not steps:
        raise ValueError(f'only={only!r}: choose attention, or a part of one of: {"; ".join(STEPS)}')
    deadline, sizes = time.monotonic() + 60 * minutes, SMALL if tiny else []
    commit = code_state()[0][:12]
    about = dict(machine=device_name(at), torch=torch.__version__, python=platform.python_version(), platform=platform.platform(),
                 commit=commit, command=' '.join(['python -m lab.gpu', *sys.argv[1:]]))
    sections = []
    with tempfile.TemporaryDirectory() as scratch:
        for title, step in steps.items():
            began = time.monotonic()
            try:
                if began >= deadline:
                    raise RuntimeError(f'the {minutes:g} minutes were over')
                row = dict(step=title, ok=True, said=step(scratch, sizes, str(at), deadline))
            except (RuntimeError, OSError, ValueError) as error:
                row = dict(step=title, ok=False, said=str(error))
            row['seconds'] = round(time.monotonic() - began, 1)
            sections.append(row)
            print(f'{"" if row["ok"] else "FAILED: "}{title} ({row["seconds"]:.0f} s)\n{row["said"]}\n', flush=True)
    failed = [row['step'] for row in sections if not row['ok']]
    if not only:
        page = name or re.sub(r'[^a-z0-9]+', '-', about['machine'].lower()).strip('-')
        write_page(os.path.join(out_dir, page), about, sections)
    if failed:
        raise ValueError(f'{len(failed)} of {len(sections)} steps failed: {"; ".join(failed)}')


def write_page(path, about, sections):
    """`path`.json with all, and `path`.md to read."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    write_whole(path + '.json', lambda f: f.write(json.dumps(dict(about, steps=sections), indent=1).encode()))
    page = [f'# {about["machine"]}', '', f'PyTorch {about["torch"]}, Python {about["python"]}, commit {about["commit"]}. By', '',
            f'    {about["command"]}', '']
    for row in sections:
        page += [f'## {row["step"].capitalize()}', '', *([] if row['ok'] else ['This step failed:', '']),
                 *(f'    {line}'.rstrip() for line in row['said'].splitlines()), '', f'{row["seconds"]} s in all.', '']
    write_whole(path + '.md', lambda f: f.write('\n'.join(page).encode()))
    print(f'wrote {path}.md and {path}.json')


if __name__ == '__main__':
    main()
