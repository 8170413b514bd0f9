# SiameseNorm: a Post-LN stream X and a Pre-LN stream Y share their branches, f(N(N(X) + N(Y))) (Li et al. 2026)
# As in its code for images. Its code for OLMo has norms on queries, keys and values instead of attention's on X (HybridNorm). The
# paper itself, which we know from summaries, divides what X gets by √(l + 1) instead of √(2l), and its head reads X + N(Y).
include('config/arch/llama.py')
residual = 'siamese'
