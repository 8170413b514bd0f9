# GPAS: behind each branch the stream is scaled down by a learned gate, and its gradient is not (Chen et al. 2025)
# Ours has a gate for each branch. The authors' code (dandingsky/GPAS) has one for both branches of a block, embeddings with a
# standard deviation of √(2/5), --emb_std=0.632, Adam and no weight decay.
include('config/arch/llama.py')
residual = 'gpas'
