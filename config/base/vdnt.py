# V-DNT's architecture: DNT with truncated Xavier initialization (DNT, table 4)
include('config/arch/s5.py')
init = 'xavier_trunc'
