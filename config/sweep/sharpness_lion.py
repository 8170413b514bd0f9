# Sharpness disparity, appendix A.3: Lion's learning rate, as a share of AdamW's, and the weight decay that goes with each
#     python -m lab.sweep config/sweep/sharpness_lion.py
# The paper chose 1/5 and 0.5, as in config/sharpness/train_llama_0.25b_lion.py. It does not say on which model. One GPU per run.
arguments = 'config/sharpness/train_llama_0.25b_lion.py'
out_dir = 'out-sweep/sharpness_lion'
seeds = 1


def _lion(share, decay):
    rate = 8e-4 / share
    return f'--learning_rate={rate} --min_lr={rate / 20} --weight_decay={decay}'


grids = [dict(rate={'a third': _lion(3, 0.3), 'a fifth': _lion(5, 0.5), 'a tenth': _lion(10, 1.0)})]
