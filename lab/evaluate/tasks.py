"""
lm-evaluation-harness on a GPT: its own class for models of transformers, HFLM, on the class that an exported GPT loads as.
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
    """Return a task manager of lm-evaluation-harness that has loaded tasks, groups and tags, and the tasks that match patterns
    such as arc_*; all separated by commas. `folder` has further tasks. `gen_kwargs` changes the settings of tasks that write
    text. ValueError for a name that nothing has, and for a text that a window of so many tokens cannot hold."""
    import lm_eval.tasks
    from lm_eval.models.huggingface import HFLM  # noqa: F401, which says now if a package is missing
    from lm_eval.models.utils import normalize_gen_kwargs
    from lm_eval.utils import pattern_match, simple_parse_args_string
    os.environ['DISABLE_MULTIPROC'] = '1'               # otherwise it starts a process per core, for standard errors
    logging.getLogger('lm_eval').setLevel(logging.ERROR)        # it would warn of each prompt that is longer than a window
    manager, names = lm_eval.tasks.TaskManager(include_path=folder or None), []
    for name in patterns.split(','):
        matches = [name] if name in manager.all_tasks else pattern_match(name, manager.all_subtasks)
        if not matches:
            raise ValueError(f'tasks={name!r}: lm-evaluation-harness has no such task{f", nor has {folder}" if folder else ""}; '
                             f'lm-eval ls tasks  lists its own')
        names += matches
    try:
        loaded = manager.load(names)                    # not if a task is in two groups, or in one and by itself
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
    manager.load = lambda names: loaded                 # not once more for each model
    return manager


def harness_model(machine, model, tokenizer, batch_size):
    """Return the GPT for lm-evaluation-harness. Each rank has its own, and answers the requests of its share of the documents."""
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
            # HFLM's cache reads the logits of other tokens where two requests are one text, cut at two places
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
    """Return the scores of loaded tasks and groups, and all that simple_evaluate of lm-evaluation-harness returns; both are empty
    on other ranks than the first. `tokenizer`: the arguments of load_tokenizer."""
    import lm_eval
    with contextlib.redirect_stdout(sys.stderr):        # so that stdout has only the table
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
