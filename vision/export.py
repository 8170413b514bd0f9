"""
Convert a ViT's checkpoint to Hugging Face's format:

    python -m vision.export --out_dir=out-quick-vision --to=out-hf-vision               # any ViT, for transformers
    python -m vision.export --out_dir=out-quick-vision --to=out-weights --format=safetensors  # the weights, for --init_from here
    python -m vision.export --out_dir=out-vit-l --to=out-whole --format=checkpoint      # of a run with save_shards, a file
"""
import sys

if __name__ == '__main__' and not __package__:
    sys.exit('error: from the root of the repository, type  python -m vision.export')

from configurator import configure

import json
import os

import torch

from engine.checkpoint import load_run
from lab.convert.folders import new_folder, write_card, write_checkpoint
from lab.convert.hub import Own, write_own, write_weights
from vision.images import read_image_meta
from vision.vit import ViT

# ----------------------------------------------------------------------------- keys
out_dir = 'out'                     # the run's folder
checkpoint = 'best.pt'              # best.pt: the lowest validation loss | ckpt.pt: the latest | ckpt-000500.pt: a kept one
to = ''                             # the folder to write
format = 'nanonorm'                 # nanonorm | safetensors | checkpoint
# -----------------------------------------------------------------------------
FORMATS = ('nanonorm', 'safetensors', 'checkpoint')
OWN_VIT = Own('nanonorm_vit', 'vision.modeling_nanonorm_vit', 'NanoNormViTConfig', 'NanoNormForImageClassification',
              'AutoModelForImageClassification')


def write_processor(folder, config):
    """Write the settings of transformers' image processor: take the middle square, with pixels from 0 to 255."""
    size = config.image_size
    settings = dict(image_processor_type='CLIPImageProcessor', do_resize=True, size=dict(shortest_edge=size), resample=3,
                    do_center_crop=True, crop_size=dict(height=size, width=size), do_rescale=False, do_normalize=False,
                    do_convert_rgb=config.channels == 3)
    with open(os.path.join(folder, 'preprocessor_config.json'), 'w', encoding='utf-8') as f:
        json.dump(settings, f, indent=1)


def write_vit(model, folder, names=(), family='nanonorm'):
    """Write the ViT into an existing folder, with the class names that are known. Return a note for the user, or ''."""
    c = model.config
    write_processor(folder, c)
    names = [*names, *map(str, range(len(names), c.classes))]
    more = dict(id2label=dict(enumerate(names)), label2id={name: i for i, name in enumerate(names)})
    if family == 'safetensors':
        return write_weights(model, folder, OWN_VIT, **more)
    example = 255 * torch.rand(2, c.channels, c.image_size, c.image_size, generator=torch.Generator().manual_seed(0))
    return write_own(model, folder, OWN_VIT, example, **more)


def write_export(folder):
    """Export a run's checkpoint, and return the line to print."""
    model, state = load_run(os.path.join(out_dir, checkpoint), Model=ViT)
    if format == 'checkpoint':
        write_checkpoint(folder, state)
        return (f'wrote {to}, iteration {state["iter"]} of {checkpoint}: python -m vision.train {to}/config.json --out_dir={to} '
                f'--init_from=resume  trains on')
    notes, names = [], []
    try:
        names = read_image_meta(state['config']['dataset'])['names']
    except (ValueError, OSError) as error:
        notes.append(f'It has no names of classes: {error}')
    notes.append(write_vit(model, folder, names, format))
    return write_card(folder, to, out_dir, model, state, format, OWN_VIT.auto, notes, 'image', 'image-classification')


if __name__ == '__main__':
    configure(globals())
    if not to:
        raise ValueError('set --to, the folder to write, as in --to=out-hf-vision')
    if format not in FORMATS:
        raise ValueError(f'format={format!r}: choose one of {", ".join(FORMATS)}')
    with new_folder(to) as part:
        done = write_export(part)
    print(done)
