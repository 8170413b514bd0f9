"""Findings: which rules fire where, in words and as a picture."""
from configurator import script_of

import math
import os
import textwrap
from dataclasses import dataclass

import pandas as pd

from lab.doctor.reference import exponent
from lab.doctor.rules import CAUSES, RULES, Rule
from lab.plot.lines import COLORS, Curve, Lines, Panel, ordered_color

MOST = 3                # findings that are told
CURVES = 4              # places of a finding that are drawn


@dataclass
class Finding:
    rule: Rule
    value: float            # the worst that lasted
    places: list
    since: int


def windows_of(case, rule):
    """Return the highest and the lowest value in each window of the rule's rows, which is sick if all of its values are."""
    values = rule.values(case)
    windows = values.rolling(max(1, min(rule.rows, len(values))))
    return windows.max(), windows.min()


def extremes(case):
    """Return {a rule and its side: the value nearest to the limit there, or farthest beyond it}."""
    found = {}
    for rule in RULES:
        most, least = windows_of(case, rule)
        for side, limit, value in ('lowest', rule.sick[0], most.min().min()), ('highest', rule.sick[1], least.max().max()):
            if math.isfinite(limit):
                found[f'{rule.cause}: {rule.what}, {side} (limit {limit:g})'] = float(value)
    return found


def judge(case, rule):
    """Return the Finding of a rule, or None."""
    (most, least), (low, high) = windows_of(case, rule), rule.sick
    sick = (most < low) | (least > high)
    places = [place for place in sick if sick[place].any()]
    if not places:
        return None
    worst = most[places].min().min() if (most < low).any().any() else least[places].max().max()
    row = sick[places].any(axis=1).argmax() - min(rule.rows, len(sick)) + 1
    return Finding(rule, float(worst), places, int(sick.index[row]))


def examine(case):
    """Return the findings in the order of the rules, one for each cause, and the causes of which nothing is known."""
    findings = {}
    for rule in RULES:
        if rule.cause not in findings and (finding := judge(case, rule)):
            findings[rule.cause] = finding
    known = {rule.cause for rule in RULES if rule.values(case).size}
    return [*findings.values()], [cause for cause in CAUSES if cause not in known]


# ----------------------------------------------------------------------------- words

def named(places):
    """['qk 1', 'qk 2', 'ffn 1', 'emb'] → 'qk in layers 1, 2; ffn in layer 1; emb'"""
    kinds = {}
    for place in places:
        kind, _, layer = f' {place}'.rpartition(' ') if place[-1:].isdigit() else (place, '', '')
        kinds.setdefault(kind.strip(), []).append(layer)
    texts = [' in '.join(filter(None, (kind, f'layer{"s" * (len(layers) > 1)} {", ".join(layers)}' * any(layers))))
             for kind, layers in kinds.items()]
    return '; '.join(filter(None, texts))


def matrix_text(case, rule):
    """Return the sentence of the invariance matrix, or '' if this architecture holds the effect."""
    power = exponent(case, *rule.matrix) if rule.matrix else None
    if power is None or power < 0.3:
        return ''
    effect, cause = rule.matrix
    return (f'. Nothing holds it in this architecture: if {cause.replace("_", "")} grow tenfold, the {effect} grow'
            f'{"s" * (not effect.endswith("s"))} {float(f"{10 ** power:.2g}"):g} times')


def remedy(case, finding):
    """Return the flags that would hold it, as one text, and the files to look at: those of the edit if clean code is healthy."""
    _, *keys = CAUSES[finding.rule.cause]
    if case.edited and case.clean and finding.since <= case.clean.it and not judge(case.clean, finding.rule):
        return '', f'the edit of {", ".join(case.edited)} in code.patch: without it this is healthy'
    flags = ' '.join(f'--{key}={value}' for key, value in keys[0](case.config).items()) if keys else ''
    return flags, ', '.join(case.edited) or 'train.py, data/tokens.py, model.py and optim.py'


def text_of(case, finding, number):
    """Return the lines of a finding."""
    rule, (low, high), (flags, files) = finding.rule, finding.rule.sick, remedy(case, finding)
    clear = finding.value < low / 2 or finding.value > 2 * high
    limits = ' or '.join([f'below {low:.3g}'] * (low > -math.inf) + [f'above {high:.3g}'] * (high < math.inf))
    script = '-m vision.train' if script_of(case.config) == 'vision.train' else 'train.py'
    command = f'python {script} {case.keys_file} {flags} --out_dir={case.folder.rstrip("/")}-2'
    action = f'try: {command}' if flags else f'look at: {files}'
    return [f'{number}. {rule.cause}  ({"clear" if clear else "close to the limit"})',
            f'   {rule.what}{f" ({named(finding.places)})" * bool(named(finding.places))}: {finding.value:.3g} from iteration '
            f'{finding.since} on; healthy {rule.healthy[0]:g} to {rule.healthy[1]:g}, sick {limits}',
            f'   why: {CAUSES[rule.cause][0]}{matrix_text(case, rule)}.', f'   {action}']


# ----------------------------------------------------------------------------- the picture

def panel_of(case, finding, number):
    """Return a finding's panel: over the iterations, or one row over the places, beside clean code's and the limits."""
    rule, (flags, files), values = finding.rule, remedy(case, finding), finding.rule.values(case)
    drawn, ticks, ends = [], {}, [0, max(1, case.it)]
    for c, clean in ((case, {}), (case.clean, dict(name='clean code', color='#888888', dash='--'))):
        table = rule.quantity(c) if c else pd.DataFrame()
        if len(values) == 1 and len(table):
            places, ends = [*values], [-0.5, values.shape[1] - 0.5]
            ticks = {i: f'layer {place}' if place.isdigit() else place or 'this run' for i, place in enumerate(places)}
            drawn.append(Curve([*range(len(places))], [*table.reindex(columns=places).iloc[0]],
                               **dict(name='this run') | clean | dict(marker='o', dash='')))
        for i, place in enumerate(finding.places[:CURVES] if not ticks else ()):
            y = table.get(place, pd.Series(dtype=float)).dropna()
            color = ordered_color(i, min(CURVES, len(finding.places))) if place else COLORS[0]
            style = dict(name=named([place]) or 'this run', color=color, marker='o' * (len(y) <= 10)) | clean
            drawn.append(Curve([*y.index], [*y], **style))
    drawn += [Curve(ends, [limit] * 2, 'sick beyond', COLORS[1], dash=':') for limit in rule.sick if math.isfinite(limit)]
    if all(map(math.isfinite, rule.healthy)):
        drawn.append(Curve(ends, [sum(rule.healthy) / 2] * 2, 'healthy', COLORS[2], width=0.6, low=[rule.healthy[0]] * 2,
                           high=[rule.healthy[1]] * 2))
    y = pd.Series([y for curve in drawn for y in curve.y]).dropna()
    since = f'iteration {finding.since} on' if finding.since else 'the start'
    title = (f'{number}. {rule.cause}, from {since}: {CAUSES[rule.cause][0]}. '
             f'{"Try " + flags if flags else "Look at " + files}')
    return Panel(drawn, x='' if ticks else 'iteration', y=textwrap.fill(rule.what, 24), title=textwrap.fill(title, 70),
                 ticks=ticks, height=2.8, log='y' * bool((y > 0).all() and y.max() > 30 * y.min()))


def picture(case, findings):
    """Return the loss, and beside it what each finding found."""
    losses = [(c.table('loss').get('', pd.Series(dtype=float)), style) for c, style in (
        (case, dict(name='this run')), (case.clean, dict(name='clean code', color='#888888', dash='--'))) if c]
    loss = Panel([Curve([*y.index], [*y], **style) for y, style in losses], x='iteration', y='loss',
                 height=2.8,
                 title=f'{os.path.basename(case.folder)}: {findings[0].rule.cause}')
    return Lines([loss, *(panel_of(case, finding, number) for number, finding in enumerate(findings, 1))], '', columns=2,
                 sharex='none')
