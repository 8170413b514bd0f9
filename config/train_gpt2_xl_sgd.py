# GPT-2 XL (1436M) on OpenWebText by momentum SGDW, DNT's baseline (DNT, tables 1 and 5)
#     torchrun --nproc_per_node=8 train.py config/train_gpt2_xl_sgd.py
# The paper used 32 A800 and reports a validation loss of 2.472.
# It does not say which norm its baseline has. Here it is nanoGPT's LayerNorm. The shape is that of L-DNT-XL, as in the paper;
# elsewhere GPT-2 XL is 1600 wide. The 1436M leave out the position embeddings; with them there are 1438M.
include('config/train_ldnt_xl_sgd.py')
include('config/base/gpt2_xavier.py')
out_dir = 'out-gpt2-xl-sgd'
