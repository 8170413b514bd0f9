# Shared by sharpness disparity's runs on OpenWebText, with 50K iterations; for runs with 100K, add --max_iters=100000
# Figure 5 (middle) compares the final losses of these sizes by AdamW and with Blockwise LR. To train them and to list the losses:
#     for size in 0.25b 0.5b 0.75b 1.1b 2b; do config=config/sharpness/train_llama_$size.py
#         torchrun --nproc_per_node=4 train.py $config
#         torchrun --nproc_per_node=4 train.py $config config/lr/blockwise.py --out_dir=out-llama-$size-blockwise; done
#     python -m lab.runs out-llama-{0.25,0.5,0.75,1.1,2}b{,-blockwise} --keys=n_layer,n_embd,r_emb
include('config/base/openwebtext.py')
include('config/optim/adamw.py')
max_iters = 50000
warmup_iters = 1000
decay_norms = True                      # as in the authors' code
