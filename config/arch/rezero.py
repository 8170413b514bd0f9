# ReZero: no norm, and one learned number on each branch, which starts at 0 (Bachlechner et al. 2020)
# Ours has a number for each branch. The authors' code (majumderb/rezero) has one for both branches of a layer, and starts
# matrices as PyTorch does.
include('config/arch/off.py')
branch_gain = 'rezero'
