"""
Write a run's model, with its tokenizer, as a folder that transformers loads: as its GPT-2, LLaMA, Qwen3 or OLMo 2 if that is
equal, or else as a model whose code is in the folder.

    python -m lab.export --out_dir=out-quick --to=out-hf-quick

--init_from of train.py and sample.py, and --out_dir of lab.evaluate, take folders of these families.
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m lab.export')

from configurator import ROOT, configure

import base64
import os
import shutil
from dataclasses import asdict, fields
from pathlib import Path

import torch
from torch.nn import functional as F

from data.text import load_tokenizer
from engine.checkpoint import load_run
from engine.files import write_json
from lab.convert import pretrained
from lab.convert.nanogpt import load_nanogpt
from lab.convert.pretrained import FAMILIES, hugging_face, load_gpt, tokenizer_of
from lab.flatten import SIZES, flatten, what_it_is

# ----------------------------------------------------------------------------- keys
out_dir = 'out'                     # the run's folder, or nanoGPT's with --checkpoint=ckpt.pt
checkpoint = 'best.pt'              # best.pt: the lowest validation loss | ckpt.pt: the latest | ckpt-000500.pt: a kept one
to = ''                             # the folder to write

# ----------------------------------------------------------------------------- models: of a family, or with the code

def obstacles(config, family):
    """Return why the architecture is not of this family: 'field=value' for each field that needs another value."""
    known = pretrained.known_fields(family)
    wants = FAMILIES[family].wants | {f.name: [f.default] for f in fields(config) if f.init and f.name not in known}
    wants |= dict(n_kv_head=[0, config.n_head]) if family == 'gpt2' else {}
    return [f'{field}={values[0]}' for field, values in wants.items() if getattr(config, field) not in values]


def their_config(config, family):
    """Convert a GPTConfig to the keywords of their config."""
    values = asdict(config) | dict(d_ff=config.d_ff or 4 * config.n_embd, n_kv_head=config.kv_heads)
    theirs = {key: values[field] for field, key in FAMILIES[family].keys.items()}
    if family == 'gpt2':
        activation = {ours: theirs for theirs, ours in reversed(pretrained.ACTIVATIONS.items())}[config.ffn]
        return theirs | dict(activation_function=activation, bias=config.bias, resid_pdrop=config.dropout,
                             embd_pdrop=config.dropout, attn_pdrop=config.dropout)
    return theirs | dict(head_dim=config.head_dim, attention_dropout=config.dropout,
                         rope_parameters=dict(rope_type='default', rope_theta=config.rope_theta))


def write_model(model, folder, family, end=None):
    """Write the GPT into an existing folder, as a Hugging Face model of this family. `end` is the token that ends a document."""
    config, weights = model.config, {name: value.detach().cpu() for name, value in model.state_dict().items()}
    theirs_class = getattr(hugging_face(), FAMILIES[family].model)
    theirs = theirs_class(theirs_class.config_class(**their_config(config, family), bos_token_id=end, eos_token_id=end))
    renamed = {}
    for their_name, ours, transposed in pretrained.tensors(family, config.n_layer):
        if ours[0] in weights:
            value = torch.cat([weights[name] for name in ours])
            renamed[their_name] = value.t() if transposed else value
    theirs.load_state_dict(renamed, strict=False)       # GPT-2 always has biases, which start at 0
    theirs.save_pretrained(folder)
    check_equal(model, theirs_class.from_pretrained(folder), 1e-3)


@torch.no_grad()
def check_equal(model, theirs, tolerance, padding=0):
    """Raise ValueError if their logits on a few tokens are off by more than the tolerance, relative to our largest logit. They
    get so many tokens of padding in front, which an attention must not read."""
    x = torch.arange(min(16, model.config.block_size - padding))[None] % model.config.vocab_size
    ours, mask = model.eval()(x)[0].cpu(), torch.ones_like(x)
    x, mask = (F.pad(part, (padding, 0)) for part in (x, mask))
    off = ((theirs.eval()(x, attention_mask=mask).logits[:, padding:] - ours).abs().max() / ours.abs().max()).item()
    if not off < tolerance:
        raise ValueError(f'the exported model computes other logits with these weights, off by {off:.3g} of the largest: if you '
                         f'have edited the code, make the edit depend on a new field of the config')


def write_own(model, folder, end=None):
    """Write the GPT into an existing folder, as a transformers model with its code beside it, this model alone."""
    from safetensors.torch import save_file
    config, title = model.config, what_it_is(model.config)
    Path(folder, 'model.py').write_text(flatten(config, title, cache=True), encoding='utf-8')
    wrapper = Path(ROOT, 'lab/convert/modeling_nanonorm.py').read_text(encoding='utf-8')
    Path(folder, 'modeling_nanonorm.py').write_text(wrapper.replace('from model import', 'from .model import'), encoding='utf-8')
    weights = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    if config.tie_weights:
        del weights['lm_head.weight']                   # the format cannot store a tensor twice
    save_file(weights, os.path.join(folder, 'model.safetensors'), metadata={'format': 'pt'})
    auto_map = {'AutoConfig': 'modeling_nanonorm.NanoNormConfig', 'AutoModelForCausalLM': 'modeling_nanonorm.NanoNormForCausalLM'}
    about = dict(architectures=['NanoNormForCausalLM'], auto_map=auto_map, bos_token_id=end, eos_token_id=end, pad_token_id=end)
    sizes = {name: getattr(config, name) for name in SIZES if getattr(config, name)}
    about |= dict(description=title.replace('\n', ' '), tie_word_embeddings=config.tie_weights)
    write_json(os.path.join(folder, 'config.json'), dict(model_type='nanonorm', dtype='float32', **about, **sizes))
    theirs = hugging_face().AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    for padding in (0, 1)[:config.block_size]:
        check_equal(model, theirs, 1e-5, padding)


# ----------------------------------------------------------------------------- tokenizers

def write_tokenizer(folder, name, chars):
    """Write a data set's tokenizer so that AutoTokenizer reads it, with the same ids for the same text. Return the token that
    ends a document, or None. It also begins and pads texts; for characters the line feed does, or else the first one."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers.convert_slow_tokenizer import TikTokenConverter, bytes_to_unicode
    path = os.path.join(folder, 'tokenizer.json')
    ours = load_tokenizer(name, chars)                  # fails with one line if it is not available
    end = ours.end
    if name == 'bytes':
        theirs = Tokenizer(models.BPE({letter: b for b, letter in sorted(bytes_to_unicode().items())}, []))
        theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        theirs.decoder = decoders.ByteLevel()
    elif name == 'char':
        theirs = Tokenizer(models.WordLevel({c: i for i, c in enumerate(chars)}, unk_token=chars[0]))
        theirs.pre_tokenizer = pre_tokenizers.Split(Regex(r'[\s\S]'), 'isolated')
        theirs.decoder = decoders.Fuse()
        end = ours.encode('\n')[0] if '\n' in chars else 0
    else:
        import tiktoken
        if name not in tiktoken.list_encoding_names():
            hugging_face().AutoTokenizer.from_pretrained(name, trust_remote_code=False).save_pretrained(folder)
            return ours.end
        encoding = tiktoken.get_encoding(name)
        with open(path, 'wb') as f:
            f.writelines(b'%s %d\n' % (base64.b64encode(piece), rank) for piece, rank in encoding._mergeable_ranks.items())
        theirs = TikTokenConverter(path, encoding._pat_str, extra_special_tokens=encoding._special_tokens).converted()
    theirs.save(path)
    special = {} if end is None else dict.fromkeys(('bos_token', 'eos_token', 'pad_token'), theirs.id_to_token(end))
    hugging_face().PreTrainedTokenizerFast(tokenizer_file=path, split_special_tokens=True, **special).save_pretrained(folder)
    return ours.end


def main():
    configure(globals())
    if not to or os.path.lexists(to):
        raise ValueError(f'to={to!r}: name a folder that does not exist, as in --to=out-hf')
    path, part = os.path.join(out_dir, checkpoint), to.rstrip('/') + '.tmp'
    model = load_gpt(path) if load_nanogpt(path) else load_run(path)[0]
    tokenizer = tokenizer_of(path)
    family = next((family for family in FAMILIES if not obstacles(model.config, family)), 'nanonorm')
    shutil.rmtree(part, ignore_errors=True)             # what an export that failed has left
    os.makedirs(part)
    end = write_tokenizer(part, *tokenizer)
    if family == 'nanonorm':
        write_own(model, part, end)
    else:
        write_model(model, part, family, end)
    os.replace(part, to)
    print(f'wrote {to}, {model.num_params():,} parameters as {family}.')


if __name__ == '__main__':
    main()
