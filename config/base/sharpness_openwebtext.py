# Shared by sharpness disparity's runs on OpenWebText, with 50K iterations; for runs with 100K, add --max_iters=100000
include('config/base/openwebtext.py')
include('config/optim/adamw.py')
max_iters = 50000
warmup_iters = 1000
decay_norms = True                      # as in the authors' code
