# V-DNT-L (304M) on ImageNet by AdamW (DNT, tables 1, 3 and 4)
#     torchrun --nproc_per_node=8 -m vision.train config/vit/train_vdnt_l_adamw.py
# The paper reports an accuracy of 82.1%. It states 307M parameters; its shape has 304M.
# train_vit_l_adamw.py has the commands for figure 1.
include('config/vit/train_vdnt_l_sgd.py')
include('config/base/vit_adamw.py')
out_dir = 'out-vdnt-l-adamw'
