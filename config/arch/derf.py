# Derf: Pre-LN with γ erf(a x + s) + β instead of LayerNorm (Chen et al. 2025). What dyt.py says about the start holds here too.
include('config/arch/pre.py')
norm = 'derf'
