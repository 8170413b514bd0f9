# Sharpness disparity, appendix A.1 and table 4: AdamW's learning rate for each model on C4, one GPU per run
#     python -m lab.sweep config/sweep/sharpness_c4.py
arguments = 'config/base/sharpness_c4.py'
out_dir = 'out-sweep/sharpness_c4'
seeds = 1
_sizes = ['66m', '0.2b', '0.4b', '1b']
_rates = [1e-4, 2e-4, 3e-4, 6e-4, 1e-3, 1.5e-3]
grids = [dict(model={_size: f'config/sharpness/train_llama_c4_{_size}.py' for _size in _sizes},
              learning_rate={_rate: f'--learning_rate={_rate} --min_lr={_rate / 20}' for _rate in _rates})]
