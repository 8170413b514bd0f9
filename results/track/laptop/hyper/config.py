# hyper: how this entry differs from config/track/laptop.py. lab.track wrote this file; do not edit it.
_commit = '67e13dde48a0b6a3a02dee90bf57b64f9088b1dd'      # of main; its code, with code.patch if there is one, trains the runs
_date = '2026-11-25'
norm = 'rmsnorm'
norm_eps = 1e-06
residual = 'hyper'
init = 'normal'
