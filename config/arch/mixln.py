# Mix-LN: the first quarter of the blocks Post-LN, the others Pre-LN (Li et al. 2024)
# In the authors' code (pixeli99/MixLN) it is a LLaMA; W_o and W_2 start as large as other matrices, --init=normal, and embeddings
# with a standard deviation of √(2/5), --emb_std=0.632; it trains by Adam without weight decay. Ours starts as GPT-2, W_o and W_2
# smaller by √2L.
include('config/arch/pre.py')
mix_ln = 0.25
