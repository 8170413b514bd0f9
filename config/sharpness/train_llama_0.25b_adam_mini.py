# LLaMA 0.25B on OpenWebText by Adam-mini (sharpness disparity, figure 6)
#     torchrun --nproc_per_node=4 train.py config/sharpness/train_llama_0.25b_adam_mini.py
# With Blockwise LR, add:  config/lr/blockwise_adam_mini.py --out_dir=out-llama-0.25b-adam-mini-blockwise
# The paper used 4 A800 or H800. It shows its losses as curves, without numbers, and does not name the model.
# The paper chose each of the four ratios among 1, 2 and 4 (appendix A.3). To train all 81 combinations, one per GPU:
#     python -m lab.sweep config/sharpness/train_llama_0.25b_adam_mini.py --seeds=1 \
#         --r_emb=1,2,4 --r_qk=1,2,4 --r_ffn=1,2,4 --r_vo=1,2,4
include('config/sharpness/train_llama_0.25b.py')
out_dir = 'out-llama-0.25b-adam-mini'
optimizer = 'adam_mini'
decay_norms = False                     # as in the authors' Adam-mini
