# nGPT: no norm layers; the stream and all matrices have length 1, learned rates α join the branches (Loshchilov et al. 2024)
# Weights start as any Gaussian and are normalized at once. Its runs have no weight decay and no warm-up: --weight_decay=0
# --warmup_iters=0, see config/train_ngpt_0.5b.py. Equations and starts follow the authors' code, github.com/NVIDIA/ngpt. In a
# ViT the patch embedding and the head keep their lengths.
include('config/arch/llama.py')
attn_pre_norm = False
ffn_pre_norm = False
final_norm = False
residual = 'ngpt'
attention = 'ngpt'
unit_weights = True
