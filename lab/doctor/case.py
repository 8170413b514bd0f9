"""A run as the doctor sees it: its log, its checkpoint and its data, as tables over the iterations."""
from configurator import script_of

import os

import numpy as np
import pandas as pd
import torch

from data.tokens import Tokens
from engine.checkpoint import load_checkpoint
from engine.keys import gpt_config
from lab.runs import patches, read_run, status_of
from model import GPT, block_type

SAMPLE = 2 ** 20        # tokens of the data, for the entropy of the whole


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
    """`clean`: the case of the reference, and `usual` that of the usual start, if there are any. `edited`: the files that differ
    from the run's commit. `notes`: lines about what could not be checked."""

    def __init__(self, folder, config, about, rows, status='done'):
        self.folder, self.config, self.about, self.rows, self.status = folder, config, about, rows, status
        self.clean = self.usual = self.corpus_entropy = self.moments = self.future = None
        self.keys_file = os.path.join(folder, 'config.json')
        self.edited, self.notes, self.windows, self.sizes, self.tables = list(patches(folder)), [], 0, {}, {}

    @classmethod
    def of_run(cls, folder):
        """Read a run's folder. Raise ValueError if it holds none."""
        run = read_run(folder)
        if not run or not run['rows']:
            raise ValueError(f'{folder} holds no run with a row in log.jsonl: name the out_dir of a run, or a config')
        case = cls(folder, run['config'], run['about'], run['rows'], status_of(run))
        case.read_checkpoint()
        case.read_data()
        return case

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

    @property
    def it(self):
        return max(row['iter'] for row in self.rows)

    def read_checkpoint(self):
        """Read the optimizer's moments: {name: (first moments' norm, second moments' sum, or None)} of all parameters."""
        path = os.path.join(self.folder, 'ckpt.pt')
        if not os.path.exists(path):
            self.notes.append('there is no ckpt.pt: single parameters without a gradient, and β, were not checked')
            return
        try:
            state = load_checkpoint(path, mmap=True, whole=False)
        except ValueError as error:
            self.notes.append(str(error))
            return
        moments, numbers = {}, state['optimizer'].get('state', {})
        for group in state['optimizer']['param_groups']:
            for name, i in zip(group.get('param_names', []), group['params']):
                tensors = {key: t for key, t in numbers.get(i, {}).items() if torch.is_tensor(t) and t.dim() and not t.is_meta}
                first = [t.float().norm().item() for key, t in tensors.items() if key != 'exp_avg_sq']
                each = 'exp_avg_sq' in tensors and tensors['exp_avg_sq'].shape == tensors['exp_avg'].shape      # Adam-mini shares
                second = tensors['exp_avg_sq'].float().sum().item() if each else None
                moments[name] = max(first, default=0.0), second
        self.moments = (state['iter'], moments) if any(first for first, _ in moments.values()) else None

    def read_data(self):
        """Read the entropy of the training data's tokens and the number of its windows, and count the parameters of each block
        type."""
        if script_of(self.config) == 'vision.train':
            return
        try:
            config = gpt_config(self.config)
            for name, p in GPT(config, fill=False).named_parameters():
                kind = block_type(name, config.block_types)
                self.sizes[kind] = self.sizes.get(kind, 0) + p.numel()
            data = Tokens(self.config['dataset'], 'train', config.block_size, config.vocab_size)
        except (ValueError, OSError) as error:
            self.notes.append(f'the batches were not compared with the data: {error}')
            return
        counts = np.bincount(data.tokens[::max(1, data.length // SAMPLE)])
        shares = counts[counts > 0] / counts.sum()
        self.corpus_entropy, self.windows = float(-(shares * np.log(shares)).sum()), data.windows
