"""
Pictures of runs and sweeps: PNG and SVG by matplotlib, pages to zoom and hover in by plotly. In a notebook:

    from lab.plot import picture
    picture('loss', ['out-quick', 'out-s1'])

`python -m lab.plot` writes them into files.
"""
import os

import matplotlib

OVER_TIME = ('loss', 'residual', 'logits')      # the pictures with curves over the iterations, which are smoothed


def pictures():
    """Return {name: function of folders, which returns Lines or a figure of matplotlib}. lab.measure has most of them."""
    from lab.measure import MEASUREMENTS
    from lab.plot.heat import plot_heat
    from lab.plot.runs import plot_coordinates, plot_logits, plot_loss, plot_residual
    from lab.plot.sweeps import plot_sweep
    measured = {name: measure.plot for name, measure in MEASUREMENTS.items()}
    return {'loss': plot_loss, 'residual': plot_residual, 'logits': plot_logits, 'heat': plot_heat, **measured,
            'coordinates': plot_coordinates, 'sweep': plot_sweep}


def describe(what, folders, smooth=0, xlim=None, ylim=None, log=''):
    """Return the picture of this name or key: Lines if it is made of curves, else a figure."""
    from lab.plot.lines import Lines
    from lab.plot.runs import over_iterations
    known, folders = pictures(), list(map(str, folders))
    plot = known.get(what) or (lambda *args: over_iterations(what, *args, pictures=known))
    found = plot(folders, smooth) if what in OVER_TIME or what not in known else plot(folders)
    if isinstance(found, Lines):
        found.zoom(xlim, ylim, log)
    elif xlim or ylim or log:
        raise ValueError(f'xlim, ylim and log are for curves, and {what} has none')
    return found


def picture(what, folders, **more):
    """Return one of pictures(), or a key of log.jsonl or measure.jsonl over the iterations, as a figure of matplotlib. `more`
    goes to describe."""
    from lab.plot.lines import STYLE, Lines
    with matplotlib.rc_context(STYLE):
        found = describe(what, folders, **more)
        return found.figure() if isinstance(found, Lines) else found


def draw(what, folders, out, **more):
    """Write a picture to the file `out`: a page for .html, else an image and, beside it, an SVG."""
    if os.path.splitext(out)[1] == '.html':
        from lab.plot.page import write_page
        write_page(describe(what, folders, **more), what, out)
    else:
        write(picture(what, folders, **more), out)


def write(figure, out):
    """Write a figure to `out`, with 200 dots an inch, and as SVG beside it."""
    stem, kind = os.path.splitext(out)
    paths = [stem + (kind if kind not in ('', '.svg') else '.png'), f'{stem}.svg']
    figure.draw_without_rendering()
    figure.set_layout_engine('none')                                # the layout is done, once for both files
    with matplotlib.rc_context({'svg.hashsalt': 'nanonorm'}):       # the same SVG each time, so that git sees real changes alone
        for path in paths:
            figure.savefig(path, dpi=200, bbox_inches='tight', pad_inches=0.05,
                           metadata={'Date': None} if path.endswith('.svg') else None)
    print(f'wrote {" and ".join(paths)}')
