# Zero-centred gains: 1 + γ, so that weight decay pulls a gain to 1; with it the norms decay (as Gemma and Qwen3-Next have it)
include('config/arch/llama.py')
norm_gain = 'zero_centred'
