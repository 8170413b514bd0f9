# Does nGPT beat the body that its authors compare it with? nGPT and LLaMA at 0.25M, with RoPE, SwiGLU and an untied head
#     python -m lab.sweep config/sweep/ngpt.py
# In placements.py, nGPT has GPT-2's FFN, positions and tied head. nGPT has neither weight decay nor warm-up, so only its rate is
# tuned. LLaMA starts by GPT-2's rule at this width, as in placements.py. Three seeds tune a row. All runs are compiled.
include('config/sweep/placements.py')
arguments = 'config/base/pysource.py config/optim/adamw.py --min_lr=0 --eval_interval=1100 --compile=True'
out_dir = 'out-sweep/ngpt'
csv = 'results/csv/ngpt.csv'
against = 'arch=llama'
codes = ''
grids = [dict(arch={'llama': f'config/arch/llama.py {_gpt2}'}, weight_decay=[0.03, 0.1, 0.3], learning_rate=[4e-3, 8e-3, 16e-3],
              ladder=_ladder),
         dict(arch={'ngpt': 'config/arch/ngpt.py --warmup_iters=0'}, weight_decay=[0.0], learning_rate=[4e-3, 8e-3, 16e-3],
              ladder=dict(learning_rate=_ladder['learning_rate']))]
