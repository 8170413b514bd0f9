# mHC: hyper-connections whose streams are mixed by doubly stochastic matrices (Xie et al. 2025)
# As in transformers' DeepSeek-V4, without its 1e-6 beside a and in the sums. There the head reads a learned mixture of the
# streams, here their sum, as in hyper-connections. How the authors' models start is not published. Ours start like the mHC in
# mHC-lite's code (FFTYYY/mhc-lite), but there a branch's own stream is drawn at random, RMSNorm(vec H) has a gain, rows are
# divided before columns, the norm before the head is taken of each stream, and the constant parts of a and A decay too.
include('config/arch/hyper.py')
residual = 'mhc'
