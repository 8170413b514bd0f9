"""
Score a trained model: the loss of a split, the texts that it continues, and tasks of lm-evaluation-harness:

    python -m lab.evaluate --out_dir=out-quick                              # loss, perplexity, bits per byte
    python -m lab.evaluate --out_dir=out-ldnt-sgd --what=loss,rouge,bertscore
    python -m lab.evaluate --out_dir=out-ldnt-sgd --tasks=arc_easy,hellaswag

It prints each score with its standard error: over segments of 1024 tokens, over samples, or the harness's own. Each call appends
a row of scores to evaluate.jsonl in the run's folder.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.evaluate')

from configurator import at_least, configure
from engine.process import one_line

import contextlib
import logging
import math
import os

import numpy as np
import torch
from torch.nn import functional as F

from data.text import check_tokenizer, load_tokenizer
from data.tokens import Tokens, read_meta
from engine.checkpoint import load_run, meta_of
from engine.device import Machine
from engine.files import open_rows, read_json, write_row
from engine.run import progress
from lab.convert.pretrained import OPENAI_MODELS, hugging_face, load_gpt, tokenizer_of
from model import at_least_fp32

# ----------------------------------------------------------------------------- keys
out_dir = 'out'                     # a run's folder, gpt2 … gpt2-xl, or an exported or Hugging Face folder
checkpoint = 'best.pt'              # best.pt: the lowest validation loss | ckpt.pt: the latest | ckpt-000500.pt: a kept one
what = ''                           # some of loss, rouge, bertscore, separated by commas; empty: loss, or only tasks if given
dataset = ''                        # a folder of data/; empty: the run's own
split = 'val'                       # val | train | test, which some text has
tokens = 0                          # score only the split's first so many tokens; 0: all
stride = 0                          # loss: tokens from one window to the next; 0: block_size, so that windows do not overlap
batch_size = 8                      # windows, samples or requests per batch
samples = 64                        # rouge, bertscore: number of evenly spread windows, whose second halves are predicted
bert_model = 'roberta-large'        # bertscore: a Hugging Face name or folder
tasks = ''                          # zero-shot tasks of lm-evaluation-harness, with commas
device = 'auto'                     # auto | cpu | cuda | cuda:1 | mps …
dtype = 'auto'                      # auto | float32 | bfloat16 | float16
# -----------------------------------------------------------------------------
SCORES = ('loss', 'rouge', 'bertscore')
SEGMENT = 1024                      # tokens per unit of the loss's standard error


def mean_error(units):
    """Return the mean of the units and its standard error, NaN for a single unit."""
    units = np.asarray(units, dtype=float)
    return units.mean(), units.std(ddof=1) / math.sqrt(len(units)) if len(units) > 1 else math.nan


class Scorer:
    """A model on the machine's device, and its tokenizer."""

    def __init__(self, machine, model, tokenizer):
        self.machine, self.model, self.tokenizer = machine, model.to(machine.device).eval(), tokenizer

    @torch.no_grad()
    def logits(self, x):
        """Return the logits (B, T, vocab_size) of token ids (B, T), at least in fp32."""
        with self.machine.autocast():
            return at_least_fp32(self.model(x.to(self.machine.device))[0])

    def token_losses(self, data):
        """Return −log p, in nats, of every token but the first, each counted once, given the earlier tokens in its window."""
        size, last = data.block_size, len(data.tokens) - 1
        ends = [*range(size, last, stride or size), last]
        fresh, losses = np.diff(ends, prepend=0), []    # per window, how many of its last targets no window had before
        for i in progress(range(0, len(ends), batch_size), 'loss'):
            x, y = data.read([end - size for end in ends[i:i + batch_size]])
            logits, targets = self.logits(x).flatten(0, 1), y.flatten().to(self.machine.device)
            rows = F.cross_entropy(logits, targets, reduction='none').view(y.shape).cpu().numpy()
            losses += [row[size - new:] for row, new in zip(rows, fresh[i:i + batch_size])]
        return np.concatenate(losses).astype(float)

    def loss(self, data):
        """Return the loss in nats per token, its perplexity, and the bits per byte of text."""
        losses = self.token_losses(data)
        segments = np.array_split(losses, max(2, len(losses) // SEGMENT))
        mean, error = losses.mean(), mean_error([segment.mean() for segment in segments])[1]
        perplexity = math.exp(mean)
        bits = len(losses) / bytes_of(np.asarray(data.tokens[1:]), self.tokenizer) / math.log(2)
        return {'loss': (mean, error), 'perplexity': (perplexity, perplexity * error),
                'bits per byte': (bits * mean, bits * error)}

    @torch.no_grad()
    def text_scores(self, data):
        """Return ROUGE's F-measures and BERTScore, in percent, of the second halves of evenly spread windows. Teacher-forced text
        predicts each token from the true tokens before it; continued text goes on from the first half. Both take the likeliest
        token."""
        half, rows = data.block_size // 2, []
        starts = data.spread(samples, 1)[:, 0]
        for i in progress(range(0, len(starts), batch_size), 'texts'):
            x, y = data.read(starts[i:i + batch_size])
            forced = self.logits(x)[:, half:].argmax(-1)
            with self.machine.autocast():
                first_half = x[:, :half + 1].to(self.machine.device)
                free = self.model.generate(first_half, data.block_size - half, temperature=0)[:, half + 1:]
            rows += [[self.tokenizer.decode(ids.tolist()) for ids in row] for row in zip(y[:, half:], forced, free)]
        true, forced, free = zip(*rows)
        scores = {}
        for way, texts in (('teacher-forced', forced), ('continued', free)):
            if 'rouge' in what:
                from rouge_score.rouge_scorer import RougeScorer
                rouge = RougeScorer(['rouge1', 'rouge2', 'rougeL'])
                each = [rouge.score(*pair) for pair in zip(true, texts)]
                scores |= {f'ROUGE-{kind[5:]} {way}': mean_error([100 * found[kind].fmeasure for found in each])
                           for kind in each[0]}
            if 'bertscore' in what:
                each = bert_scores(texts, true, self.machine.device)
                scores |= {f'BERT-{letter} {way}': mean_error(100 * values.numpy()) for letter, values in zip('PRF', each)}
        return scores


def bytes_of(ids, tokenizer):
    """Count the UTF-8 bytes of the tokens' text; the end of a document counts as one."""
    ends = np.flatnonzero(ids == tokenizer.end) if tokenizer.end is not None else np.array([], dtype=int)
    texts = [tokenizer.decode(part[part != tokenizer.end].tolist()) for part in np.split(ids, ends + 1)]
    return len(ends) + sum(len(text.encode('utf-8', 'replace')) for text in texts)


def bert_scores(texts, references, device):
    """Return BERTScore's precision, recall and F1, a tensor each, at the layer that its authors chose, or else at the last. A
    blank text scores 0; bert_score would do the same, but fails on it with transformers 5."""
    from bert_score import score
    from bert_score.utils import model2layers
    from transformers import AutoConfig
    full = [i for i, pair in enumerate(zip(texts, references)) if all(map(str.strip, pair))]
    scores = torch.zeros(3, len(texts))
    try:
        layers = model2layers.get(os.path.basename(bert_model)) or AutoConfig.from_pretrained(bert_model).num_hidden_layers
        if full:
            scores[:, full] = torch.stack(score([texts[i] for i in full], [references[i] for i in full], model_type=bert_model,
                                                num_layers=layers, device=str(device), batch_size=batch_size))
    except Exception as error:                          # the libraries raise errors of many types
        raise ValueError(f'bert_model={bert_model!r} could not be used: name a folder, or one of the Hub, which needs the '
                         f'network once ({one_line(error)})') from error
    return scores


# ----------------------------------------------------------------------------- lm-evaluation-harness

def harness_model(scorer):
    """Return the model as an LM of lm-evaluation-harness."""
    from lm_eval.api.model import TemplateLM
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
    tokenizer, size = scorer.tokenizer, scorer.model.config.block_size

    class Harness(TemplateLM):
        eot_token_id = tokenizer.encode('\n')[0] if tokenizer.end is None else tokenizer.end

        def tok_encode(self, string, add_special_tokens=None, **more):
            return tokenizer.encode(string)

        def _loglikelihood_tokens(self, requests, **more):
            """Return (log p, whether it is the likeliest text) for each continuation in requests (_, context, continuation).
            A window holds the whole continuation and the end of its context."""
            texts = [((context or [self.eot_token_id]) + continuation)[-size - 1:] for _, context, continuation in requests]
            order = sorted(range(len(requests)), key=lambda i: -len(texts[i]))
            answers = [None] * len(requests)
            for first in progress(range(0, len(order), batch_size), 'requests'):
                batch = order[first:first + batch_size]
                x = torch.zeros(len(batch), len(texts[batch[0]]) - 1, dtype=torch.long)     # padded on the right
                for row, i in zip(x, batch):
                    row[:len(texts[i]) - 1] = torch.tensor(texts[i][:-1])
                for logits, i in zip(scorer.logits(x).log_softmax(-1).cpu(), batch):
                    target = torch.tensor(requests[i][2])
                    if len(target) > size:
                        raise ValueError(f'tasks={tasks}: an answer has {len(target)} tokens, and a window of {out_dir} holds '
                                         f'{size}: choose a task with shorter answers')
                    logits = logits[:len(texts[i]) - 1][-len(target):]
                    answers[i] = logits.gather(1, target[:, None]).sum().item(), bool((logits.argmax(-1) == target).all())
            return answers

        def loglikelihood_rolling(self, requests, **more):
            """Return log p of whole texts, each begun by the end of a document and cut into windows."""
            answers = []
            for text, in (request.args for request in requests):
                windows = get_rolling_token_windows(tokenizer.encode(text), self.eot_token_id, size, 1)
                parts = [(None, *make_disjoint_window(window)) for window in windows]
                answers.append(sum(log_p for log_p, _ in self._loglikelihood_tokens(parts)))
            return answers

        def generate_until(self, requests, **more):
            raise ValueError(f'tasks={tasks}: wants tasks that rate given texts, not ones for which the model writes texts')

    return Harness()


def task_scores(scorer):
    """Return {'task metric': (mean, standard error)} of tasks and groups. Raise ValueError if one cannot be loaded."""
    import lm_eval.tasks
    os.environ['DISABLE_MULTIPROC'] = '1'               # otherwise it starts a process per core, for standard errors
    logging.getLogger('lm_eval').setLevel(logging.ERROR)
    manager = lm_eval.tasks.TaskManager()
    try:
        loaded = manager.load(tasks.split(','))
    except Exception as error:                          # the libraries raise errors of many types
        raise ValueError(f'tasks={tasks} could not be loaded: their data needs the network once, and  lm-eval ls tasks  lists '
                         f'their names ({one_line(error)})') from error
    manager.load = lambda names: loaded
    with contextlib.redirect_stdout(sys.stderr):        # keep stdout for the scores
        found = lm_eval.simple_evaluate(harness_model(scorer), tasks=['those that are loaded'], task_manager=manager,
                                        bootstrap_iters=1000, log_samples=False)
    scores = {}
    for task, metrics in found['results'].items():
        for key, mean in metrics.items():
            if ',' in key and '_stderr,' not in key and isinstance(mean, float):         # the filter stands behind the comma
                error = metrics.get(key.replace(',', '_stderr,'))
                scores[f'{task} {key.removesuffix(",none")}'] = mean, error if isinstance(error, float) else math.nan
    return scores


# ----------------------------------------------------------------------------- the command

def load_data(tokenizer, config):
    """Return the split of the data set, cut to `tokens`, in windows as long as the model and the split allow. Raise ValueError
    if its tokens stand for other text than the model has learned."""
    count = min(tokens or math.inf, read_meta(dataset)['tokens'].get(split, 2))
    data = Tokens(dataset, split, max(1, min(config.block_size, count - 1)), config.vocab_size)
    data.tokens, data.windows = data.tokens[:count], (count - 1) // data.block_size
    if stride > data.block_size:
        raise ValueError(f'stride={stride} is longer than the windows of {data.block_size} tokens: some would be left out')
    check_tokenizer(out_dir, tokenizer, dataset)
    return data


def show(scores):
    """Print scores and return them."""
    for name, (mean, error) in scores.items():
        print(f'{name:26} {mean:.4f}' + ('' if math.isnan(error) else f' ± {error:.4f}'))
    return scores


def main():
    global what, dataset
    config = configure(globals())
    at_least(config, tokens=0, stride=0, batch_size=1, samples=2)
    what = what.split(',') if what else [] if tasks else ['loss']
    if unknown := set(what) - set(SCORES):
        raise ValueError(f'what={min(unknown)!r}: choose among {", ".join(SCORES)}')
    machine, path = Machine(device, dtype), os.path.join(out_dir, checkpoint)
    if tasks or 'bertscore' in what:
        hugging_face(from_hub=True)
    about = read_json(os.path.join(out_dir, 'config.json'), 'copy it again') or {}
    is_run = out_dir not in OPENAI_MODELS and 'model_type' not in about         # which the config.json of a run lacks
    if is_run:
        model, state = load_run(path)
        meta, dataset = meta_of(state), dataset or state['config']['dataset']
        tokenizer = meta['tokenizer'], meta['chars']
    else:
        model, tokenizer = load_gpt(out_dir), tokenizer_of(out_dir)
    if what and not dataset:
        raise ValueError(f'{out_dir} is not a run of train.py: choose the data by --dataset=…')
    data = load_data(tokenizer, model.config) if what else None
    scorer, scores = Scorer(machine, model, load_tokenizer(*tokenizer, replace=True)), {}
    if 'loss' in what:
        scores |= show(scorer.loss(data))
    if 'rouge' in what or 'bertscore' in what:
        scores |= show(scorer.text_scores(data))
    if tasks:
        scores |= show(task_scores(scorer))
    if is_run:
        noted = {key: config[key] for key in ('checkpoint', 'split', 'tokens', 'stride', 'samples', 'bert_model')}
        with open_rows(os.path.join(out_dir, 'evaluate.jsonl')) as f:
            write_row(f, dict(iter=state['iter'], dataset=dataset, dtype=str(machine.dtype)[6:], **noted,
                              scores={name: dict(mean=mean, error=error) for name, (mean, error) in scores.items()}))


if __name__ == '__main__':
    main()
