# Hyper-connections: four streams, and learned mixtures that depend on the input (Zhu et al. 2024, DHC×4 with tanh)
# As in the paper's algorithm 2, but that has LayerNorm in front of what makes the mixtures, and ours the norm of the model. The
# paper's models are OLMo's. It starts the output of branches larger by √n; here they start as in Pre-LN. Its dynamic part decays
# and its static part does not; so here, but for the vector that makes b and the factors s, which do not decay either.
include('config/arch/llama.py')
residual = 'hyper'
streams = 4
