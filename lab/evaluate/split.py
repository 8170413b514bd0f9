"""Score a GPT on a split of a data set: loss, perplexity, bits per byte, ROUGE, BERTScore."""
from engine.process import one_line, say

import math
import os
import sys

import numpy as np
from torch.nn import functional as F

from data.text import load_tokenizer
from lab.evaluate.scores import Score, chunks, model_logits, over_ranks, score_of

SEGMENT = 1024                      # tokens per unit, for the loss's standard error and for pairing
ROUGE = {'rouge1': 'ROUGE-1', 'rouge2': 'ROUGE-2', 'rougeL': 'ROUGE-L'}


# ----------------------------------------------------------------------------- loss

def token_losses(machine, model, tokens, stride, batch_size):
    """Return −log p, in nats, of every token but the first, each counted once, given the earlier tokens in its window."""
    size, last = tokens.block_size, len(tokens.tokens) - 1
    if stride > size:
        raise ValueError(f'stride={stride} is longer than the windows of {size} tokens: some tokens would be left out')
    ends = [*range(size, last, stride or size), last]
    fresh = np.diff(ends, prepend=0)                    # per window, how many of its last targets are new

    def losses(batch):
        x, y = (t.to(machine.device) for t in tokens.read([ends[i] - size for i in batch]))
        rows = F.cross_entropy(model_logits(machine, model, x).flatten(0, 1), y.flatten(), reduction='none').view(y.shape)
        return np.concatenate([row[size - fresh[i]:] for row, i in zip(rows.cpu().numpy(), batch)])

    return np.concatenate(over_ranks(machine, losses, chunks(range(len(ends)), batch_size), 'loss'))


def bytes_of(tokens, tokenizer):
    """Count the UTF-8 bytes of the tokens' text; the end of a document counts as one."""
    ends = np.flatnonzero(tokens == tokenizer.end) if tokenizer.end is not None else np.array([], dtype=int)
    documents = np.split(tokens, ends + 1)
    return len(ends) + sum(len(tokenizer.decode([i for i in part.tolist() if i != tokenizer.end]).encode('utf-8', 'replace'))
                           for part in documents)


def loss_scores(machine, model, tokens, tokenizer, stride, batch_size):
    """Return loss, perplexity and, if the tokenizer is available, bits per byte. `tokenizer`: arguments of load_tokenizer."""
    losses = token_losses(machine, model, tokens, stride, batch_size)
    segments = min(max(2, len(losses) // SEGMENT), len(losses))
    loss = score_of([part.mean() for part in np.array_split(losses.astype(float), segments)], lower=True)
    loss = loss._replace(mean=losses.mean(dtype=float))
    perplexity = math.inf if loss.mean > 700 else math.exp(loss.mean)
    scores = {'loss': loss, 'perplexity': Score(perplexity, perplexity * loss.error, None, lower=True)}
    try:
        bits = len(losses) / bytes_of(np.asarray(tokens.tokens[1:]), load_tokenizer(*tokenizer)) / math.log(2)
    except (ValueError, OSError) as error:
        if machine.master:
            say(f'no bits per byte: {error}', to=sys.stderr)
        return scores
    return scores | {'bits per byte': Score(bits * loss.mean, bits * loss.error, None, lower=True)}


# ----------------------------------------------------------------------------- text

def text_scores(machine, model, tokens, tokenizer, what, samples, batch_size, bert_model):
    """Return ROUGE and BERTScore, in percent, of the second halves of evenly spread windows. Teacher-forced text predicts each
    token from the true tokens before it; continued text goes on from the first half. Both take the likeliest token."""
    tokenizer, half = load_tokenizer(*tokenizer), tokens.block_size // 2

    def texts(batch):
        x, y = tokens.read(batch)
        x = x.to(machine.device)
        forced = model_logits(machine, model, x)[:, half:].argmax(-1)
        with machine.autocast():
            free = model.generate(x[:, :half + 1], tokens.block_size - half, temperature=0)[:, half + 1:]
        return [tuple(tokenizer.decode(row.tolist()) for row in rows) for rows in zip(y[:, half:], forced, free)]

    starts = tokens.spread(samples, 1)[:, 0]
    true, *written = zip(*sum(over_ranks(machine, texts, chunks(starts, batch_size), 'text'), []))
    scores = {}
    for way, candidates in zip(('teacher-forced', 'continued'), written if machine.master else ()):
        if 'rouge' in what:
            from rouge_score.rouge_scorer import RougeScorer
            scorer = RougeScorer(list(ROUGE))
            each = [scorer.score(*pair) for pair in zip(true, candidates)]
            scores |= {f'{ROUGE[kind]} {way}': score_of([100 * rouge[kind].fmeasure for rouge in each]) for kind in ROUGE}
        if 'bertscore' in what:
            each = bert_scores(candidates, true, bert_model, machine.device, batch_size)
            scores |= {f'BERT-{letter} {way}': score_of(100 * values.numpy()) for letter, values in zip('PRF', each)}
    return scores


def bert_scores(texts, references, bert_model, device, batch_size):
    """Return BERTScore's precision, recall and F1, a tensor each, at the layer that its authors chose, or else at the last."""
    from bert_score import score
    from bert_score.utils import model2layers
    from transformers import AutoConfig
    from transformers.utils import logging
    logging.disable_progress_bar()
    try:
        layers = model2layers.get(os.path.basename(bert_model)) or AutoConfig.from_pretrained(bert_model).num_hidden_layers
        return score(texts, references, model_type=bert_model, num_layers=layers, device=str(device), batch_size=batch_size)
    except Exception as error:                          # the libraries raise errors of many types
        raise ValueError(f'bert_model={bert_model!r} could not be used: {one_line(error)}; wants a folder, or a name, '
                         f'which needs the network once') from error
