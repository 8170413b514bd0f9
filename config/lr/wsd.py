# Warm-up, stable, decay: the rate falls linearly to 0 over the last third of the iterations
# (sharpness disparity, section 6.3 and appendix A.3)
schedule = 'wsd'
decay_frac = 1 / 3
min_lr = 0.0
