# Sharpness disparity: sharpness per block type through training, of GPT-2's and LLaMA's architecture
#     python sweep.py config/sweep/sharpness.py
arguments = 'config/base/laptop.py config/optim/adamw.py --learning_rate=4e-3 --measure_interval=40 --measure_batches=8'
out_dir = 'out-sweep/sharpness'
grids = [dict(arch=['pre', 'llama'])]
