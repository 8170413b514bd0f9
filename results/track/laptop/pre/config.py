# pre: how this entry differs from config/track/laptop.py. lab.track wrote this file; do not edit it.
_commit = '2eb634585c7e4badc9c10ec24e9e6a1f576ad2bd'      # of main; its code, with code.patch if there is one, trains the runs
_date = '2026-11-25'
