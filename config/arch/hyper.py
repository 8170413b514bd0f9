# Hyper-connections: four streams, and learned mixtures that depend on the input (Zhu et al. 2024, DHC×4 with tanh)
# The paper's models are OLMo's. It starts the output of branches larger by √n; here they start as in Pre-LN. It has LayerNorm in
# front of what makes the mixtures; here that is the norm of the model. Its dynamic part decays and its static part does not; so
# here, but for the vector that makes b. We have not seen the authors' code, only the version in FFTYYY/mhc-lite.
include('config/arch/llama.py')
residual = 'hyper'
streams = 4
