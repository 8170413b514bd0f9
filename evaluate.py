"""
What a finished checkpoint is worth, on a whole validation split, as a continued text, and in lm-evaluation-harness:

    python evaluate.py --out_dir=out-quick                              # loss, perplexity, bits per byte
    torchrun --nproc_per_node=8 evaluate.py --out_dir=out-ldnt-sgd,out-gpt2,gpt2 --dataset=openwebtext --stride=512
    python evaluate.py --out_dir=out-ldnt-sgd --what=rouge,bertscore
    python evaluate.py --out_dir=out-ldnt-sgd --tasks=arc_easy,hellaswag

Several runs make one table, and it is said which differences are beyond the noise. Each run's folder keeps its scores, a row
per call, in evaluate.jsonl.
"""
import hashlib
import math
import os
import sys
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from scipy import stats
from torch.nn import functional as F
from tqdm import tqdm

from configurator import at_least, configure
from dataset import SPLITS, Tokens, read_meta
from device import autocast, pick_device, pick_dtype
from measure import write_row
from model import GPT, OPENAI_MODELS, at_least_fp32
from text import load_tokenizer

# ----------------------------------------------------------------------------- keys
out_dir = 'out'                     # a run's folder, gpt2 … gpt2-xl, a folder of export.py or Hugging Face; several with commas
checkpoint = 'best.pt'              # best.pt | ckpt.pt: of the lowest validation loss, or the latest
what = ''                           # some of loss, rouge, bertscore, with commas; empty: loss, or with tasks those alone
dataset = ''                        # a folder of data/; empty: the run's own
split = 'val'                       # val | train
stride = 0                          # tokens from one window to the next; 0: block_size, so that windows do not overlap
batch_size = 8                      # windows, samples or requests at once
samples = 64                        # rouge, bertscore: windows, evenly spread, of each of which the second half is predicted
bert_model = 'roberta-large'        # bertscore: a name or a folder of Hugging Face's
tasks = ''                          # of lm-evaluation-harness, with commas: arc_easy, hellaswag, …
task_path = ''                      # a folder of task files (.yaml) of your own
num_fewshot = -1                    # examples in a task's prompt; -1: as many as the task says
limit = 0                           # documents of each task; 0: all
seed = 1337                         # of what a task draws
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
if split not in SPLITS:
    raise ValueError(f'split={split!r}: choose one of {", ".join(SPLITS)}')
rank, local_rank, world_size = (int(os.environ.get(k, d)) for k, d in (('RANK', 0), ('LOCAL_RANK', 0), ('WORLD_SIZE', 1)))
device = pick_device(device, local_rank)
dtype = pick_dtype(dtype, device)


class Score(NamedTuple):
    mean: float
    error: float                    # standard error of the mean
    units: np.ndarray | None        # what is paired with another run's; None: nothing, or told by another score
    lower: bool = False             # is better


def score_of(units, lower=False):
    units = np.asarray(units, dtype=float)
    return Score(units.mean(), units.std(ddof=1) / math.sqrt(len(units)) if len(units) > 1 else math.nan, units, lower)


def over_ranks(f, items, title):
    """[f(item) for item in items], of which each rank computes its share."""
    mine = [f(item) for item in tqdm(items[rank::world_size], desc=title, disable=None if rank == 0 else True)]
    if world_size == 1:
        return mine
    parts = [None] * world_size
    dist.all_gather_object(parts, mine)
    return [parts[i % world_size][i // world_size] for i in range(len(items))]


def chunks(items):
    return [items[i:i + batch_size] for i in range(0, len(items), batch_size)]


def logits_of(model, ids):
    with autocast(device, dtype):
        return at_least_fp32(model(ids)[0])


# ----------------------------------------------------------------------------- what is evaluated

class Subject(NamedTuple):
    name: str
    model: GPT
    tokenizer: tuple                # for load_tokenizer
    dataset: str
    folder: str                     # of the run; '' for a model that is none
    key: str                        # the same weights have the same
    iter: int


def check(name):
    if not any(os.path.exists(os.path.join(name, file)) for file in (checkpoint, 'model.safetensors')):
        if name not in OPENAI_MODELS:
            raise ValueError(f'there is no {os.path.join(name, checkpoint)}: train first, check out_dir and checkpoint, or name '
                             f'one of {", ".join(OPENAI_MODELS)}, or a folder of export.py or Hugging Face')


def load(name):
    path = os.path.join(name, checkpoint)
    if os.path.exists(path):
        model, state = GPT.from_checkpoint(path, device)
        trained_on = state['config']['dataset']
        meta, chosen = read_meta(trained_on), read_meta(dataset or trained_on)
        if any(meta[key] != chosen[key] for key in ('vocab_size', 'tokenizer', 'chars')):
            raise ValueError(f'dataset={dataset} has other tokens ({chosen["tokenizer"]}, {chosen["vocab_size"]}) than '
                             f'{trained_on} ({meta["tokenizer"]}, {meta["vocab_size"]}), which {name} has learned')
        with open(path, 'rb') as f:
            key = hashlib.sha256(f.read()).hexdigest()[:12]
        return Subject(name, model.eval(), (meta['tokenizer'], meta['chars']), dataset or trained_on, name, key, state['iter'])
    if what and not dataset:
        raise ValueError(f'{name} is no run of train.py: choose the data by --dataset=…')
    model = GPT.from_pretrained(name).to(device)
    return Subject(name, model.eval(), ('gpt2' if name in OPENAI_MODELS else name,), dataset, '', name, 0)


def tokens_of(subject):
    """Its split, in windows as long as the model and the split allow."""
    longest = min(subject.model.config.block_size, read_meta(subject.dataset)['tokens'][split] - 1)
    tokens = Tokens(subject.dataset, split, longest, subject.model.config.vocab_size)
    if not subject.folder:                              # its tokenizer has a name of its own
        meta = read_meta(subject.dataset)
        theirs, ours = load_tokenizer(*subject.tokenizer), load_tokenizer(meta['tokenizer'], meta['chars'])
        text = ours.decode(tokens.tokens[:1000].tolist())
        if theirs.encode(text) != ours.encode(text):
            raise ValueError(f'dataset={subject.dataset} has other tokens ({meta["tokenizer"]}) than {subject.name} has learned')
    return tokens


# ----------------------------------------------------------------------------- loss

def token_losses(model, tokens):
    """−log p, in nats, of every token but the first, each once, behind as many others as its window has before it."""
    size, last = tokens.block_size, len(tokens.tokens) - 1
    if stride > size:
        raise ValueError(f'stride={stride} is longer than the windows of {size} tokens: some tokens would be left out')
    ends = [*range(size, last, stride or size), last]
    fresh = np.diff(ends, prepend=0)                    # targets at the end of each window that the one before has not had

    def losses(batch):
        x, y = tokens.read([ends[i] - size for i in batch])
        x, y = x.to(device), y.to(device)
        rows = F.cross_entropy(logits_of(model, x).flatten(0, 1), y.flatten(), reduction='none').view(y.shape).cpu().numpy()
        return np.concatenate([row[size - fresh[i]:] for row, i in zip(rows, batch)])

    return np.concatenate(over_ranks(losses, chunks(range(len(ends))), 'loss'))


def bytes_of(tokens, tokenizer):
    """In UTF-8, of the text that the tokens stand for; the end of a document counts as one."""
    ends = np.flatnonzero(tokens == tokenizer.end) if tokenizer.end is not None else np.array([], dtype=int)
    documents = np.split(tokens, ends + 1)
    return len(ends) + sum(len(tokenizer.decode([i for i in part.tolist() if i != tokenizer.end]).encode('utf-8', 'replace'))
                           for part in documents)


def loss_scores(subject):
    tokens = tokens_of(subject)
    losses = token_losses(subject.model, tokens)
    segments = min(max(2, len(losses) // SEGMENT), len(losses))
    loss = score_of([part.mean() for part in np.array_split(losses.astype(float), segments)], lower=True)
    loss = loss._replace(mean=losses.mean(dtype=float))
    perplexity = math.exp(loss.mean) if loss.mean < 700 else math.inf
    scores = {'loss': loss, 'perplexity': Score(perplexity, perplexity * loss.error, None, lower=True)}
    try:
        tokenizer = load_tokenizer(*subject.tokenizer)
    except (ValueError, OSError) as error:
        if rank == 0:
            print(f'{subject.name}: no bits per byte, {error}', file=sys.stderr)
        return scores
    bits = len(losses) / bytes_of(np.asarray(tokens.tokens[1:]), tokenizer) / math.log(2)
    return scores | {'bits per byte': Score(bits * loss.mean, bits * loss.error, None, lower=True)}


# ----------------------------------------------------------------------------- text

def predicted(subject):
    """(reference, told, free) texts of the second half of each sample: told at every token what came before it truly, and
    continued freely from the first half, both by the likeliest token."""
    tokens = tokens_of(subject)
    tokenizer = load_tokenizer(*subject.tokenizer)
    starts = tokens.spread(samples, 1)[:, 0]
    half = tokens.block_size // 2

    def texts(batch):
        x, y = tokens.read(batch)
        x = x.to(device)
        told = logits_of(subject.model, x)[:, half:].argmax(-1)
        with autocast(device, dtype):
            free = subject.model.generate(x[:, :half + 1], tokens.block_size - half, temperature=0)[:, half + 1:]
        return [tuple(tokenizer.decode(row.tolist()) for row in rows) for rows in zip(y[:, half:], told, free)]

    return sum(over_ranks(texts, chunks(starts), 'text'), [])


def text_scores(subject):
    reference, *candidates = zip(*predicted(subject))
    scores = {}
    for way, texts in zip(('teacher-forced', 'continued'), candidates):
        if 'rouge' in what:
            with optional('rouge-score'):
                from rouge_score.rouge_scorer import RougeScorer
            kinds = {'rouge1': 'ROUGE-1', 'rouge2': 'ROUGE-2', 'rougeL': 'ROUGE-L'}
            found = [RougeScorer(list(kinds)).score(*pair) for pair in zip(reference, texts)]
            scores |= {f'{label} {way}': score_of([100 * one[kind].fmeasure for one in found]) for kind, label in kinds.items()}
        if 'bertscore' in what:
            found = bert_scores(texts, reference)
            scores |= {f'BERT-{letter} {way}': score_of(100 * values.numpy()) for letter, values in zip('PRF', found)}
    return scores


def bert_scores(texts, reference):
    """Precision, recall and F1 of BERTScore, a tensor each; of the layer that its authors chose, or the last."""
    with optional('bert-score'):
        from bert_score import score
        from bert_score.utils import model2layers
    from transformers import AutoConfig
    from transformers.utils import logging
    logging.disable_progress_bar()
    try:
        layers = model2layers.get(os.path.basename(bert_model)) or AutoConfig.from_pretrained(bert_model).num_hidden_layers
        return score(texts, reference, model_type=bert_model, num_layers=layers, device=str(device), batch_size=batch_size)
    except Exception as error:                          # of many libraries, each with its own
        raise ValueError(f'bert_model={bert_model!r} could not be used, it wants the network or a folder: '
                         f'{str(error).splitlines()[0]}') from error


class optional:
    """Around an import that requirements-eval.txt installs."""

    def __init__(self, package):
        self.package = package

    def __enter__(self):
        here = os.path.dirname(os.path.abspath(__file__))       # among what they import is an `evaluate` that is not this file
        self.path, sys.path = sys.path, [path for path in sys.path if os.path.abspath(path) != here]

    def __exit__(self, kind, error, trace):
        sys.path = self.path
        if kind and issubclass(kind, ImportError):
            raise ValueError(f'{self.package} is not installed ({error}): pip install -r requirements-eval.txt') from error


# ----------------------------------------------------------------------------- lm-evaluation-harness

def task_scores(subject):
    with optional('lm-eval'):
        import lm_eval
        from lm_eval.api.model import TemplateLM
        from lm_eval.tasks import TaskManager
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

        import evaluate  # noqa: F401, Hugging Face's, which lm_eval will import
    tokenizer, model = load_tokenizer(*subject.tokenizer), subject.model
    size = model.config.block_size

    class Harness(TemplateLM):
        """A GPT as lm-evaluation-harness asks for it."""

        eot_token_id = tokenizer.end if tokenizer.end is not None else tokenizer.encode('\n')[0]

        def tok_encode(self, string, **kwargs):
            return tokenizer.encode(string)

        def _loglikelihood_tokens(self, requests, **kwargs):
            order = sorted(range(len(requests)), key=lambda i: -len(requests[i][1]) - len(requests[i][2]))

            def of(batch):
                """(log p of the continuation, whether it is the likeliest) of each request; padding behind it is not seen."""
                rows = [(requests[i][1] + requests[i][2])[-size - 1:] for i in batch]
                ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
                for line, row in zip(ids, rows):
                    line[:len(row)] = torch.tensor(row)
                logits = logits_of(model, ids[:, :-1].to(device))
                found = []
                for line, row, i in zip(logits, rows, batch):
                    count = len(requests[i][2])
                    if count > size:
                        raise ValueError(f'a continuation of {count} tokens is longer than block_size={size}')
                    wanted = torch.tensor(row[len(row) - count:], device=device)
                    line = line[len(row) - 1 - count:len(row) - 1]
                    log_p = -F.cross_entropy(line, wanted, reduction='sum')
                    found.append((log_p.item(), bool((line.argmax(-1) == wanted).all())))
                return found

            found = dict(zip(order, sum(over_ranks(of, chunks(order), 'requests'), [])))
            return [found[i] for i in range(len(requests))]

        def loglikelihood_rolling(self, requests, **kwargs):
            windows = [(i, None, *make_disjoint_window(window)) for i, request in enumerate(requests)
                       for window in get_rolling_token_windows(self.tok_encode(request.args[0]), self.prefix_token_id, size, 1)]
            totals = [0.0] * len(requests)
            for (i, *_), (log_p, _) in zip(windows, self._loglikelihood_tokens([window[1:] for window in windows])):
                totals[i] += log_p
            return totals

        def generate_until(self, requests, **kwargs):
            def of(request):
                context, asked = request.args
                until = asked.get('until') or []
                until = [until] if isinstance(until, str) else until
                count = asked.get('max_gen_toks', 256)
                prompt = (tokenizer.encode(context) or [self.prefix_token_id])[-max(1, size - count):]
                temperature = asked.get('temperature', 0.0) if asked.get('do_sample') else 0.0
                ids, text = [], ''
                with autocast(device, dtype):
                    for new in model.stream(torch.tensor([prompt], device=device), count, temperature):
                        ids.append(new.item())
                        text = tokenizer.decode(ids)
                        if ids[-1] == tokenizer.end or any(stop in text for stop in until if stop):
                            break
                return min((text.split(stop)[0] for stop in until if stop), key=len, default=text)

            return over_ranks(of, requests, 'generation')

    manager = TaskManager(include_path=task_path or None)
    names = tasks.split(',')
    for name in names:
        if name not in manager.all_tasks:
            raise ValueError(f'tasks={name!r}: lm-evaluation-harness has no such task'
                             f'{f", nor has {task_path}" if task_path else ""}; lm-eval ls tasks  lists its own')
    try:
        loaded = manager.load(names)
    except Exception as error:                          # of many libraries, each with its own
        raise ValueError(f'tasks={tasks}: their data could not be loaded, which wants the network once: '
                         f'{str(error).splitlines()[0]}') from error
    manager.load = lambda names: loaded
    cache = f'{subject.folder}/lm_eval-{subject.key}-{str(dtype)[6:]}' if subject.folder and world_size == 1 else None
    found = lm_eval.simple_evaluate(Harness(), tasks=names, task_manager=manager, limit=limit or None, use_cache=cache,
                                    num_fewshot=None if num_fewshot < 0 else num_fewshot, bootstrap_iters=1000,
                                    random_seed=seed, numpy_random_seed=seed, torch_random_seed=seed, fewshot_random_seed=seed)
    scores = {}
    if rank:                                            # the results are with the first
        return scores
    for task, metrics in found['results'].items():
        for key, mean in metrics.items():
            metric, _, by = key.partition(',')
            if by and not metric.endswith('_stderr') and isinstance(mean, float):
                error = metrics.get(f'{metric}_stderr,{by}')
                units = [one.get(metric) for one in sorted(found['samples'].get(task, []), key=lambda one: one['doc_id'])]
                paired = np.array(units, dtype=float) if units and all(isinstance(u, (int, float)) for u in units) else None
                scores[f'{task} {metric}'] = Score(mean, error if isinstance(error, float) else math.nan, paired,
                                                   not found['higher_is_better'].get(task, {}).get(metric, True))
    return scores


# ----------------------------------------------------------------------------- the table

def show(table):
    """{name: {label: Score}} as Markdown, and which differences are beyond the noise."""
    labels = list(dict.fromkeys(label for scores in table.values() for label in scores))
    best = {}
    for label in labels:
        having = [name for name in table if label in table[name]]
        best[label] = min(having, key=lambda name: table[name][label].mean * (1 if table[name][label].lower else -1))

    def cell(name, label):
        if label not in table[name]:
            return ''
        mean, error = table[name][label][:2]
        text = f'{mean:.4f}' + ('' if math.isnan(error) else f' ± {error:.4f}')
        return f'**{text}**' if len(table) > 1 and best[label] == name else text

    print('| |', ' | '.join(labels), '|')
    print('| --- |', ' --- |' * len(labels), sep='')
    for name in table:
        print(f'| {name} |', ' | '.join(cell(name, label) for label in labels), '|')
    if len(table) > 1:
        print()
    for label in labels:
        first = table[best[label]][label]
        for name in table:
            units = table[name].get(label, first).units
            if name != best[label] and units is not None and first.units is not None and len(units) == len(first.units):
                gap = score_of(units - first.units)
                if not gap.error > 0:
                    continue
                p = stats.ttest_rel(units, first.units).pvalue
                print(f'{label}: {name} is {abs(gap.mean):.4f} ± {gap.error:.4f} behind {best[label]}, '
                      f'{"beyond" if p < 0.05 else "within"} the noise ({f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"}, paired)')


def names_of(text):
    """Folders with commas between them; a sweep's have some in their names too."""
    names = []
    for piece in text.split(','):
        if names and not os.path.isdir(names[-1]) and names[-1] not in OPENAI_MODELS:
            names[-1] += ',' + piece
        else:
            names.append(piece)
    return names


def main():
    table, names = {}, names_of(out_dir)
    for name in names:
        check(name)
    for name in names:
        subject = load(name)
        others = {other.dataset for other, _ in table.values()} - {subject.dataset}
        if what and others:
            raise ValueError(f'{name} was trained on dataset={subject.dataset}, and others on {", ".join(others)}: choose one '
                             f'by --dataset=…')
        scores = {}
        with torch.no_grad():
            if 'loss' in what:
                scores |= loss_scores(subject)
            if {'rouge', 'bertscore'} & set(what):
                scores |= text_scores(subject)
            if tasks:
                scores |= task_scores(subject)
        table[name] = subject._replace(model=None), scores
    if rank:
        return
    show({name: scores for name, (_, scores) in table.items()})
    asked = {key: config[key] for key in ('checkpoint', 'split', 'stride', 'samples', 'bert_model', 'num_fewshot', 'limit')}
    for subject, scores in table.values():
        if subject.folder:
            row = dict(iter=subject.iter, weights=subject.key, dataset=subject.dataset, dtype=str(dtype)[6:], **asked,
                       scores={label: dict(mean=score.mean, error=score.error) for label, score in scores.items()})
            with open(os.path.join(subject.folder, 'evaluate.jsonl'), 'a', encoding='utf-8') as f:
                write_row(f, row)


if world_size > 1:
    dist.init_process_group('gloo')
main()
if world_size > 1:
    dist.destroy_process_group()
