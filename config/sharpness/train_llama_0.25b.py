# LLaMA 0.25B on OpenWebText by AdamW (sharpness disparity, table 3 and figure 4)
#     torchrun --nproc_per_node=4 train.py config/sharpness/train_llama_0.25b.py
# The paper used 4 A800 or H800. Its losses after 50K iterations (table 2), and the arguments to add (with an --out_dir):
#     AdamW                                           2.834
#     AdamW, larger rate for the embeddings           2.818    --r_emb=10
#     AdamW, larger rates for embeddings and FFN      2.791    --r_emb=10 --r_ffn=6
#     AdamW, Blockwise LR                             2.784    config/lr/blockwise.py
#     AdamW, twice the rate for the norms             2.837    --r_norm=2
# Figures 2 (left), 3 (b) and 9 show the first run's sharpness, and figure 8 its parameter norms. To measure them during training
# and at its end, on 1020 windows, for the paper's B = 1024:
#     torchrun --nproc_per_node=4 train.py config/sharpness/train_llama_0.25b.py --measure_interval=500 --measure_batches=34
#     python -m lab.measure --out_dir=out-llama-0.25b --what=sharpness,layers --batches=34
#     python -m lab.plot out-llama-0.25b --what=sharpness
#     python -m lab.plot out-llama-0.25b --what=sharpness.qk.layers.log10_mean
#     python -m lab.plot out-llama-0.25b --what=parameters.means
# The first picture shows figures 2 and 3, the second QK's sharpness over iterations. The third is figure 8 (a) and (b); for (c)
# add parameters.embedding.frobenius. parameters.w1.frobenius and the like draw a curve for each layer. lab.measure draws figure
# 9 (a) in layers.png. For figure 9 (b), each type's sharpness in each layer at the end:
#     python -c "from matplotlib import pyplot as p; from lab.plot import read_measured as read
#     for kind, measured in read('out-llama-0.25b', 'sharpness').items():
#         p.plot([layer['log10_mean'] for layer in measured['layers']], label=kind)
#     p.legend(); p.savefig('out-llama-0.25b/figure9b.png')"
include('config/base/sharpness_openwebtext.py')
include('config/arch/llama.py')
out_dir = 'out-llama-0.25b'
n_layer, n_head, n_embd = 8, 16, 1024
learning_rate = 8e-4
min_lr = learning_rate / 20
