"""
OpenWebText in GPT-2's BPE, with nanoGPT's split: about 9 billion training and 4.4 million validation tokens, 18 GB.

    python data/openwebtext/prepare.py --limit=10000    # a trial; without a limit it takes tens of GB more
"""
import runpy
import sys
from pathlib import Path

sys.argv.insert(1, '--name=openwebtext')
runpy.run_path(str(Path(__file__).resolve().parents[1] / 'prepare.py'), run_name='__main__')
