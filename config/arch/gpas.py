# GPAS: behind each branch the stream is scaled down by a learned gate, and its gradient is not (Chen et al. 2025)
include('config/arch/llama.py')
residual = 'gpas'
