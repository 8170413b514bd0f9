# Peri-LN: a norm before and after each branch, x + LN(f(LN(x))) (LN stability, equation 8)
include('config/arch/pre.py')
mid_norm = True
