"""
Misspelt, contradictory, missing, foreign or malicious input ends a script with one line that names the value and the remedy,
and leaves the folder as it was. One script stands for all that read the same.
"""
import hashlib
import io
import json
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from helpers import ROOT, call, run_here, write_walk

TINY = dict(dataset='tiny', vocab_size=13, block_size=8, n_layer=1, n_head=2, n_embd=8, batch_size=2, max_iters=2, eval_iters=1,
            gradient_accumulation_steps=1, eval_interval=2, warmup_iters=0, learning_rate=1e-2, min_lr=1e-3, lr_decay_iters=2,
            device='cpu', dtype='float32', compile=False)


def tree(folder):
    """{path: hash of the content, or 'folder'} of everything in it."""
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else 'folder'
            for path in Path(folder).rglob('*')}


@pytest.fixture(scope='module')
def original(tmp_path_factory):
    """A folder with tiny.json, data/tiny, a walk over 13 tokens, data/prepare.py, and out, a run of two iterations."""
    folder = tmp_path_factory.mktemp('bad')
    write_walk(folder, train=500, val=100)
    shutil.copy(ROOT / 'data' / 'prepare.py', folder / 'data')
    (folder / 'tiny.json').write_text(json.dumps(TINY))
    call('train.py', 'tiny.json', '--out_dir=out', cwd=folder)
    return folder


@pytest.fixture
def here(original, tmp_path, monkeypatch):
    """A copy of it, as the current folder; without network, and without what was fetched from it before."""
    monkeypatch.chdir(shutil.copytree(original, tmp_path / 'here'))
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', True)
    for key, value in dict(HTTPS_PROXY='http://127.0.0.1:9', HF_HUB_OFFLINE='1', HF_HOME=tmp_path).items():
        monkeypatch.setenv(key, str(value))


# ----------------------------------------------------------------------------- what is wrong in the folder: steps that make it so

def holds(path, content):
    def step():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content if isinstance(content, bytes) else content.encode())
    return step


def for_both(change):
    """change(path) for each of the run's checkpoints"""
    return lambda: [change(f'out/{name}') for name in ('ckpt.pt', 'best.pt')]


class Malicious:
    """Creates a file where it is unpickled."""

    def __reduce__(self):
        return open, ('malicious', 'w')


def saved(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def gpt2(weights):
    """theirs, a GPT-2 with these weights"""
    def step():
        from transformers import GPT2Config
        GPT2Config(vocab_size=13, n_positions=8, n_embd=8, n_layer=1, n_head=2).save_pretrained('theirs')
        Path('theirs', 'pytorch_model.bin').write_bytes(weights)
    return step


# ----------------------------------------------------------------------------- the table

def case(name, command, says, *steps, **env):
    """A command, the values and remedies that its line names, in this order, and steps that prepare the folder"""
    return pytest.param(command, says, steps, env, id=name)


TRAIN = 'train.py tiny.json --out_dir=new'
RESUME = 'train.py tiny.json --out_dir=out --init_from=resume --max_iters=4'
SAMPLE = 'sample.py --out_dir=out --device=cpu --dtype=float32 --max_new_tokens=2'
EVALUATE = 'lab.evaluate --out_dir=out --device=cpu --dtype=float32'
SWEEP = 'lab.sweep tiny.json --out_dir=swept --seeds=1 --jobs=1'
TEXT = 'data/prepare.py --name=mine --tokenizer=bytes'
MALICIOUS = for_both(lambda path: Path(path).write_bytes(saved({'model': Malicious(), 'config': {}, 'iter': 0})))
CASES = [
    case('started as a file', f'{ROOT}/lab/runs.py --help', 'python -m lab.runs'),
    case('no such GPU', f'{TRAIN} --device=cuda:99', "device='cuda:99' … choose auto, cpu"),
    case('data elsewhere', f'{TRAIN} --dataset=../x', "dataset='../x': must be the name of a folder in data/"),
    case('min_lr', f'{TRAIN} --min_lr=1', 'min_lr=1.0, learning_rate=0.01: min_lr must be at most learning_rate'),
    case('tied head', f'{TRAIN} --r_head=2', 'r_head=2.0: with tie_weights=True … set r_emb instead'),
    case('logits of 2³¹ numbers', f'{TRAIN} --batch_size=1024 --block_size=4096 --vocab_size=512',
         'batch_size … block_size … vocab_size … their product must be below 2**31'),
    case('ranks', TRAIN, 'gradient_accumulation_steps=1 … 4 ranks', RANK='0', LOCAL_RANK='0', WORLD_SIZE='4'),
    case('fp16 in shards', f'{TRAIN} --parallel=fsdp --dtype=float16', 'dtype=float16 … choose bfloat16 or float32', RANK='0',
         LOCAL_RANK='0', WORLD_SIZE='1'),
    case('resume another width', f'{RESUME} --n_embd=16', 'out/ckpt.pt cannot be resumed … n_embd (8 there, 16 here)'),
    case('resume other batches', f'{RESUME} --batch_size=4', 'saved with 2 windows in an iteration … keep batch_size'),
    # data and weights of others
    case('data not prepared', f'{TRAIN} --dataset=minipile', "'minipile' is not … python data/prepare.py --name=minipile … tiny"),
    case('no data here', TRAIN, "dataset='tiny': there is no folder data here", lambda: os.rename('data', 'elsewhere')),
    case('vocabulary', f'{TRAIN} --vocab_size=12', 'vocab_size=12 is less than the 13 of dataset=tiny: set --vocab_size=13'),
    case('no folder to start from', f'{TRAIN} --init_from=data', "'data' is neither one of gpt2 … nor the folder of a model"),
    case('weights from the network', f'{TRAIN} --init_from=gpt2', "could not load 'gpt2'"),
    case('malicious weights', f'{TRAIN} --init_from=theirs', "could not load 'theirs': it holds more than weights",
         gpt2(saved({'a': Malicious()}))),
    # checkpoints: sample.py and all of lab/ read them by the same function
    case('sample: no checkpoint', SAMPLE, 'there is no out/best.pt', for_both(os.remove)),
    case('train: malicious checkpoint', RESUME, 'out/ckpt.pt is damaged … there is out/best.pt too', MALICIOUS),
    # runs and text
    case('evaluate: no such split', f'{EVALUATE} --split=test', 'split=test: dataset=tiny has none, only train and val'),
    case('evaluate: one token', f'{EVALUATE} --tokens=1', 'tokens=1: must be 0, for all, or at least 2'),
    case('coordinates: one width', 'lab.coordinates tiny.json --widths=8', 'widths=8: must be two or more'),
    case('export: a folder that exists', 'lab.export --out_dir=out --to=data', "to='data': name a folder that does not exist"),
    case('sweep: another run is there', SWEEP, 'swept/seed=1 holds a run with n_layer=7 instead of 1 … choose another --out_dir',
         holds('swept/seed=1/config.json', '{"n_layer": 7}')),
    case('plot: no run', 'lab.plot nowhere', "there is no nowhere/log.jsonl"),
    case('text: no files', TEXT, "name='mine': choose one of openwebtext … --files='books/*.txt"),
    case('text: outside of data', 'data/prepare.py --name=../mine --files=short.txt', "name='../mine' … a folder in data/"),
    case('text: malicious tokenizer', f'{TEXT} --files=a.txt --tokenizer=theirs', "tokenizer='theirs' … custom code",
         holds('a.txt', 'some text\n' * 20), holds('theirs/code.py', 'open("malicious", "w")\nclass T: pass'),
         holds('theirs/tokenizer_config.json', '{"auto_map": {"AutoTokenizer": ["code.T", null]}}')),
]


# ----------------------------------------------------------------------------- the tests

@pytest.mark.parametrize('command, says, steps, env', CASES)
def test_bad_input_is_one_line_and_changes_nothing(command, says, steps, env, here, monkeypatch, capfd):
    """The exit code is 1 or 2, the line on stderr names the value and the remedy, and the folder is as it was"""
    for step in steps:
        step()
    script, *arguments = shlex.split(command)
    monkeypatch.setattr('lab.sweep.run.subprocess', None)                # nothing here may start a run of a sweep
    before = tree('.')
    code, out, err = run_here(script, *arguments, **env)
    assert code in (1, 2), (code, out, err)
    assert err.startswith('error: ') and err.endswith('\n') and err.count('\n') == 1, err
    assert tree('.') == before
    assert re.search('.*'.join(map(re.escape, says.split(' … '))), err), err
    assert capfd.readouterr().err == '', 'nor does C++ say more'


def test_no_file_is_read_as_code():
    """But a config file in Python, model.py where it is printed, and what the user has just exported"""
    unsafe = re.compile(r'pickle\.load|weights_only=False|allow_pickle=True|[( ](eval|exec)\(|pretrained\(.*remote_code=True')
    folders = ('.', 'data', 'engine', 'lab', 'vision')
    files = {path for folder in folders for path in (ROOT / folder).glob('*.py' if folder == '.' else '**/*.py')}
    found = sorted(path.name for path in files if unsafe.search(path.read_text(encoding='utf-8')))
    assert found == ['configurator.py', 'export.py', 'flatten.py']


WRONG = {           # value → the keys for which it is wrong; test_configurator.py has values of another type
    '0': 'block_size n_layer n_head n_embd eval_interval eval_iters log_interval gradient_accumulation_steps batch_size '
         'measure_batches',
    '-1': 'n_kv_head d_ff max_iters warmup_iters lr_decay_iters measure_interval seed data_seed vocab_size',
    '-1e-30': 'dropout norm_eps init_gain learning_rate min_lr weight_decay grad_clip decay_frac beta1 beta2 '
              'momentum max_minutes r_emb r_head r_qk r_ffn r_vo',
    'ADAMW': 'norm attention ffn pos init optimizer schedule blockwise dtype device backend dataset',
    '1': 'dropout beta1 beta2 momentum', '1.5': 'decay_frac', '12': 'vocab_size', '100': 'block_size'}


@pytest.mark.parametrize('key, value', [(key, value) for value, keys in WRONG.items() for key in keys.split()])
def test_a_wrong_value_is_one_line_that_names_its_key(key, value, original, monkeypatch):
    """And no folder is there afterwards"""
    monkeypatch.chdir(original)
    code, out, err = run_here('train.py', 'tiny.json', f'--out_dir={key}', f'--{key}={value}')
    assert code == 1 and out == '' and not Path(key).exists(), (code, out, err)
    assert err.startswith('error: ') and err.count('\n') == 1 and key in err, err
