# LLaMA 0.25B on OpenWebText by AdamW with the schedule WSD (sharpness disparity, figure 7)
#     torchrun --nproc_per_node=4 train.py config/sharpness/train_llama_0.25b_wsd.py
# With Blockwise LR, add:  config/lr/blockwise.py --out_dir=out-llama-0.25b-wsd-blockwise
# The paper used 4 A800 or H800. It shows its losses as curves, without numbers, and does not name the model.
# In the authors' code the schedule ends at a tenth of the base rate, not at 0. With Blockwise LR each type's rate first falls to
# the base rate, between one third and two thirds of the iterations. To train like that, add:
#     config/lr/wsd_merge.py config/lr/blockwise.py --out_dir=out-llama-0.25b-wsd-merge
# That code also takes AdamW's β1 for its β2, which looks like a slip: --beta2=0.9
include('config/sharpness/train_llama_0.25b.py')
include('config/lr/wsd.py')
out_dir = 'out-llama-0.25b-wsd'
