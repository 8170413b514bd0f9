# AdamW as DNT's runs on OpenWebText use it (DNT, table 5)
include('config/optim/adamw.py')
warmup_iters = 2000
