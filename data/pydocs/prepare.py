"""
English prose: the documentation of well-known Python projects (.rst, .md, .txt) without its code, as bytes. The source archives
are pinned by their hashes (train.txt, val.txt and test.txt here), so that everybody gets the same bytes.

    python data/pydocs/prepare.py

A project is in one split only. A zero byte ends each file. A hash of their paths draws the files of a project, at most as many
bytes as LIMITS says. pip runs the build script of each archive, because it asks for its name. Left out are:
  - code and what is no text, as prose() says: literal blocks, doctests, Markdown's fences, comments, tables, URLs
  - files of tests, translations, licences and other people's packages (NOT_PROSE)
  - files in which fewer than a fifth of the words are among English's commonest, such as lists of names, or fewer than four
    fifths of the bytes are ASCII letters
  - files with less prose than SMALLEST, which are mostly lists of links, and with more than LARGEST
  - files that share at least half of their lines with files before them, such as identical ones
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from configurator import configure

import re

from data.pysource.prepare import is_text, prepare

LIMITS = dict(train=2_000_000, val=300_000, test=300_000)       # bytes of each project at most, so that none dominates
SMALLEST = 500                      # bytes of a file's prose
LARGEST = 100_000                   # larger ones are mostly change logs, and a few of them would fill a split
FINGERPRINT = '695d41a7d593df4ad45bbcb725bd4775'                # of what this gives
PROSE = re.compile(r'.*\.(rst|md)|(.*/)?(docs?|helptext)/.*\.txt')      # elsewhere .txt is mostly data
NOT_PROSE = re.compile(r'(?i)(.*/)?((\.[^/]*|tests?|test-data|test cases|locales?|_?vendor|third_?party|node_modules|licenses?'
                       r'|[^/]*egg-info)/.*|(licen[cs]e|copying|authors|contributors|credits|thanks|code_of_conduct|requirements'
                       r'|constraints)[^/]*)')
CODE = tuple(b'''auto blockdiag code console contents csv-table currentmodule default-role digraph doctest figure graphviz
highlight image include index ipython jupyter literal math meta module parsed-literal plot productionlist program prompt raw role
seqdiag sourcecode test toctree uml'''.split())       # how the directives begin whose contents are no prose
MARKUP = re.compile(rb'\.\. +(?:\w+:)?([\w.+-]+) ?::|\.\.(?! +\[)( |$)')      # a directive, or a comment or target; no footnote
FIELD = re.compile(rb':[\w-]+:( |$)')                            # an option of a directive
ITEM = re.compile(rb' *((?:[-*+]|\w{1,3}[.)]|#\.) +)*')         # what precedes the text in an item of a list
URL = re.compile(rb' *<(https?|ftp)://[^>]*>|(?<=\])\((https?|ftp)://[^)]*\)')
COMMON = {*b'''a an and are as at be by can for from has have if in is it not of on or that the this to when which will with
you'''.split()}


def prose(text):
    """Return the prose in this reStructuredText or Markdown, both bytes."""
    kept, opener, fenced, doctest = [], None, False, False      # opener: the indentation of the line that opened a block of code
    for line in re.sub(rb'(?s)<!--.*?-->', b'', text).splitlines():
        line = URL.sub(b'', line.expandtabs()).rstrip()
        words = line.lstrip()
        indent = len(line) - len(words)
        if opener is not None and (not words or indent > opener):
            continue
        opener, markup = None, MARKUP.match(words)
        doctest = words.startswith(b'>>>') or doctest and words != b''
        if words.startswith((b'```', b'~~~')):
            fenced = not fenced
        elif fenced or doctest:
            continue
        elif FIELD.match(words) or markup and (not markup[1] or markup[1].lower().startswith(CODE)):
            opener = indent
        elif words.endswith(b'::'):
            if not markup:                              # a literal block follows; of a directive only the contents are prose
                opener = len(ITEM.match(line)[0])
                kept.append(line[:-1] if words != b'::' else b'')
        elif not words or words[:1] != b'|' and re.search(rb'[A-Za-z]', words):         # no tables and underlines
            kept.append(line)
            continue
        kept.append(b'')
    return re.sub(rb'\n{3,}', b'\n\n', b'\n'.join(kept)).strip() + b'\n'


def document(path, content):
    """What is taken of this file: its prose, or b'' if it has little."""
    if not PROSE.fullmatch(path) or NOT_PROSE.fullmatch(path) or not is_text(content):
        return b''
    text = prose(content)
    words, letters = re.findall(rb'[a-z]+', text.lower()), len(re.findall(rb'[A-Za-z]', text))
    common = sum(word in COMMON for word in words)
    is_prose = 5 * common >= len(words) and 5 * letters >= 4 * len(b''.join(text.split()))
    return text if is_prose and SMALLEST <= len(text) <= LARGEST else b''


if __name__ == '__main__':
    configure(globals())
    prepare(Path(__file__).parent, LIMITS, document, FINGERPRINT)
