# GPT-2 (124M) on OpenWebText under Pre-LN and Peri-LN, with and without residual scaling (LN stability, table 2)
#     torchrun --nproc_per_node=8 train.py config/ln/train_ln_124m.py
# The paper used H200s and does not say how many. Its validation losses, and the arguments to add (with an --out_dir):
#     Pre-LN              5.43
#     Pre-LN, Δt = 0.1    3.13    --residual_scale=0.1
#     Peri-LN             3.12    config/arch/peri.py
#     Peri-LN, Δt = 0.1   3.10    config/arch/peri.py --residual_scale=0.1
# For ROUGE and BERTScore of table 2 (Peri-LN: ROUGE-1, 2 and L 62.3, 25.4 and 42.8%, BERTScore's F1 90.0%):
#     python -m lab.evaluate --out_dir=out-ln-124m --what=loss,rouge,bertscore --samples=1000
# Table 1 counts how many of 5 runs diverge within 20K iterations. With weight decay: Pre-LN 1, Peri-LN 0. Without it: Pre-LN 3,
# Peri-LN 0. No norm at all: 5, in one cell for both. To count them, with one GPU for each run:
#     python -m lab.sweep config/ln/train_ln_124m.py --arch=pre,peri,off --weight_decay=0.1,0 --seeds=5 --max_iters=20000 \
#         --lr_decay_iters=100000 --diverged_loss=4.5 --diverged_rise=1 --out_dir=out-sweep/ln-table1
# The paper does not define "diverged". Table 2's unstable Pre-LN ends at 5.43 and its stable runs at 3.13 or less, so a run
# that ends above 4.5 counts. So does a run whose training loss once rises by 1: in results/csv/placements.csv none rises by more
# than 0.27. The seeds and the end of the rate's decay are our choice.
# The paper says only that learning rate, weight decay and others were tuned for Pre-LN. Here these, the batch, the warm-up and
# the final rate are nanoGPT's, but the cosine ends with the run; nanoGPT's ends at 600K iterations (--lr_decay_iters=600000).
# The paper's LayerNorm has a bias β (equation 5). nanoGPT's GPT-2 has no bias, and neither does this model.
# --bias=True adds β and the biases of the linear maps.
out_dir = 'out-ln-124m'
include('config/base/openwebtext.py')
include('config/arch/pre.py')
include('config/optim/adamw.py')
n_layer, n_head, n_embd = 12, 12, 768
max_iters = 100000
warmup_iters = 2000
