"""
Evaluates checkpoints: the loss on a whole validation split, the text that they continue, and lm-evaluation-harness:

    python -m lab.evaluate --out_dir=out-quick                              # loss, perplexity, bits per byte
    torchrun --nproc_per_node=8 -m lab.evaluate --out_dir=out-ldnt-sgd,out-gpt2,gpt2 --dataset=openwebtext --stride=512
    python -m lab.evaluate --out_dir=out-ldnt-sgd --what=rouge,bertscore
    python -m lab.evaluate --out_dir=out-ldnt-sgd --tasks='arc_*,hellaswag' --output=out-scores.json

Several runs make one table, with a test of which differences are beyond the noise. Each call appends a row of scores to
evaluate.jsonl in the run's folder.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.evaluate')

from configurator import at_least, configure, refuse
from engine.process import one_line

import math
import os
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from data.text import load_tokenizer
from data.tokens import TEXT_SPLITS, Tokens, read_meta
from engine.checkpoint import load_run
from engine.device import Machine
from engine.errors import read_json
from lab.convert.pretrained import OPENAI_MODELS, load_gpt
from lab.harness import (
    chunks,
    load_tasks,
    model_logits,
    optional,
    over_ranks,
    read_settings,
    run_tasks,
    write_json,
    write_samples,
)
from lab.scores import Score, append, key_of, names_of, numbers, score_of, show

# ----------------------------------------------------------------------------- keys
out_dir = 'out'                     # a run's folder, gpt2 … gpt2-xl, a folder of export.py or Hugging Face; several with commas
checkpoint = 'best.pt'              # best.pt: the lowest validation loss | ckpt.pt: the latest
what = ''                           # some of loss, rouge, bertscore, separated by commas; empty: loss, or only tasks if given
dataset = ''                        # a folder of data/; empty: the run's own
split = 'val'                       # val | train | test, which some text has
stride = 0                          # tokens from one window to the next; 0: block_size, so that windows do not overlap
batch_size = 8                      # windows, samples or requests at once
samples = 64                        # rouge, bertscore: evenly spread windows; the second half of each is predicted
bert_model = 'roberta-large'        # bertscore: a Hugging Face name or folder
tasks = ''                          # tasks, groups, tags or patterns of lm-evaluation-harness, with commas: mmlu,'arc_*'
task_path = ''                      # a folder of task files (.yaml) of your own
num_fewshot = -1                    # examples in a task's prompt; -1: as many as the task says
limit = 0                           # documents of each task; 0: all
gen_kwargs = ''                     # for tasks that generate, over their own settings: temperature=0,max_gen_toks=32
log_samples = False                 # write each task's samples: beside `output`, or without it into the run's folder
output = ''                         # a new file for all results, as JSON
seed = 1337                         # seed of the random choices of a task
device = 'auto'                     # auto | cpu | cuda | cuda:1 | mps …
dtype = 'auto'                      # auto | float32 | bfloat16 | float16
# -----------------------------------------------------------------------------
config = configure(globals())
SCORES = ('loss', 'rouge', 'bertscore')
SEGMENT = 1024                      # tokens: the unit of the loss's standard error, and of pairing

at_least(config, stride=0, batch_size=1, samples=2, num_fewshot=-1, limit=0, seed=0)
what = what.split(',') if what else [] if tasks else ['loss']
for name in what:
    if name not in SCORES:
        raise ValueError(f'what={name!r}: choose among {", ".join(SCORES)}')
if split not in TEXT_SPLITS:
    raise ValueError(f'split={split!r}: choose one of {", ".join(TEXT_SPLITS)}')
if not tasks:
    refuse(('gen_kwargs', 'log_samples', 'limit', 'num_fewshot', 'task_path'), 'it is for tasks')
machine = Machine(device, dtype)


# ----------------------------------------------------------------------------- what is evaluated

class Subject(NamedTuple):
    name: str
    model: nn.Module
    tokenizer: tuple                # arguments of load_tokenizer
    dataset: str
    folder: str                     # the run's; '' for a model that is not a run
    key: str                        # a hash of the weights
    iter: int


def load(name):
    """Loads a run of train.py, or a model by load_gpt, on the CPU. ValueError if there is none, or no data for it."""
    path = os.path.join(name, checkpoint)
    if os.path.exists(path):
        model, state = load_run(path)
        trained_on = state['config']['dataset']
        chosen = dataset or trained_on
        tokenizer = tokenizer_of(name, trained_on, chosen)
        return Subject(name, model.eval(), tokenizer, chosen, name, key_of(model, tokenizer), state['iter'])
    if name not in OPENAI_MODELS and not is_model(name):
        raise ValueError(f'there is no {path}: train first, check out_dir and checkpoint, or name one of '
                         f'{", ".join(OPENAI_MODELS)}, or a folder of export.py or Hugging Face')
    if what and not dataset:
        raise ValueError(f'{name} is no run of train.py: choose the data by --dataset=…')
    model, tokenizer = load_gpt(name), ('gpt2' if name in OPENAI_MODELS else name,)
    return Subject(name, model.eval(), tokenizer, dataset, '', key_of(model, tokenizer), 0)


def tokenizer_of(name, trained_on, chosen):
    """The tokenizer of a run's data. ValueError if the chosen data has another."""
    meta, other = read_meta(trained_on), read_meta(chosen)
    if any(meta[key] != other[key] for key in ('vocab_size', 'tokenizer', 'chars')):
        raise ValueError(f'dataset={chosen} has other tokens ({other["tokenizer"]}, {other["vocab_size"]}) than '
                         f'{trained_on} ({meta["tokenizer"]}, {meta["vocab_size"]}), which {name} has learned')
    return meta['tokenizer'], meta['chars']


def is_model(name):
    """Whether this is the folder of a model and not of a run: the config.json of a run has no model_type."""
    return 'model_type' in (read_json(os.path.join(name, 'config.json'), 'copy it again from where it came from') or {})


def tokens_of(subject):
    """The subject's split, in windows as long as the model and the split allow."""
    longest = max(1, min(subject.model.config.block_size, read_meta(subject.dataset)['tokens'][split] - 1))
    tokens = Tokens(subject.dataset, split, longest, subject.model.config.vocab_size)
    if not subject.folder:                              # its tokenizer may have another name for the same tokens
        meta = read_meta(subject.dataset)
        theirs, ours = load_tokenizer(*subject.tokenizer), load_tokenizer(meta['tokenizer'], meta['chars'])
        text = ours.decode(tokens.tokens[:1000].tolist())
        if theirs.encode(text) != ours.encode(text):
            raise ValueError(f'dataset={subject.dataset} has other tokens ({meta["tokenizer"]}) than {subject.name} has learned')
    return tokens


# ----------------------------------------------------------------------------- loss

def token_losses(subject, tokens):
    """−log p, in nats, of every token except the first, each counted once, given the tokens before it in its window."""
    size, last, model = tokens.block_size, len(tokens.tokens) - 1, subject.model
    if stride > size:
        raise ValueError(f'stride={stride} is longer than the windows of {size} tokens: some tokens would be left out')
    ends = [*range(size, last, stride or size), last]
    fresh = np.diff(ends, prepend=0)                    # how many last targets of each window the window before lacks

    def losses(batch):
        x, y = tokens.read([ends[i] - size for i in batch])
        x, y = x.to(machine.device), y.to(machine.device)
        rows = F.cross_entropy(model_logits(machine, model, x).flatten(0, 1), y.flatten(), reduction='none').view(y.shape)
        return np.concatenate([row[size - fresh[i]:] for row, i in zip(rows.cpu().numpy(), batch)])

    return np.concatenate(over_ranks(machine, losses, chunks(range(len(ends)), batch_size), 'loss'))


def bytes_of(tokens, tokenizer):
    """Bytes, in UTF-8, of the text of the tokens; the end of a document counts as one."""
    ends = np.flatnonzero(tokens == tokenizer.end) if tokenizer.end is not None else np.array([], dtype=int)
    documents = np.split(tokens, ends + 1)
    return len(ends) + sum(len(tokenizer.decode([i for i in part.tolist() if i != tokenizer.end]).encode('utf-8', 'replace'))
                           for part in documents)


def loss_scores(subject):
    tokens = tokens_of(subject)
    losses = token_losses(subject, tokens)
    segments = min(max(2, len(losses) // SEGMENT), len(losses))
    loss = score_of([part.mean() for part in np.array_split(losses.astype(float), segments)], lower=True)
    loss = loss._replace(mean=losses.mean(dtype=float))
    perplexity = math.inf if loss.mean > 700 else math.exp(loss.mean)
    scores = {'loss': loss, 'perplexity': Score(perplexity, perplexity * loss.error, None, lower=True)}
    try:
        tokenizer = load_tokenizer(*subject.tokenizer)
    except (ValueError, OSError) as error:
        if machine.master:
            print(f'{subject.name}: no bits per byte, {error}', file=sys.stderr)
        return scores
    bits = len(losses) / bytes_of(np.asarray(tokens.tokens[1:]), tokenizer) / math.log(2)
    return scores | {'bits per byte': Score(bits * loss.mean, bits * loss.error, None, lower=True)}


# ----------------------------------------------------------------------------- text

def predicted(subject):
    """[(true, forced, free)] texts of the second half of each sample. `forced` predicts each token from the true tokens before it
    (teacher forcing). `free` continues the first half. Both take the likeliest token."""
    tokens = tokens_of(subject)
    tokenizer = load_tokenizer(*subject.tokenizer)
    starts = tokens.spread(samples, 1)[:, 0]
    half = tokens.block_size // 2

    def texts(batch):
        x, y = tokens.read(batch)
        x = x.to(machine.device)
        forced = model_logits(machine, subject.model, x)[:, half:].argmax(-1)
        with machine.autocast():
            free = subject.model.generate(x[:, :half + 1], tokens.block_size - half, temperature=0)[:, half + 1:]
        return [tuple(tokenizer.decode(row.tolist()) for row in rows) for rows in zip(y[:, half:], forced, free)]

    return sum(over_ranks(machine, texts, chunks(starts, batch_size), 'text'), [])


def text_scores(subject):
    reference, *candidates = zip(*predicted(subject))
    scores = {}
    if not machine.master:
        return scores
    for way, texts in zip(('teacher-forced', 'continued'), candidates):
        if 'rouge' in what:
            kinds = {'rouge1': 'ROUGE-1', 'rouge2': 'ROUGE-2', 'rougeL': 'ROUGE-L'}
            scorer = rouge_scorer(list(kinds))
            per_text = [scorer.score(*pair) for pair in zip(reference, texts)]
            scores |= {f'{label} {way}': score_of([100 * rouge[kind].fmeasure for rouge in per_text])
                       for kind, label in kinds.items()}
        if 'bertscore' in what:
            per_text = bert_scores(texts, reference)
            scores |= {f'BERT-{letter} {way}': score_of(100 * values.numpy()) for letter, values in zip('PRF', per_text)}
    return scores


def rouge_scorer(kinds):
    with optional('rouge-score'):
        from rouge_score.rouge_scorer import RougeScorer
    return RougeScorer(kinds)


def bert_scores(texts, reference):
    """Precision, recall and F1 of BERTScore, a tensor each, at the layer that its authors chose, or else at the last."""
    with optional('bert-score'):
        from bert_score import score
        from bert_score.utils import model2layers
    from transformers import AutoConfig
    from transformers.utils import logging
    logging.disable_progress_bar()
    try:
        layers = model2layers.get(os.path.basename(bert_model)) or AutoConfig.from_pretrained(bert_model).num_hidden_layers
        return score(texts, reference, model_type=bert_model, num_layers=layers, device=str(device), batch_size=batch_size)
    except Exception as error:                          # the libraries raise errors of many types
        raise ValueError(f'bert_model={bert_model!r} could not be used: {one_line(error)}; wants a folder, or a name, '
                         f'which needs the network once') from error


# ----------------------------------------------------------------------------- lm-evaluation-harness

def task_scores(subject, names, manager, settings):
    """The scores of tasks and of groups of them, and lm-evaluation-harness's dict of results, both empty on other ranks than the
    first."""
    alone = subject.folder and machine.world_size == 1
    answers = os.path.join(subject.folder, f'lm_eval-{subject.key}-{str(machine.dtype)[6:]}.jsonl') if alone else None
    results = run_tasks(subject.model, subject.tokenizer, answers, machine, batch_size, names, manager, limit=limit or None,
                      num_fewshot=None if num_fewshot < 0 else num_fewshot, gen_kwargs=dict(settings), random_seed=seed,
                      numpy_random_seed=seed, torch_random_seed=seed, fewshot_random_seed=seed) or {}
    scores = {}
    for task, metrics in results.get('results', {}).items():
        for key, mean in metrics.items():
            metric, _, by = key.partition(',')
            if by and not metric.endswith('_stderr') and isinstance(mean, float):
                error = metrics.get(f'{metric}_stderr,{by}')
                samples = [sample for sample in results['samples'].get(task, []) if sample.get('filter', by) == by]
                units = [sample.get(metric) for sample in sorted(samples, key=lambda sample: sample['doc_id'])]
                paired = units and all(isinstance(u, (int, float)) for u in units) and np.isclose(np.mean(units), mean)
                label = f'{task} {metric}' if by == 'none' else f'{task} {metric} ({by})'
                scores[label] = Score(mean, error if isinstance(error, float) else math.nan,
                                      np.array(units, dtype=float) if paired else None,
                                      results['higher_is_better'].get(task, {}).get(metric) is False)
    return scores, results


def samples_folder(subject, count):
    """Where the samples of one of `count` subjects go."""
    folder = f'{os.path.splitext(output)[0]}-samples' if output else subject.folder
    return os.path.join(folder, subject.name.strip('/').replace('/', '__')) if output and count > 1 else folder


def main():
    if os.path.lexists(output):
        raise ValueError(f'output={output} exists: choose another name, or remove it')
    if not os.path.isdir(os.path.dirname(output) or '.'):
        raise ValueError(f'output={output}: there is no folder {os.path.dirname(output)}')
    subjects = [load(name) for name in names_of(out_dir, OPENAI_MODELS)]
    data = sorted({subject.dataset for subject in subjects})
    if what and len(data) > 1:
        raise ValueError(f'out_dir={out_dir}: these runs were trained on {", ".join(data)}, choose one by --dataset=…')
    for subject in subjects:
        splits = read_meta(subject.dataset)['tokens'] if what else [split]
        if split not in splits:
            raise ValueError(f'split={split}: dataset={subject.dataset} has none, only {" and ".join(splits)}')
        if log_samples and not samples_folder(subject, len(subjects)):
            raise ValueError(f'log_samples: {subject.name} is no run with a folder for them, name a file by --output=…')
    if 'rouge' in what:
        rouge_scorer([])
    names, manager = load_tasks(tasks, task_path) if tasks else ([], None)
    settings = read_settings(gen_kwargs) if tasks else {}
    machine.connect('gloo')                                # before this, all ranks fail with the same error
    noted = ('checkpoint', 'split', 'stride', 'samples', 'bert_model', 'task_path', 'num_fewshot', 'limit', 'gen_kwargs', 'seed')
    call_keys = {key: config[key] for key in noted}
    table, results, unwritten = {}, {}, []

    def write(f, *args):
        try:
            f(*args)
        except OSError as error:                        # the table is printed all the same
            unwritten.append(str(error))

    for subject in subjects:
        subject.model.to(machine.device)
        table[subject.name] = scores = {}
        task_results = {}
        with torch.no_grad():
            if 'loss' in what:
                scores |= loss_scores(subject)
            if {'rouge', 'bertscore'} & set(what):
                scores |= text_scores(subject)
            if tasks:
                of_tasks, task_results = task_scores(subject, names, manager, settings)
                scores |= of_tasks
        subject.model.cpu()
        if machine.master:
            row = dict(iter=subject.iter, weights=subject.key, dataset=subject.dataset, dtype=str(machine.dtype)[6:], **call_keys,
                       scores={label: numbers(score) for label, score in scores.items()})
            if subject.folder:
                write(append, os.path.join(subject.folder, 'evaluate.jsonl'), row)
            of_each_task = task_results.pop('samples', {})
            if log_samples:
                write(write_samples, samples_folder(subject, len(subjects)), of_each_task)
            results[subject.name] = {**row, **task_results}
    if machine.master:
        show(table)
        if output:
            whole = dict(models=results) if len(results) > 1 else results[subjects[0].name]
            write(write_json, output, whole)
    if unwritten:
        print(f'error: the scores above could not be written: {"; ".join(unwritten)}', file=sys.stderr)
    return 1 if unwritten else 0


machine.leave(main())
