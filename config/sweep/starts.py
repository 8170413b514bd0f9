# What is the start worth, and what the norms? Four placements of placements.py, each by the other family's start
#     python -m lab.sweep config/sweep/starts.py
# In placements.py, S1 to S5 start by Xavier's rule, with an embedding that starts like a head, as in DNT. All others start by
# GPT-2's rule. Here S1 and DNT start by GPT-2's, and Pre-LN and Peri-LN by Xavier's. All else is that of placements.py, with
# whose rows they are compared, and they are tuned in the same way.
include('config/sweep/placements.py')
out_dir = 'out-sweep/starts'
csv = 'results/csv/starts.csv'
against = ''
codes = ''
_xavier = '--init=xavier --init_gain=1.0 --emb_init=head --fused_qkv_init=True'
_by_start = {'gpt2': (f'--init=gpt2 --emb_init=normal {_gpt2} --fused_qkv_init=False', ('s1', 's5')),
             'xavier': (_xavier, ('pre', 'peri'))}
grids = [dict(grids[0], arch={name: f'config/arch/{name}.py {_body}' for name in names}, start={start: keys})
         for start, (keys, names) in _by_start.items()]
