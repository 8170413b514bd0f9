# GPT-2 with Xavier initialization: DNT's baseline, and a run of Stable-Transformer's figure 2
include('config/arch/pre.py')
init = 'xavier'
