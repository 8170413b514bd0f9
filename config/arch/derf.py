# Derf: Pre-LN with γ erf(a x + s) + β instead of LayerNorm (Chen et al. 2025). What dyt.py says about the start holds here too.
# With Muon erf saturates from a = 0.5, and 0.3 wins most of the loss back (arXiv:2604.01563, 1B, 1000 steps): --norm_alpha=0.3
include('config/arch/dyt.py')
norm = 'derf'
