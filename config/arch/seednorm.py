# SeeDNorm: RMSNorm whose gain depends on its input, (γ + α tanh(x·β)) ⊙ x / RMS(x) (Cai et al. 2025)
include('config/arch/llama.py')
norm = 'seednorm'
