# Sharpness disparity, appendix A.1 and tables 3 and 4: AdamW's learning rate for each model, one GPU per run
#     python -m lab.sweep config/sweep/sharpness.py
# Appendix A.3 also tries rates of Lion as shares of that of AdamW, each with its weight decay. The paper chose 1/5 and 0.5, as in
# config/sharpness/train_llama_0.25b_lion.py, and does not say on which model.
out_dir = 'out-sweep/sharpness'
seeds = 1
_models = {          # {rates: files of config/sharpness/}
    (1e-4, 2e-4, 3e-4, 6e-4, 1e-3, 1.5e-3): [f'llama_c4_{size}' for size in ('66m', '0.2b', '0.4b', '1b')],
    (3e-4, 4.5e-4, 6e-4, 7.5e-4, 9e-4, 1.2e-3, 1.5e-3): [f'{model}_minipile' for model in (
        'sharpness_gpt2', 'llama_0.13b', 'llama_0.25b', 'llama_0.5b')],
    (2e-4, 4e-4, 6e-4, 8e-4, 1e-3): ['sharpness_gpt2', *(f'llama_{size}' for size in ('0.25b', '0.5b', '0.75b', '1.1b', '2b'))]}
_lion = {8e-4 / share: decay for share, decay in ((3, 0.3), (5, 0.5), (10, 1.0))}
grids = [dict(model={name: f'config/sharpness/train_{name}.py' for name in names},
              rate={f'{rate:g}': f'--learning_rate={rate} --min_lr={rate / 20}' for rate in rates})
         for rates, names in _models.items()]
grids += [dict(model={'llama_0.25b_lion': 'config/sharpness/train_llama_0.25b_lion.py'},
               rate={f'{rate:.3g}': f'--learning_rate={rate} --min_lr={rate / 20} --weight_decay={decay}'
                     for rate, decay in _lion.items()})]
