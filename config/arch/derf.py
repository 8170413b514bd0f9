# Derf: Pre-LN with γ erf(a x + s) + β instead of LayerNorm (Chen et al. 2025)
# What dyt.py says about the start holds here too; s starts at 0. With Muon Derf is 0.66 nats further behind RMSNorm than with
# AdamW if a = 0.5, and 80% of that less if a = 0.3 (arXiv:2604.01563, 1B, 1000 steps): --norm_alpha=0.3. DyT is not.
include('config/arch/dyt.py')
norm = 'derf'
