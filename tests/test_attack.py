"""A few of the attacks of `make attack`."""
import attack
import pytest


@pytest.mark.long
def test_a_few_attacks(monkeypatch, capsys):
    """One process a run, because ranks take long to start"""
    monkeypatch.setattr(attack, 'WAYS', {'one process': attack.WAYS['one process']})
    failed = attack.main(['--kills=1', '--changes=2'])
    assert not failed and '2 changes: 0 failed' in capsys.readouterr().out
