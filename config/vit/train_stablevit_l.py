# StableViT-L (304M) on ImageNet by AdamW, without warm-up (Stable-Transformer, tables 1 and 3)
#     torchrun --nproc_per_node=8 -m vision.train config/vit/train_stablevit_l.py
# The paper reports an accuracy of 82.4%, after "150 or 300 epochs"; this file has 150. It states 307M; its shape has 304M.
# For its baseline, ViT-L with 60 epochs of warm-up (81.3%), add:
#     config/arch/pre.py --warmup_iters=75068 --out_dir=out-stablevit-baseline-l
# The baseline keeps this file's stochastic depth of 0.5; DNT's ViT-L (train_vit_l_adamw.py) has 0.1. The baseline's norm and
# initialization are not given; config/arch/pre.py has timm's LayerNorm, and DNT's truncated Xavier initialization.
# q, k and v have biases, as in timm. Code 1 of the paper has none by default: --qkv_bias=False
# It also trains for 60 epochs, --max_iters=75068, and for 300 epochs, --max_iters=375341
out_dir = 'out-stablevit-l'
include('config/base/imagenet.py')
include('config/arch/stable.py')
include('config/base/vit_adamw.py')
n_layer, n_head, n_embd, patch_size = 24, 16, 1024, 16
drop_path = 0.5
