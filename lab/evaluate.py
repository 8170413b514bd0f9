"""
Evaluates checkpoints: the loss on a whole validation split, the text that they continue, and lm-evaluation-harness:

    python -m lab.evaluate --out_dir=out-quick                              # loss, perplexity, bits per byte
    torchrun --nproc_per_node=8 -m lab.evaluate --out_dir=out-ldnt-sgd,out-gpt2,gpt2 --dataset=openwebtext --stride=512
    python -m lab.evaluate --out_dir=out-ldnt-sgd --what=rouge,bertscore
    python -m lab.evaluate --out_dir=out-ldnt-sgd --tasks=arc_easy,hellaswag

Several runs make one table, with a test of which differences are beyond the noise. Each call appends a row of scores to
evaluate.jsonl in the run's folder.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.evaluate')

from configurator import at_least, configure

import contextlib
import hashlib
import json
import math
import os
from typing import NamedTuple

import numpy as np
import torch
from scipy import stats
from torch.nn import functional as F

from data.text import load_tokenizer
from data.tokens import SPLITS, Tokens, read_meta
from engine.checkpoint import load_text_run
from engine.device import Machine
from engine.files import check_regular, fits, read_json, read_rows, told
from engine.pretrained import OPENAI_MODELS, load_gpt
from engine.runlog import finite, progress, write_row
from model import GPT, at_least_fp32

# ----------------------------------------------------------------------------- keys
out_dir = 'out'                     # a run's folder, gpt2 … gpt2-xl, a folder of export.py or Hugging Face; several with commas
checkpoint = 'best.pt'              # best.pt: the lowest validation loss | ckpt.pt: the latest
what = ''                           # some of loss, rouge, bertscore, separated by commas; empty: loss, or only tasks if given
dataset = ''                        # a folder of data/; empty: the run's own
split = 'val'                       # val | train
stride = 0                          # tokens from one window to the next; 0: block_size, so that windows do not overlap
batch_size = 8                      # windows, samples or requests at once
samples = 64                        # rouge, bertscore: evenly spread windows; the second half of each is predicted
bert_model = 'roberta-large'        # bertscore: a Hugging Face name or folder
tasks = ''                          # tasks of lm-evaluation-harness, separated by commas: arc_easy, hellaswag, …
task_path = ''                      # a folder of task files (.yaml) of your own
num_fewshot = -1                    # examples in a task's prompt; -1: as many as the task says
limit = 0                           # documents of each task; 0: all
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
if split not in SPLITS:
    raise ValueError(f'split={split!r}: choose one of {", ".join(SPLITS)}')
machine = Machine(device, dtype)


class Score(NamedTuple):
    mean: float
    error: float                    # standard error of the mean
    units: np.ndarray | None        # the values to pair with another run's; None: none, or another score has them
    lower: bool = False             # whether lower is better


def score_of(units, lower=False):
    units = np.asarray(units, dtype=float)
    return Score(units.mean(), units.std(ddof=1) / math.sqrt(len(units)) if len(units) > 1 else math.nan, units, lower)


def over_ranks(f, items, title):
    """[f(item) for item in items]; each rank computes its share."""
    mine = items[machine.rank::machine.world_size]
    mine = [f(item) for item in progress(mine, title, shown=machine.master)]
    parts = machine.gather(mine)
    return [parts[i % len(parts)][i // len(parts)] for i in range(len(items))]


def chunks(items):
    return [items[i:i + batch_size] for i in range(0, len(items), batch_size)]


def logits_of(model, ids):
    with machine.autocast():
        return at_least_fp32(model(ids)[0])


# ----------------------------------------------------------------------------- what is evaluated

class Subject(NamedTuple):
    name: str
    model: GPT
    tokenizer: tuple                # arguments of load_tokenizer
    dataset: str
    folder: str                     # the run's; '' for a model that is not a run
    key: str                        # a hash of the weights
    iter: int


def names_of(text):
    """Splits at commas, but joins pieces until they name a folder or a model, because a sweep's folders contain commas."""
    names = []
    for piece in text.split(','):
        if names and not os.path.isdir(names[-1]) and names[-1] not in OPENAI_MODELS:
            names[-1] += ',' + piece
        else:
            names.append(piece)
    return list(dict.fromkeys(name.rstrip('/') for name in names))


def load(name):
    """Loads a run of train.py, or a model by load_gpt, on the CPU. ValueError if there is none, or no data for it."""
    path = os.path.join(name, checkpoint)
    if os.path.exists(path):
        model, state = load_text_run(path)
        trained_on = state['config']['dataset']
        meta, chosen = read_meta(trained_on), read_meta(dataset or trained_on)
        if any(meta[key] != chosen[key] for key in ('vocab_size', 'tokenizer', 'chars')):
            raise ValueError(f'dataset={dataset} has other tokens ({chosen["tokenizer"]}, {chosen["vocab_size"]}) than '
                             f'{trained_on} ({meta["tokenizer"]}, {meta["vocab_size"]}), which {name} has learned')
        tokenizer = (meta['tokenizer'], meta['chars'])
        return Subject(name, model.eval(), tokenizer, dataset or trained_on, name, key_of(model, tokenizer), state['iter'])
    if name not in OPENAI_MODELS and not is_model(name):
        raise ValueError(f'there is no {path}: train first, check out_dir and checkpoint, or name one of '
                         f'{", ".join(OPENAI_MODELS)}, or a folder of export.py or Hugging Face')
    if what and not dataset:
        raise ValueError(f'{name} is no run of train.py: choose the data by --dataset=…')
    model, tokenizer = load_gpt(name), ('gpt2' if name in OPENAI_MODELS else name,)
    return Subject(name, model.eval(), tokenizer, dataset, '', key_of(model, tokenizer), 0)


def is_model(name):
    """Whether this is the folder of a model and not of a run: the config.json of a run has no model_type."""
    return 'model_type' in (read_json(os.path.join(name, 'config.json'), dict, 'copy it again from where it came from') or {})


def key_of(model, tokenizer):
    key = hashlib.sha256(repr((model.config, tokenizer)).encode())
    for value in model.state_dict().values():
        key.update(value.contiguous().view(torch.uint8).numpy())
    return key.hexdigest()[:12]


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

def token_losses(model, tokens):
    """−log p, in nats, of every token except the first, each counted once, given the tokens before it in its window."""
    size, last = tokens.block_size, len(tokens.tokens) - 1
    if stride > size:
        raise ValueError(f'stride={stride} is longer than the windows of {size} tokens: some tokens would be left out')
    ends = [*range(size, last, stride or size), last]
    fresh = np.diff(ends, prepend=0)                    # how many last targets of each window the window before lacks

    def losses(batch):
        x, y = tokens.read([ends[i] - size for i in batch])
        x, y = x.to(machine.device), y.to(machine.device)
        rows = F.cross_entropy(logits_of(model, x).flatten(0, 1), y.flatten(), reduction='none').view(y.shape).cpu().numpy()
        return np.concatenate([row[size - fresh[i]:] for row, i in zip(rows, batch)])

    return np.concatenate(over_ranks(losses, chunks(range(len(ends))), 'loss'))


def bytes_of(tokens, tokenizer):
    """Bytes, in UTF-8, of the text of the tokens; the end of a document counts as one."""
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
    """(reference, told, free) texts of the second half of each sample. `told` predicts each token from the true tokens before it
    (teacher-forced). `free` continues the first half. Both take the likeliest token."""
    tokens = tokens_of(subject)
    tokenizer = load_tokenizer(*subject.tokenizer)
    starts = tokens.spread(samples, 1)[:, 0]
    half = tokens.block_size // 2

    def texts(batch):
        x, y = tokens.read(batch)
        x = x.to(machine.device)
        told = logits_of(subject.model, x)[:, half:].argmax(-1)
        with machine.autocast():
            free = subject.model.generate(x[:, :half + 1], tokens.block_size - half, temperature=0)[:, half + 1:]
        return [tuple(tokenizer.decode(row.tolist()) for row in rows) for rows in zip(y[:, half:], told, free)]

    return sum(over_ranks(texts, chunks(starts), 'text'), [])


def text_scores(subject):
    reference, *candidates = zip(*predicted(subject))
    scores = {}
    if not machine.master:
        return scores
    for way, texts in zip(('teacher-forced', 'continued'), candidates):
        if 'rouge' in what:
            kinds = {'rouge1': 'ROUGE-1', 'rouge2': 'ROUGE-2', 'rougeL': 'ROUGE-L'}
            scorer = rouge_scorer(list(kinds))
            found = [scorer.score(*pair) for pair in zip(reference, texts)]
            scores |= {f'{label} {way}': score_of([100 * one[kind].fmeasure for one in found]) for kind, label in kinds.items()}
        if 'bertscore' in what:
            found = bert_scores(texts, reference)
            scores |= {f'BERT-{letter} {way}': score_of(100 * values.numpy()) for letter, values in zip('PRF', found)}
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
        raise ValueError(f'bert_model={bert_model!r} could not be used: {told(error)}; wants a folder, or a name, '
                         f'which needs the network once') from error


class optional:
    """A context for importing a package of requirements-eval.txt."""

    def __init__(self, package):
        self.package = package

    def __enter__(self):
        here = os.path.dirname(os.path.abspath(__file__))       # they import a package `evaluate`, which is not this file
        self.path, sys.path = sys.path, [path for path in sys.path if os.path.abspath(path) != here]

    def __exit__(self, kind, error, trace):
        sys.path = self.path
        if kind and issubclass(kind, ImportError):
            raise ValueError(f'{self.package} is not installed ({error}): pip install -r requirements-eval.txt') from error


# ----------------------------------------------------------------------------- lm-evaluation-harness

def load_tasks():
    """A task manager of lm-evaluation-harness that has loaded the tasks; ValueError for an unknown task."""
    with optional('lm-eval'):
        import evaluate  # noqa: F401, Hugging Face's, which lm_eval will import
        import lm_eval.tasks
    os.environ['DISABLE_MULTIPROC'] = '1'               # otherwise it starts a process per core, for standard errors
    manager = lm_eval.tasks.TaskManager(include_path=task_path or None)
    for name in tasks.split(','):
        if name not in manager.all_tasks:
            raise ValueError(f'tasks={name!r}: lm-evaluation-harness has no such task'
                             f'{f", nor has {task_path}" if task_path else ""}; lm-eval ls tasks  lists its own')
    try:
        loaded = manager.load(tasks.split(','))
    except Exception as error:                          # the libraries raise errors of many types
        hint = ', which needs the network once' if isinstance(error, OSError) else ''
        raise ValueError(f'tasks={tasks} could not be loaded{hint}: {told(error)}') from error
    manager.load = lambda names: loaded
    return manager


ANSWER = (float, str, [(float, bool)])      # log p of a text; a continuation; log p of a target, and whether it is the likeliest


def kept(path, answer):
    """answer(requests) of lm-evaluation-harness, of which those in the file at `path` are not computed again. The file has a row
    of JSON for each: the hash of its method and arguments, and the answer. Texts that are drawn at random are not kept."""
    known = {row['request']: row['answer'] for row in read_rows(path, dict(request=str, answer=ANSWER))}

    def answer_new(requests, **more):
        drawn = [isinstance(request.args[-1], dict) and request.args[-1].get('do_sample', False) for request in requests]
        texts = [json.dumps([answer.__name__, *request.args], sort_keys=True) for request in requests]
        keys = [None if random else hashlib.sha256(text.encode()).hexdigest() for text, random in zip(texts, drawn)]
        new = [i for i, key in enumerate(keys) if key not in known]
        found = dict(zip(new, answer([requests[i] for i in new], **more))) if new else {}
        with open(path, 'a', encoding='utf-8') as f:
            for i in new:
                if keys[i] and fits(finite(found[i]), ANSWER):
                    write_row(f, dict(request=keys[i], answer=found[i]))
                    known[keys[i]] = found[i]
        return [found[i] if i in found else known[key] for i, key in enumerate(keys)]

    return answer_new


def harness(model, tokenizer, answers):
    """Wraps a GPT for lm-evaluation-harness. `answers`: a file for its answers, or None."""
    from lm_eval.api.model import TemplateLM
    from lm_eval.models.utils import normalize_gen_kwargs
    size = model.config.block_size

    def pieces(context, target):
        """Yields (ids, length of the part) for parts of the target: each part follows as many of the tokens before it as fit."""
        for begin in range(0, len(target), size):
            part = target[begin:begin + size]
            yield ((context + target[:begin])[-(size + 1 - len(part)):] or [0]) + part, len(part)

    def score(batch):
        """(log p, whether they are the likeliest) of the last tokens of each piece. The padding after them has no effect."""
        ids = torch.zeros(len(batch), max(len(row) for row, _ in batch), dtype=torch.long)
        for line, (row, _) in zip(ids, batch):
            line[:len(row)] = torch.tensor(row)
        found = []
        for line, (row, count) in zip(logits_of(model, ids[:, :-1].to(device)), batch):
            wanted, line = torch.tensor(row[-count:], device=device), line[len(row) - 1 - count:len(row) - 1]
            log_p = -F.cross_entropy(line, wanted, reduction='sum').item()
            found.append((log_p, bool((line.argmax(-1) == wanted).all())))
        return found

    def write(batch):
        """Continues prompts that have the same length and the same settings."""
        prompts, (asked, *_) = zip(*batch)
        rows, open_rows = [[] for _ in batch], set(range(len(batch)))
        texts = [''] * len(batch)
        with machine.autocast():
            temperature = asked.get('temperature', 1.0) if asked.get('do_sample') else 0.0
            for new in model.stream(torch.tensor(prompts, device=device), asked['max_gen_toks'], temperature,
                                    asked.get('top_k') or None, asked.get('top_p')):
                for i in list(open_rows):
                    if new[i].item() == tokenizer.end:
                        open_rows.discard(i)
                        continue
                    rows[i].append(new[i].item())
                    texts[i] = tokenizer.decode(rows[i])
                    if any(stop in texts[i] for stop in asked['until'] if stop):
                        open_rows.discard(i)
                if not open_rows:
                    break
        return [min((text.split(stop)[0] for stop in asked['until'] if stop), key=len, default=text) for text in texts]

    class Harness(TemplateLM):

        @property
        def eot_token_id(self):
            return tokenizer.end if tokenizer.end is not None else (tokenizer.encode('\n') or [0])[0]

        def tok_encode(self, string, **kwargs):
            return tokenizer.encode(string)

        def _loglikelihood_tokens(self, requests, **kwargs):
            parts = [(i, *piece) for i, (_, context, target) in enumerate(requests)
                     for piece in pieces(context or [self.prefix_token_id], target)]
            parts.sort(key=lambda part: -len(part[1]))          # little padding, and too large batches fail first
            batches = chunks([part[1:] for part in parts])
            found = [[0.0, True] for _ in requests]
            for (i, *_), (log_p, likeliest) in zip(parts, sum(over_ranks(score, batches, 'requests'), [])):
                found[i] = [found[i][0] + log_p, found[i][1] and likeliest]
            return [tuple(one) for one in found]

        def loglikelihood_rolling(self, requests, **kwargs):
            whole = [(None, [], self.tok_encode(request.args[0])) for request in requests]
            return [log_p for log_p, _ in self._loglikelihood_tokens(whole)]

        def generate_until(self, requests, **kwargs):
            wanted = []
            for i, request in enumerate(requests):
                asked = normalize_gen_kwargs(request.args[1])
                keep = max(size - asked['max_gen_toks'], size // 2, 1)          # a prompt that does not fit loses its beginning
                wanted.append((i, (self.tok_encode(request.args[0]) or [self.prefix_token_id])[-keep:], asked))
            alike = {}
            for i, prompt, asked in wanted:
                alike.setdefault((len(prompt), repr(asked)), []).append((i, prompt, asked))
            batches = [batch for group in alike.values() for batch in chunks(group)]
            texts = sum(over_ranks(write, [[part[1:] for part in batch] for batch in batches], 'generation'), [])
            found = {i: text for (i, *_), text in zip(sum(batches, []), texts)}
            return [found[i] for i in range(len(requests))]

    wrapped = Harness()
    for name in ('loglikelihood', 'loglikelihood_rolling', 'generate_until') if answers else ():
        setattr(wrapped, name, kept(answers, getattr(wrapped, name)))
    return wrapped


def task_scores(subject, manager):
    import lm_eval
    tokenizer = load_tokenizer(*subject.tokenizer)
    alone = subject.folder and machine.world_size == 1
    answers = os.path.join(subject.folder, f'lm_eval-{subject.key}-{str(machine.dtype)[6:]}.jsonl') if alone else None
    with contextlib.redirect_stdout(sys.stderr):        # so that stdout has only the table
        found = lm_eval.simple_evaluate(
            harness(subject.model, tokenizer, answers), tasks=tasks.split(','), task_manager=manager, limit=limit or None,
            num_fewshot=None if num_fewshot < 0 else num_fewshot, bootstrap_iters=1000, random_seed=seed,
            numpy_random_seed=seed, torch_random_seed=seed, fewshot_random_seed=seed)
    scores = {}
    if not machine.master:                              # only the first rank has the results
        return scores
    for task, metrics in found['results'].items():
        for key, mean in metrics.items():
            metric, _, by = key.partition(',')
            if by and not metric.endswith('_stderr') and isinstance(mean, float):
                error = metrics.get(f'{metric}_stderr,{by}')
                samples = [one for one in found['samples'].get(task, []) if one.get('filter', by) == by]
                units = [one.get(metric) for one in sorted(samples, key=lambda one: one['doc_id'])]
                paired = units and all(isinstance(u, (int, float)) for u in units) and np.isclose(np.mean(units), mean)
                label = f'{task} {metric}' if by == 'none' else f'{task} {metric} ({by})'
                scores[label] = Score(mean, error if isinstance(error, float) else math.nan,
                                      np.array(units, dtype=float) if paired else None,
                                      not found['higher_is_better'].get(task, {}).get(metric, True))
    return scores


# ----------------------------------------------------------------------------- the table

def show(table):
    """Prints {name: {label: Score}} as Markdown, and which differences are beyond the noise."""
    labels = list(dict.fromkeys(label for scores in table.values() for label in scores))
    best = {label: min((name for name in table if label in table[name]), key=lambda name: rank_of(table[name][label]))
            for label in labels}

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
        for name in table:
            if name != best[label] and label in table[name] and label not in ('perplexity', 'bits per byte'):    # see loss
                found = difference(table[name][label], table[best[label]][label])
                if found:
                    gap, error, p, how = found
                    shown = f'p = {p:.3f}' if p >= 0.001 else 'p < 0.001'
                    print(f'{label}: {name} is {gap:.4f} ± {error:.4f} behind {best[label]}, '
                          f'{"beyond" if p < 0.05 else "within"} the noise ({shown}, {how})')


def rank_of(score):
    """A key for sorting: the better score first, NaN last."""
    return math.isnan(score.mean), score.mean if score.lower else -score.mean


def difference(score, best):
    """(how far a score is behind, its standard error, p, 'paired' or 'not paired'): by a t-test on paired units if both have
    them, or else by a z-test on the means. None if neither is possible."""
    gap = abs(score.mean - best.mean)
    if score.units is not None and best.units is not None and len(score.units) == len(best.units):
        each = score_of(score.units - best.units)
        if each.error > 0:
            return gap, each.error, stats.ttest_rel(score.units, best.units).pvalue, 'paired'
        return None
    error = math.hypot(score.error, best.error)
    return (gap, error, 2 * stats.norm.sf(gap / error), 'not paired') if error > 0 and math.isfinite(gap) else None


def main():
    subjects = [load(name) for name in names_of(out_dir)]
    data = sorted({subject.dataset for subject in subjects})
    if what and len(data) > 1:
        raise ValueError(f'out_dir={out_dir}: these runs were trained on {", ".join(data)}, choose one by --dataset=…')
    if 'rouge' in what:
        rouge_scorer([])
    manager = load_tasks() if tasks else None
    machine.connect('gloo')                                # before this, all ranks fail with the same error
    asked = {key: config[key] for key in ('checkpoint', 'split', 'stride', 'samples', 'bert_model', 'task_path', 'num_fewshot',
                                          'limit', 'seed')}
    table, unwritten = {}, []
    for subject in subjects:
        subject.model.to(machine.device)
        table[subject.name] = scores = {}
        with torch.no_grad():
            if 'loss' in what:
                scores |= loss_scores(subject)
            if {'rouge', 'bertscore'} & set(what):
                scores |= text_scores(subject)
            if tasks:
                scores |= task_scores(subject, manager)
        subject.model.cpu()
        if machine.master and subject.folder:
            row = dict(iter=subject.iter, weights=subject.key, dataset=subject.dataset, dtype=str(machine.dtype)[6:], **asked,
                       scores={label: dict(mean=score.mean, error=score.error) for label, score in scores.items()})
            path = os.path.join(subject.folder, 'evaluate.jsonl')
            try:
                check_regular(path)
                with open(path, 'a', encoding='utf-8') as f:
                    write_row(f, row)
            except OSError as error:                    # the table is printed all the same
                unwritten.append(str(error))
    if machine.master:
        show(table)
    if unwritten:
        print(f'error: the scores above could not be written: {"; ".join(unwritten)}', file=sys.stderr)
    return 1 if unwritten else 0


machine.leave(main())
