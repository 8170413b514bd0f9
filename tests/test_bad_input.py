"""
Bad input to every script: misspelt, out of range, contradictory, missing, truncated, foreign or malicious. Each ends the
script with one line that names the value and the remedy, and leaves the folder as it was.
"""
import hashlib
import io
import json
import os
import pickle
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Callable, NamedTuple

import pytest
import torch
from helpers import ROOT, call, run_alone, run_here, run_python, runs_csv, write_walk

TINY = dict(dataset='tiny', vocab_size=13, block_size=8, n_layer=1, n_head=2, n_embd=8, batch_size=2, max_iters=2, eval_iters=1,
            gradient_accumulation_steps=1, eval_interval=2, warmup_iters=0, learning_rate=1e-2, min_lr=1e-3, lr_decay_iters=2,
            device='cpu', dtype='float32', compile=False)
COMMANDS = sorted([*(f'lab.{path.stem}' for path in (ROOT / 'lab').glob('*.py') if "== '__main__'" in path.read_text()),
                   *(f'lab.{path.parent.name}' for path in (ROOT / 'lab').glob('*/__main__.py'))])
PREPARED = ('c4', 'minipile', 'openwebtext', 'pycode', 'pydocs', 'pysource', 'shakespeare_char', 'textfiles')


def script_and_arguments(command):
    """'train.py --x=1' → the script, of the repository or a prepare.py copied into the current folder, and ['--x=1']"""
    script, *arguments = shlex.split(command)
    return script, arguments


def tree(folder):
    """{path: hash of the content, or 'folder'} of everything in it."""
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else 'folder'
            for path in Path(folder).rglob('*')}


def lay_out(folder):
    """Has a folder hold tiny.json, data/tiny, a walk over 13 tokens, and the other data/*/prepare.py."""
    for name in PREPARED:
        (folder / 'data' / name).mkdir(parents=True)
        shutil.copy(ROOT / 'data' / name / 'prepare.py', folder / 'data' / name)
    write_walk(folder, train=500, val=100)
    (folder / 'tiny.json').write_text(json.dumps(TINY))


@pytest.fixture(scope='module')
def original(tmp_path_factory):
    """Such a folder, with out, a run of two iterations."""
    folder = tmp_path_factory.mktemp('bad')
    lay_out(folder)
    call('train.py', 'tiny.json', '--out_dir=out', cwd=folder)
    shutil.copy(folder / 'out' / 'ckpt.pt', folder / 'best.pt')         # of its own, and no second name of the same file
    os.replace(folder / 'best.pt', folder / 'out' / 'best.pt')
    return folder


@pytest.fixture
def here(original, tmp_path, monkeypatch):
    """A copy of it, as the current folder; without network, and without what was fetched from it before."""
    folder = tmp_path / 'here'
    shutil.copytree(original, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', True)
    for key in ('http_proxy', 'https_proxy', 'HTTP_PROXY', 'HTTPS_PROXY'):
        monkeypatch.setenv(key, 'http://127.0.0.1:9')
    for key, value in dict(HF_HUB_OFFLINE='1', HF_HOME='empty', TIKTOKEN_CACHE_DIR='empty').items():
        monkeypatch.setenv(key, str(tmp_path / value) if value == 'empty' else value)
    for key in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE'):
        monkeypatch.delenv(key, raising=False)
    return folder


# ----------------------------------------------------------------------------- what is wrong in the folder: steps that make it so

def holds(path, content):
    def step():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content if isinstance(content, bytes) else content.encode())
    return step


def gone(path):
    return lambda: os.remove(path)


def folder(path):
    return lambda: os.makedirs(path)


def meta(folder='data/tiny', **changes):
    """data/tiny/meta.json with other values"""
    def step():
        path = Path(folder) / 'meta.json'
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return step


def for_both(make):
    """make(path) for each of the run's checkpoints"""
    return lambda: [make(f'out/{name}')() for name in ('ckpt.pt', 'best.pt')]


def content(data):
    return for_both(lambda path: holds(path, data))


def halved():
    """Checkpoints of which only a half was copied"""
    return for_both(lambda path: lambda: os.truncate(path, os.path.getsize(path) // 2))


def state(change):
    """Checkpoints in whose state a function has changed something"""
    def make(path):
        def step():
            there = torch.load(path, weights_only=True)
            change(there)
            torch.save(there, path)
        return step
    return for_both(make)


def says_in_config(**changes):
    return state(lambda there: there['config'].update(changes))


def weights_with(**changes):
    return state(lambda there: there['model'].update(changes))


class Malicious:
    """Creates a file where it is unpickled."""

    def __reduce__(self):
        return open, ('malicious', 'w')


def saved(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def pretrained(weights):
    """A folder gpt2 in Hugging Face's format, but for the weights"""
    config = dict(model_type='gpt2', architectures=['GPT2LMHeadModel'], vocab_size=13, n_positions=8, n_embd=8, n_layer=1,
                  n_head=2, bos_token_id=0, eos_token_id=0)
    return [holds('theirs/config.json', json.dumps(config)), holds('theirs/pytorch_model.bin', weights)]


def gpt2(vocab_size):
    """theirs, a small GPT-2 of so many tokens"""
    def step():
        from transformers import GPT2Config, GPT2LMHeadModel
        GPT2LMHeadModel(GPT2Config(vocab_size=vocab_size, n_positions=8, n_embd=8, n_layer=1, n_head=2)).save_pretrained('theirs')
    return step


# ----------------------------------------------------------------------------- the table

class Case(NamedTuple):
    name: str
    command: str
    says: str                       # parts of the line, in this order, with ' … ' between them
    steps: list[Callable]           # make the folder what it has to be
    env: dict


def case(name, command, says, *steps, **env):
    return Case(name, command, says, steps, env)


TRAIN = 'train.py tiny.json --out_dir=new'
RESUME = 'train.py tiny.json --out_dir=out --init_from=resume --max_iters=4'
SAMPLE = 'sample.py --out_dir=out --device=cpu --dtype=float32 --max_new_tokens=2'
MEASURE = 'lab.measure --out_dir=out --what=parameters --batches=1 --device=cpu'
UNTRAINED = 'lab.measure tiny.json --out_dir=new --init_only=True --what=parameters --batches=1'
EVALUATE = 'lab.evaluate --out_dir=out --device=cpu --dtype=float32'
EXPORT = 'lab.export --out_dir=out --to=new'
IMPORT = 'lab.export --from_hf=theirs --out_dir=new --dataset=tiny'
SWEEP = 'lab.sweep tiny.json --out_dir=swept --seeds=1 --jobs=1'
BENCH = 'bench.py tiny.json --bench_iters=1 --bench_warmup=0'
ESTIMATE = 'lab.estimate tiny.json'
COORDINATES = 'lab.coordinates tiny.json --widths=8,16'
TEXT = 'data/textfiles/prepare.py --processes=1 --tokenizer=bytes'
SHAKESPEARE = 'data/shakespeare_char/prepare.py'
A_TEXT = holds('a.txt', 'some text\n' * 20)
ALIKE = [                           # what the scripts that take train.py's keys refuse alike: key=value, what the line says
    ('n_head=3', 'n_embd=8, n_head=3: wants a width that the heads divide'),
    ('n_kv_head=3', 'n_head=2, n_kv_head=3: wants key/value heads that divide the heads'),
    ('norm=batchnorm', "norm='batchnorm': choose one of layernorm, rmsnorm"),
    ('device=fpga', "device='fpga' is not available … choose auto, cpu, cuda"),
    ('vocab_size=1.5', 'vocab_size=1.5: wants an integer'),
    ('n_layer=1000000000', 'n_layer=1000000000: wants at most 10000'),
    ('n_embed=8', "unknown key 'n_embed' in the command line: did you mean 'n_embd'?"),
]
KEYS = [
    *(case(f'{script}: {argument}', f'{command} --{argument}', says) for argument, says in ALIKE
      for script, command in (('train', TRAIN), ('bench', BENCH), ('measure', UNTRAINED))),
    case('misspelt key', f'{TRAIN} --learning_rat=0.1', "unknown key 'learning_rat' … did you mean 'learning_rate'?"),
    case('key without value', f'{TRAIN} --max_iters', '--max_iters: give it a value with =, as in --max_iters=… … --help'),
    case('key of images', f'{TRAIN} --mixup=0.5', "unknown key 'mixup'"),
    case('a kernel that a CPU lacks', f'{TRAIN} --value_residual=True --attention_backend=efficient --device=cpu',
         'attention_backend: it has no kernel for n_head=2 … choose auto'),
    case('no boolean', f'{TRAIN} --compile=1', 'compile=1: wants true or false'),
    case('no such step', 'lab.gpu --only=nothing --device=cpu', "only='nothing': no command has this word"),
    case('no such GPU', f'{TRAIN} --device=cuda:99', "device='cuda:99' is not available … choose auto, cpu"),
    case('min_lr', f'{TRAIN} --min_lr=1',
         'min_lr=1.0, learning_rate=0.01: wants min_lr <= learning_rate, or schedule=constant'),
    case('tied head', f'{TRAIN} --r_head=2', 'r_head=2.0: with tie_weights=True … set r_emb instead'),
    case('l2_tied', f'{TRAIN} --attention=l2_tied --n_kv_head=1',
         "attention='l2_tied', n_kv_head=1: wants n_kv_head=0 or 2, because queries and keys are the same"),
    case('odd heads', f'{TRAIN} --pos=rope --n_head=8', "pos='rope', n_embd=8, n_head=8: wants an even head dimension"),
    case('ranks', TRAIN, 'gradient_accumulation_steps=1 is not divisible by the 4 ranks: make it a multiple of 4', RANK='0',
         LOCAL_RANK='0', WORLD_SIZE='4'),
    case('resume beyond the end', f'{RESUME} --max_iters=1', 'max_iters=1: out/ckpt.pt is at iteration 2 already'),
    case('resume another width', f'{RESUME} --n_embd=16', 'out/ckpt.pt cannot be resumed … n_embd (8 there, 16 here)'),
    case('resume another optimizer', f'{RESUME} --optimizer=lion', 'out/ckpt.pt cannot … optimizer (adamw there, lion here)'),
    case('a run is there', f'{TRAIN} --out_dir=out', 'out_dir=out holds a run … --init_from=resume … --overwrite=True'),
    case('sample: misspelt key', f'{SAMPLE} --temperture=1', "unknown key 'temperture' … did you mean 'temperature'?"),
    case('sample: config of train.py', f'{SAMPLE} tiny.json', 'tiny.json is for train.py'),
    case('sample: temperature', f'{SAMPLE} --temperature=-1', 'temperature=-1.0: wants at least 1e-6, or 0'),
    case('sample: top_k', f'{SAMPLE} --top_k=-1', 'top_k=-1: wants at least 0'),
    case('sample: top_p', f'{SAMPLE} --top_p=0', 'top_p=0.0: wants 0 < top_p <= 1'),
    case('sample: dtype', f'{SAMPLE} --dtype=int8', "dtype='int8': choose one of auto, float32"),
    case('sample: no prompt', f'{SAMPLE} --start=', 'start is empty: give at least one character'),
    case('sample: prompt in no file', f'{SAMPLE} --start=FILE:nowhere.txt', "No such file or directory: 'nowhere.txt'"),
    case('sample: unknown character', f'{SAMPLE} --start=xyz', "'x' is none of the 3 characters … 'abc'",
         meta(tokenizer='char', chars='abc', vocab_size=3)),
    case('sample: prompt outside of the vocabulary', f'{SAMPLE} --start=hello', 'vocab_size=13'),
    case('sample: checkpoint', f'{SAMPLE} --checkpoint=last.pt', 'there is no out/last.pt … check out_dir and checkpoint'),
    case('measure: what', f'{UNTRAINED} --what=gradient', "what='gradient': choose among gradients, sharpness"),
    case('measure: data of another run', f'{MEASURE} --dataset=nowhere', 'dataset=nowhere: out has tiny … leave it out, or'),
    case('measure: no checkpoint', f'{UNTRAINED} --checkpoint=best.pt', 'checkpoint=best.pt: init_only=True … leave it out'),
    case('bench: optimizer', f'{BENCH} --optimizer=adm', "optimizer='adm': choose one of adamw, sgdw"),
    case('estimate: scale', f'{ESTIMATE} --scale=1,x', 'scale=1,x: wants numbers of GPUs with commas between them'),
    case('scaling: no runs', 'lab.scaling --csv=nowhere.csv', 'there is no nowhere.csv'),
    case('results_run: no sweep', 'lab.results_run --sweeps=base,nowhere', 'there is no config/sweep/nowhere.py'),
    case('results: no pages', 'lab.results --folder=nowhere', 'folder=nowhere: there is no page in nowhere/pages/'),
    case('coordinates: one width', f'{COORDINATES} --widths=8', 'widths=8: wants two or more values of n_embd'),
    case('coordinates: width', f'{COORDINATES} --widths=8,10', 'widths=8,10: n_embd=10 has no n_head in proportion to 2'),
    case('coordinates: a run', f'{COORDINATES} --out_dir=out', 'out holds a run, choose another --out_dir'),
    case('muP and DeepNorm', f'{TRAIN} --mup_base_depth=1 --skip_scale=deepnorm',
         "mup_base_depth=1, skip_scale='deepnorm', norm_depth_scale=False: wants one rule for the depth"),
    case('muP without the head dimension', f'{TRAIN} --mup_base_width=4',
         'mup_base_width=4, mup_base_head_dim=0: wants both or none'),
    case('bf16 gradients without NCCL', f'{TRAIN} --ddp_bf16=True --device=cpu', 'ddp_bf16=True: NCCL sends bfloat16'),
    case('logits of 2³¹ numbers', f'{TRAIN} --batch_size=1024 --block_size=4096 --vocab_size=512',
         'batch_size … block_size … vocab_size … wants a product below 2**31'),
    case('fp16 and shards', f'{TRAIN} --parallel=fsdp --dtype=float16', 'dtype=float16: parallel=fsdp has no loss', RANK='0',
         LOCAL_RANK='0', WORLD_SIZE='1'),
    case('bench: archs', f'{BENCH} --archs=pre,s99', 'there is no config file … config/arch/s99.py'),
    case('bench: two things', f'{BENCH} --loader=5 --sampling=5', 'loader, sampling and variants … cannot be combined: choose'),
]
FILES = [
    case('no config file', f'{TRAIN} config/nowhere.py', 'there is no config file config/nowhere.py'),
    case('config of another kind', f'{TRAIN} config.yaml', "'config.yaml' is neither a config file (.py, .json)"),
    case('folder as config', f'{TRAIN} folder.py', "'folder.py' is a folder", folder('folder.py')),
    case('broken Python', f'{TRAIN} a.py', 'a.py: SyntaxError … line 1', holds('a.py', 'learning_rate = (')),
    case('Python that raises', f'{TRAIN} a.py', 'a.py: ZeroDivisionError', holds('a.py', 'learning_rate = 1 / 0')),
    case('includes nothing', f'{TRAIN} a.py', 'a.py: FileNotFoundError … nowhere.py', holds('a.py', 'include("nowhere.py")')),
    case('Python with a list', f'{TRAIN} a.py', 'learning_rate=[1] in a.py: wants', holds('a.py', 'learning_rate = [1]')),
    case('broken JSON', f'{TRAIN} a.json', 'a.json: wants a JSON object', holds('a.json', '{"max_iters": ')),
    case('JSON with a fraction', f'{TRAIN} a.json', 'max_iters=2.5 in a.json: wants an integer',
         holds('a.json', '{"max_iters": 2.5}')),
    case('out_dir is a file', f'{TRAIN} --out_dir=tiny.json', "File exists: 'tiny.json'"),
    case('no folder to start from', f'{TRAIN} --init_from=data', "'data' is neither one of gpt2 … nor the folder of a model"),
    case('broken pretrained', f'{TRAIN} --init_from=theirs', 'theirs/config.json is damaged, copy it again from where it came',
         holds('theirs/config.json', '{')),
    case('pretrained of another kind', f'{TRAIN} --init_from=theirs', "theirs/config.json: model_type='bert' is none of",
         holds('theirs/config.json', '{"model_type": "bert"}')),
    case('broken safetensors', f'{TRAIN} --init_from=theirs', 'theirs/model.safetensors is damaged, or does not fit its config',
         holds('theirs/config.json', '{"model_type": "nanonorm"}'), holds('theirs/model.safetensors', '{')),
    case('malicious pretrained', f'{TRAIN} --init_from=theirs', "could not load 'theirs': it holds more than weights",
         *pretrained(saved({'a': Malicious()}))),
    case('sample: malicious pretrained', f'{SAMPLE} --init_from=theirs', "could not load 'theirs'",
         *pretrained(pickle.dumps(Malicious(), 2))),
]
DATA = [
    case('a wrong value in a folder that is taken', f'{TRAIN} --out_dir=out --norm=x', "norm='x': choose one of layernorm"),
    case('data not prepared', f'{TRAIN} --dataset=minipile', 'data/minipile is not prepared: run  python data/minipile/prep'),
    case('text not prepared', f'{TRAIN} --dataset=textfiles',
         "data/textfiles is not prepared: run  python data/textfiles/prepare.py --files='books/"),
    case('vocabulary not prepared', f'{TRAIN} --dataset=pysource-bpe1024',
         'data/pysource-bpe1024 is not prepared: run  python data/pysource/prepare.py --bpe=1024 --folder=data/pysource-bpe1024'),
    case('measure: data not prepared', f'{UNTRAINED} --dataset=c4', 'data/c4 is not prepared: run  python data/c4/prepare.py'),
    case('sample: data gone', SAMPLE, 'data/tiny is not prepared: run', gone('data/tiny/meta.json')),
    case('no data here', TRAIN, "dataset='tiny': there is no folder data here: run this from the root",
         lambda: os.rename('data', 'elsewhere')),
    case('truncated train.bin', TRAIN, 'train.bin has 998 bytes, but meta.json wants 1000: prepare data/tiny again',
         lambda: os.truncate('data/tiny/train.bin', 998)),
    case('empty val.bin', TRAIN, 'val.bin has 0 bytes, but meta.json wants 200: prepare data/tiny again',
         holds('data/tiny/val.bin', '')),
    case('broken meta.json', TRAIN, 'data/tiny/meta.json is damaged, prepare data/tiny again', holds('data/tiny/meta.json', '{')),
    case('meta.json: an empty object', TRAIN, "dataset='tiny' holds no tokens", holds('data/tiny/meta.json', '{}')),
    case('wider dtype', TRAIN, 'train.bin has 1000 bytes, but meta.json wants 2000: prepare', meta(dtype='uint32')),
    case('vocabulary', f'{TRAIN} --vocab_size=12', 'vocab_size=12 is less than the 13 of dataset=tiny: set --vocab_size=13'),
    case('block_size', f'{TRAIN} --block_size=500', 'block_size=500 is too long for the 500 tokens … at most 499'),
]
NOT_ONE = 'is damaged, or not a checkpoint of train.py'
READERS = {'train': (RESUME, 'out/ckpt.pt'), 'sample': (SAMPLE, 'out/best.pt'), 'measure': (MEASURE, 'out/ckpt.pt'),
           'evaluate': (EVALUATE, 'out/best.pt'), 'export': (EXPORT, 'out/best.pt')}


def cases_of_checkpoints():
    """Every script that reads one, or some of them."""
    table = [                       # what is wrong, how it is made so, what is said, who reads it
        ('missing', for_both(gone), 'there is no PATH', READERS),
        ('empty', content(b''), NOT_ONE, READERS),
        ('truncated', halved(), NOT_ONE, READERS),
        ('malicious pickle', content(pickle.dumps(Malicious(), 2)), NOT_ONE, READERS),
        ('malicious file of torch', content(saved({'model': Malicious(), 'config': {}, 'iter': 0})), NOT_ONE, READERS),
        ('other width', weights_with(**{'wte.weight': torch.zeros(13, 4)}), NOT_ONE, READERS),
        ('of a later version', weights_with(new=torch.zeros(3)), NOT_ONE, READERS),
        ('other depth', says_in_config(n_layer=2), 'n_layer (2 there, 1 here)', ['train']),
        ('other depth', says_in_config(n_layer=2), NOT_ONE, ['sample', 'measure', 'evaluate', 'export']),
        ('lacks optimizer', state(lambda there: there.pop('optimizer')), NOT_ONE, ['train', 'measure']),
        ('data gone', says_in_config(dataset='lost'), "dataset='lost': choose one that is", ['sample', 'measure', 'evaluate']),
    ]
    for name, step, says, readers in table:
        for reader in readers:
            command, path = READERS[reader]
            says_here = f'{path} … {NOT_ONE}' if says == NOT_ONE else says.replace('PATH', path)
            yield case(f'{reader}: checkpoint: {name}', command, says_here, step)


EVALUATIONS = [
    case('evaluate: what', f'{EVALUATE} --what=loss,rogue', "what='rogue': choose among loss, rouge, bertscore"),
    case('evaluate: split', f'{EVALUATE} --split=tset', "split='tset': choose one of train, val, test"),
    case('evaluate: no test split', f'{EVALUATE} --split=test', 'split=test: dataset=tiny has none, only train and val'),
    case('evaluate: stride', f'{EVALUATE} --stride=9', 'stride=9 is longer than the windows of 8 tokens'),
    case('evaluate: no run', 'lab.evaluate --out_dir=out,nowhere', 'there is no nowhere/best.pt … gpt2-xl, or a folder'),
    case('evaluate: no data', f'{EVALUATE} --dataset=minipile', 'data/minipile is not prepared: run  python data/minipile/prep'),
    case('evaluate: other tokens', f'{EVALUATE} --dataset=other', 'dataset=other has other tokens (char, 13) than tiny',
         lambda: shutil.copytree('data/tiny', 'data/other'), meta(tokenizer='char', chars='abcdefghijklm', folder='data/other')),

    case('evaluate: no data chosen', 'lab.evaluate --out_dir=gpt2', 'gpt2 is no run of train.py … --dataset'),
    case('evaluate: limit without tasks', f'{EVALUATE} --limit=5', 'limit=5: it is for tasks, leave it out'),
    case('evaluate: output over another file', f'{EVALUATE} --output=tiny.json', 'output=tiny.json exists: choose another name'),
    case('evaluate: unknown task', f'{EVALUATE} --tasks=arc_hard', "tasks='arc_hard': lm-evaluation-harness has no such task"),
    case('evaluate: BERT from the network', f'{EVALUATE} --what=bertscore', "bert_model='roberta-large' could not be used"),
    case('evaluate: runs of several data sets', 'lab.evaluate --out_dir=out,other', 'trained on other, tiny, choose one by',
         lambda: shutil.copytree('data/tiny', 'data/other'), lambda: shutil.copytree('out', 'other'),
         lambda: torch.save({**(there := torch.load('out/best.pt', weights_only=True)),
                             'config': {**there['config'], 'dataset': 'other'}}, 'other/best.pt')),
    case('evaluate: a model with other tokens', 'lab.evaluate --out_dir=theirs --dataset=tiny', 'dataset=tiny has other tokens',
         gpt2(13), lambda: __import__('lab.export').export.write_tokenizer('theirs', 'char', '\x00\x01\x02abcdefghij')),
    case('evaluate: task from the network', f'{EVALUATE} --tasks=arc_easy', 'tasks=arc_easy … needs the network once'),
]
EXPORTS = [
    case('export: ignored key', f'{EXPORT} --dataset=nowhere', 'dataset=nowhere: out brings its own keys, leave it out'),
    case('export: nowhere', 'lab.export --out_dir=out', 'set either --to, the folder to write, or --from_hf'),
    case('export: format', f'{EXPORT} --format=onnx', "format='onnx': choose one of auto, gpt2, llama, qwen3, olmo2"),
    case('export: what is there', f'{EXPORT} --to=data', 'data exists: choose another name, or remove it'),
    case('export: not equal', f'{EXPORT} --format=llama', 'out is no LLaMA … norm=rmsnorm … --format=nanonorm takes any'),
    case('export: not a GPT-2', f'{EXPORT} --format=gpt2', 'out is no GPT-2 … would have attn_mid_norm=False, ffn_mid_norm',
         says_in_config(mid_norm=True), weights_with(**{f'h.0.{f}_mid_norm.weight': torch.ones(8) for f in ('attn', 'ffn')})),
    case('import: no folder', IMPORT, "'theirs' is neither one of gpt2 … nor the folder of a model"),
    case('import: malicious weights', IMPORT, "could not load 'theirs'", *pretrained(saved({'a': Malicious()}))),
    case('import: a run is there', f'{IMPORT} --out_dir=out', 'out exists: choose another name, or remove it'),
    case('import: other data', IMPORT, 'dataset=tiny has 13 tokens and theirs 7: choose', gpt2(7)),
    case('import: another depth', f'{IMPORT} --n_layer=7', 'n_layer=7: theirs has 1, leave this key out', gpt2(13)),
]


def grid(text):
    return holds('grid.py', text)


SWEPT = runs_csv([dict(arch='s9', seed='1', status='done', val_losses='0:5 9:2', val_loss='2', seconds='1')])
SWEEPS = [
    case('sweep: misspelt axis', f'{SWEEP} --learning_rat=1', "unknown key 'learning_rat' in the grid: did you mean 'learning_r"),
    case('scaling: no sweep', 'lab.scaling', 'there is no runs.csv'),
    case('sweep: unknown fragment', f'{SWEEP} --arch=s99', 'there is no config file … config/arch/s99.py'),
    case('sweep: value of an axis', f'{SWEEP} --learning_rate=0.1,fast', 'learning_rate=fast: wants a finite number'),
    case('sweep: contradiction', f'{SWEEP} --n_head=2,3', 'n_embd=8, n_head=3: wants a width that the heads divide'),
    case('sweep: no data', f'{SWEEP} --dataset=tiny,c4', 'data/c4 is not prepared: run  python data/c4/prepare.py'),
    case('sweep: too long for the data', f'{SWEEP} --block_size=8,101', 'block_size=101 is too long for the 100 tokens'),
    case('sweep: a report that trains', 'lab.sweep tiny.json --report=swept', 'tiny.json: report only makes the table again'),
    case('sweep: against', f'{SWEEP} --arch=s1,s5 --against=arch=s2', "against='arch=s2' … wants one of"),
    case('sweep: broken grid', f'{SWEEP} grid.py', 'grid.py: SyntaxError', grid('grids = [')),
    case('sweep: no list of grids', f'{SWEEP} grid.py', 'grids=3 in grid.py: wants a list', grid('grids = 3')),
    case('sweep: labels that meet', f'{SWEEP} grid.py', 'two runs … arch=a_b,seed=1 … give the axes other labels',
         grid('grids = [dict(arch={"a b": "", "a/b": "--learning_rate=0.5"})]')),
    case('sweep: another run is there', SWEEP, 'swept/seed=1 holds a run with n_layer=7 instead of 1 … choose another --out_dir',
         holds('swept/seed=1/config.json', '{"n_layer": 7}')),
    case('sweep: no sweep', 'lab.sweep --report=out', "there is no out/runs.csv: report='out' wants the runs.csv of a sweep"),
    case('sweep: against in a report', 'lab.sweep --report=r --against=arch=s1', "against='arch=s1' names 0 rows",
         holds('r/runs.csv', SWEPT)),
    case('sweep: rows of another grid', f'{SWEEP} --seeds=2', 'swept/runs.csv has the run arch=s9, seed=1, which is not in',
         holds('swept/runs.csv', SWEPT)),
]
PLOTS = [
    case('runs: none', 'lab.runs nowhere', 'none of these is the folder of a run, with config.json and log.jsonl: nowhere'),
    case('runs: no key', 'lab.runs out --keys=lr', "keys=lr: no run has the key 'lr'"),
    case('plot: nothing', 'lab.plot', 'the following arguments are required: folders; --help'),
    case('plot: no run', 'lab.plot nowhere', "there is no nowhere/log.jsonl: 'nowhere' is not the folder of a run"),
    case('plot: unknown picture', 'lab.plot out --what=sharp', "what='sharp' … 'sharpness'"),
    case('plot: not measured', 'lab.plot out --what=hidden', 'there is no out/measure.json: make it with  python -m lab.measure'),
    case('plot: not measured, others were', 'lab.plot out --what=hidden', 'out/measure.json holds no hidden: make it with',
         holds('out/measure.json', '{}')),
    case('plot: no coordinates', 'lab.plot out --what=coordinates', 'out/coordinates.json: make it with  python -m lab.coord'),
    case('plot: limits', 'lab.plot out --ylim=3,2', "'3,2': wants LOW,HIGH"),
    case('plot: one limit', 'lab.plot out --xlim=5', "'5': wants LOW,HIGH"),
    case('plot: scale', 'lab.plot out --log=z', "invalid choice: 'z'"),
    case('plot: smooth', 'lab.plot out --what=hidden --smooth=5', 'smooth=5: wants a number of iterations, for a KEY or one of'),
    case('plot: not swept', 'lab.plot out --what=sweep',
         'there is no out/table.csv: make it with  python -m lab.sweep --report=out'),
    case('plot: picture in no folder', 'lab.plot out --out=nowhere/loss.png', 'nowhere/loss.png'),
    case('plot: picture of no kind', 'lab.plot out --out=loss.docx', 'docx … png'),
]
TEXTS = [
    case('text: no files', TEXT, "files is empty: name some, as in --files='books/*.txt,more.jsonl'"),
    case('text: missing', f'{TEXT} --files=nowhere/*.txt', "'nowhere/*.txt' matches no file: name some .txt, .jsonl or .parquet"),
    case('text: suffix', f'{TEXT} --files=tiny.json', "'tiny.json' is none of .txt, .jsonl, .parquet"),
    case('text: not UTF-8', f'{TEXT} --files=a.txt', 'a.txt is not UTF-8', holds('a.txt', b'caf\xe9')),
    case('text: empty', f'{TEXT} --files=a.txt', 'there is no text', holds('a.txt', '')),
    case('text: broken row', f'{TEXT} --files=a.jsonl', "a.jsonl, line 2: wants a text in 'text'",
         holds('a.jsonl', '{"text": "a"}\n{"text":\n')),
    case('text: no such column', f'{TEXT} --files=a.jsonl --column=body', "a.jsonl, line 1: wants a text in 'body'",
         holds('a.jsonl', '{"text": "a"}\n')),
    case('text: misspelt key', f'{TEXT} --tokeniser=gpt2', "unknown key 'tokeniser' … did you mean 'tokenizer'?"),
    case('text: unknown tokenizer', f'{TEXT} --files=a.txt --tokenizer=nobody/nothing',
         "tokenizer='nobody/nothing' is none of bytes, char, gpt2", A_TEXT),
    case('text: malicious tokenizer', f'{TEXT} --files=a.txt --tokenizer=theirs', "tokenizer='theirs' … custom code", A_TEXT,
         holds('theirs/tokenizer_config.json', '{"auto_map": {"AutoTokenizer": ["code.T", null]}}'),
         holds('theirs/code.py', 'open("malicious", "w")\nclass T: pass')),
    case('text: vocabulary from the network', f'{TEXT} --files=a.txt --tokenizer=gpt2',
         "tokenizer='gpt2' … needs the network once", A_TEXT),
    case('sample: vocabulary from the network', SAMPLE, "tokenizer='gpt2' … needs the network once", meta(tokenizer='gpt2')),
    case('sample: unknown tokenizer', SAMPLE, "tokenizer='nobody/nothing' is none of bytes", meta(tokenizer='nobody/nothing')),
    *(case(f'{name}: {argument}', f'data/{name}/prepare.py --{argument}', says) for name in ('c4', 'minipile', 'openwebtext')
      for argument, says in (('tokeniser=x', "did you mean 'tokenizer'?"),
                             ('tokenizer=nobody/nothing', "tokenizer='nobody/nothing' is none of bytes"))),
    case('minipile: vocabulary from the network', 'data/minipile/prepare.py', "tokenizer='gpt2' … needs the network once"),
    case('c4: files', 'data/c4/prepare.py --files=1025', 'files=1025: C4 has 1024 files, choose from 1 to 1024'),
    case('shakespeare: no network', f'{SHAKESPEARE} --url=http://127.0.0.1:9/x', 'could not reach http://127.0.0.1:9/x … data/'),
    case('shakespeare: not UTF-8', SHAKESPEARE, 'input.txt is not UTF-8', holds('data/shakespeare_char/input.txt', b'caf\xe9')),
    case('pycode: no library', 'data/pycode/prepare.py', 'lib holds 0 Python sources … run this with an interpreter'),
    *(case(f'{name}: {argument}', f'data/{name}/prepare.py --{argument}', says) for name in ('pydocs', 'pysource')
      for argument, says in (('bpe=256', 'bpe=256: wants at least 257 … or 0 for bytes'), ('processes=3', 'it needs --bpe'))),
    case('pysource: wrong list', 'data/pysource/prepare.py', "train.txt: 'django==5.2' must be like  name==1.0 --hash",
         holds('data/pysource/train.txt', 'django==5.2')),
]
CASES = [*KEYS, *FILES, *DATA, *cases_of_checkpoints(), *EVALUATIONS, *EXPORTS, *SWEEPS, *PLOTS, *TEXTS]
ALONE = ('misspelt key', 'sample: checkpoint: malicious pickle', 'sweep: misspelt axis')
LONG = ('evaluate: task from the network', 'evaluate: unknown task')



def refused(run, case):
    """The case, through run(script, *arguments, **env) → its one line, once that is all there is and nothing has changed."""
    before = tree('.')
    script, arguments = script_and_arguments(case.command)
    code, out, err = run(script, *arguments, **case.env)
    assert 'Traceback' not in err, err.splitlines()[-1]
    assert code in (1, 2), (code, out, err)
    assert err.startswith('error: ') and err.endswith('\n') and err.count('\n') == 1, err
    assert tree('.') == before
    at = 0
    for part in case.says.split(' … '):
        assert part in err[at:], (part, err)
        at = err.index(part, at) + len(part)
    return err


# ----------------------------------------------------------------------------- the tests

@pytest.fixture
def guarded(monkeypatch):
    """Bad input must not start a run of a sweep, and the standard library is a small one."""
    class Started:
        def __init__(self, *args, **kwargs):
            raise AssertionError('a run was started')

    def library(name, path=sysconfig.get_path, **more):
        return 'lib' if name == 'stdlib' else path(name, **more)

    return lambda command: monkeypatch.setattr(*{'lab.sweep': (subprocess, 'Popen', Started)}.get(
        command.split()[0], (sysconfig, 'get_path', library)))


def test_the_table():
    assert len(CASES) == len({case.name for case in CASES}) and {*ALONE} <= {case.name for case in CASES}
    scripts = {case.command.split()[0] for case in CASES}
    assert scripts == {'train.py', 'sample.py', 'bench.py', *COMMANDS, *(f'data/{name}/prepare.py' for name in PREPARED)}


@pytest.mark.parametrize('case', [pytest.param(case, id=case.name, marks=[pytest.mark.long] * (case.name in LONG))
                                  for case in CASES])
def test_bad_input_is_one_line_and_changes_nothing(case, here, guarded, capfd):
    """The exit code is 1 or 2, the line on stderr names the value and the remedy, and the folder is as it was"""
    for step in case.steps:
        step()
    guarded(case.command)
    refused(run_here, case)
    assert capfd.readouterr().err == '', 'nor does C++ say more'


@pytest.mark.parametrize('case', [
    pytest.param(case, id=case.name, marks=[pytest.mark.long] * (case.name not in ALONE[:2]))
    for case in CASES if case.name in ALONE])
def test_a_process_of_its_own_says_the_same(case, here):
    for step in case.steps:
        step()
    assert refused(run_alone, case) == refused(run_here, case)


@pytest.mark.parametrize('command', COMMANDS)
def test_a_command_of_lab_that_is_started_as_a_file_says_what_to_type(command):
    """Where its imports would fail"""
    says = f'error: from the root of the repository, type  python -m {command}\n'
    path = ROOT / command.replace('.', '/')
    path = path / '__main__.py' if path.is_dir() else path.with_suffix('.py')
    assert run_python(path, '--help', PYTHONPATH='') == (1, '', says)


def test_the_malicious_pickle_is_one(here):
    """Without weights_only it would run"""
    pickle.loads(pickle.dumps(Malicious())).close()
    assert os.path.exists('malicious')


@pytest.mark.parametrize('command, says', [(f'{TRAIN} --n_head=3', 'ValueError: n_embd=8, n_head=3'),
                                           ('lab.plot nowhere', 'there is no nowhere/log.jsonl')])
def test_debug_shows_the_traceback(command, says, here):
    script, arguments = script_and_arguments(command)
    code, _, err = run_here(script, *arguments, '--debug=True')
    assert code == 1 and err.startswith('Traceback') and says in err.splitlines()[-1]
