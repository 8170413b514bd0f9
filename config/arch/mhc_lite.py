# mHC-lite: mHC whose mixing matrices are means of permutation matrices, with learned weights (Yang and Gao 2026)
# As in its code (FFTYYY/mhc-lite), the permutation that moves nothing starts with 0.99 of the weight, and only matrices decay.
# The code's models are nanoGPT's, its branches start from a random stream each, its RMSNorm of the streams has a gain, and the
# norm before the head is taken of each stream.
include('config/arch/mhc.py')
residual = 'mhc_lite'
