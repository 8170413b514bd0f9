"""Findings: which rules fire where, in words and as a picture."""
import re
from dataclasses import dataclass

import pandas as pd

from lab.doctor.case import script_arguments
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
        """Whether the value is more than twice, or less than half, of its limit."""
        low, high = self.rule.sick
        return self.value < low / 2 if low is not None and self.value < low else self.value > 2 * high


def lasting(values, rule):
    """Return two tables: what each place stays below, and above, for rule.rows rows; None where the rule has no limit."""
    rows = min(rule.rows, len(values))
    low, high = rule.sick
    return (values.rolling(rows).max() if low is not None else None), (values.rolling(rows).min() if high is not None else None)


def extreme(case, rule):
    """Return the worst value that lasted, for the table of collect.py; NaN if the run has no such quantity."""
    values = rule.values(case)
    if not values.size:
        return float('nan')
    below, above = lasting(values, rule)
    low = below.min().min() if below is not None else None
    high = above.max().max() if above is not None else None
    if low is None or high is None:
        return high if low is None else low
    return low if low < rule.healthy[0] and rule.healthy[0] / max(low, 1e-30) > high / rule.healthy[1] else high


def judge(case, rule):
    """Return the Finding of a rule, or None."""
    values = rule.values(case)
    if not values.size:
        return None
    below, above = lasting(values, rule)
    for kept, limit, is_low in ((below, rule.sick[0], True), (above, rule.sick[1], False)):
        if kept is None:
            continue
        sick = kept < limit if is_low else kept > limit
        places = [place for place in sick if sick[place].any()]
        if places:
            worst = kept[places].min().min() if is_low else kept[places].max().max()
            row = values.index.get_loc(sick[places].any(axis=1).idxmax()) - min(rule.rows, len(values)) + 1
            return Finding(rule, float(worst), places, int(values.index[row]))


def examine(case, rules=RULES):
    """Return the findings in the order of the rules, one for each cause, and the quantities that the run does not have."""
    findings, missing = {}, []
    for rule in rules:
        if finding := judge(case, rule):
            findings.setdefault(rule.cause, finding)
        elif not rule.values(case).size and not (rule.against == 'clean' and not case.clean):
            missing.append(rule.what)
    return [*findings.values()], list(dict.fromkeys(missing))


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
    return ' or '.join([f'below {low:.3g}'] * (low is not None) + [f'above {high:.3g}'] * (high is not None))


POWERS = {0: 'does not depend on', 1: 'grows in proportion to', 2: 'grows with the square of'}


def matrix_text(case, rule):
    """Return the sentence of the invariance matrix, or ''."""
    power = exponent(case, *rule.matrix) if rule.matrix else None
    if power is None:
        return ''
    effect, cause = rule.matrix
    how = next((text for n, text in POWERS.items() if abs(power - n) < 0.15), f'grows with the power {power:.1f} of')
    verb = how.replace('does', 'do').replace('grows', 'grow') if effect.endswith('s') else how
    end = ', and nothing holds it.' if power > 0.5 else '.'
    return f' In this architecture the {effect} {verb} {cause.replace("_", "")}{end}'


def text_of(case, finding, number):
    """Return the lines of a finding."""
    rule = finding.rule
    where = named(finding.places)
    healthy = '{:.3g} to {:.3g}'.format(*rule.healthy) if rule.healthy[0] != rule.healthy[1] else f'{rule.healthy[0]:g}'
    keys = rule.try_keys(case.config)
    lines = [f'{number}. {rule.cause}  ({"clear" if finding.is_clear() else "close to the limit"})',
             f'   {rule.what}{f" ({where})" * bool(where)}: {finding.value:.3g} from iteration {finding.since} on; '
             f'healthy {healthy}, sick {limits(rule)}',
             f'   why: {rule.why}.{matrix_text(case, rule)}']
    if keys and rule.against != 'clean':
        flags = ' '.join(f'--{key}={value}' for key, value in keys.items())
        script = ' '.join(script_arguments(case.config))
        lines.append(f'   try: python {script} {case.keys_file} {flags} --out_dir={case.folder.rstrip("/")}-2')
    elif case.edited:
        lines.append(f'   look at: {", ".join(case.edited)}, as {case.folder}/code.patch has edited')
    else:
        lines.append('   look at: model.py and optim.py; for a fault of the data at data/tokens.py and train.py')
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
    panels = [Panel(losses, y='loss', title=case.folder)]
    for finding in findings:
        rule = finding.rule
        own, curves = rule.values(case), []
        for i, place in enumerate(finding.places[:CURVES]):
            color = ordered_color(i, min(CURVES, len(finding.places)))
            curves.append(curve(own, place, color=color, name=named([place]) or 'this run', marker='o'))
            if case.clean and not rule.against and place in (other := rule.quantity(case.clean)):
                curves.append(curve(other, place, **clean))
        ends = [own.index[0], max(own.index[-1], own.index[0] + 1)]
        curves += [Curve(ends, [limit] * 2, 'sick beyond', COLORS[1], dash=':') for limit in rule.sick if limit is not None]
        if all(abs(edge) < 1e9 for edge in rule.healthy):
            curves.append(Curve(ends, [sum(rule.healthy) / 2] * 2, 'healthy', COLORS[2], dash='', low=[rule.healthy[0]] * 2,
                                high=[rule.healthy[1]] * 2))
        values = pd.Series([y for c in curves for y in c.y])
        is_log = (values > 0).all() and values.max() > 30 * values.min()
        what = rule.what.replace(' over ', '\nover ', 1)
        panels.append(Panel(curves, x='iteration', y=what, title=rule.cause, log='y' * is_log))
    return Lines(panels, '', columns=1, sharex='none')
