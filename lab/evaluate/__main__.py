"""
Evaluate checkpoints: the loss on a whole validation split, continuations of text, and lm-evaluation-harness:

    python -m lab.evaluate --out_dir=out-quick                              # loss, perplexity, bits per byte
    torchrun --nproc_per_node=8 -m lab.evaluate --out_dir=out-ldnt-sgd,out-gpt2,gpt2 --dataset=openwebtext --stride=512
    python -m lab.evaluate --out_dir=out-ldnt-sgd --what=rouge,bertscore
    python -m lab.evaluate --out_dir=out-ldnt-sgd --tasks=arc_easy,hellaswag --output=out-scores.json

Several runs share one table, with a significance test of their differences. Each call appends a row of scores to evaluate.jsonl
in each run's folder.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.evaluate')

from configurator import at_least, configure, refuse

import importlib
import json
import os
from typing import NamedTuple

import torch
from torch import nn

from data.text import load_tokenizer
from data.tokens import TEXT_SPLITS, Tokens, read_meta
from engine.checkpoint import load_run, write_whole
from engine.device import Machine
from engine.errors import read_json
from engine.log import finite
from lab.convert.pretrained import OPENAI_MODELS, load_gpt
from lab.evaluate.scores import append, key_of, names_of, numbers, show
from lab.evaluate.split import loss_scores, text_scores
from lab.evaluate.tasks import load_tasks, task_scores

# ----------------------------------------------------------------------------- keys
out_dir = 'out'                     # a run's folder, gpt2 … gpt2-xl, or an exported or Hugging Face folder; several with commas
checkpoint = 'best.pt'              # best.pt: the lowest validation loss | ckpt.pt: the latest | ckpt-000500.pt: a kept one
what = ''                           # some of loss, rouge, bertscore, separated by commas; empty: loss, or only tasks if given
dataset = ''                        # a folder of data/; empty: the run's own
split = 'val'                       # val | train | test, which some text has
stride = 0                          # tokens from one window to the next; 0: block_size, so that windows do not overlap
batch_size = 8                      # windows, samples or requests per batch
samples = 64                        # rouge, bertscore: number of evenly spread windows, whose second halves are predicted
bert_model = 'roberta-large'        # bertscore: a Hugging Face name or folder
tasks = ''                          # tasks, groups, tags or patterns of lm-evaluation-harness, with commas: mmlu,'arc_*'
task_path = ''                      # a folder with your own task files (.yaml)
num_fewshot = -1                    # examples in a task's prompt; -1: the task's own number
limit = 0                           # documents per task; 0: all
gen_kwargs = ''                     # override generation settings of tasks, as in temperature=0,max_gen_toks=32
log_samples = False                 # save each task's documents, prompts and answers in `output` too
output = ''                         # a new JSON file for all results
seed = 1337                         # seed for a task's random choices
device = 'auto'                     # auto | cpu | cuda | cuda:1 | mps …
dtype = 'auto'                      # auto | float32 | bfloat16 | float16
# -----------------------------------------------------------------------------
config = configure(globals())
SCORES = {'loss': 'numpy', 'rouge': 'rouge_score', 'bertscore': 'bert_score'}        # score → the package that it needs

at_least(config, stride=0, batch_size=1, samples=2, num_fewshot=-1, limit=0, seed=0)
what = what.split(',') if what else [] if tasks else ['loss']
for name in what:
    if name not in SCORES:
        raise ValueError(f'what={name!r}: choose among {", ".join(SCORES)}')
if split not in TEXT_SPLITS:
    raise ValueError(f'split={split!r}: choose one of {", ".join(TEXT_SPLITS)}')
if not tasks:
    refuse(('gen_kwargs', 'log_samples', 'limit', 'num_fewshot', 'task_path'), 'it is for tasks')
if log_samples and not output:
    raise ValueError('log_samples=True: name the file for them by --output=…')
machine = Machine(device, dtype)


class Subject(NamedTuple):
    name: str
    model: nn.Module
    tokenizer: tuple                # arguments of load_tokenizer
    tokens: Tokens | None           # None if there are only tasks
    about: dict                     # first entries of its row and its results


def load(name):
    """Load a run of train.py, or a model by load_gpt, on the CPU, and the split. Raise ValueError if there is none."""
    path, iteration, chosen = os.path.join(name, checkpoint), 0, dataset
    if os.path.exists(path):
        model, state = load_run(path)
        trained_on, iteration = state['config']['dataset'], state['iter']
        chosen, meta = dataset or trained_on, read_meta(trained_on)
        tokenizer = meta['tokenizer'], meta['chars']
    elif name in OPENAI_MODELS or 'model_type' in (read_json(os.path.join(name, 'config.json'), 'copy it again') or {}):
        if what and not dataset:
            raise ValueError(f'{name} is not a run of train.py: choose the data by --dataset=…')
        model, tokenizer = load_gpt(name), ('gpt2' if name in OPENAI_MODELS else name, '')
    else:                                               # the config.json of a run has no model_type
        raise ValueError(f'there is no {path}: train first, check out_dir and checkpoint, or name one of '
                         f'{", ".join(OPENAI_MODELS)}, or a folder of export.py or Hugging Face')
    about = dict(iter=iteration, weights=key_of(model, tokenizer), dataset=chosen, dtype=str(machine.dtype)[6:])
    return Subject(name, model.eval(), tokenizer, split_of(name, model, tokenizer, chosen) if what else None, about)


def split_of(name, model, tokenizer, chosen):
    """Return the split of the chosen data, in windows as long as the model and the split allow. Raise ValueError if its tokens
    stand for other text than the model has learned; the names of equal tokenizers may differ."""
    meta = read_meta(chosen)
    longest = max(1, min(model.config.block_size, meta['tokens'].get(split, 2) - 1))
    tokens = Tokens(chosen, split, longest, model.config.vocab_size)
    if (meta['tokenizer'], meta['chars']) != tokenizer:
        theirs, ours = load_tokenizer(*tokenizer, replace=True), load_tokenizer(meta['tokenizer'], meta['chars'])
        text = ours.decode(tokens.tokens[:1000].tolist())
        if theirs.encode(text) != ours.encode(text):
            raise ValueError(f'dataset={chosen} has other tokens ({meta["tokenizer"]}) than {name} has learned')
    return tokens


def scores_of(subject, manager):
    """Return a subject's {label: Score}, and lm-evaluation-harness's results."""
    _, model, tokenizer, tokens, _ = subject
    scores, of_tasks, found = {}, {}, {}
    if tasks:
        of_tasks, found = task_scores(machine, model, tokenizer, manager, batch_size, seed, limit=limit or None,
                                      num_fewshot=None if num_fewshot < 0 else num_fewshot)
    model.to(machine.device)
    if 'loss' in what:
        scores |= loss_scores(machine, model, tokens, tokenizer, stride, batch_size)
    if {'rouge', 'bertscore'} & set(what):
        scores |= text_scores(machine, model, tokens, tokenizer, what, samples, batch_size, bert_model)
    model.cpu()
    return scores | of_tasks, found


def write_json(path, value):
    def plain(x):                                       # numpy's numbers, and functions in a task's config
        return x.tolist() if hasattr(x, 'tolist') else str(x)

    os.makedirs(os.path.dirname(path) or '.', exist_ok=True)
    text = json.dumps(finite(value), default=plain, ensure_ascii=False)
    write_whole(path, lambda f: f.write(text.encode('utf-8', 'surrogatepass')))


def main():
    if os.path.lexists(output):
        raise ValueError(f'output={output} exists: choose another name, or remove it')
    for name in what:
        importlib.import_module(SCORES[name])           # fail early if a package is missing
    subjects = [load(name) for name in names_of(out_dir, OPENAI_MODELS)]
    data = sorted({subject.about['dataset'] for subject in subjects})
    if what and len(data) > 1:
        raise ValueError(f'out_dir={out_dir}: these runs were trained on {", ".join(data)}, choose one by --dataset=…')
    window = min(subject.model.config.block_size for subject in subjects)
    manager = load_tasks(tasks, task_path, gen_kwargs, window) if tasks else None
    machine.connect('gloo')                             # before this, all ranks fail with the same error
    noted = ('checkpoint', 'split', 'stride', 'samples', 'bert_model', 'task_path', 'num_fewshot', 'limit', 'gen_kwargs', 'seed')
    table, results = {}, {}
    try:
        for subject in subjects:
            name = subject.name
            with torch.no_grad():
                table[name], found = scores_of(subject, manager)
            row = subject.about | {key: config[key] for key in noted} | dict(
                scores={label: numbers(score) for label, score in table[name].items()})
            if not log_samples:
                found.pop('samples', None)
            results[name] = row | found
            if machine.master and os.path.exists(os.path.join(name, checkpoint)):
                append(os.path.join(name, 'evaluate.jsonl'), row)
    finally:                                            # also when a later run fails, or a row cannot be written
        if machine.master and table:
            show(table)
    if machine.master and output:
        write_json(output, dict(models=results) if len(results) > 1 else results[subjects[0].name])
    return 0


machine.leave(main())
