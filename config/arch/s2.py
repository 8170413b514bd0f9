# S2: S1 with a norm on queries and keys (DNT, figure 6)
include('config/arch/s1.py')
qk_norm = True
