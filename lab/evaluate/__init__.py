"""
Score trained models: the loss on a whole split, the texts that they write, and tasks of lm-evaluation-harness.

split.py scores a split of a data set, tasks.py runs lm-evaluation-harness, scores.py compares models and shares the work among
ranks. The command is  python -m lab.evaluate
"""
