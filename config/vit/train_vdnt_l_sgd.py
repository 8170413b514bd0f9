# V-DNT-L (304M) on ImageNet by momentum SGDW (DNT, tables 1, 3 and 4)
#     torchrun --nproc_per_node=8 -m vision.train config/vit/train_vdnt_l_sgd.py
# The paper reports an accuracy of 81.5%. It states 307M parameters; its shape has 304M.
# The paper does not say whether V-DNT has biases. timm's ViT has them, and so does this model. To leave them out: --bias=False
out_dir = 'out-vdnt-l-sgd'
include('config/base/imagenet.py')
include('config/arch/s5.py')
include('config/optim/sgdw.py')
learning_rate = 0.5
min_lr = 1e-8
weight_decay = 2e-4
n_layer, n_head, n_embd, patch_size = 24, 16, 1024, 16
drop_path = 0.1
warmup_iters = 60 * 1281167 // 1024     # 60 epochs
