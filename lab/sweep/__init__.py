"""
Grids of runs, each with several seeds: what is trained, its table, its statistics, and what it says of claims.

plan.py has the runs of a grid, run.py trains them, table.py reads runs.csv, statistics.py compares, claims.py gives verdicts, and
pages.py makes results/. The command is  python -m lab.sweep
"""
