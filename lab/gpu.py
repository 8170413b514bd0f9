"""
Measure a GPU by commands of bench.py and train.py, within nine minutes, and write their output to a page:

    python -m lab.gpu                       # results/gpu/<the GPU's name>.md; `make gpu` does this
    python -m lab.gpu --only=profile        # only the commands with this word
    python -m lab.gpu --tiny=True           # small models, to try this script on any machine

The most valuable commands come first, and the page is rewritten after each. Only a full run on a GPU, with all commands at full
size, writes to results/gpu; others write out-gpu/page.md, which git ignores. Needs PyTorch, NumPy and a prepared data/pycode.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.gpu')

from configurator import ROOT, configure

import os
import platform
import re
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from statistics import median
from typing import NamedTuple

import torch

from engine.checkpoint import write_whole
from engine.code import code_state
from engine.device import device_name, pick_device
from engine.errors import read_rows

QUICK = ('train.py config/train_quick.py --compile=True --max_iters=20 --lr_decay_iters=20 --warmup_iters=5 --eval_interval=10 '
         '--eval_iters=2 --log_interval=1 --out_dir=out-gpu/')
TORCHRUN = f'-m torch.distributed.run --standalone {QUICK}'
GPT2 = 'config/train_gpt2_adamw.py --dataset=pycode --vocab_size=50304'         # 124M parameters
TRAIN = (f'train.py {GPT2} --gradient_accumulation_steps=16 --max_iters=8 --warmup_iters=4 --eval_interval=100 --eval_iters=1 '
         '--log_interval=1 --out_dir=out-gpu/gpt2 --overwrite=True')
BENCH = f'bench.py {GPT2} --bench_iters=10'
TINY = ' --n_layer=2 --n_head=2 --n_embd=32 --block_size=64 --vocab_size=256 --batch_size=2'       # in place of 124M


class Step(NamedTuple):
    name: str
    seconds: int            # time limit
    command: str
    like: str = ''          # an earlier step with which its losses must agree
    within: float = 0.0     # to within this tolerance, chosen before any GPU ran it


STEPS = [
    Step('quick', 60, f'{QUICK}quick'),
    Step('gpt2, AdamW', 90, f'{TRAIN} config/arch/pre.py'),
    Step('profile', 60, f'{BENCH} --profile=out-gpu/trace.json'),
    Step('eager', 30, f'{QUICK}eager --compile=False', 'quick', 5e-2),
    Step('fp32', 30, f'{QUICK}fp32 --compile=False --dtype=float32 --tf32=False'),
    Step('cpu', 45, f'{QUICK}cpu --compile=False --dtype=float32 --device=cpu', 'fp32', 1e-3),
    Step('half', 30, f'{QUICK}half --max_iters=10'),
    Step('half, resumed', 30, f'{QUICK}half --init_from=resume', 'quick', 2e-2),
    Step('gpt2, DNT by SGDW', 60, f'{TRAIN} config/arch/s5.py config/optim/sgdw.py'),
    Step('gpt2, LLaMA by AdamW', 60, f'{TRAIN} config/arch/llama.py'),
    Step('placements', 120, f'{BENCH} --archs=pre,s1,s3,s5,peri,post,stable,llama'),
    Step('optimizers', 60, f'{BENCH} --optimizers=adamw,sgdw,lion,adam_mini,muon'),
    Step('micro-batches of 12', 45, f'{BENCH} --batch_size=12'),
    Step('exact', 45, f'{QUICK}exact --deterministic=True'),
    Step('exact-half', 45, f'{QUICK}exact-half --deterministic=True --max_iters=10'),
    Step('exact-half, resumed', 45, f'{QUICK}exact-half --deterministic=True --init_from=resume', 'exact', 0.0),
    Step('ddp', 45, f'{TORCHRUN}ddp', 'quick', 2e-2),
    Step('fsdp', 45, f'{TORCHRUN}fsdp --parallel=fsdp', 'quick', 2e-2),
    Step('sampling', 60, f'{BENCH} --sampling=100'),
]
if find_spec('safetensors'):
    SHARDS = f'{TORCHRUN}shards --parallel=fsdp --save_shards=True'
    STEPS += [Step('shards', 45, f'{SHARDS} --max_iters=10'),
              Step('shards, resumed', 45, f'{SHARDS} --init_from=resume', 'quick', 2e-2)]
ON_GPU = [
    Step('fp16', 30, f'{QUICK}fp16 --dtype=float16', 'quick', 5e-2),
    *(Step(f'{name} attention', 30, f'{QUICK}{name} --attention_backend={name}', 'quick', 2e-2)
      for name in ('flash', 'cudnn', 'efficient', 'math')),
    *(Step(f'speed of {name} attention', 45, f'{BENCH} --attention_backend={name}') for name in ('flash', 'cudnn')),
]

# -----------------------------------------------------------------------------
device = 'auto'                     # auto | cpu | cuda | cuda:1 | mps …
minutes = 9.0                       # time limit for all commands
only = ''                           # run only commands with this word
tiny = False                        # use small models
# -----------------------------------------------------------------------------



def main():
    configure(globals())
    at, began = pick_device(device), time.monotonic()
    steps = [step for step in STEPS + ON_GPU * (at.type == 'cuda') if only in f'{step.name} {step.command}']
    if not steps:
        raise ValueError(f'only={only!r}: no command has this word')
    name, (commit, changed, _) = device_name(at), code_state()
    is_whole = at.type == 'cuda' and not tiny and not only
    path = f'results/gpu/{re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")}.md' if is_whole else 'out-gpu/page.md'
    os.makedirs(os.path.dirname(path), exist_ok=True)
    page = [f'# {name}', f'PyTorch {torch.__version__}, CUDA {torch.version.cuda}, Python {platform.python_version()}, '
            f'commit {commit[:12]}{" with changes" * bool(changed)}, by `python -m lab.gpu {" ".join(sys.argv[1:])}`.']
    losses, failed = {}, []
    with tempfile.TemporaryDirectory() as scratch:
        while steps and (left := 60 * minutes - (time.monotonic() - began)) > 0:
            step = steps.pop(0)
            words = (step.command + TINY * (tiny and GPT2 in step.command)).split()
            words += [] if '--device=' in step.command else [f'--device={at}']
            step_began = time.monotonic()
            text, error = run(step, [word.replace('out-gpu', scratch) for word in words], min(step.seconds, left), losses)
            failed += [step.name] * bool(error)
            page += [f'## {step.name}', f'    python {" ".join(words)}', f'**Failed:** {error}.' if error else '',
                     '\n'.join(f'    {line}'.rstrip() for line in text.strip().splitlines()),
                     f'{time.monotonic() - step_began:.1f} s in all.']
            print(*page[-5:], sep='\n\n', flush=True)
            write_page(path, page, steps)
    write_page(path, page, steps)
    print(f'wrote {path}')
    if failed:
        raise ValueError(f'these commands failed, or differ by more than they may: {"; ".join(failed)}')


def write_page(path, page, not_run):
    if not_run:
        page = [*page, f'Not run, or not yet: {"; ".join(step.name for step in not_run)}.']
    write_whole(path, lambda f: f.write('\n\n'.join(filter(None, page)).encode() + b'\n'))


def run(step, words, seconds, losses):
    """Run a command's words. Return text for the page, and why it failed or ''. Record a training run in {name: its losses}."""
    output, error = python(words, seconds)
    if error or 'train.py' not in words:
        return output, error
    folder = next(word.partition('=')[2] for word in words if word.startswith('--out_dir='))
    rows = [row for row in read_rows(os.path.join(folder, 'log.jsonl')) if 'loss' in row]
    losses[step.name] = [row['loss'] for row in rows]
    lines = [line for line in output.splitlines() if ' parameters on ' in line or 'not compiled' in line]
    lines.append(f'loss {rows[0]["loss"]:.4f} to {rows[-1]["loss"]:.4f} in {len(rows)} iterations, '
                 f'{median(row["tokens_per_s"] for row in rows[2:]):,.0f} tokens/s')
    if not rows[-1]['loss'] < rows[0]['loss']:
        error = 'its loss does not decrease'
    if step.like in losses:
        difference = max(abs(a - b) for a, b in zip(losses[step.name], losses[step.like], strict=True))
        lines.append(f'its losses differ from those of {step.like} by {difference:.2e}; {step.within:g} is allowed')
        error = error if difference <= step.within else lines[-1]
    return '\n'.join(lines), error


def python(words, seconds):
    """Run a command. Return its output, and why it failed or ''. If it failed, append the end of its stderr to the output."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=out, stderr=err, start_new_session=True)
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):          # kill its ranks too
                os.killpg(process.pid, signal.SIGKILL)
        out.seek(0), err.seek(0)
        output, stderr = (file.read().decode(errors='replace') for file in (out, err))
    if code == 0:
        return output, ''
    why = error_line(stderr, code) if code else f'it took longer than {seconds:.0f} s'
    return '\n'.join([output, *stderr.splitlines()[-20:]]), why


def error_line(stderr, code):
    """Return a traceback's line that names the error. Lines of advice may follow it from CUDA, and another traceback from
    torchrun."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()] or [f'exit code {code}']
    errors = [line for line in lines if re.match(r'error: |(\w+\.)*\w*(Error|Exception|Interrupt)\b', line)]
    return ([line for line in errors if 'ChildFailedError' not in line] or lines)[-1][:300]


if __name__ == '__main__':
    main()
