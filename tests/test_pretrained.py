"""Weights of Hugging Face give their logits here, and what has no equal here is an error. test_export.py has the way back."""
import pytest
import torch

from lab.convert.pretrained import FAMILIES, load_gpt, load_pretrained
from lab.export import write_model
from model import GPT, GPTConfig
from test_model import close, randomize, tokens

hf = pytest.importorskip('transformers')


def same_logits(theirs, folder):
    ours = load_gpt(str(folder)).eval()
    close(ours(tokens(3, 16))[0], theirs(tokens(3, 16)).logits, 1e-4)
    return ours


def random_gpt2(**keys):
    sizes = dict(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=4)
    return randomize(hf.GPT2LMHeadModel(hf.GPT2Config(**sizes | keys)))


@pytest.mark.parametrize('activation, tied', [('gelu', True), ('gelu_new', False), ('relu', True)])
def test_equals_hugging_face_gpt2(activation, tied, tmp_path):
    theirs = random_gpt2(n_inner=48, layer_norm_epsilon=1e-3, activation_function=activation, tie_word_embeddings=tied)
    theirs.save_pretrained(tmp_path, state_dict=theirs.state_dict() | {'transformer.h.0.attn.masked_bias': torch.tensor(-1e4)})
    ours = same_logits(theirs, tmp_path)
    assert ours.config.bias and ours.config.tie_weights == (ours.lm_head.weight is ours.wte.weight) == tied
    theirs.config.tie_word_embeddings = True            # the weights count, as in transformers
    theirs.config.save_pretrained(tmp_path)
    assert same_logits(theirs, tmp_path).config.tie_weights == tied


@pytest.mark.parametrize('family', ['Llama', 'Qwen3', 'Olmo2'])
def test_theirs_in_bf16_and_in_several_files(family, tmp_path):
    theirs = randomize(getattr(hf, f'{family}ForCausalLM')(getattr(hf, f'{family}Config')(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, max_position_embeddings=16, rope_parameters=dict(rope_type='default', rope_theta=50.0)))).bfloat16()
    theirs.save_pretrained(tmp_path, max_shard_size='10KB')
    assert len(list(tmp_path.glob('*.safetensors'))) > 1
    ours = same_logits(hf.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32), tmp_path)
    assert all(p.dtype == torch.float32 for p in ours.parameters()) and not ours.config.tie_weights


@pytest.mark.parametrize('family, more', [
    ('llama', dict(attention_bias=True)), ('llama', dict(mlp_bias=True)), ('llama', dict(hidden_act='gelu')),
    ('llama', dict(head_dim=16)), ('llama', dict(rope_parameters=dict(rope_type='linear', factor=2.0, rope_theta=1e4))),
    ('qwen3', dict(rope_parameters=dict(rope_type='default', rope_theta=1e4, partial_rotary_factor=0.5))),
    ('qwen3', dict(layer_types=['full_attention', 'sliding_attention'], sliding_window=4)),
    ('gpt2', dict(activation_function='silu'))])
def test_what_has_no_equal_here_is_named(family, more, tmp_path):
    model_class = getattr(hf, FAMILIES[family].model)
    sizes = dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, head_dim=8)
    model_class(model_class.config_class(**sizes | more)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match='has no equal here'):
        load_gpt(str(tmp_path))


def test_positions_are_left_out_at_the_end(tmp_path):
    """The first ones stay. Dropout is the run's, not theirs"""
    theirs, idx = random_gpt2(), tokens(3, 9)
    theirs.save_pretrained(tmp_path)
    assert load_gpt(str(tmp_path), 17).config.block_size == 16
    ours = load_gpt(str(tmp_path), 9, dropout=0.4).eval()
    assert ours.config.block_size == len(ours.wpe.weight) == 9
    assert {m.p for m in ours.modules() if isinstance(m, torch.nn.Dropout)} == {block.attn.dropout for block in ours.h} == {0.4}
    close(ours(idx)[0], theirs(idx).logits, 1e-4)


def test_weights_of_another_depth(tmp_path):
    """What they lack would otherwise be drawn at random"""
    random_gpt2(n_layer=1).save_pretrained(tmp_path)
    random_gpt2().config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match='weights do not fit the GPT2LMHeadModel of its config.json'):
        load_gpt(str(tmp_path))


def test_factors_that_the_weights_were_trained_without(tmp_path):
    """They would change the function, and no parameter would be missing"""
    config = dict(vocab_size=50, block_size=16, n_layer=2, n_head=4, n_embd=32, bias=True)
    before = GPT(GPTConfig(**config)).eval()
    write_model(before, tmp_path, 'gpt2')
    factors = dict(mix_ln=0.5, skip_scale='keel', norm_depth_scale=True, mup_base_width=8, mup_base_head_dim=4, mup_base_depth=1)
    after = load_pretrained(str(tmp_path), {**vars(GPTConfig(**config)), **factors, 'dataset': 'none'}).eval()
    assert torch.equal(after(tokens(3, 16))[0], before(tokens(3, 16))[0])
