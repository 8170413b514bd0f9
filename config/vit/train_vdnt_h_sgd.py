# V-DNT-H (632M) on ImageNet by momentum SGDW (DNT, tables 1, 3 and 4)
#     torchrun --nproc_per_node=8 -m vision.train config/vit/train_vdnt_h_sgd.py
# The paper reports an accuracy of 81.2%.
# Figure 6 (left) compares DNT's settings by this recipe: S1 is far behind, S3 is best, and S4 and S5 come close.
# This file has S5. For S1, and similarly S2, S3 and S4, add:
#     config/arch/s1.py --out_dir=out-vdnt-h-s1-sgd
include('config/vit/train_vdnt_l_sgd.py')
out_dir = 'out-vdnt-h-sgd'
n_layer, n_head, n_embd, patch_size = 32, 16, 1280, 14
drop_path = 0.5
batch_size, gradient_accumulation_steps, eval_iters = 64, 16, 800       # fits into 80 GB
learning_rate = 0.1
weight_decay = 1e-3
