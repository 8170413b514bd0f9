# Hyper-connections: four streams, and learned mixtures that depend on the input (Zhu et al. 2024, DHC×4 with tanh)
# The paper's models are OLMo's. It starts the output of branches larger by √n; here they start as in Pre-LN.
include('config/arch/llama.py')
residual = 'hyper'
streams = 4
