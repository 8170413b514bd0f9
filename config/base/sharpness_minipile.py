# Shared by sharpness disparity's runs on MiniPile, with 30K iterations; for runs with 60K, add --max_iters=60000
# Figure 5 (left) compares the final losses of these sizes by AdamW and with Blockwise LR. To train them and to list the losses:
#     for size in 0.13b 0.25b 0.5b; do config=config/sharpness/train_llama_${size}_minipile.py
#         torchrun --nproc_per_node=4 train.py $config
#         torchrun --nproc_per_node=4 train.py $config config/lr/blockwise.py --out_dir=out-llama-$size-minipile-blockwise; done
#     python -m lab.runs out-llama-*-minipile* --keys=n_layer,n_embd,r_emb
include('config/base/sharpness_openwebtext.py')
dataset = 'minipile'
block_size = 512
batch_size = 75                         # fits into 80 GB
gradient_accumulation_steps = 4         # 300 windows an iteration, for 1, 2 or 4 GPUs; for 3, 6 or 12 GPUs, use 12 × 25 windows
max_iters = 30000
warmup_iters = 600
