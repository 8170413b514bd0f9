# Sharpness disparity, appendix A.1 and table 3: AdamW's learning rate for each model on MiniPile, one GPU per run
#     python -m lab.sweep config/sweep/sharpness_minipile.py
arguments = 'config/base/sharpness_minipile.py'
out_dir = 'out-sweep/sharpness_minipile'
seeds = 1
_files = ['sharpness_gpt2', 'llama_0.13b', 'llama_0.25b', 'llama_0.5b']
_rates = [3e-4, 4.5e-4, 6e-4, 7.5e-4, 9e-4, 1.2e-3, 1.5e-3]
grids = [dict(model={_file: f'config/sharpness/train_{_file}_minipile.py' for _file in _files},
              learning_rate={_rate: f'--learning_rate={_rate} --min_lr={_rate / 20}' for _rate in _rates})]
