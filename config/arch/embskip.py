# Embedding skip: Pre-LN in which each block sees λ x + μ x₀, x₀ being the embedding (modded-nanogpt)
include('config/arch/pre.py')
embedding_skip = True
