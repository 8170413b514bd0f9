# StableViT's architecture: Stable-Transformer with the α that the paper uses for vision
include('config/arch/stable.py')
norm_alpha = 0.25
