# S5 = DNT: S4 without the norm before the FFN (DNT, figure 6)
include('config/arch/s4.py')
ffn_pre_norm = False
