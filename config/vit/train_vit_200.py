# ViT-200 (1419M) on ImageNet by AdamW, without warm-up (Stable-Transformer, appendices J and L)
#     torchrun --nproc_per_node=8 -m vision.train config/vit/train_vit_200.py
# In the paper this run crashes. With 60 epochs of warm-up, --warmup_iters=75068, its loss spikes.
include('config/vit/train_stablevit_200.py')
include('config/arch/pre.py')
out_dir = 'out-vit-200'
