"""A few of the attacks of `make attack`, and that it tells what went wrong."""
import attack
import pytest


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """One process a run, because ranks take long to start"""
    monkeypatch.setattr(attack, 'WAYS', {'one process': attack.WAYS['one process']})


@pytest.mark.long
def test_a_few_attacks(capsys):
    assert attack.main(['--kills=1', '--disks=1', '--cases=6', '--changes=2']) == 0, capsys.readouterr().out
    assert '1 disks, 6 cases, 2 changes: 0 failed' in capsys.readouterr().out


def test_an_attack_that_succeeds(monkeypatch, capsys):
    """Is told with the command that repeats it, which tells all"""
    monkeypatch.setattr(attack, 'case', lambda draw, number, *rest: attack.different([draw.random()], [0.5], f'case {number}'))
    monkeypatch.setattr(attack, 'lay_out', lambda place: place.mkdir())
    assert attack.main(['--kills=0', '--disks=0', '--cases=3', '--changes=0', '--seed=5']) == 1
    out = capsys.readouterr().out
    assert '3 cases, 0 changes: 3 failed' in out and 'make attack ARGS="--seed=5 --only=case-2"' in out
    assert attack.main(['--seed=5', '--only=case-2']) == 1
    assert capsys.readouterr().out.endswith('1 cases: 1 failed\ncase 2, 0 differs\n')


@pytest.mark.parametrize('err', ['', 'error: a\nerror: b\n', 'a warning\nerror: a\n', 'Traceback\nerror: a\n'])
def test_what_is_no_clear_line(err):
    attack.one_line('', 'error: a\n')
    with pytest.raises(AssertionError):
        attack.one_line('', err)
