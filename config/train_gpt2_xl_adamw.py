# GPT-2 XL (1436M) on OpenWebText by AdamW, DNT's baseline (DNT, tables 1 and 5)
#     torchrun --nproc_per_node=8 train.py config/train_gpt2_xl_adamw.py
# The paper's hardware: 32 A800. Its validation loss: 2.435.
# 1436M without position embeddings; GPT-2 XL is 1600 wide elsewhere, here it has the shape of its counterpart.
include('config/train_ldnt_xl_adamw.py')
include('config/arch/pre.py')
init = 'xavier'
out_dir = 'out-gpt2-xl-adamw'
learning_rate = 1.5e-4
