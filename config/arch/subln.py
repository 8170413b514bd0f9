# Sub-LN: a norm before W_o and before W_2 too, and larger W_v, W_o and FFN at the start (Magneto, Wang et al. 2022)
# √(ln(2 n_layer)) is the gain for decoders; the paper's other gains are for encoders with decoders.
include('config/arch/pre.py')
sub_norm = True
init = 'magneto'
