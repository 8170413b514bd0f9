"""lab/gpu.py: its steps on a CPU with tiny sizes, and its page."""
import json

import pytest
from helpers import ROOT, call

from lab import gpu


def fails(scratch, sizes, device, until):
    gpu.python('-c', 'raise SystemExit("out of luck")', until=until)


def takes_long(scratch, sizes, device, until):
    gpu.python('-c', 'import time; time.sleep(600)', until=0)


def works(scratch, sizes, device, until):
    return gpu.python('-c', f'print({device!r})', until=until)


def test_a_step_that_fails_does_not_end_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, 'STEPS', {'one': fails, 'two': takes_long, 'three': works})
    monkeypatch.setattr(gpu.sys, 'argv', ['gpu.py', '--device=cpu', f'--out_dir={tmp_path}/gpu', '--name=here', '--minutes=1'])
    for key in 'device', 'out_dir', 'name', 'minutes', 'debug':
        monkeypatch.setattr(gpu, key, getattr(gpu, key, None), raising=False)      # configure sets them
    with pytest.raises(ValueError, match='2 of 3 steps failed: one; two'):
        gpu.main()
    steps = json.loads((tmp_path / 'gpu' / 'here.json').read_text(encoding='utf-8'))['steps']
    assert [(row['step'], row['ok'], row['said']) for row in steps] == [
        ('one', False, 'out of luck'), ('two', False, 'took longer than the time that was left'), ('three', True, 'cpu')]
    page = (tmp_path / 'gpu' / 'here.md').read_text(encoding='utf-8')
    assert '## One\n\nThis step failed:\n\n    out of luck\n' in page and '## Three\n\n    cpu\n' in page


def test_attention_against_float64():
    """Each kernel of this machine, within what its dtype can hold"""
    lines = [line.split() for line in call('lab.gpu', '--only=attention', '--tiny=True', '--device=cpu').splitlines()[1:]]
    assert len({(kind, dtype) for kind, dtype, *_ in lines}) == 3 * 2
    assert all(float(error) < (0.02 if dtype == 'bfloat16' else 2e-6) for _, dtype, _, error, _ in lines)


@pytest.mark.long
@pytest.mark.skipif(not (ROOT / 'data' / 'pycode' / 'meta.json').exists(), reason='data/pycode is not prepared')
def test_all_steps(tmp_path):
    out = call('lab.gpu', '--tiny=True', '--device=cpu', f'--out_dir={tmp_path}', '--name=here')
    assert 'FAILED' not in out
    assert 'difference under fsdp on one rank 0' in out
