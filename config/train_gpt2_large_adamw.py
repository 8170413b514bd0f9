# GPT-2 Large (774M) on OpenWebText by AdamW, DNT's baseline (DNT, tables 1 and 5)
#     torchrun --nproc_per_node=8 train.py config/train_gpt2_large_adamw.py
# The paper's hardware: 16 A800. Its validation loss: 2.492.
include('config/train_ldnt_large_adamw.py')
include('config/arch/pre.py')
init = 'xavier'
out_dir = 'out-gpt2-large-adamw'
learning_rate = 2.5e-4
