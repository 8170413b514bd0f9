# Zero-centred gains: LLaMA whose gains are 1 + γ, so that weight decay pulls them to 1 (Gemma, Qwen3-Next)
# Norms decay only with --decay_norms=True.
include('config/arch/llama.py')
norm_gain = 'zero_centred'
