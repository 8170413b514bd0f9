"""Read ckpt.pt of nanoGPT's train.py: the weights, not the optimizer's state."""
import zipfile

import torch

from data.tokens import read_meta

MODEL_ARGS = ('n_layer', 'n_head', 'n_embd', 'block_size', 'vocab_size', 'bias', 'dropout')        # fields that GPTConfig has too
GPT2_VOCAB = (50257, 50304)             # GPT-2's, and as nanoGPT pads it


def load_nanogpt(path):
    """Return what nanoGPT has saved in this file, None for any other file. No code in it is run."""
    try:
        with zipfile.ZipFile(path) as f:
            if f.testzip():                             # a flipped bit
                return None
        state = torch.load(path, map_location='cpu', weights_only=True, mmap=True)
        return state if {'model', 'model_args'} <= state.keys() else None
    except Exception:                                   # unpickling garbage fails in many ways
        return None


def gpt2_format(path, state):
    """Return the fields of GPTConfig that a checkpoint gives, and its weights as Hugging Face's GPT-2 stores them. Raise
    ValueError for settings that nanoGPT does not have."""
    args = state['model_args']
    if unknown := args.keys() - {*MODEL_ARGS}:
        raise ValueError(f'{path}: {min(unknown)!r} in its model_args is not of nanoGPT')
    weights = {name.removeprefix('_orig_mod.'): value.float() for name, value in state['model'].items()}
    weights = {name: value.t() if '.c_' in name and value.dim() == 2 else value for name, value in weights.items()
               if not name.endswith('.attn.bias')}      # a mask, of PyTorch 1
    tied = torch.equal(weights['lm_head.weight'], weights['transformer.wte.weight'])
    return {**args, 'tie_weights': tied}, weights


def tokenizer_of_nanogpt(path, state):
    """Return the arguments of load_tokenizer for a checkpoint. Raise ValueError if its data, which have the characters, are not
    here."""
    size, dataset = state['model_args']['vocab_size'], state.get('config', {}).get('dataset', '')
    if size in GPT2_VOCAB:
        return 'gpt2', ''
    meta = read_meta(dataset)
    if meta['vocab_size'] != size:
        raise ValueError(f'{path} has learned {size} tokens, and data/{dataset} has {meta["vocab_size"]}: copy the folder of '
                         f'nanoGPT with this name')
    return meta['tokenizer'], meta['chars']
