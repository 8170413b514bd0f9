"""
The placement track: entries that change the block and nothing else, see results/track/README.md.

entry.py has an entry's folder, code, seeds and runs, check.py verifies one, probe.py is what the check asks an entry's code, and
table.py ranks entries. The command is  python -m lab.track
"""
