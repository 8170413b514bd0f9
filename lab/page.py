"""Writes a figure of matplotlib as one interactive page: zoom, hover, hide a curve by its entry in the legend, log axes."""
import re

import numpy as np
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_hex
from matplotlib.ticker import FixedLocator

DASHES = {'-': 'solid', '--': 'dash', ':': 'dot', '-.': 'dashdot'}
SYMBOLS = {'o': 'circle', 's': 'square', '^': 'triangle-up', 'D': 'diamond', 'v': 'triangle-down', 'P': 'cross', 'X': 'x',
           '*': 'star', 'x': 'x-thin-open', '.': 'circle'}


def plain(text):
    """A text of matplotlib, with its $W_q$ and lines, in HTML"""
    text = re.sub(r'\$(\w)_\{?(\w+)\}?\$', r'\1<sub>\2</sub>', text)
    text = re.sub(r'\$([\d.]+)\\times10', r'\1 · $10', text)
    text = re.sub(r'\$10\^\{(-?\d+)\}\$', r'10<sup>\1</sup>', text)
    return text.replace('\n', '<br>')


def in_data(ax, artist, points):
    """(n, 2): the points of an artist, which may count in shares of the axes, in the axes' data coordinates"""
    points = np.asarray(points, dtype=float)
    if artist.get_transform() is ax.transData:
        return points
    return ax.transData.inverted().transform(artist.get_transform().transform(points))


def names_of(axes):
    """{colour: the name of its curves in the legend}"""
    labelled = [(line.get_color(), line.get_label()) for ax in axes for line in ax.lines]
    labelled += [(bars.lines[0].get_color(), bars.get_label()) for ax in axes for bars in ax.containers]
    return {to_hex(color): plain(name) for color, name in labelled if name and not name.startswith('_')}


def traces_of(ax, at, names, graphs):
    """The traces of what these axes show, for the axes of plotly in `at`. All of one colour have one entry in the legend, as a
    curve with its bars and its band, unless they have names of their own."""
    traces = []
    for line in ax.lines:
        x, y = in_data(ax, line, line.get_xydata()).T
        color, name = to_hex(line.get_color()), plain(line.get_label())
        name = name if name and not name.startswith('_') else names.get(color, '')
        marker, style = SYMBOLS.get(line.get_marker()), DASHES.get(line.get_linestyle())
        traces.append(graphs.Scatter(
            x=x, y=y, name=name, legendgroup=name, mode='+'.join(['lines'] * bool(style) + ['markers'] * bool(marker)) or 'lines',
            line=dict(color=color, width=line.get_linewidth(), dash=style or 'solid'),
            marker=dict(color=color, symbol=marker, size=6), opacity=line.get_alpha() or 1, **at))
    for bars in ax.collections:
        color = to_hex(bars.get_edgecolor()[0] if isinstance(bars, LineCollection) else bars.get_facecolor()[0])
        about = dict(legendgroup=names.get(color, ''), showlegend=False, hoverinfo='skip', **at)
        if isinstance(bars, LineCollection):
            points = [point for segment in bars.get_segments() for point in (*segment, (None, None))]
            traces.append(graphs.Scatter(x=[x for x, _ in points], y=[y for _, y in points], mode='lines',
                                         line=dict(color=color, width=1), **about))
        elif isinstance(bars, PolyCollection):
            for path in bars.get_paths():
                traces.append(graphs.Scatter(x=path.vertices[:, 0], y=path.vertices[:, 1], mode='none', fill='toself',
                                             fillcolor=color, opacity=0.2, **about))
    for image in ax.images:
        values = np.asarray(np.ma.filled(image.get_array(), np.nan))
        reach = np.nanmax(np.abs(values))
        traces.append(graphs.Heatmap(z=values, text=np.round(values, 1), texttemplate='%{text}', colorscale='PuOr', zmin=-reach,
                                     zmax=reach, showscale=False, **at))
    return traces


def axis_of(ax, which, place, anchor):
    """The axis x or y of plotly for these axes. `place`: where it begins and ends, as shares of the page."""
    axis, ends = getattr(ax, f'{which}axis'), getattr(ax, f'get_{which}lim')()
    log = axis.get_scale() == 'log'
    about = dict(domain=list(place.clip(0, 1)), anchor=anchor, title=dict(text=plain(axis.get_label().get_text())),
                 type='log' if log else 'linear', range=list(np.log10(ends) if log else ends), exponentformat='power')
    if isinstance(axis.get_major_locator(), FixedLocator):
        texts = [plain(text.get_text()) for text in axis.get_ticklabels()]
        about.update(tickvals=list(axis.get_majorticklocs()), ticktext=texts)
    return about


def write_page(figure, path):
    """Writes a figure, whose layout is done, as a page that needs no other file. ValueError if plotly is not there."""
    try:
        import plotly.graph_objects as graphs
    except ImportError as error:
        raise ValueError(f'{path}: a page needs plotly: pip install -r requirements-plot.txt') from error
    axes = [ax for ax in figure.axes if ax.get_visible() and ax.get_label() != '<colorbar>']
    corners = np.concatenate([ax.get_position().get_points() for ax in axes])
    low, high = corners.min(0), corners.max(0)          # without the room of matplotlib's legend
    page, layout, notes, names, known = graphs.Figure(), {}, [], names_of(axes), set()
    for i, ax in enumerate(axes):
        n, box = str(i + 1) if i else '', (ax.get_position().get_points() - low) / (high - low)
        for trace in traces_of(ax, dict(xaxis=f'x{n}', yaxis=f'y{n}'), names, graphs):
            if trace.type == 'scatter' and trace.showlegend is None:
                trace.showlegend = bool(trace.name) and trace.name not in known
                known.add(trace.name)
            page.add_trace(trace)
        layout[f'xaxis{n}'] = axis_of(ax, 'x', box[:, 0], f'y{n}')
        layout[f'yaxis{n}'] = axis_of(ax, 'y', box[:, 1], f'x{n}')
        for which in 'xy':                              # zooming in one zooms in all that share an axis
            shared = [j for j in range(i) if getattr(ax, f'get_shared_{which}_axes')().joined(ax, axes[j])]
            if shared:
                layout[f'{which}axis{n}']['matches'] = f'{which}{shared[0] + 1 if shared[0] else ""}'
        texts = [(ax.get_title(), 0.5, 1.0, 'bottom'), (ax.get_title(loc='right'), 1.0, 1.0, 'bottom')]
        texts += [(text.get_text(), *text.get_position(), 'top') for text in ax.texts if text.get_transform() is ax.transAxes]
        notes += [dict(text=plain(text), x=x, y=y, xref=f'x{n} domain', yref=f'y{n} domain', yanchor=anchor, showarrow=False)
                  for text, x, y, anchor in texts if text]
    buttons = []
    for which, scale in ('y', 'log'), ('y', 'linear'), ('x', 'log'), ('x', 'linear'):
        change = {}
        for n in ('', *range(2, len(axes) + 1)):
            change.update({f'{which}axis{n}.type': scale, f'{which}axis{n}.autorange': True})
        buttons.append(dict(label=f'{scale} {which}', method='relayout', args=[change]))
    menus = [dict(type='buttons', direction='right', x=0, y=1.05, xanchor='left', yanchor='bottom', buttons=buttons)]
    title = figure.legends[0].get_title().get_text() if figure.legends else ''
    page.update_layout(**layout, template='plotly_white', annotations=notes, height=max(500, int(130 * figure.get_figheight())),
                       updatemenus=[] if any(ax.images for ax in axes) else menus, legend=dict(title=dict(text=plain(title))))
    page.write_html(path, include_plotlyjs=True, div_id='picture', config=dict(displaylogo=False, scrollZoom=True))
