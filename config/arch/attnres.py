# AttnRes: a branch reads a mean of the embedding and all branches before it, by attention over the depth (Kimi Team 2026)
# Each branch, and the head, has a query w, which starts at 0 and does not decay, and an RMSNorm. This is the full form: the
# paper's sums over blocks of layers, which the code of Kimi K3 has too, are left out, and memory grows with the square of the
# depth. The paper's models are Kimi Linear's, with experts.
include('config/arch/llama.py')
residual = 'attnres'
