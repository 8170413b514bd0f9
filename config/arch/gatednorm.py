# GatedNorm: RMSNorm with a gate of rank 16 behind it, y ⊙ σ(W_up silu(W_down y)) (Qiu et al. 2026)
# From the paper; we have not seen its code. W_down and W_up start, step and decay as matrices do: the gate is near 1/2 at the
# start, with Adam-mini each row has a second moment of its own, and Muon orthogonalizes them. Norms of queries and keys, if
# there are any, have no gate.
include('config/arch/llama.py')
norm = 'gatednorm'
