"""lab/gpu.py: its commands on a CPU with tiny models, and its page."""
import pytest
from helpers import ROOT

from lab import gpu
from lab.gpu import Step

TRAINS = """
import json, os, sys
keys = dict(word[2:].split('=') for word in sys.argv[1:])
os.mkdir(keys['out_dir'])
print('7 parameters on 1 × a CPU')
with open(keys['out_dir'] + '/log.jsonl', 'w') as f:
    for it, loss in enumerate(map(float, keys['losses'].split(','))):
        print(json.dumps(dict(iter=it, loss=loss, tokens_per_s=1000 * loss)), file=f)
"""


@pytest.fixture
def main(tmp_path, monkeypatch):
    """lab.gpu with these keys, in tmp_path → the sections of its page"""
    for key in 'device', 'minutes', 'only', 'tiny', 'debug':
        monkeypatch.setattr(gpu, key, getattr(gpu, key, None), raising=False)      # configure sets them
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(gpu.sys, 'argv', ['gpu.py', '--device=cpu', *arguments])
        failed = ''
        try:
            gpu.main()
        except ValueError as error:
            failed = str(error)
        sections = (tmp_path / 'out-gpu' / 'page.md').read_text(encoding='utf-8').split('\n## ')
        return {section.partition('\n')[0]: section for section in sections}, failed
    return run


def test_a_command_that_fails_does_not_end_the_others(tmp_path, monkeypatch, main):
    (tmp_path / 'train.py').write_text(TRAINS, encoding='utf-8')
    (tmp_path / 'fails.py').write_text('print("so far"); raise SystemExit("ValueError: out of luck")')
    (tmp_path / 'long.py').write_text('import time; print("begins", flush=True); time.sleep(600)')
    monkeypatch.setattr(gpu, 'STEPS', [
        Step('first', 60, 'train.py --out_dir=out-gpu/a --losses=4,3,2'), Step('fails', 60, 'fails.py'),
        Step('slow', 2, 'long.py'), Step('near', 60, 'train.py --out_dir=out-gpu/b --losses=4,3,2.5', 'first', 0.5),
        Step('far', 60, 'train.py --out_dir=out-gpu/c --losses=4,3,2.5', 'first', 0.4),
        Step('rises', 60, 'train.py --out_dir=out-gpu/d --losses=4,3,5')])
    monkeypatch.setattr(gpu, 'ROOT', tmp_path)
    sections, failed = main()
    assert failed.endswith(': fails; slow; far; rises')
    assert list(sections)[1:] == ['first', 'fails', 'slow', 'near', 'far', 'rises']
    assert 'loss 4.0000 to 2.0000 in 3 iterations, 2,000 tokens/s' in sections['first']
    for name, says in ('fails', 'out of luck.\n\n    so far'), ('slow', '2 s.\n\n    begins'), ('far', '0.4 is allowed.'):
        assert '**Failed:**' in sections[name] and says in sections[name]
    assert 'Failed' not in sections['near'] and 'does not decrease' in sections['rises']


@pytest.mark.long
@pytest.mark.timeout(3600)         # 22 processes
@pytest.mark.skipif(not (ROOT / 'data' / 'pycode' / 'meta.json').exists(), reason='data/pycode is not prepared')
def test_all_commands(main, monkeypatch):
    """Without a compiler, and with time for a busy machine"""
    monkeypatch.setenv('CXX', 'no-such-compiler')
    monkeypatch.setattr(gpu, 'STEPS', [step._replace(seconds=3600) for step in gpu.STEPS])
    sections, failed = main('--minutes=600', '--tiny=True')
    assert not failed and len(sections) == 1 + len(gpu.STEPS)
    assert 'its losses differ from those of exact by 0.00e+00; 0 is allowed' in sections['exact-half, resumed']
