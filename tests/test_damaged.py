"""What reads the rows, tables and JSON of runs and sweeps: a damaged file ends in one line that names it and the remedy."""


from engine.errors import read_rows


def test_numbers_that_are_not_finite(tmp_path):
    """null, as our rows have it for them, is NaN where rows are read; a row that a kill has cut off is none"""
    path = tmp_path / 'a.jsonl'
    path.write_text('{"iter": 0, "x": null}\n{"iter": 1, "x": NaN}\n{"iter": "ten", "x": 1}\n{"iter": 2, "x": 2')
    rows = read_rows(str(path))
    assert len(rows) == 2 and all(row['x'] != row['x'] for row in rows)


