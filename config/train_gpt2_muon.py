# GPT-2 (124M) on OpenWebText by Muon, with the settings of AdamW in DNT's baseline
#     torchrun --nproc_per_node=8 train.py config/train_gpt2_muon.py
# DNT has no run by Muon, and no paper reports its loss. It was not trained here.
include('config/train_gpt2_adamw.py')
include('config/optim/muon.py')
out_dir = 'out-gpt2-muon'
