"""
A GPT of model.py as a transformers model. lab/export.py copies both files into a folder, from which AutoModelForCausalLM loads it
with trust_remote_code=True. Generation keeps no cache: each token computes the whole text again. No padding on the left.
"""
from dataclasses import fields

import torch
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from model import GPT, GPTConfig


class NanoNormConfig(PreTrainedConfig):
    """The fields of a GPTConfig, some also by transformers' names."""
    model_type = 'nanonorm'
    attribute_map = dict(hidden_size='n_embd', num_hidden_layers='n_layer', num_attention_heads='n_head',
                         max_position_embeddings='block_size', tie_word_embeddings='tie_weights')


class NanoNormForCausalLM(PreTrainedModel, GenerationMixin):
    config_class, base_model_prefix, _no_split_modules, _supports_sdpa = NanoNormConfig, 'net', ['Block'], True
    _tied_weights_keys = {'net.lm_head.weight': 'net.wte.weight'}

    def __init__(self, config):
        super().__init__(config)
        self.net = GPT(GPTConfig(**{f.name: getattr(config, f.name) for f in fields(GPTConfig) if f.init}))
        self.tables = {module: {name: value.clone() for name, value in module.named_buffers(recurse=False)}
                       for module in self.net.modules()}        # such as RoPE's cosines, which the file does not hold
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module):                            # from_pretrained calls it
        for name in module._non_persistent_buffers_set & self.tables.get(module, {}).keys():
            getattr(module, name).copy_(self.tables[module][name])

    def forward(self, input_ids, attention_mask=None, labels=None, return_dict=True):
        if attention_mask is not None and (attention_mask.diff(dim=-1) > 0).any():
            raise ValueError('this model takes no text that is padded on the left: pad on the right, or use single texts')
        with torch.autocast(input_ids.device.type, self.dtype, enabled=self.dtype != torch.float32):   # RoPE computes in float32
            logits = self.net(input_ids)[0]
        loss = None if labels is None else self.loss_function(logits, labels, vocab_size=self.config.vocab_size)
        return CausalLMOutput(loss=loss, logits=logits)

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **more):
        inputs = dict(input_ids=input_ids, attention_mask=attention_mask)       # beyond a window it slides, as in sample.py
        return {name: None if value is None else value[:, -self.config.block_size:] for name, value in inputs.items()}

    def get_input_embeddings(self):
        return self.net.wte

    def get_output_embeddings(self):
        return self.net.lm_head
