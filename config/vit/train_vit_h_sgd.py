# ViT-H (632M) on ImageNet by momentum SGDW (DNT, tables 1, 3 and 4)
#     torchrun --nproc_per_node=8 train.py config/train_vit_h_sgd.py
# The paper's accuracy: 73.5.
out_dir = 'out-vit-h-sgd'
include('config/base/imagenet.py')
batch_size, gradient_accumulation_steps, eval_iters = 64, 16, 800       # as 80 GB hold it
include('config/arch/pre.py')
bias = True                             # as in timm
norm_eps = 1e-6
init = 'xavier_trunc'
include('config/optim/sgdw.py')
learning_rate = 0.1
min_lr = 1e-8
weight_decay = 1e-3
n_layer, n_head, n_embd, patch_size = 32, 16, 1280, 14
drop_path = 0.5
warmup_iters = 60 * 1281167 // 1024     # 60 epochs
