# StableViT-g (1013M; the paper writes 1011M) on ImageNet by AdamW, without warm-up (Stable-Transformer, tables 1 and 3)
#     torchrun --nproc_per_node=8 -m vision.train config/vit/train_stablevit_g.py
# In the paper this model trains. ViT (train_vit_g.py) crashes without warm-up, and its loss has a spike with warm-up.
# The paper also trains for 60 epochs, --max_iters=75068, and for 300 epochs, --max_iters=375341
include('config/vit/train_stablevit_l.py')
out_dir = 'out-stablevit-g'
n_layer, n_head, n_embd, d_ff, patch_size = 40, 16, 1408, 6144, 14
batch_size, gradient_accumulation_steps, eval_iters = 64, 16, 800       # fits into 80 GB
