"""
Run lm-evaluation-harness on a GPT: its class for transformers models, HFLM, wraps the class that an exported GPT loads as.
"""
from engine.process import one_line

import contextlib
import logging
import math
import os
import sys
import tempfile

import numpy as np
import torch

from data.text import load_tokenizer
from lab.convert.hub import as_transformers, hugging_face, write_tokenizer
from lab.evaluate.scores import Score


def load_tasks(patterns, folder, gen_kwargs, window):
    """Return a task manager of lm-evaluation-harness that has loaded these tasks, groups, tags and patterns such as arc_*,
    separated by commas. `folder` has further tasks. `gen_kwargs` overrides settings of tasks that generate text. Raise
    ValueError for an unknown name, and for a task whose text does not fit into a window of this many tokens."""
    import lm_eval.tasks
    from lm_eval.models.huggingface import HFLM  # noqa: F401, to fail early if a package is missing
    from lm_eval.models.utils import normalize_gen_kwargs
    from lm_eval.utils import pattern_match, simple_parse_args_string
    os.environ['DISABLE_MULTIPROC'] = '1'               # otherwise it starts a process per core, for standard errors
    logging.getLogger('lm_eval').setLevel(logging.ERROR)        # or it warns of each prompt that exceeds a window
    manager, names = lm_eval.tasks.TaskManager(include_path=folder or None), []
    for name in patterns.split(','):
        matches = [name] if name in manager.all_tasks else pattern_match(name, manager.all_subtasks)
        if not matches:
            raise ValueError(f'tasks={name!r}: lm-evaluation-harness has no such task{f", nor has {folder}" if folder else ""}; '
                             f'lm-eval ls tasks  lists its own')
        names += matches
    try:
        loaded = manager.load(names)                    # fails if a task is named twice, as in two groups
    except Exception as error:                          # the libraries raise errors of many types
        hint = ', which needs the network once' if isinstance(error, OSError) else ''
        raise ValueError(f'tasks={patterns} could not be loaded{hint}: {one_line(error)}') from error
    for name, task in loaded['tasks'].items():
        if task.OUTPUT_TYPE == 'generate_until':
            task.set_config('generation_kwargs', simple_parse_args_string(gen_kwargs), update=True)
            new = normalize_gen_kwargs(task.config.generation_kwargs)['max_gen_toks']
            if new >= window:
                raise ValueError(f'tasks={name}: it writes up to {new} tokens, and a window holds {window} with the prompt: '
                                 f'choose fewer by --gen_kwargs=max_gen_toks=…')
    manager.load = lambda names: loaded                 # do not load again for each model
    return manager


def harness_model(machine, model, tokenizer, batch_size):
    """Wrap the GPT for lm-evaluation-harness. Each rank has its own copy, and answers requests for its share of documents."""
    from lm_eval.models.huggingface import HFLM

    class OnRanks(HFLM):
        rank, world_size = machine.rank, machine.world_size

        def all_gather(self, number):
            return torch.tensor(machine.gather(number.item()))

        def gather_object(self, value, dst=0):
            return machine.gather(value)

        def barrier(self):
            machine.wait()

        def _loglikelihood_tokens(self, requests, **more):
            # HFLM's cache returns wrong logits if two requests cut the same text at different places
            texts = [(hash((*context, *target[:-1])), len(target)) for _, context, target in requests]
            self.logits_cache = len(set(texts)) == len({text for text, _ in texts})
            return super()._loglikelihood_tokens(requests, **more)

    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(folder, *tokenizer)
        theirs = hugging_face().AutoTokenizer.from_pretrained(folder)
    whole = as_transformers(model, load_tokenizer(*tokenizer).end).to(machine.device)
    autocast = None if machine.dtype == torch.float32 else machine.dtype
    return OnRanks(whole, tokenizer=theirs, batch_size=batch_size, mixed_precision_dtype=autocast, softmax_dtype=torch.float32)


def task_scores(machine, model, tokenizer, manager, batch_size, seed, **settings):
    """Return the scores of loaded tasks and groups, and the results of lm-evaluation-harness's simple_evaluate; on ranks other
    than the first, both are empty. `tokenizer`: arguments of load_tokenizer."""
    import lm_eval
    with contextlib.redirect_stdout(sys.stderr):        # keep stdout for the table
        found = lm_eval.simple_evaluate(
            harness_model(machine, model, tokenizer, batch_size), tasks=['those that are loaded'], task_manager=manager,
            batch_size=batch_size, device=str(machine.device), bootstrap_iters=1000, random_seed=seed, numpy_random_seed=seed,
            torch_random_seed=seed, fewshot_random_seed=seed, **settings) or {}
    scores = {}
    for task, metrics in found.get('results', {}).items():
        for key, mean in metrics.items():
            metric, _, by = key.partition(',')
            if by and not metric.endswith('_stderr') and isinstance(mean, float):
                error = metrics.get(f'{metric}_stderr,{by}')
                samples = [sample for sample in found['samples'].get(task, []) if sample.get('filter', by) == by]
                units = [sample.get(metric) for sample in sorted(samples, key=lambda sample: sample['doc_id'])]
                paired = units and all(isinstance(u, (int, float)) for u in units) and np.isclose(np.mean(units), mean)
                scores[f'{task} {metric}' if by == 'none' else f'{task} {metric} ({by})'] = Score(
                    mean, error if isinstance(error, float) else math.nan, np.array(units, dtype=float) if paired else None,
                    found['higher_is_better'].get(task, {}).get(metric) is False)
    return scores, found
