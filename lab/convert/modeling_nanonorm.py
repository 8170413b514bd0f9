"""
model.py's GPT as a transformers model. lab/export.py copies this file, and those that it imports, into an exported model's
folder, where AutoModelForCausalLM finds it (trust_remote_code=True).
"""
import math
from dataclasses import fields

import torch
from torch.nn import functional as F
from transformers import DynamicCache, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import can_return_tuple

from model import GPT, DotAttention, GPTConfig, Rotary


class NanoNormConfig(PreTrainedConfig):
    """The fields of a GPTConfig, some also by transformers' names. With masks=False, the model refuses inputs that need an
    attention mask, because its edited attention takes none."""
    model_type, masks = 'nanonorm', True
    attribute_map = dict(hidden_size='n_embd', num_hidden_layers='n_layer', num_attention_heads='n_head',
                         max_position_embeddings='block_size', tie_word_embeddings='tie_weights')


def ours(theirs):
    """Convert transformers' config to a GPTConfig."""
    return GPTConfig(**{f.name: getattr(theirs, f.name) for f in fields(GPTConfig) if f.init})


class NanoNorm(PreTrainedModel):
    """What loading a GPT, `self.net`, takes."""
    base_model_prefix = 'net'
    _supports_sdpa = True
    _no_split_modules = ['Block']

    def begin(self, net):
        """Adopt the net. from_pretrained replaces its parameters, and also its buffers that no file holds."""
        self.net, self.loads = net, any(p.is_meta for p in net.parameters())
        self.tables = {}                # module → its buffers that no file holds, such as RoPE's cosines
        for module in net.modules():
            buffers = {name: value for name, value in module.named_buffers(recurse=False)
                     if name in module._non_persistent_buffers_set}
            if any(value.is_meta for value in buffers.values()):
                raise ValueError(f'{type(module).__name__} makes {min(buffers)!r} on device meta, and it would be lost: give it '
                                 "device='cpu', as Rotary in model.py does")
            if buffers:
                self.tables[module] = {name: value.clone() for name, value in buffers.items()}
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module):
        """Restore a module's buffers; transformers calls this for modules that the files have not filled completely."""
        for name, value in self.tables.get(module, {}).items():
            getattr(module, name).copy_(value)
        stored = {name: value for name, value in module.state_dict(keep_vars=True).items() if '.' not in name}
        lacking = [value for value in stored.values() if not getattr(value, '_is_hf_initialized', False)]
        if self.loads and lacking:
            name = next(name for name, value in self.state_dict(keep_vars=True).items() if value is lacking[0])
            raise ValueError(f'the weights have no {name.removeprefix("net.")!r}, or one of another shape')


def refuse(arguments, *known):
    """Raise ValueError for an argument that changes the result of other transformers models, and that these models would
    ignore."""
    harmless = {'return_dict', 'cache_position', 'logits_to_keep', *known}
    for name, value in arguments.items():
        if name not in harmless and value is not None and value is not False:
            raise ValueError(f'{name}: this model has no such argument, leave it out')


# ----------------------------------------------------------------------------- text

class LayerCache:
    """One layer of transformers' cache, with the interface of model.py's KVCache."""

    def __init__(self, cache, layer):
        self.cache, self.layer, self.length = cache, layer, cache.get_seq_length(layer)

    def append(self, k, v):
        end = self.length + k.size(2)                   # a static cache has room for more
        k, v = self.cache.update(k.to(v.dtype), v, self.layer)          # a rotation has left k in float32
        return k[:, :, :end], v[:, :, :end]


class NanoNormForCausalLM(NanoNorm, GenerationMixin):
    """A GPT. A batch may be padded on the left or the right, with an attention_mask."""
    config_class = NanoNormConfig
    _tied_weights_keys = {'net.lm_head.weight': 'net.wte.weight'}

    def __init__(self, config):
        super().__init__(config)
        self.positions = self.mask = None               # (B, T) and (B, 1, T, S), if they differ from model.py's
        net = GPT(ours(config))
        for module in net.modules():
            if isinstance(module, DotAttention):
                module.kernel = self.kernel
            if isinstance(module, Rotary):
                module.register_forward_hook(self.rotated)
        if isinstance(net.wpe, torch.nn.Embedding):
            net.wpe.register_forward_pre_hook(self.placed)
        self.begin(net)

    def kernel(self, q, k, v, attn_mask=None, is_causal=False, **more):
        """Call PyTorch's attention with the mask, if any, combined with an edited model's own. A rotation has left q and k in
        float32."""
        if self.mask is not None:
            hidden, is_causal = False if attn_mask is None or attn_mask.dtype == torch.bool else -math.inf, False
            attn_mask = self.mask if attn_mask is None else torch.where(self.mask, attn_mask, hidden)
        return F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, attn_mask=attn_mask, is_causal=is_causal, **more)

    def placed(self, wpe, arguments):
        """Return the position embedding's argument."""
        return arguments if self.positions is None else (self.positions,)

    def rotated(self, rotary, arguments, result):
        """Apply RoPE at each row's own positions."""
        if self.positions is None:
            return result
        cos, sin = rotary.cos[self.positions], rotary.sin[self.positions]       # (B, T, 1, E/2)
        x1, x2 = arguments[0].chunk(2, dim=-1)
        return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)

    def place(self, start, tokens, attention_mask, position_ids):
        """Set positions and mask if these tokens (B, T), after `start` earlier ones, need them."""
        self.positions = self.mask = None
        numbers = torch.arange(start + tokens.size(1), device=tokens.device)
        usual = numbers[start:]
        if attention_mask is not None and attention_mask.dim() != 2:
            raise ValueError(f'attention_mask of shape {tuple(attention_mask.shape)}: wants (batch, all tokens so far)')
        seen, padded = numbers <= usual[:, None], attention_mask is not None and not attention_mask.all()      # (T, S)
        needs = start and len(usual) > 1 or padded and (start > 0 or bool((attention_mask.diff(dim=-1) > 0).any()))
        if needs and not self.config.masks:
            raise ValueError('this model takes no left-padded text, nor several tokens after cached ones, because their logits '
                             'would be wrong: its attention takes no mask; use single texts')
        if padded:
            if attention_mask.shape != (len(tokens), len(numbers)):
                raise ValueError(f'attention_mask of shape {tuple(attention_mask.shape)}: wants {len(tokens), len(numbers)}, '
                                 'all tokens so far')
            self.positions = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, start:]
            seen = seen & attention_mask.bool()[:, None] | (numbers == usual[:, None])      # padding at least sees itself
        if position_ids is not None:
            self.positions = None if torch.equal(position_ids, usual.expand_as(position_ids)) else position_ids.expand_as(tokens)
        if padded or start and len(usual) > 1:
            self.mask = seen.expand(len(tokens), -1, -1)[:, None]

    @can_return_tuple
    def forward(self, input_ids, attention_mask=None, position_ids=None, past_key_values=None, labels=None, use_cache=None,
                logits_to_keep=0, **arguments):
        """Return the logits (B, T, vocab_size), or the last logits_to_keep, and the mean loss per label. input_ids (B, T)
        follow those in past_key_values; attention_mask (B, all tokens) is 0 for padding; labels (B, T) are −100 for none."""
        refuse(arguments, 'num_items_in_batch')
        use_cache = use_cache if use_cache is not None else not self.training
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        caches = [LayerCache(past_key_values, i) for i in range(len(self.net.h))] if past_key_values is not None else None
        self.place(caches[0].length if caches else 0, input_ids, attention_mask, position_ids)
        try:
            x = self.net.hidden(input_ids, caches)
        finally:
            self.positions = self.mask = None
        if labels is not None and not (isinstance(logits_to_keep, int) and logits_to_keep == 0):
            raise ValueError('labels need the logits of all tokens: leave logits_to_keep out')
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.net.output(x[:, kept])[0]
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size,
                                      num_items_in_batch=arguments.get('num_items_in_batch'))
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values if use_cache else None)

    def get_input_embeddings(self):
        return self.net.wte

    def set_input_embeddings(self, value):
        self.net.wte = value

    def get_output_embeddings(self):
        return self.net.lm_head

    def set_output_embeddings(self, value):
        self.net.lm_head = value
