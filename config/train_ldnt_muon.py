# L-DNT-Small (124M) on OpenWebText by Muon, with the settings of DNT's AdamW
#     torchrun --nproc_per_node=8 train.py config/train_ldnt_muon.py
# DNT has no run by Muon, and no paper reports its loss. It was not trained here.
include('config/train_ldnt_adamw.py')
include('config/optim/muon.py')
out_dir = 'out-ldnt-muon'
