# Shared by sharpness disparity's runs on C4. Each trains on 20 tokens per parameter, in 512 windows of 256 tokens an iteration.
# The learning rate falls to a twentieth, as the paper says; in the authors' code for C4 it falls to a tenth.
# That code also cuts each document to 257 tokens, pads shorter ones, and ignores the padding in the loss. Here a window may
# continue into the next document, and all of its tokens count.
# Figure 5 (right) compares the final losses of these sizes by AdamW and with Blockwise LR. To train them and to list the losses:
#     for size in 66m 0.2b 0.4b 1b; do config=config/sharpness/train_llama_c4_$size.py
#         torchrun --nproc_per_node=4 train.py $config
#         torchrun --nproc_per_node=4 train.py $config config/lr/blockwise.py --out_dir=out-llama-c4-$size-blockwise; done
#     python -m lab.runs out-llama-c4-* --keys=n_layer,n_embd,r_emb
include('config/optim/adamw.py')
dataset = 'c4'
vocab_size = 32100                      # T5's
block_size = 256
batch_size = 64
gradient_accumulation_steps = 8         # 512 windows an iteration, for 1, 2, 4 or 8 GPUs
warmup_iters = 1000
# With Blockwise LR each type has its own peak after these 1000 iterations, one way of the authors' code. By the other, 'ramp',
# the embeddings of the 66M, which trains for 10,071 iterations, would warm up for 99% of the run.
blockwise = 'peak'
decay_norms = True                      # as in the authors' code
eval_interval = 1000
log_interval = 10
