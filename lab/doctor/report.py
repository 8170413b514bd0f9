"""Findings: which rules fire where, in words and as a picture."""
from configurator import script_of

import math
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


def judge(case, rule):
    """Return the Finding of a rule, or None."""
    values = rule.values(case)
    if not values.size:
        return None
    windows, (low, high) = values.rolling(min(rule.rows, len(values))), rule.sick
    most, least = windows.max(), windows.min()          # in each window, whose values are sick if all of them are
    sick = (most < low) | (least > high)
    places = [place for place in sick if sick[place].any()]
    if not places:
        return None
    worst = most[places].min().min() if (most < low).any().any() else least[places].max().max()
    row = sick[places].any(axis=1).argmax() - min(rule.rows, len(values)) + 1
    return Finding(rule, float(worst), places, int(values.index[row]))


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
            f'{"s" * (not effect.endswith("s"))} {10 ** power:.2g} times')


def text_of(case, finding, number):
    """Return the lines of a finding."""
    rule, (low, high) = finding.rule, finding.rule.sick
    why, *remedy = CAUSES[rule.cause]
    is_edit = bool(case.edited and case.clean and finding.since <= case.clean.it and not judge(case.clean, rule))
    clear = finding.value < low / 2 or finding.value > 2 * high
    limits = ' or '.join([f'below {low:.3g}'] * (low > -math.inf) + [f'above {high:.3g}'] * (high < math.inf))
    keys = {} if is_edit or not remedy else remedy[0](case.config)
    if keys:
        script = '-m vision.train' if script_of(case.config) == 'vision.train' else 'train.py'
        flags = ' '.join(f'--{key}={value}' for key, value in keys.items())
        action = f'try: python {script} {case.keys_file} {flags} --out_dir={case.folder.rstrip("/")}-2'
    elif is_edit:
        action = f'look at: the edit of {", ".join(case.edited)} in {case.folder}/code.patch; without it this is healthy'
    else:
        action = f'look at: {", ".join(case.edited) or "train.py, data/tokens.py, model.py and optim.py"}'
    return [f'{number}. {rule.cause}  ({"clear" if clear else "close to the limit"})',
            f'   {rule.what}{f" ({named(finding.places)})" * bool(named(finding.places))}: {finding.value:.3g} from iteration '
            f'{finding.since} on; healthy {rule.healthy[0]:g} to {rule.healthy[1]:g}, sick {limits}',
            f'   why: {why}{matrix_text(case, rule)}.', f'   {action}']


# ----------------------------------------------------------------------------- the picture

def picture(case, findings):
    """Return the loss, and below it what each finding found, beside clean code's and the limits."""
    def curves(quantity, places):
        for i, place in enumerate(places[:CURVES]):
            for c, style in ((case, dict(name=named([place]) or 'this run', marker='o', color=ordered_color(
                    i, min(CURVES, len(places))) if place else COLORS[0])),
                             (case.clean, dict(name='clean code', color='#888888', dash='--'))):
                values = quantity(c).get(place, pd.Series(dtype=float)).dropna() if c else ()
                if len(values):
                    yield Curve([*values.index], [*values], **style)

    panels = [Panel([*curves(lambda c: c.table('loss'), [''])], x='iteration', y='loss', title=case.folder)]
    for finding in findings:
        rule, ends, drawn = finding.rule, [0, max(1, case.it)], [*curves(finding.rule.quantity, finding.places)]
        drawn += [Curve(ends, [limit] * 2, 'sick beyond', COLORS[1], dash=':') for limit in rule.sick if math.isfinite(limit)]
        if all(map(math.isfinite, rule.healthy)):
            drawn.append(Curve(ends, [sum(rule.healthy) / 2] * 2, 'healthy', COLORS[2], width=0.6, low=[rule.healthy[0]] * 2,
                               high=[rule.healthy[1]] * 2))
        values = pd.Series([y for curve in drawn for y in curve.y])
        is_log = bool((values > 0).all() and values.max() > 30 * values.min())
        panels.append(Panel(drawn, x='iteration', y=textwrap.fill(rule.what, 32), title=f'{rule.cause}: {CAUSES[rule.cause][0]}',
                            log='y' * is_log))
    return Lines(panels, '', columns=1)
