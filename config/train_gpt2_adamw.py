# GPT-2 (124M) on OpenWebText by AdamW, DNT's baseline (DNT, tables 1 and 5)
#     torchrun --nproc_per_node=8 train.py config/train_gpt2_adamw.py
# The paper's hardware: 8 A800. Its validation loss: 2.867.
include('config/train_ldnt_adamw.py')
include('config/arch/pre.py')
init = 'xavier'
out_dir = 'out-gpt2-adamw'
