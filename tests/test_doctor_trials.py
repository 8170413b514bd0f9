"""lab/doctor/trials.py and results/doctor/plants.py: every plant fits the code of today, and what makes one count."""
from configurator import ROOT, TRAIN, defaults_of, parse_args

import math
import runpy
from collections import Counter

import pytest

from lab.doctor.rules import RULES
from lab.doctor.trials import CAUSES, counts, edited, plants_of, scores
from model import GPTConfig

TABLE = runpy.run_path(f'{ROOT}/results/doctor/plants.py')
PLANTS = plants_of(TABLE)


@pytest.mark.parametrize('name', PLANTS)
def test_a_plant_fits_the_code(name, monkeypatch):
    """Its edits change the code, which still parses, and its keys change those of its twin."""
    monkeypatch.chdir(ROOT)
    _, twin, keys, edits = PLANTS[name]
    for file, text in edited(edits).items():
        assert text != open(file, encoding='utf-8').read()
    defaults, arguments = defaults_of(TRAIN, GPTConfig), TABLE['HEALTHY'][twin][0].split()
    assert bool(keys) == (parse_args(arguments, defaults) != parse_args(arguments + keys.split(), defaults))
    assert keys or edits


def test_plants_cover_the_causes():
    assert set(TABLE['PLANTS']) == set(CAUSES)
    for cause in CAUSES:
        assert len({twin for of, twin, _, _ in PLANTS.values() if of == cause}) >= 3, cause
    assert sum(bool(edits) for *_, edits in PLANTS.values()) >= len(PLANTS) / 2
    assert Counter(name.endswith('-wide') for name in TABLE['HEALTHY']) == {False: 24, True: 24}


def test_an_edit_whose_text_is_not_there_once_is_refused(tmp_path):
    (tmp_path / 'code.py').write_text('a = 1\nb = 1\n')
    assert edited([('code.py', 'a = 1', 'a = 2'), ('code.py', 'a = 2', 'a = 3')], tmp_path) == {'code.py': 'a = 3\nb = 1\n'}
    for text, times in (('1', 2), ('c', 0)):
        with pytest.raises(ValueError, match=f'{times} times'):
            edited([('code.py', text, 'x')], tmp_path)


def test_what_counts(tmp_path):
    """A plant counts by its loss, a spike by the event, a fault of decay by a norm, and a diverged run always."""
    def run(last, losses, norm, **more):
        steps = [dict(iter=it, loss=loss, weight_norms=dict(qk=norm, emb=1.0)) for it, loss in enumerate(losses)]
        rows = [*steps, dict(iter=2, train_loss=last, val_loss=last)]
        return dict(folder=tmp_path, config=dict(max_iters=2), rows=[*rows, *([more] if more else [])])

    twin = run(2.0, [3.0, 2.0], 1.0)
    assert counts('step', run(1.9, [3.0, 2.0], 1.0), twin) and counts('step', run(2.1, [3.0, 2.0], 1.0), twin)
    assert not counts('step', run(2.01, [3.0, 2.0], 2.0), twin) and counts('decay', run(2.01, [3.0, 2.0], 2.0), twin)
    assert not counts('spike_batch', run(2.1, [3.0, 2.1], 1.0), twin) and counts('spike_batch', run(2.0, [3.0, 2.6], 1.0), twin)
    assert counts('step', run(2.0, [3.0, math.nan], 1.0, iter=2, diverged='the loss'), twin)


def test_the_page_counts_what_the_trials_found(monkeypatch):
    monkeypatch.chdir(ROOT)
    counted = scores(*(f'results/doctor/{name}.csv' for name in ('trials', 'held_out', 'held_out_2')))
    assert counted in open('docs/doctor.md', encoding='utf-8').read()


def test_every_cause_of_a_rule_is_one_cause_of_the_plants():
    for rule in RULES:
        assert [rule.cause.startswith(beginning) for beginning in CAUSES.values()].count(True) == 1, rule.cause
