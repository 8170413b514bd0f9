"""Parameters that older checkpoints and exports hold under other names."""
import re

RENAMED = {         # regular expressions → what they are called now
    r'_join\.': '_residual.', r'\.value_mix\.own$': '.v_gain', r'\.value_mix\.first$': '.v1_gain',
    r'^embedding_skips\.(\d+)\.stream$': r'h.\1.x_gain', r'^embedding_skips\.(\d+)\.embedding$': r'h.\1.x0_gain',
}


def rename(name):
    """Return today's name of a parameter."""
    for old, new in RENAMED.items():
        name = re.sub(old, new, name)
    return name
