"""Every experiment of a paper in config/ against tables that are typed from the papers and from their authors' public code."""
from configurator import TRAIN, defaults_of, parse_args

import re

import pytest
import torch
from helpers import ROOT
from test_configurator import ARCHS

from engine.keys import config_from
from lab.sweep.plan import read_sweep, rows_of_file
from model import GPT, GPTConfig
from vision.vit import ViT, ViTConfig

CONFIGS = {path.stem.removeprefix('train_'): path.relative_to(ROOT).as_posix() for path in (ROOT / 'config').rglob('train_*.py')}
OURS = {'quick', 'quick_vision', 'ngpt_0.5b'}       # of none of the four papers

# keys that decide how a run is handled, and not what it trains
HANDLING = set('''out_dir eval_interval eval_iters log_interval log_layers eval_only overwrite keep_every always_save_checkpoint
wandb_log wandb_project wandb_run_name seed data_seed measure_interval measure_batches device dtype tf32 deterministic compile
recompute parallel backend debug workers batch_size gradient_accumulation_steps'''.split())

# what no paper changes, but for what stands below
USUAL = dict(init_from='scratch', lr_decay_iters=0, schedule='cosine', blockwise='ramp', decay_norms=False, dropout=0,
             momentum=0.9, d_ff=0, n_kv_head=0,         # 0: d_ff is 4 n_embd, n_kv_head is n_head
             **{f'{way}_{kind}': 1 for way in ('r', 'wd') for kind in 'emb pos head qk ffn vo norm'.split()})

# Of all language models: DNT, table 5; Stable-Transformer, table 3 (a), with decay on matrices alone, section 2; LN stability has
# nanoGPT's, section 6; sharpness disparity, appendix A.1, decays norms in the authors' code. Momentum SGDW has 0.9.
LANGUAGE = dict(beta1=0.9, beta2=0.95, grad_clip=1)
# DNT: tables 3 and 5. The paper writes 200K, 6e-5 for all, warm-up 2000 for AdamW and 0 for momentum SGDW.
# Stable-Transformer: tables 2 and 3 (a); L for 100K iterations, appendix K; figures 2 and 3 without warm-up.
# LN stability: section 6 has data and iterations, table 2 the sizes; the rest is nanoGPT's, and the peaks are DNT's baselines'.
# Sharpness disparity: tables 3 and 4; appendix A.1: the last rate is a twentieth of the peak; A.3: Lion's rate a fifth, WSD to 0.
# C4's iterations are 20 tokens a parameter of table 4's sizes, 66M, 200M, 400M and 1004M, by 512 · 256. The shape of the 0.2B is
# that of the authors' code; table 4 has 16 heads and 8 blocks, which make no 200M.
# Images: DNT, tables 3 and 4; the patches are those of ViT-L/16 and ViT-H/14. Stable-Transformer, tables 1 and 3 (b); ViT-g and
# ViT-200 are the baselines of appendices J and L. CIFAR-100: appendix O; the shape of a ViT-small of timm's, patches of 4 and the
# augmentation are ours.
COLUMNS = '''config paper arch n_layer n_head n_embd size optimizer learning_rate min_lr weight_decay warmup_iters max_iters
an_iteration dataset patch_size drop_path d_ff'''.split()          # images count warm-up and length in epochs
ROWS = '''
ldnt_sgd                dnt    s5      12 12  768   124.4 sgdw      1.0    6e-5    1e-4    0 200000  480 openwebtext
ldnt_adamw              dnt    s5      12 12  768   124.4 adamw     6e-4   6e-5    0.1  2000 200000  480 openwebtext
ldnt_large_sgd          dnt    s5      36 20 1280     774 sgdw      1.0    6e-5    1e-4    0 200000  512 openwebtext
ldnt_large_adamw        dnt    s5      36 20 1280     774 adamw     6e-4   6e-5    0.1  2000 200000  512 openwebtext
ldnt_xl_sgd             dnt    s5      48 24 1536    1438 sgdw      1.0    6e-5    1e-4    0 200000  512 openwebtext
ldnt_xl_adamw           dnt    s5      48 24 1536    1438 adamw     6e-4   6e-5    0.1  2000 200000  512 openwebtext
gpt2_sgd                dnt    xavier  12 12  768   124.4 sgdw      1.0    6e-5    1e-4    0 200000  480 openwebtext
gpt2_adamw              dnt    xavier  12 12  768   124.4 adamw     6e-4   6e-5    0.1  2000 200000  480 openwebtext
gpt2_large_sgd          dnt    xavier  36 20 1280     774 sgdw      1.0    6e-5    1e-4    0 200000  512 openwebtext
gpt2_large_adamw        dnt    xavier  36 20 1280     774 adamw     2.5e-4 6e-5    0.1  2000 200000  512 openwebtext
gpt2_xl_sgd             dnt    xavier  48 24 1536    1438 sgdw      1.0    6e-5    1e-4    0 200000  512 openwebtext
gpt2_xl_adamw           dnt    xavier  48 24 1536    1438 adamw     1.5e-4 6e-5    0.1  2000 200000  512 openwebtext
stablegpt_s             stable stable  12 12  768   124.4 adamw     6e-4   6e-5    0.1  2000 600000  480 openwebtext
stablegpt_m             stable stable  24 16 1024   354.6 adamw     3e-4   3e-5    0.1  2000 600000  480 openwebtext
stablegpt_l             stable stable  36 20 1280     774 adamw     2.5e-4 2.5e-5  0.1  2000 100000  480 openwebtext
stable_init             stable xavier  12 12  768   124.4 adamw     6e-4   6e-5    0.1     0 600000  480 openwebtext
stable_norm             stable norm    12 12  768   124.4 adamw     6e-4   6e-5    0.1     0 600000  480 openwebtext
ln_124m                 ln     pre     12 12  768   124.4 adamw     6e-4   6e-5    0.1  2000 100000  480 openwebtext
ln_774m                 ln     pre     36 20 1280     774 adamw     2.5e-4 2.5e-5  0.1  2000  60000  480 openwebtext
ln_1.5b                 ln     pre     48 25 1600    1557 adamw     1.5e-4 1.5e-5  0.1  2000  60000  480 openwebtext
sharpness_gpt2          sharp  pre     12 12  768   124.4 adamw     6e-4   3e-5    0.1  1000  50000  480 openwebtext
llama_0.25b             sharp  llama    8 16 1024   237.2 adamw     8e-4   4e-5    0.1  1000  50000  480 openwebtext
llama_0.25b_adam_mini   sharp  llama    8 16 1024   237.2 adam_mini 8e-4   4e-5    0.1  1000  50000  480 openwebtext
llama_0.25b_lion        sharp  llama    8 16 1024   237.2 lion      1.6e-4 8e-6    0.5  1000  50000  480 openwebtext
llama_0.25b_wsd         sharp  llama    8 16 1024   237.2 adamw     8e-4   0       0.1  1000  50000  480 openwebtext
llama_0.5b              sharp  llama   15 20 1280     522 adamw     8e-4   4e-5    0.1  1000  50000  480 openwebtext
llama_0.75b             sharp  llama   13 26 1664   743.3 adamw     6e-4   3e-5    0.1  1000  50000  480 openwebtext
llama_1.1b              sharp  llama   22 32 2048  1174.9 adamw     4e-4   2e-5    0.1  1000  50000  480 openwebtext
llama_2b                sharp  llama   22 32 2048    1682 adamw     2e-4   1e-5    0.1  1000  50000  480 openwebtext
sharpness_gpt2_minipile sharp  pre     12 12  768     124 adamw     6e-4   3e-5    0.1   600  30000  300 minipile
llama_0.13b_minipile    sharp  llama    6 12  768   133.9 adamw     1.2e-3 6e-5    0.1   600  30000  300 minipile
llama_0.25b_minipile    sharp  llama    8 16 1024   237.2 adamw     7.5e-4 3.75e-5 0.1   600  30000  300 minipile
llama_0.5b_minipile     sharp  llama   15 20 1280     522 adamw     4.5e-4 2.25e-5 0.1   600  30000  300 minipile
llama_c4_66m            sharp  llama    8  8  512    66.4 adamw     1e-3   5e-5    0.1  1000  10071  512 c4
llama_c4_0.2b           sharp  llama   16 12  768   200.3 adamw     1e-3   5e-5    0.1  1000  30518  512 c4
llama_c4_0.4b           sharp  llama   12 16 1280   396.8 adamw     6e-4   3e-5    0.1  1000  61035  512 c4
llama_c4_1b             sharp  llama   22 25 1600  1003.8 adamw     3e-4   1.5e-5  0.1  1000 153198  512 c4
vdnt_l_sgd              dnt    s5      24 16 1024   304.3 sgdw      0.5    1e-8    2e-4   60    150 1024 imagenet    16 0.1
vdnt_l_adamw            dnt    s5      24 16 1024   304.3 adamw     1e-3   1e-8    0.1    60    150 1024 imagenet    16 0.1
vdnt_h_sgd              dnt    s5      32 16 1280  632.01 sgdw      0.1    1e-8    1e-3   60    150 1024 imagenet    14 0.5
vdnt_h_adamw            dnt    s5      32 16 1280  632.01 adamw     1e-3   1e-8    0.1    60    150 1024 imagenet    14 0.5
vit_l_sgd               vit    pre     24 16 1024  304.33 sgdw      0.5    1e-8    2e-4   60    150 1024 imagenet    16 0.1
vit_l_adamw             vit    pre     24 16 1024  304.33 adamw     1e-3   1e-8    0.1    60    150 1024 imagenet    16 0.1
vit_h_sgd               vit    pre     32 16 1280  632.05 sgdw      0.1    1e-8    1e-3   60    150 1024 imagenet    14 0.5
vit_h_adamw             vit    pre     32 16 1280  632.05 adamw     1e-3   1e-8    0.1    60    150 1024 imagenet    14 0.5
stablevit_l             vit    stable  24 16 1024  304.28 adamw     1e-3   1e-8    0.1     0    150 1024 imagenet    16 0.5
stablevit_h             vit    stable  32 16 1280  631.97 adamw     1e-3   1e-8    0.1     0    150 1024 imagenet    14 0.5
stablevit_g             vit    stable  40 16 1408  1012.5 adamw     1e-3   1e-8    0.1     0    150 1024 imagenet    14 0.5 6144
stablevit_200           vit    stable 200 12  768 1418.81 adamw     1e-3   1e-8    0.1     0    150 1024 imagenet    16 0.5
vit_g                   vit    pre     40 16 1408 1012.61 adamw     1e-3   1e-8    0.1     0    150 1024 imagenet    14 0.5 6144
vit_200                 vit    pre    200 12  768 1419.09 adamw     1e-3   1e-8    0.1     0    150 1024 imagenet    16 0.5
stable_parts_l          vit    pre     24 16 1024  304.33 adamw     1e-3   1e-8    0.1     0    150 1024 imagenet    16 0.5
stablevit_small         vit    stable  12  6  384  21.369 adamw     1e-3   1e-8    1e-4    0    200  512 cifar100    4  0
vit_small               vit    pre     12  6  384  21.377 adamw     1e-3   1e-8    1e-4    0    200  512 cifar100    4  0
'''
DEPARTURES = {      # of one config from what is said of its paper
    'llama_1.1b': dict(d_ff=5632, n_kv_head=4, norm_eps=1e-5),          # table 3; TinyLlama's heads and ε in the authors' code
    'llama_0.25b_adam_mini': dict(decay_norms=False),                   # the authors' adam_mini.py
    'llama_0.25b_lion': dict(beta1=0.95, beta2=0.98),                   # the authors' code
    'llama_0.25b_wsd': dict(schedule='wsd', decay_frac=1 / 3)}          # appendix A.3: stable up to 66.7% of the steps

# what a ViT's architecture has otherwise than test_configurator's table
OF_A_VIT = {'pre': dict(init='xavier_trunc', fused_qkv_init=True, bias=True, norm_eps=1e-6),
            's5': dict(init='xavier_trunc', bias=True), 'stable': dict(bias=True, norm_alpha=0.25)}
VISION = dict(beta1=0.9, beta2=0.99, grad_clip=0, wd_pos=0, pool='cls', channels=3, qkv_bias=True)     # wd_pos, biases: timm's
DATA = dict(        # DNT, table 4; Stable-Transformer, table 3 (b); crops, flips, interpolation, repeats: Adan's for ViT-Base
    openwebtext=dict(vocab_size=50304, block_size=1024),        # nanoGPT's; DNT, table 5; Stable-Transformer, table 3 (a)
    minipile=dict(vocab_size=50304, block_size=512),            # sharpness, A.1
    c4=dict(vocab_size=32100, block_size=256, blockwise='peak'),
    imagenet=dict(image_size=224, classes=1000, randaugment=9, mixup=0.8, cutmix=1, label_smoothing=0.1,
                  crop_scale=0.08, flip=0.5, interpolation='random', aug_repeats=3),
    cifar100=dict(image_size=32, classes=100, randaugment=0, mixup=0, cutmix=0, label_smoothing=0,
                  crop_scale=0.5, flip=0.5, interpolation='bicubic', aug_repeats=1))
IMAGES_OF = dict(imagenet=1281167, cifar100=50000)


def number(cell):
    return int(cell) if cell.isdigit() else float(cell) if cell[0].isdigit() else cell


def wanted_of(config, paper, arch, **keys):
    """All keys of a row. Its architecture is one of test_configurator's table or near one of them"""
    near = dict(xavier=('pre', dict(init='xavier', emb_init='head', fused_qkv_init=True)),            # DNT's table 5, figure 2
                norm=('pre', dict(norm='stablenorm', norm_alpha=0.25, norm_eps=1e-8)))          # figure 3
    arch, changes = near.get(arch, (arch, {}))
    fields = {key: number(value) if isinstance(value, str) else value for key, value in ARCHS[arch].items()}
    if 'patch_size' in keys:
        fields |= VISION | OF_A_VIT[arch]
        keys |= {key: keys[key] * IMAGES_OF[keys['dataset']] // keys['an_iteration'] for key in ('warmup_iters', 'max_iters')}
    else:
        fields |= LANGUAGE | dict(decay_norms=paper == 'sharp')
    return {**USUAL, **fields, **changes, **DATA[keys['dataset']], **keys, **DEPARTURES.get(config, {})}


GPT_KEYS = defaults_of(TRAIN, GPTConfig)
VIT_KEYS = defaults_of(str(ROOT / 'vision' / 'train.py'), ViTConfig, TRAIN)
WANTED = {line.split()[0]: wanted_of(**dict(zip(COLUMNS, map(number, line.split())))) for line in ROWS.strip().splitlines()}


def trained(*paths):
    """All keys of train.py, or of vision.train, when it is given these config files"""
    defaults = VIT_KEYS if any(re.search('/vit/|vision|cifar|imagenet', path) for path in paths) else GPT_KEYS
    return parse_args([str(ROOT / path) for path in paths], defaults)


def differences(values, wanted):
    """{key: (value, wanted value)} where they are not the same, for the keys that the run's optimizer and schedule use."""
    idle = {'beta1', 'beta2'} if values['optimizer'] == 'sgdw' else {'momentum'}
    idle |= HANDLING | ({'decay_frac'} if values['schedule'] != 'wsd' else set())
    wanted = GPT_KEYS | VIT_KEYS | wanted               # the defaults of keys that no paper knows
    values = {**values, 'an_iteration': values['batch_size'] * values['gradient_accumulation_steps']}
    return {key: (value, wanted[key]) for key, value in values.items() if key not in idle
            and value != (wanted[key] if isinstance(wanted[key], str) else pytest.approx(wanted[key], rel=1e-6, abs=0))}


def test_every_experiment_has_a_folder_of_its_own():
    assert CONFIGS.keys() == WANTED.keys() | OURS
    assert len({trained(path)['out_dir'] for path in CONFIGS.values()}) == len(CONFIGS)


@pytest.mark.parametrize('name', WANTED)
def test_recipe(name):
    """Every key that decides what is trained, and a model of the paper's size"""
    values = trained(CONFIGS[name])
    assert not differences(values, WANTED[name]), CONFIGS[name]
    Model, Config = (ViT, ViTConfig) if 'patch_size' in values else (GPT, GPTConfig)
    with torch.device('meta'):
        one, two = (Model(config_from(Config, {**values, 'n_layer': n})).num_params() for n in (1, 2))
    assert (one + (values['n_layer'] - 1) * (two - one)) / 1e6 == pytest.approx(WANTED[name]['size'], rel=1e-3)


@pytest.mark.parametrize('fragment, wanted', [
    ('lr/blockwise', dict(r_emb=10, r_qk=8, r_ffn=6, r_vo=4)),                          # equation 5
    ('lr/blockwise_adam_mini', dict(r_emb=4, r_qk=1, r_ffn=4, r_vo=4)),                 # appendix A.3
    ('lr/wsd', dict(schedule='wsd', min_lr=0, decay_frac=1 / 3)),                       # appendix A.3
    ('lr/wsd_merge', dict(schedule='wsd', min_lr=8e-5, decay_frac=1 / 3, blockwise='merge')),           # the authors' code
    ('optim/muon', dict(optimizer='muon', momentum=0.95, muon_scale='match_rms_adamw', learning_rate=6e-4, min_lr=6e-5))])
def test_a_fragment(fragment, wanted):
    """It changes what its paper, or its code, says, and nothing else: not the rates of norms, positions and heads"""
    llama = CONFIGS['llama_0.25b']
    assert trained(llama, f'config/{fragment}.py') == pytest.approx(trained(llama) | wanted)


LEARNING_RATES = dict(c4=[1e-4, 2e-4, 3e-4, 6e-4, 1e-3, 1.5e-3], minipile=[3e-4, 4.5e-4, 6e-4, 7.5e-4, 9e-4, 1.2e-3, 1.5e-3],
                      openwebtext=[2e-4, 4e-4, 6e-4, 8e-4, 1e-3])


def test_a_grid_of_learning_rates(monkeypatch):
    """Sharpness disparity, appendix A: each of AdamW's runs at each rate, falling to a twentieth of it"""
    monkeypatch.chdir(ROOT)
    planned = [row.run_at((), 1)['config'] for row in rows_of_file(read_sweep('config/sweep/sharpness.py'))]
    tuned = [wanted for wanted in WANTED.values()
             if (wanted['optimizer'], wanted['schedule'], wanted['decay_norms']) == ('adamw', 'cosine', True)]
    grid = [{**wanted, 'learning_rate': rate, 'min_lr': rate / 20} for data, rates in LEARNING_RATES.items()
            for wanted in tuned if wanted['dataset'] == data for rate in rates]
    for run, wanted in zip([run for run in planned if run['optimizer'] == 'adamw'], grid, strict=True):
        assert not differences(run, wanted)
