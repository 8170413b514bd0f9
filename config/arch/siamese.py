# SiameseNorm: a Post-LN stream X and a Pre-LN stream Y share their branches, f(N(N(X) + N(Y))) (Li et al. 2026)
# As in its code for images (Qwen-Applications/SiameseNorm, deit-model-siamesenorm.py), whose matrices start with 0.02 too. In its
# code for OLMo attention reads c X + N(Y), c being learned, and norms queries, keys and values instead (HybridNorm). The paper
# itself, which we know from summaries, divides what X gets by √(l + 1) instead of √(2l), and its head reads X + N(Y).
include('config/arch/llama.py')
residual = 'siamese'
