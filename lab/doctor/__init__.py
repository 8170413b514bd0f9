"""
Says why a run trains badly, or that it is healthy, from its log, its checkpoint and a short run of the same keys by clean code:

    case.py         a run's log, checkpoint and data as tables over the iterations
    reference.py    the clean code's start of the same run, and the usual start of the same architecture
    rules.py        the table of what is healthy and what is sick, with all thresholds
    report.py       the findings in words and pictures
"""
