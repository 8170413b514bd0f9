# V-DNT-H (632M) on ImageNet by AdamW (DNT, tables 1, 3 and 4)
#     torchrun --nproc_per_node=8 train.py config/train_vdnt_h_adamw.py
# The paper's accuracy: 81.9.
out_dir = 'out-vdnt-h-adamw'
include('config/base/imagenet.py')
batch_size, gradient_accumulation_steps, eval_iters = 64, 16, 800       # as 80 GB hold it
include('config/arch/s5.py')
init = 'xavier_trunc'
include('config/base/vit_adamw.py')
n_layer, n_head, n_embd, patch_size = 32, 16, 1280, 14
drop_path = 0.5
warmup_iters = 60 * 1281167 // 1024     # 60 epochs
