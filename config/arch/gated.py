# Gated attention: the output of attention times sigmoid(W_g x), before W_o (Qiu et al. 2025)
# The paper's first choice: a gate for each channel of each head, computed from what attention reads. Its models are like LLaMA's.
include('config/arch/llama.py')
attn_gate = True
