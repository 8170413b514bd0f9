"""Reading a table that a user may have damaged or changed"""
import csv
import os


def read_table(path, kinds, remedy):
    """Return the rows of a CSV file as dicts, at least one, or None if there is no file. `kinds` has the type of each column that
    is not text; a column with a ? behind its name may be missing. Raise ValueError, with the remedy, for another file."""
    if not os.path.exists(path):
        return None
    try:
        with open(path, encoding='utf-8', newline='') as f:
            rows = [{**row, **{key.rstrip('?'): kind(row[key.rstrip('?')]) for key, kind in kinds.items()
                               if key.rstrip('?') in row or not key.endswith('?')}} for row in csv.DictReader(f)]
        if not rows or any(None in row or None in row.values() for row in rows):
            raise ValueError('it has no rows, or rows of another length')
        return rows
    except (ValueError, TypeError, KeyError, csv.Error) as error:
        raise ValueError(f'{path} is damaged, {remedy}: {error}') from error
