# ReZero: no norm, and one learned number on each branch, which starts at 0 (Bachlechner et al. 2020)
include('config/arch/off.py')
branch_gain = 'rezero'
