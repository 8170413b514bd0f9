# ViT-200 (1419M) on ImageNet by AdamW, without warm-up (Stable-Transformer, appendices J and L)
#     torchrun --nproc_per_node=8 -m vision.train config/vit/train_vit_200.py
# The paper's run of this model has a warm-up, and its loss spikes near epoch 56. For it, add 60 epochs, --warmup_iters=75068
# The paper does not have this file's run: the model that crashes there without warm-up is ViT-g (train_vit_g.py).
# The baseline's norm and initialization are not given; config/arch/pre.py says what they are here.
include('config/vit/train_stablevit_200.py')
include('config/arch/pre.py')
out_dir = 'out-vit-200'
