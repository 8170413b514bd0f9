"""A run as the doctor sees it: its log, its checkpoint and its data, as tables over the iterations."""
import math
import os
from statistics import fmean

import numpy as np
import pandas as pd
import torch

from data.tokens import Tokens, read_meta
from engine.checkpoint import load_checkpoint
from engine.keys import gpt_config
from lab.runs import patches, read_run, status_of

SAMPLE = 200            # rows of the data, at most, for their entropy


def leaves(value, where=''):
    """Yield (place, number) of a value in the log. The place of a plain number is '', that of a block type 'qk', that of a layer,
    from 1, '3', and that of both 'qk 3'."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, key)
    elif isinstance(value, list):
        for layer, inner in enumerate(value, 1):
            yield from leaves(inner, f'{where} {layer}'.strip())
    else:
        yield where, value


def look_up(row, key):
    """look_up({'a': {'b': 1}}, 'a.b') → 1, None if it is not there"""
    for part in key.split('.'):
        row = row.get(part) if isinstance(row, dict) else None
    return row


def place_of(name):
    """'h.2.attn.wq.weight' → 'wq 3', 'wte.weight' → 'wte'"""
    parts = name.removesuffix('.weight').split('.')
    return f'{".".join(parts[2:]).removeprefix("attn.").removeprefix("ffn.")} {int(parts[1]) + 1}' if parts[0] == 'h' else name


class Case:
    """`clean`: the case of the run by clean code, `usual`: that of the usual start, if there are any. `replayed`: numbers of
    replay.py. `edited`: the files that differ from the run's commit. `notes`: lines about what could not be checked."""

    def __init__(self, folder, config, about, rows, status='done'):
        self.folder, self.config, self.about, self.rows, self.status = folder, config, about, rows, status
        self.keys_file = os.path.join(folder, 'config.json')
        self.edited, self.notes, self.tables = list(patches(folder)), [], {}
        self.clean = self.usual = None
        self.replayed, self.entropy, self.windows = {}, None, 0
        self.sizes, self.choices, self.is_sgd = {}, 0, False
        self.moments = 0, pd.DataFrame(columns=['name', 'kind', 'is_sum', 'first', 'squares'])

    @classmethod
    def of_run(cls, folder):
        """Read a run's folder. Raise ValueError if it holds none."""
        run = read_run(folder)
        if not run or not run['rows']:
            raise ValueError(f'{folder} holds no run with a row in log.jsonl: name the out_dir of a run, or a config')
        case = cls(folder, run['config'], run['about'], run['rows'], status_of(run))
        case.read_checkpoint()
        return case

    @property
    def it(self):
        return max(row['iter'] for row in self.rows)

    def table(self, key):
        """Return a number of the log, such as 'loss' or 'layers.grad_norms', as a table: iterations × places."""
        if key not in self.tables:
            found = {row['iter']: dict(leaves(value)) for row in self.rows if (value := look_up(row, key)) is not None}
            table = pd.DataFrame.from_dict(found, orient='index', dtype=float).sort_index()
            self.tables[key] = table.dropna(axis=1, how='all')
        return self.tables[key]

    def complete(self, others):
        """Add what the rows of another log have for the same iterations and these rows lack."""
        others, self.tables = {(row['iter'], 'loss' in row): row for row in others}, {}
        self.rows = [{**others.get((row['iter'], 'loss' in row), {}), **row} for row in self.rows]

    def read_checkpoint(self):
        """Read the number of weights of each block type, the number of tokens, and a table of the optimizer's moments."""
        path = os.path.join(self.folder, 'ckpt.pt')
        if not os.path.exists(path):
            self.notes.append('there is no ckpt.pt, without which most faults of data, gradients and block types are not seen')
            return
        state = load_checkpoint(path, mmap=True, whole=False)
        moments, numbers = [], state['optimizer'].get('state', {})
        for group in state['optimizer']['param_groups']:
            for name, i in zip(group.get('param_names', []), group['params']):
                kind, size = group['block_type'], state['model'][name].numel()
                tensors = {key: t for key, t in numbers.get(i, {}).items() if torch.is_tensor(t) and t.dim() and not t.is_meta}
                sizes = [t.float().norm().item() for key, t in tensors.items() if key != 'exp_avg_sq']
                if any(torch.is_tensor(t) and t.is_meta for t in numbers.get(i, {}).values()):
                    sizes = [math.nan]                  # the moments are in shards
                each = 'exp_avg_sq' in tensors and tensors['exp_avg_sq'].shape == tensors['exp_avg'].shape      # Adam-mini shares
                moments.append(dict(
                    name=name, kind=kind, is_sum='momentum_buffer' in tensors,
                    first=max(sizes, default=0.0),
                    squares=tensors['exp_avg_sq'].float().sum().item() if each else math.nan))
                self.sizes[kind] = self.sizes.get(kind, 0) + size
        weights = {t.data_ptr(): name for name, t in reversed(state['model'].items())}         # a tied one once
        moments += [dict(name=name, kind='', is_sum=False, first=0.0, squares=math.nan)         # that no optimizer has
                    for name in sorted({*weights.values()} - {row['name'] for row in moments})]
        if numbers:
            self.moments = state['iter'], pd.DataFrame(moments)
        self.choices = len(state['model'].get('wte.weight', ()))
        self.is_sgd = not any('exp_avg' in tensors for tensors in numbers.values())

    def read_data(self):
        """Read the entropy of the training data's tokens, in as many rows as a row of the log tells of, and the number of its
        windows. Read the file itself, because Tokens.read may be edited."""
        try:
            config = gpt_config(self.config)
            data = Tokens(self.config['dataset'], 'train', config.block_size, config.vocab_size)
        except (ValueError, OSError) as error:
            self.notes.append(f'the batches were not compared with the data: {error}')
            return
        steps = self.table('rows_before').diff()
        rows = steps[steps > 0].median().dropna().get('', 4)
        tokens = np.memmap(data.path, read_meta(self.config['dataset'])['dtype'], 'r')
        batches = [np.concatenate([tokens[i:i + config.block_size] for i in starts])
                   for starts in data.spread(20, int(min(rows, SAMPLE)))]
        counts = [torch.from_numpy(np.bincount(batch) / len(batch)) for batch in batches]
        self.entropy, self.windows = fmean(torch.special.entr(shares).sum().item() for shares in counts), data.windows
