"""What reads the rows, tables and JSON of runs and sweeps: a damaged file ends in one line that names it and the remedy."""
import os

import pytest

from engine.errors import read_json, read_rows, read_table


def test_numbers_that_are_not_finite(tmp_path):
    """null, as our rows have it for them, is NaN where rows are read; a row that a kill has cut off is none"""
    path = tmp_path / 'a.jsonl'
    path.write_text('{"x": null}\n{"x": NaN}\n{"x": 2')
    rows = read_rows(str(path), 'x')
    assert len(rows) == 2 and all(row['x'] != row['x'] for row in rows)


def test_readers_name_the_file_and_the_remedy(tmp_path):
    path = str(tmp_path / 'a')
    for read in (lambda: read_json(path, 'mend it'), lambda: read_table(path, dict(x=int), 'mend it')):
        assert read() is None
        for content in '', 'x\n"', 'x\ny\n':
            with open(path, 'w', encoding='utf-8') as f:
                f.write(content)
            with pytest.raises(ValueError, match='a is damaged, mend it: '):
                read()
        os.remove(path)
