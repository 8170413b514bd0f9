# Sharpness disparity, appendix A.1 and table 3: AdamW's learning rate for each model on OpenWebText, one GPU per run
#     python -m lab.sweep config/sweep/sharpness_openwebtext.py
arguments = 'config/base/sharpness_openwebtext.py'
out_dir = 'out-sweep/sharpness_openwebtext'
seeds = 1
_files = ['sharpness_gpt2', *(f'llama_{_size}' for _size in ('0.25b', '0.5b', '0.75b', '1.1b', '2b'))]
_rates = [2e-4, 4e-4, 6e-4, 8e-4, 1e-3]
grids = [dict(model={_file: f'config/sharpness/train_{_file}.py' for _file in _files},
              learning_rate={_rate: f'--learning_rate={_rate} --min_lr={_rate / 20}' for _rate in _rates})]
