# DeepNorm: Post-LN with α x on the skip, and smaller starts of W_v, W_o and the FFN (Wang et al. 2022, decoder-only)
include('config/arch/post.py')
skip_scale = 'deepnorm'
init = 'xavier'
