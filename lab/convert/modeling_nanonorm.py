"""
A GPT as a transformers model. lab/export.py copies this file into a folder, with the model.py that lab/flatten.py prints.
AutoModelForCausalLM loads both with trust_remote_code=True. Texts of a batch may be padded on either side: `attention_mask` says
which tokens count.
"""
from contextlib import nullcontext
from dataclasses import fields

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from transformers import DynamicCache, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from model import GPT, Config


class NanoNormConfig(PreTrainedConfig):
    """The sizes of a model, some also by transformers' names."""
    model_type = 'nanonorm'
    attribute_map = dict(hidden_size='n_embd', num_hidden_layers='n_layer', num_attention_heads='n_head',
                         max_position_embeddings='block_size')


class LayerCache:
    """A layer of transformers' cache, as model.py's KVCache"""

    def __init__(self, cache, layer):
        self.cache, self.layer = cache, layer

    @property
    def length(self):
        return self.cache.get_seq_length(self.layer)

    def append(self, k, v):
        return self.cache.update(k, v, self.layer)


class Batch:
    """What model.py does not know of a batch: which keys each token reads (B, 1, T, S), the positions (B, T), and embeddings
    (B, T, D) in place of those of its tokens. None: as in model.py."""

    def __init__(self, past, shape, attention_mask=None, position_ids=None, embeddings=None):
        length = past + shape[1]
        if attention_mask is not None and tuple(attention_mask.shape) != (shape[0], length):
            raise ValueError(f'attention_mask is {tuple(attention_mask.shape)}: must be {(shape[0], int(length))}, a number for '
                             f'each token so far; a static cache is not supported')
        self.mask, self.positions, self.embeddings = None, position_ids, embeddings
        padded = attention_mask is not None and not attention_mask.all()
        if padded or past and shape[1] > 1:
            keys = torch.ones(shape[0], length, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
            own = torch.eye(length, dtype=torch.bool, device=keys.device)[past:]    # or padding would read nothing, which is NaN
            self.mask = (keys[:, None, None] & own.new_ones(own.shape).tril(past)) | own
        if padded and position_ids is None:
            self.positions = (attention_mask.cumsum(-1) - 1).clamp(min=0)[:, past:]


class NanoNormForCausalLM(PreTrainedModel, GenerationMixin):
    config_class, base_model_prefix, _no_split_modules, _supports_sdpa = NanoNormConfig, 'net', ['Block'], True
    _tied_weights_keys = {'net.lm_head.weight': 'net.wte.weight'}
    batch = Batch(0, (1, 1))

    def __init__(self, config):
        super().__init__(config)
        self.net = GPT(Config(**{f.name: getattr(config, f.name) for f in fields(Config)}))
        self.tables = {module: {name: value.clone() for name, value in module.named_buffers(recurse=False)}
                       for module in self.net.modules()}        # such as RoPE's cosines, which the file does not hold
        self.set_input_embeddings(self.net.wte)
        for name, module in self.net.named_modules():           # positions are the last argument of both
            if name == 'wpe' or name.endswith('.rotary'):
                module.register_forward_pre_hook(self.place)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module):                            # from_pretrained calls it
        for name in module._non_persistent_buffers_set & self.tables.get(module, {}).keys():
            getattr(module, name).copy_(self.tables[module][name])

    def place(self, module, inputs):
        return inputs if self.batch.positions is None else (*inputs[:-1], self.batch.positions)

    def embed(self, module, inputs, embeddings):
        return embeddings if self.batch.embeddings is None else self.batch.embeddings

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, past_key_values=None, inputs_embeds=None,
                labels=None, use_cache=None, output_hidden_states=False, return_dict=True, num_items_in_batch=None):
        """As of transformers' models. hidden_states has the residual state in front of each block, and what the head reads."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError('give either input_ids or inputs_embeds')
        if input_ids is None:
            input_ids = torch.zeros(inputs_embeds.shape[:2], dtype=torch.long, device=inputs_embeds.device)
        if past_key_values is None and use_cache:
            past_key_values = DynamicCache()
        caches = None if past_key_values is None else [LayerCache(past_key_values, i) for i in range(len(self.net.h))]
        self.batch = Batch(caches[0].length if caches else 0, input_ids.shape, attention_mask, position_ids, inputs_embeds)
        if getattr(self, '_is_replica', False) and vars(self.batch) != vars(type(self).batch):
            raise ValueError('torch.nn.DataParallel: its copies do not know the padding, positions or embeddings; use torchrun')
        states = []
        hooks = [module.register_forward_pre_hook(lambda _, inputs: states.append(getattr(inputs[0], 'x', inputs[0])))
                 for module in ((*self.net.h, self.net.lm_head) if output_hidden_states else ())]
        try:
            with torch.autocast(input_ids.device.type, self.dtype, enabled=self.dtype != torch.float32):    # RoPE is in float32
                with Masked(self.batch.mask) if self.batch.mask is not None else nullcontext():
                    logits = self.net(input_ids, caches=caches)[0]
        finally:
            self.batch = Batch(0, (1, 1))
            for hook in hooks:
                hook.remove()
        loss = None
        if labels is not None:                                  # a batch without a label has the loss 0
            count = (labels[:, 1:] != -100).sum().clamp(min=1) if num_items_in_batch is None else num_items_in_batch
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, num_items_in_batch=count)
        output = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values,
                                        hidden_states=tuple(states) if output_hidden_states else None)
        return output if return_dict else output.to_tuple()

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, past_key_values=None, inputs_embeds=None, **more):
        size = self.config.block_size
        length = input_ids.size(1) if attention_mask is None else attention_mask.size(1)
        if length <= size:
            more |= dict(attention_mask=attention_mask, past_key_values=past_key_values, inputs_embeds=inputs_embeds)
            return super().prepare_inputs_for_generation(input_ids, **more)
        # the window slides, as in sample.py: all positions change, and no cache holds
        return dict(input_ids=input_ids[:, -size:], attention_mask=None if attention_mask is None else attention_mask[:, -size:])

    def get_input_embeddings(self):
        return self.net.wte

    def set_input_embeddings(self, embedding):
        embedding.register_forward_hook(self.embed)
        self.net.wte = embedding

    def get_output_embeddings(self):
        return self.net.lm_head

    def set_output_embeddings(self, head):
        """Take a head of another vocabulary. nGPT has a gain for each token: new ones start at the mean of the old."""
        self.net.lm_head, gain = head, getattr(getattr(self.net, 'head_gain', None), 'weight', None)
        if gain is not None:
            old = gain.data[:head.out_features]
            self.net.head_gain.weight = nn.Parameter(torch.cat((old, old.mean().expand(head.out_features - len(old)))))


class Masked(TorchFunctionMode):
    """Here PyTorch's kernel of attention reads the keys that the mask says."""

    def __init__(self, mask):
        super().__init__()
        self.mask = mask

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is not F.scaled_dot_product_attention:
            return function(*args, **kwargs or {})
        q, k, v = args
        size = k.size(2) - self.mask.size(3), 0, q.size(2) - self.mask.size(2), 0
        mask = F.pad(self.mask, size, value=True)               # a sink adds a key, which all tokens read, and a query
        return function(q, k, v, **{**kwargs, 'is_causal': False, 'attn_mask': mask})
