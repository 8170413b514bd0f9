"""
lm-evaluation-harness for lab/evaluate.py: its tasks, a GPT as it wants a model, and cached answers. Prompts, texts and
likelihoods are those of its own class for models of Hugging Face, HFLM, wherever that works.
"""

from engine.process import one_line, say

import contextlib
import hashlib
import json
import math
import os
import sys

import torch
from torch.nn import functional as F

from data.text import load_tokenizer
from engine.checkpoint import write_whole
from engine.errors import is_number, read_rows
from engine.log import finite, open_rows, progress, write_row
from model import at_least_fp32

# ----------------------------------------------------------------------------- what every evaluation needs

def over_ranks(machine, f, items, title):
    """[f(item) for item in items]; each rank computes its share."""
    mine = items[machine.rank::machine.world_size]
    mine = [f(item) for item in progress(mine, title, shown=machine.master)]
    parts = machine.gather(mine)
    return [parts[i % len(parts)][i // len(parts)] for i in range(len(items))]


def chunks(items, size):
    return [items[i:i + size] for i in range(0, len(items), size)]


def model_logits(machine, model, x):
    with machine.autocast():
        return at_least_fp32(model(x)[0])


@contextlib.contextmanager
def optional(package):
    """A context for importing a package of requirements-eval.txt."""
    try:
        yield
    except ImportError as error:
        raise ValueError(f'{package} is not installed ({error}): pip install -r requirements-eval.txt') from error


# ----------------------------------------------------------------------------- tasks

def load_tasks(patterns, folder=''):
    """What the names of tasks, groups and tags, or patterns such as arc_*, separated by commas, stand for: the names, and a task
    manager of lm-evaluation-harness that has loaded them. `folder` has further tasks. ValueError for a name that nothing has."""
    with optional('lm-eval'):
        import evaluate  # noqa: F401, Hugging Face's, which lm_eval will import
        import lm_eval.tasks
    os.environ['DISABLE_MULTIPROC'] = '1'               # otherwise it starts a process per core, for standard errors
    manager = lm_eval.tasks.TaskManager(include_path=folder or None)
    names = {}                                          # {name: whether it was written out}
    for name in patterns.split(','):
        matches = [name] if name in manager.all_tasks else manager.match_tasks([name])
        if not matches:
            raise ValueError(f'tasks={name!r}: lm-evaluation-harness has no such task{f", nor has {folder}" if folder else ""}; '
                             f'lm-eval ls tasks  lists its own')
        names |= {task: names.get(task, False) or task == name for task in matches}
    try:
        parts = {name: manager.load([name]) for name in names}
    except Exception as error:                          # the libraries raise errors of many types
        hint = ', which needs the network once' if isinstance(error, OSError) else ''
        raise ValueError(f'tasks={patterns} could not be loaded{hint}: {one_line(error)}') from error
    loaded = merged(patterns, names, parts)
    manager.load = lambda names: loaded
    return list(names), manager


def merged(patterns, names, parts):
    """One of lm-evaluation-harness's dicts of tasks and groups from several. What a pattern has matched is left out if a group
    that is there too holds it. ValueError if two of the others hold the same task and one is a group, which may change it."""
    content = {name: {*part['tasks'], *part['groups']} for name, part in parts.items()}
    groups = [name for name, part in parts.items() if part['groups']]
    loaded, holder = dict(tasks={}, groups={}, group_map={}), {}
    for name, part in parts.items():
        if not names[name] and any(content[name] <= content[group] for group in groups if group != name):
            continue
        for task in part['tasks']:
            other = holder.setdefault(task, name)
            if other != name and (part['groups'] or parts[other]['groups']):
                raise ValueError(f'tasks={patterns}: both {other} and {name} hold the task {task}; name one of them')
        for kind, of_kind in loaded.items():
            of_kind.update(part[kind])
    return loaded


SETTINGS = ('do_sample', 'temperature', 'top_k', 'top_p', 'max_gen_toks', 'until')         # of generation, by gen_kwargs


def read_settings(text):
    """'temperature=0,max_gen_toks=32', as on lm-evaluation-harness's command line → {key: value}. ValueError for another key."""
    from lm_eval.utils import simple_parse_args_string
    settings = simple_parse_args_string(text)
    unknown = settings.keys() - {*SETTINGS}
    if unknown:
        raise ValueError(f'gen_kwargs={text}: {min(unknown)!r} is none of {", ".join(SETTINGS)}')
    return settings


# ----------------------------------------------------------------------------- cached answers

RULES = dict(generate_until='generate_until, as HFLM')          # changes with what a method answers to the same request


def cached(path, answer):
    """Return answer(requests), a method of lm-evaluation-harness, that keeps its answers in the file at `path` and computes none
    again. The file has a row of JSON for each: the hash of its method and arguments, and the answer. It has no random texts."""
    from lm_eval.models.utils import normalize_gen_kwargs
    known = {row['request']: row['answer'] for row in read_rows(path, 'request')}
    name = RULES.get(answer.__name__, answer.__name__)

    def key_of(request):
        if isinstance(request.args[-1], dict) and normalize_gen_kwargs(request.args[-1])['do_sample']:
            return None
        return hashlib.sha256(json.dumps([name, *request.args], sort_keys=True).encode()).hexdigest()

    def answer_new(requests, **more):
        keys = [key_of(request) for request in requests]
        new = [i for i, key in enumerate(keys) if key not in known]
        answers = dict(zip(new, answer([requests[i] for i in new], **more))) if new else {}
        with contextlib.suppress(OSError), open_rows(path) as f:    # where there is no room, the answers are not kept
            for i in new:
                numbers = answers[i] if isinstance(answers[i], (list, tuple)) else [answers[i]]
                if keys[i] and all(math.isfinite(x) for x in numbers if is_number(x)):
                    write_row(f, dict(request=keys[i], answer=answers[i]))
                    known[keys[i]] = answers[i]
        return [answers[i] if i in answers else known[key] for i, key in enumerate(keys)]

    return answer_new


# ----------------------------------------------------------------------------- the model

def room_for_prompt(size, settings):
    """Tokens that a prompt keeps, its last ones, of a window of `size`, with these settings. HFLM refuses to generate as many
    tokens as a window holds; here the prompt then keeps half of the window."""
    room = size - settings['max_gen_toks']
    return room if room > 0 else max(size // 2, 1)


def harness(model, tokenizer, answers, machine, batch_size):
    """Wraps a GPT for lm-evaluation-harness. `answers`: a file for its answers, or None."""
    from lm_eval.api.model import TemplateLM
    from lm_eval.models.utils import normalize_gen_kwargs
    config, device = model.config, machine.device
    size = config.block_size

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
        scores = []
        for line, (row, count) in zip(model_logits(machine, model, ids[:, :-1].to(device)), batch):
            wanted, line = torch.tensor(row[-count:], device=device), line[len(row) - 1 - count:len(row) - 1]
            log_p = -F.cross_entropy(line, wanted, reduction='sum').item()
            scores.append((log_p, bool((line.argmax(-1) == wanted).all())))
        return scores

    def write(batch):
        """Continues prompts that have the same length and the same settings. A text ends before the first of the settings' stops,
        and before the end of the document, be it the token or its text."""
        prompts, (settings, *_) = zip(*batch)
        end = '' if tokenizer.end is None else tokenizer.decode([tokenizer.end])
        stops = [stop for stop in [*settings['until'], end] if stop]
        rows, open_rows = [[] for _ in batch], set(range(len(batch)))
        texts = [''] * len(batch)
        with machine.autocast():
            temperature = settings.get('temperature', 1.0) if settings.get('do_sample') else 0.0
            for new in model.stream(torch.tensor(prompts, device=device), settings['max_gen_toks'], temperature,
                                    settings.get('top_k') or None, settings.get('top_p')):
                for i in list(open_rows):
                    if new[i].item() == tokenizer.end:
                        open_rows.discard(i)
                        continue
                    if new[i].item() not in tokenizer.special:
                        rows[i].append(new[i].item())
                    texts[i] = tokenizer.decode(rows[i])
                    if any(stop in texts[i] for stop in stops):
                        open_rows.discard(i)
                if not open_rows:
                    break
        for stop in stops:                              # one after the other, as HFLM does
            texts = [text.split(stop)[0] for text in texts]
        return texts

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
            batches = chunks([part[1:] for part in parts], batch_size)
            scores = [[0.0, True] for _ in requests]
            for (i, *_), (log_p, likeliest) in zip(parts, sum(over_ranks(machine, score, batches, 'requests'), [])):
                scores[i] = [scores[i][0] + log_p, scores[i][1] and likeliest]
            return [tuple(score_of_request) for score_of_request in scores]

        def loglikelihood_rolling(self, requests, **kwargs):
            whole = [(None, [], self.tok_encode(request.args[0])) for request in requests]
            return [log_p for log_p, _ in self._loglikelihood_tokens(whole)]

        def generate_until(self, requests, **kwargs):
            groups = {}
            for i, request in enumerate(requests):
                settings = normalize_gen_kwargs(request.args[1])
                prompt = (self.tok_encode(request.args[0]) or [self.prefix_token_id])[-room_for_prompt(size, settings):]
                groups.setdefault((len(prompt), repr(settings)), []).append((i, prompt, settings))
            batches = [batch for group in groups.values() for batch in chunks(group, batch_size)]
            texts = sum(over_ranks(machine, write, [[part[1:] for part in batch] for batch in batches], 'generation'), [])
            text_of = {i: text for (i, *_), text in zip(sum(batches, []), texts)}
            return [text_of[i] for i in range(len(requests))]

    wrapped = Harness()
    for name in ('loglikelihood', 'loglikelihood_rolling', 'generate_until') if answers else ():
        setattr(wrapped, name, cached(answers, getattr(wrapped, name)))
    return wrapped


def run_tasks(model, tokenizer, answers, machine, batch_size, names, manager, **settings):
    """simple_evaluate of lm-evaluation-harness on loaded tasks: its dict of results with samples, or None on other ranks than the
    first. `tokenizer`: the arguments of load_tokenizer. Prints where HFLM would have failed, and which characters are unknown."""
    import lm_eval
    wrapped = harness(model, load_tokenizer(*tokenizer, replace=True), answers, machine, batch_size)
    with contextlib.redirect_stdout(sys.stderr):        # so that stdout has only the table
        results = lm_eval.simple_evaluate(wrapped, tasks=names, task_manager=manager, batch_size=batch_size,
                                        device=str(machine.device), bootstrap_iters=1000, **settings)
    if not machine.master:
        return None
    say_what_differs(results['samples'], model.config.block_size, tokenizer)
    return results


def say_what_differs(samples, size, tokenizer):
    """Prints how many requests HFLM would have refused with windows of `size`, and how many have unknown characters."""
    from lm_eval.models.utils import normalize_gen_kwargs
    requests = {json.dumps(args, sort_keys=True, default=str): args
                for rows in samples.values() for row in rows for args in row['arguments']}
    settings = [normalize_gen_kwargs(args[-1]) for args in requests.values() if isinstance(args[-1], dict)]
    longer = [setting for setting in settings if setting['max_gen_toks'] >= size]
    if longer:
        say(f'{len(longer):,} of {len(settings):,} requests ask for {size:,} new tokens or more, as many as a window holds: '
            f'their prompts keep {room_for_prompt(size, longer[0]):,} tokens, where lm-evaluation-harness itself fails',
            to=sys.stderr)
    if tokenizer[0] == 'char':
        known, texts = {*tokenizer[1]}, [''.join(arg for arg in args if isinstance(arg, str)) for args in requests.values()]
        unknown = ''.join(sorted(set().union(*texts) - known))
        if unknown:
            count, more = sum(not {*text} <= known for text in texts), ' and more' if len(unknown) > 20 else ''
            say(f'{count:,} of {len(texts):,} requests have characters that the model does not know ({unknown[:20]!r}{more}): '
                f'each is read as {tokenizer[1][0]!r}, as by the tokenizer of an export', to=sys.stderr)


def write_samples(folder, samples):
    """Writes {task: samples} of lm-evaluation-harness as samples-TASK.jsonl, a row of JSON for each."""
    os.makedirs(folder, exist_ok=True)
    for task, rows in samples.items():
        write_json(os.path.join(folder, f'samples-{task.replace("/", "_")}.jsonl'), rows)


def write_json(path, value):
    """Writes JSON, of a list a line for each item, with null for numbers that are not finite. A file is replaced as a whole."""
    def plain(x):                                       # numpy's numbers, and functions in a task's config
        return x.tolist() if hasattr(x, 'tolist') else str(x)

    lines = value if isinstance(value, list) else [value]
    write_whole(path, lambda f: f.writelines(
        (json.dumps(finite(item), default=plain, ensure_ascii=False) + '\n').encode('utf-8', 'surrogatepass') for item in lines))
