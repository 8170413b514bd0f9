# Sharpness disparity: the sharpness of each block type during training, in GPT-2's and in LLaMA's architecture
#     python -m lab.sweep config/sweep/sharpness.py
arguments = 'config/base/laptop.py config/optim/adamw.py --learning_rate=4e-3 --measure_interval=40 --measure_batches=8'
out_dir = 'out-sweep/sharpness'
grids = [dict(arch=['pre', 'llama'])]
