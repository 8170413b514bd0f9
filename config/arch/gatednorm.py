# GatedNorm: RMSNorm with a gate of rank 16 behind it, y ⊙ σ(W_up silu(W_down y)) (Qiu et al. 2026)
# From the paper; we have not seen its code. W_down and W_up step and decay as matrices do: with Adam-mini each row has a second
# moment of its own, and Muon orthogonalizes them.
include('config/arch/llama.py')
norm = 'gatednorm'
