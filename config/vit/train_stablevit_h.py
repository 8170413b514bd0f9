# StableViT-H (632M) on ImageNet by AdamW, without warm-up (Stable-Transformer, tables 1 and 3)
#     torchrun --nproc_per_node=8 -m vision.train config/vit/train_stablevit_h.py
# The paper reports an accuracy of 81.8%. For its baseline, ViT-H with 60 epochs of warm-up (80.5%), add:
#     config/arch/pre.py --warmup_iters=75068 --out_dir=out-stablevit-baseline-h
# It also trains for 60 epochs, --max_iters=75068, and for 300 epochs, --max_iters=375341
# The baseline's norm and initialization are not given; config/arch/pre.py says what they are here.
include('config/vit/train_stablevit_l.py')
out_dir = 'out-stablevit-h'
n_layer, n_head, n_embd, patch_size = 32, 16, 1280, 14
batch_size, gradient_accumulation_steps, eval_iters = 64, 16, 800       # fits into 80 GB
