"""Findings: which rules fire where, in words and as a picture."""
from configurator import script_of

import math
import re
import textwrap
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lab.doctor.reference import exponent
from lab.doctor.rules import RULES, Rule
from lab.plot.lines import COLORS, Curve, Lines, Panel, ordered_color

MOST = 3                # findings that are told
CURVES = 4              # places of a finding that are drawn


@dataclass
class Finding:
    rule: Rule
    value: float            # the worst that lasted
    places: list
    since: int

    def is_clear(self):
        """Whether the value is less than half of its lower limit, or more than twice its upper one."""
        low, high = self.rule.sick
        return self.value < low / 2 or self.value > 2 * high


def lasting(values, rule):
    """Return two tables: what each place stays below, and above, for rule.rows rows."""
    windows = values.rolling(min(rule.rows, len(values)))
    return windows.max(), windows.min()


def extreme(case, rule):
    """Return the worst value that lasted, for the table of collect.py; NaN if the run has no such quantity."""
    values = rule.values(case)
    if not values.size:
        return math.nan
    below, above = (table.to_numpy() for table in lasting(values, rule))
    low, high = np.nanmin(below), np.nanmax(above)
    if math.isinf(rule.sick[0]) or math.isinf(rule.sick[1]):
        return high if math.isinf(rule.sick[0]) else low
    return low if low / rule.sick[0] * high < rule.sick[1] else high


def judge(case, rule):
    """Return the Finding of a rule, or None."""
    values = rule.values(case)
    if not values.size:
        return None
    (below, above), (low, high) = lasting(values, rule), rule.sick
    sick = (below < low) | (above > high)
    places = [place for place in sick if sick[place].any()]
    if not places:
        return None
    worst = below[places].min().min() if (below < low).any().any() else above[places].max().max()
    row = sick[places].any(axis=1).argmax() - min(rule.rows, len(values)) + 1
    return Finding(rule, float(worst), places, int(values.index[row]))


def examine(case, rules=RULES):
    """Return the findings in the order of the rules, one for each cause, and the quantities that the log does not have."""
    findings, missing = {}, {}
    for rule in rules:
        if finding := judge(case, rule):
            findings.setdefault(rule.cause, finding)
        elif not rule.values(case).size and not rule.against and not rule.beside:
            missing[rule.what] = None
    return [*findings.values()], [*missing]


# ----------------------------------------------------------------------------- words

def named(places):
    """['qk 1', 'qk 2', 'ffn 1'] → 'qk in layers 1, 2; ffn in layer 1'"""
    kinds = {}
    for place in places:
        kind, layer = re.fullmatch(r'(.*?) ?(\d*)', place).groups()
        kinds.setdefault(kind, []).append(layer)
    texts = []
    for kind, layers in kinds.items():
        numbers = sorted(map(int, filter(None, layers)))
        spans = f'{numbers[0]}–{numbers[-1]}' if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1 else (
            ', '.join(map(str, numbers)))
        texts.append(' in '.join(filter(None, (kind, f'{"layers" if len(numbers) > 1 else "layer"} {spans}' * bool(numbers)))))
    return '; '.join(filter(None, texts))


def limits(rule):
    low, high = rule.sick
    return ' or '.join([f'below {low:.3g}'] * (low > -math.inf) + [f'above {high:.3g}'] * (high < math.inf))


POWERS = {1: 'grows in proportion to', 2: 'grows with the square of'}


def matrix_text(case, rule):
    """Return the sentence of the invariance matrix, or '' if this architecture holds the effect."""
    power = exponent(case, *rule.matrix) if rule.matrix else None
    if power is None or power < 0.3:
        return ''
    effect, cause = rule.matrix
    how = next((text for n, text in POWERS.items() if abs(power - n) < 0.15), f'grows with the power {power:.1f} of')
    many = effect.endswith('s')
    return (f' In this architecture the {effect} {how.replace("grows", "grow") if many else how} {cause.replace("_", "")}, and '
            f'nothing holds {"them" if many else "it"}.')


def text_of(case, finding, number):
    """Return the lines of a finding."""
    rule, values = finding.rule, finding.rule.values(case)
    where = named(finding.places)
    reaches = case.clean and finding.since <= case.clean.it         # the reference tells nothing of later iterations
    clean = rule.values(case.clean).reindex(columns=finding.places) if reaches and not rule.against else pd.DataFrame()
    clean = clean[clean.index >= finding.since][:1].stack()
    healthy = '{:.3g} to {:.3g}'.format(*rule.healthy) if rule.healthy[0] != rule.healthy[1] else f'{rule.healthy[0]:g}'
    lines = [f'{number}. {rule.cause}  ({"clear" if finding.is_clear() else "close to the limit"})',
             f'   {rule.what}{f" ({where})" * bool(where)}: {finding.value:.3g} '
             f'{"from" if len(values) > 1 else "at"} iteration {finding.since}{" on" * (len(values) > 1)}; healthy {healthy}, '
             f'sick {limits(rule)}' + (f'; clean code {clean.median():.3g}' if len(clean) else ''),
             f'   why: {rule.why}.{matrix_text(case, rule)}']
    is_edit = case.edited and reaches and (rule.against == 'clean' or not judge(case.clean, rule))
    keys = {} if is_edit and rule.against == 'clean' else rule.try_keys(case.config)
    if is_edit:
        lines.append(f'   look at: the edit of {", ".join(case.edited)} in {case.folder}/code.patch; without it this is healthy')
    if keys:
        flags = ' '.join(f'--{key}={value}' for key, value in keys.items())
        script = '-m vision.train' if script_of(case.config) == 'vision.train' else 'train.py'
        lines.append(f'   try: python {script} {case.keys_file} {flags} --out_dir={case.folder.rstrip("/")}-2')
    elif not is_edit:
        lines.append(f'   look at: {", ".join(case.edited) or "train.py, data/tokens.py, model.py and optim.py"}')
    return lines


# ----------------------------------------------------------------------------- the picture

def picture(case, findings):
    """Return the loss, and below it what each finding found, beside the reference's and the limits."""
    def curve(table, place, **style):
        values = table[place].dropna()
        return Curve([*values.index], [*values], **style)

    def loss(c, **style):
        return [curve(c.table('loss'), '', **style)]

    clean = dict(name='clean code', color='#888888', dash='--')
    losses = loss(case, name='this run') + (loss(case.clean, **clean) if case.clean else [])
    panels = [Panel(losses, x='iteration', y='loss', title=case.folder)]
    for finding in findings:
        rule = finding.rule
        own, curves = rule.series(case), []
        for i, place in enumerate(finding.places[:CURVES]):
            color = ordered_color(i, min(CURVES, len(finding.places))) if place else COLORS[0]
            curves.append(curve(own, place, color=color, name=named([place]) or 'this run', marker='o'))
            if case.clean and not rule.against and place in (other := rule.quantity(case.clean)):
                curves.append(curve(other, place, **clean))
        ends = [0, max(1, case.it)]
        curves += [Curve(ends, [limit] * 2, 'sick beyond', COLORS[1], dash=':') for limit in rule.sick if math.isfinite(limit)]
        if all(map(math.isfinite, rule.healthy)):
            curves.append(Curve(ends, [sum(rule.healthy) / 2] * 2, 'healthy', COLORS[2], width=0.6, low=[rule.healthy[0]] * 2,
                                high=[rule.healthy[1]] * 2))
        values = pd.Series([y for c in curves for y in c.y])
        is_log = bool((values > 0).all() and values.max() > 30 * values.min())
        what = textwrap.fill(rule.what, 32)
        panels.append(Panel(curves, x='iteration', y=what, title=rule.cause, log='y' * is_log))
    return Lines(panels, '', columns=1)
