# WSD as in sharpness disparity's code, which differs from their text (wsd.py). Between a third and two thirds of the iterations
# each type's rate falls from its own peak to the base rate. It then falls with the base rate to a tenth of that.
# Without Blockwise LR, which config/lr/blockwise.py adds, there is only the base rate.
include('config/lr/wsd.py')
blockwise = 'merge'
min_lr = learning_rate / 10
