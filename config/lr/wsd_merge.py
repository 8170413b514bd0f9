# WSD as in sharpness disparity's code, which differs from their text (wsd.py). Between one third and two thirds of the iterations
# each type's rate falls from its own peak to the base rate. Then all fall together to a tenth of the base rate.
# Without Blockwise LR (config/lr/blockwise.py) there is only the base rate.
include('config/lr/wsd.py')
blockwise = 'merge'
min_lr = learning_rate / 10
