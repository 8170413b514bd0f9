# StableViT-200 (1419M) on ImageNet by AdamW, without warm-up (Stable-Transformer, tables 1 and 3)
#     torchrun --nproc_per_node=8 -m vision.train config/vit/train_stablevit_200.py
# In the paper this model trains, and the loss of ViT-200 with warm-up spikes: see train_vit_200.py.
# The paper states 1439M parameters, but its shape has 1419M, also with patches of 14. It gives no patch size; 16 is our choice.
# The paper also trains for 60 epochs, --max_iters=75068, and for 300 epochs, --max_iters=375341
include('config/vit/train_stablevit_l.py')
out_dir = 'out-stablevit-200'
n_layer, n_head, n_embd, patch_size = 200, 12, 768, 16
batch_size, gradient_accumulation_steps, eval_iters = 16, 64, 3200      # fits into 80 GB
