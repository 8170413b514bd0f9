"""A picture of curves as an interactive page of plotly: zoom, hover, hide a run by its entry in the legend, log axes."""
import os
import re

import numpy as np

from lab.plot.lines import Lines

DASH = {'-': 'solid', '--': 'dash', ':': 'dot', '-.': 'dashdot'}
SYMBOLS = {'o': 'circle', 's': 'square', '^': 'triangle-up', 'D': 'diamond', 'v': 'triangle-down', 'P': 'cross', 'X': 'x',
           '*': 'star', 'x': 'x-thin-open', '.': 'circle'}
SHARED = dict(none=False, all='all', row='rows', col='columns')


def html(text):
    """Convert $W_q$ and line breaks of a text to HTML."""
    return re.sub(r'\$(\w)_(\w)\$', r'\1<sub>\2</sub>', text).replace('\n', '<br>')


def traces_of(curve, graphs, in_legend):
    """The traces of a curve: its band, and the curve with its bars."""
    about, y = dict(legendgroup=html(curve.name), name=html(curve.name)), np.asarray(curve.y)
    if len(curve.low) and not curve.bars:
        yield graphs.Scatter(x=[*curve.x, *curve.x[::-1]], y=[*curve.low, *curve.high[::-1]], mode='none', fill='toself',
                             fillcolor=curve.color, opacity=0.2, hoverinfo='skip', showlegend=False, **about)
    bars = dict(symmetric=False, array=curve.high - y, arrayminus=y - curve.low, thickness=1) if curve.bars else None
    mode = '+'.join(['lines'] * bool(curve.dash) + ['markers'] * bool(curve.marker))
    yield graphs.Scatter(x=curve.x, y=curve.y, mode=mode or 'lines', opacity=0.5 if curve.pale else 1, error_y=bars,
                         line=dict(color=curve.color, width=curve.width, dash=DASH.get(curve.dash, 'solid')),
                         marker=dict(color=curve.color, symbol=SYMBOLS.get(curve.marker), size=6), showlegend=in_legend, **about)


def scale_menu(axis, names, is_log, left):
    """Two buttons for the scale of these axes, of which that of now is lit"""
    buttons = []
    for scale in 'linear', 'log':
        change = {f'{name}.{key}': value for name in names for key, value in (('type', scale), ('autorange', True))}
        buttons.append(dict(label=f'{axis} {scale}', method='relayout', args=[change]))
    return dict(type='buttons', direction='right', active=int(is_log), x=left, y=1.06, xanchor='left', yanchor='bottom',
                buttons=buttons)


def write_page(picture, what, path):
    """Write Lines as a page. plotly.min.js stands beside it, once for all pages of a folder, so that it needs no network."""
    if not isinstance(picture, Lines):
        raise ValueError(f'{path}: {what} has no page, because it is not made of curves; name a .png')
    import plotly.graph_objects as graphs
    from plotly.subplots import make_subplots
    page = make_subplots(len(picture.heights), picture.columns, row_heights=picture.heights,
                         subplot_titles=[html(f'{panel.title}  {panel.remark}'.strip()) for panel in picture.panels],
                         shared_xaxes=SHARED[picture.sharex], shared_yaxes=SHARED[picture.sharey],
                         vertical_spacing=0.2 / len(picture.heights), horizontal_spacing=0.2 / picture.columns)
    entries, axes = picture.entries(), dict(x=[], y=[])
    for i, panel in enumerate(picture.panels):
        at = dict(row=i // picture.columns + 1, col=i % picture.columns + 1)
        for curve in panel.curves:
            if not curve.is_empty():
                page.add_traces([*traces_of(curve, graphs, entries.get(curve.name) is curve)], at['row'], at['col'])
        cell, names = page.get_subplot(**at), picture.axis_names(i)
        for axis, of_plotly in ('x', cell.xaxis), ('y', cell.yaxis):
            is_log, ends = axis in panel.log, getattr(panel, f'{axis}lim')
            of_plotly.update(type='log' if is_log else 'linear', title=dict(text=html(names[f'{axis}label'])),
                             exponentformat='power')
            if any(end is not None for end in ends):
                of_plotly.range = [np.log10(end) if end is not None and is_log else end for end in ends]
            if i == 0 or getattr(picture, f'share{axis}') == 'all':
                axes[axis].append(of_plotly.plotly_name)
        if panel.ticks:
            cell.xaxis.update(tickvals=[*panel.ticks], ticktext=[*map(html, panel.ticks.values())])
    menus = [scale_menu(axis, axes[axis], axis in picture.panels[0].log, left) for axis, left in (('y', 0.0), ('x', 0.25))]
    page.update_layout(template='plotly_white', updatemenus=menus, legend=dict(title=dict(text=html(picture.legend))),
                       margin=dict(t=100, l=60, r=20, b=50), hovermode='closest')
    page.write_html(path, include_plotlyjs='directory', div_id='picture', config=dict(displaylogo=False, scrollZoom=True),
                    default_height='100vh' if len(picture.heights) < 4 else f'{320 * len(picture.heights)}px')
    print(f'wrote {path}, which needs {os.path.join(os.path.dirname(path), "plotly.min.js")} beside it')
