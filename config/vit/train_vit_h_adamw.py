# ViT-H (632M) on ImageNet by AdamW (DNT, tables 1, 3 and 4)
#     torchrun --nproc_per_node=8 train.py config/train_vit_h_adamw.py
# The paper's accuracy: 80.8.
out_dir = 'out-vit-h-adamw'
include('config/base/imagenet.py')
batch_size, gradient_accumulation_steps, eval_iters = 64, 16, 800       # as 80 GB hold it
include('config/arch/pre.py')
bias = True                             # as in timm
norm_eps = 1e-6
init = 'xavier_trunc'
include('config/base/vit_adamw.py')
n_layer, n_head, n_embd, patch_size = 32, 16, 1280, 14
drop_path = 0.5
warmup_iters = 60 * 1281167 // 1024     # 60 epochs
