"""
Score a trained model: the loss of a split, and the texts that it continues:

    python -m lab.evaluate --out_dir=out-quick                              # loss, perplexity, bits per byte
    python -m lab.evaluate --out_dir=out-ldnt-sgd --what=loss,rouge,bertscore

It prints each score with its standard error, over segments of 1024 tokens or over samples. Each call appends a row to
evaluate.jsonl in the run's folder. Tasks such as HellaSwag: lm-evaluation-harness scores an export, see docs/checkpoints.md.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.evaluate')

from configurator import at_least, configure
from engine.process import one_line

import math
import os

import numpy as np
import torch
from torch.nn import functional as F

from data.text import check_tokenizer, load_tokenizer
from data.tokens import Tokens, read_meta
from engine.checkpoint import checkpoint_paths, load_run
from engine.device import Machine
from engine.files import open_rows, write_row
from engine.run import progress
from lab.convert.pretrained import hugging_face, load_gpt, tokenizer_of
from model import at_least_fp32

# ----------------------------------------------------------------------------- keys
out_dir = 'out'                     # a run's folder, gpt2 … gpt2-xl, or a folder of Hugging Face's GPT-2, LLaMA, …
checkpoint = 'best.pt'              # best.pt: the lowest validation loss | ckpt.pt: the latest | ckpt-000500.pt: a kept one
what = 'loss'                       # some of loss, rouge, bertscore, separated by commas
dataset = ''                        # a folder of data/; empty: the run's own
split = 'val'                       # val | train | test, which some text has
tokens = 0                          # score only the split's first so many tokens; 0: all
stride = 0                          # loss: tokens from one window to the next; 0: block_size, so that windows do not overlap
batch_size = 8                      # windows or samples per batch
samples = 64                        # rouge, bertscore: how many windows, evenly spread, whose second halves are predicted
bert_model = 'roberta-large'        # bertscore: a Hugging Face name or folder
device = 'auto'                     # auto | cpu | cuda | cuda:1 | mps …
dtype = 'auto'                      # auto | float32 | bfloat16 | float16
# -----------------------------------------------------------------------------
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

    def loss(self, data):
        """Return the loss in nats per token but the first, its perplexity, and the bits per byte of text."""
        size, last = data.block_size, len(data.tokens) - 1
        ends = [*range(size, last, stride or size), last]
        fresh, losses = np.diff(ends, prepend=0), []    # per window, how many of its last targets no window had before
        for i in progress(range(0, len(ends), batch_size), 'loss'):
            x, y = data.read([end - size for end in ends[i:i + batch_size]])
            logits, targets = self.logits(x).flatten(0, 1), y.flatten().to(self.machine.device)
            rows = F.cross_entropy(logits, targets, reduction='none').view(y.shape).cpu().numpy()
            losses += [row[size - new:] for row, new in zip(rows, fresh[i:i + batch_size])]
        losses = np.concatenate(losses).astype(float)
        segments = np.array_split(losses, max(2, len(losses) // SEGMENT))
        mean, error = losses.mean(), mean_error([segment.mean() for segment in segments])[1]
        perplexity = math.exp(mean)
        bits = len(losses) / bytes_of(np.asarray(data.tokens[1:]), self.tokenizer) / math.log(2)
        return {'loss': (mean, error), 'perplexity': (perplexity, perplexity * error),
                'bits per byte': (bits * mean, bits * error)}

    def text_scores(self, data):
        """Return ROUGE's F-measures and BERTScore, in percent, of the second halves of evenly spread windows. Each predicted
        token is the likeliest one after the true tokens before it (teacher forcing)."""
        half, pairs = data.block_size // 2, []
        starts = data.eval_batches(samples, 1)[:, 0]
        for i in progress(range(0, len(starts), batch_size), 'texts'):
            x, y = data.read(starts[i:i + batch_size])
            likeliest = self.logits(x)[:, half:].argmax(-1)
            pairs += [[self.tokenizer.decode(ids.tolist()) for ids in pair] for pair in zip(y[:, half:], likeliest)]
        true, predicted = zip(*pairs)
        scores = {}
        if 'rouge' in what:
            from rouge_score.rouge_scorer import RougeScorer
            each = list(map(RougeScorer(['rouge1', 'rouge2', 'rougeL']).score, true, predicted))
            scores = {f'ROUGE-{kind[5:]}': mean_error([100 * found[kind].fmeasure for found in each]) for kind in each[0]}
        if 'bertscore' in what:
            each = 100 * bert_scores(predicted, true, self.machine.device).numpy()
            scores |= {f'BERTScore {kind}': mean_error(of_kind) for kind, of_kind in zip(('P', 'R', 'F1'), each)}
        return scores


def bytes_of(ids, tokenizer):
    """Count the UTF-8 bytes of the tokens' text; the end of a document counts as one."""
    ends = np.flatnonzero(ids == tokenizer.end) if tokenizer.end is not None else np.array([], dtype=int)
    texts = [tokenizer.decode(part[part != tokenizer.end].tolist()) for part in np.split(ids, ends + 1)]
    return len(ends) + sum(len(text.encode('utf-8', 'replace')) for text in texts)


def bert_scores(texts, references, device):
    """Return BERTScore's precision, recall and F1, a row each, at the layer that its authors chose, or else at the last. A
    blank text scores 0; bert_score would do the same, but fails on it with transformers 5."""
    from bert_score import score
    from bert_score.utils import model2layers
    from transformers import AutoConfig
    full = [i for i, pair in enumerate(zip(texts, references)) if all(map(str.strip, pair))]
    scores = torch.zeros(3, len(texts))
    try:
        layers = model2layers.get(os.path.basename(bert_model)) or AutoConfig.from_pretrained(bert_model).num_hidden_layers
        if full:
            pairs = [[texts[i] for i in full], [references[i] for i in full]]
            scores[:, full] = torch.stack(score(*pairs, bert_model, num_layers=layers, device=str(device), batch_size=batch_size))
    except Exception as error:                          # the libraries raise errors of many types
        raise ValueError(f'bert_model={bert_model!r} could not be used: name a folder, or one of the Hub, which needs the '
                         f'network once ({one_line(error)})') from error
    return scores


# ----------------------------------------------------------------------------- the command

def load_data(tokenizer, config):
    """Return the split of the data set, cut to `tokens`, in windows as long as the model and the split allow. Raise ValueError
    if its tokens stand for other text than the model has learned."""
    if tokens == 1:
        raise ValueError('tokens=1: must be 0, for all, or at least 2: a loss is of the tokens behind the first')
    count = min(tokens or math.inf, read_meta(dataset)['tokens'].get(split, 2))
    data = Tokens(dataset, split, max(1, min(config.block_size, count - 1)), config.vocab_size)
    data.tokens, data.windows = data.tokens[:count], (count - 1) // data.block_size
    if stride > data.block_size:
        raise ValueError(f'stride={stride} is longer than the windows of {data.block_size} tokens: some would be left out')
    check_tokenizer(out_dir, tokenizer, dataset)
    return data


def show(scores):
    """Print scores as soon as they are known, for a later kind may fail."""
    for name, (mean, error) in scores.items():
        print(f'{name:26} {mean:.4f}' + ('' if math.isnan(error) else f' ± {error:.4f}'))
    return scores


def main():
    global what, dataset
    config = configure(globals())
    at_least(config, tokens=0, stride=0, batch_size=1, samples=2)
    what = what.split(',')
    if unknown := set(what) - {'loss', 'rouge', 'bertscore'}:
        raise ValueError(f'what={min(unknown)!r}: choose among loss, rouge, bertscore')
    if 'bertscore' in what:
        hugging_face(from_hub=True)
    machine, path = Machine(device, dtype), os.path.join(out_dir, checkpoint)
    is_run = checkpoint != 'best.pt' or bool(checkpoint_paths(out_dir))
    model, state = load_run(path) if is_run else (load_gpt(out_dir), None)
    tokenizer = tokenizer_of(path if is_run else out_dir)
    dataset = dataset or (state['config']['dataset'] if is_run else '')
    if not dataset:
        raise ValueError(f'{out_dir} is not a run of train.py: choose the data by --dataset=…')
    data = load_data(tokenizer, model.config)
    scorer = Scorer(machine, model, load_tokenizer(*tokenizer))
    scores = show(scorer.loss(data)) if 'loss' in what else {}
    scores |= show(scorer.text_scores(data)) if {'rouge', 'bertscore'} & set(what) else {}
    if is_run:
        about = dict(config, iter=state['iter'], dataset=dataset, dtype=str(machine.dtype)[6:])
        with open_rows(os.path.join(out_dir, 'evaluate.jsonl')) as f:
            write_row(f, dict(about, scores={name: dict(mean=mean, error=error) for name, (mean, error) in scores.items()}))


if __name__ == '__main__':
    main()
