# tempered: how this entry differs from config/track/laptop.py. lab.track wrote this file; do not edit it.
_commit = '8170aa9eeffd110bf7e237b2c1839399f97252f1'      # of main; its code, with code.patch if there is one, trains the runs
_date = '2026-11-25'
norm = 'tempered'
