# mHC: hyper-connections whose streams are mixed by doubly stochastic matrices (Xie et al. 2025)
# We have not seen the authors' code. That of mHC-lite (FFTYYY/mhc-lite) has an mHC too. Ours starts like it, but there a branch's
# own stream is drawn at random, RMSNorm(vec H) has a gain, and the constant parts of a and A decay too.
include('config/arch/hyper.py')
residual = 'mhc'
