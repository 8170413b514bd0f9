# GPT-2 (124M) on OpenWebText by momentum SGDW, DNT's baseline (DNT, tables 1 and 5)
#     torchrun --nproc_per_node=8 train.py config/train_gpt2_sgd.py
# The paper's hardware: 8 A800. Its validation loss: 2.906.
# The paper does not state the baseline's norm; here it is nanoGPT's LayerNorm.
include('config/train_ldnt_sgd.py')
include('config/arch/pre.py')
init = 'xavier'
out_dir = 'out-gpt2-sgd'
