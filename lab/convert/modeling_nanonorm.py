"""
model.py's GPT as a transformers model. lab/export.py copies this file and model.py into an exported model's folder, where
AutoModelForCausalLM finds it (trust_remote_code=True). Limits: generation keeps no cache, so each token computes the whole text
again, and a batch must not be padded on the left.
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
                       for module in self.net.modules()}        # such as RoPE's cosines, which from_pretrained replaces
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module):
        """Restore a module's buffers that the file does not hold."""
        for name in module._non_persistent_buffers_set & self.tables.get(module, {}).keys():
            getattr(module, name).copy_(self.tables[module][name])

    def forward(self, input_ids, attention_mask=None, labels=None, return_dict=True):
        """Return the logits (B, T, vocab_size), and with labels (B, T), −100 for none, their mean loss per token."""
        if attention_mask is not None and (attention_mask.diff(dim=-1) > 0).any():
            raise ValueError('this model takes no text that is padded on the left: pad on the right, or use single texts')
        with torch.autocast(input_ids.device.type, self.dtype, enabled=self.dtype != torch.float32):   # RoPE computes in float32
            logits = self.net(input_ids)[0]
        loss = None if labels is None else self.loss_function(logits, labels, vocab_size=self.config.vocab_size)
        output = CausalLMOutput(loss=loss, logits=logits)
        return output if return_dict else output.to_tuple()

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **more):
        """Return the last block_size tokens: beyond them the window slides, as in sample.py."""
        inputs = dict(input_ids=input_ids, attention_mask=attention_mask)
        return {name: None if value is None else value[:, -self.config.block_size:] for name, value in inputs.items()}

    def get_input_embeddings(self):
        return self.net.wte

    def get_output_embeddings(self):
        return self.net.lm_head
