"""
The claims of the papers that results/ tests.

`text` says what the paper claims, `said` its numbers, as they are there, and `short` labels the picture. `contrast`, of rows of
csv/SWEEP.csv, is what tests it. `effect` is the first of the paper's numbers, for the picture and for the direction; a claim
without a number has its direction as `sign`. Of a claim that cannot be tested here, `why` says the reason.
"""


def _dnt(setting, optim):
    return f'setting={setting},optim={optim}'


def _long(setting, optim):
    return f'setting={"DNT" if setting == "S5" else setting},tokens=16M,optim={optim}'


def _pairs(setting, optim):
    return f'setting={"DNT" if setting == "S5" else setting},start=as a head,optim={optim}'


def _paper(at_124m, *larger):
    """What the paper says at 124M, and at its larger sizes"""
    return dict(effect=at_124m, said=f'{at_124m:+.3f} ({", ".join(larger)})'.replace('-', '−'))


# What the paper's table of GPT-2 on OpenWebText says. _TESTS tests each three times: after 20 bytes a parameter with the paper's
# weight decays, after 74 with a weight decay of 2e-3 for momentum SGDW, and so too after 20 byte pairs
_TABLE = [
    ('S1: mSGDW − AdamW', 'With mSGDW the standard Transformer (S1) is worse than with AdamW',
     _paper(0.039, '774M: +0.052', '1.4B: +0.037'), lambda row: f'{row("S1", "sgdw")} - {row("S1", "adamw")}'),
    ('DNT: mSGDW − AdamW', 'With mSGDW, DNT is better than with AdamW',
     _paper(-0.014, '774M: +0.022', '1.4B: +0.012'), lambda row: f'{row("S5", "sgdw")} - {row("S5", "adamw")}'),
    ('cost of mSGDW: DNT − S1', 'mSGDW raises the loss of DNT less than that of S1',
     _paper(-0.053, '774M: −0.030', '1.4B: −0.025'),
     lambda row: f'{row("S5", "sgdw")} - {row("S5", "adamw")} - {row("S1", "sgdw")} + {row("S1", "adamw")}'),
    ('AdamW: DNT − S1', 'With AdamW, DNT is better than S1',
     _paper(-0.004, '774M: −0.011', '1.4B: −0.039'), lambda row: f'{row("S5", "adamw")} - {row("S1", "adamw")}'),
    ('mSGDW: DNT − S1', 'With mSGDW, DNT is better than S1',
     _paper(-0.057, '774M: −0.041', '1.4B: −0.064'), lambda row: f'{row("S5", "sgdw")} - {row("S1", "sgdw")}'),
    ('DNT, mSGDW − S1, AdamW', 'DNT with mSGDW is better than S1 with AdamW',
     _paper(-0.018, '774M: +0.011', '1.4B: −0.027'), lambda row: f'{row("S5", "sgdw")} - {row("S1", "adamw")}'),
]

_TESTS = [('', '', 'dnt_parts', _dnt),
          (', 16M bytes', ', after 16M bytes', 'tokens', _long),
          (', byte pairs', ', on byte pairs', 'dnt_bpe', _pairs)]

_STABLE, _GPT2 = ({warmup: f'model={model},warmup={warmup}' for warmup in ('10%', 'none', '10% at 0.032')}
                  for model in ('Stable', 'GPT-2'))


def _cold(model):
    return f'model={model},warmup=none'


def _ln(arch, change, rate='best'):
    return f'arch={arch},change={change},rate={rate}'


def _llama(change, tokens='4.2M'):
    return f'change={change},tokens={tokens}'


CLAIMS = [
    *(dict(paper='DNT', short=short + after, text=text + after_bytes, **said, sweep=sweep, contrast=contrast(row))
      for short, text, said, contrast in _TABLE for after, after_bytes, sweep, row in _TESTS),
    dict(paper='DNT', short='mSGDW: S3 − S2', text='With mSGDW, adding an InputNorm to S2, which gives S3, helps',
         said='figure 6', sign=-1, sweep='dnt_parts', contrast=f'{_dnt("S3", "sgdw")} - {_dnt("S2", "sgdw")}'),
    dict(paper='DNT', short='mSGDW: DNT − S3', text='With mSGDW, DNT is better than S3', said='figure 6', sign=-1,
         sweep='dnt_parts', contrast=f'{_dnt("S5", "sgdw")} - {_dnt("S3", "sgdw")}'),
    dict(paper='Stable', short='warm-up: Stable − GPT-2', said='−0.021 (350M: −0.010, 774M: −0.013)', effect=-0.021,
         text='With a warm-up, Stable-Transformer is better than GPT-2', sweep='stable_warmup',
         contrast=f'{_STABLE["10%"]} - {_GPT2["10%"]}'),
    dict(paper='Stable', short='large rate: cost for Stable − GPT-2', said='figure 6, without GPT-2', sign=-1,
         sweep='stable_warmup', text='A learning rate of 0.032 in place of the best one costs Stable-Transformer less than GPT-2',
         contrast=f'{_STABLE["10% at 0.032"]} - {_STABLE["10%"]} - {_GPT2["10% at 0.032"]} + {_GPT2["10%"]}'),
    dict(paper='Stable', short='no warm-up: cost for Stable − GPT-2', said='figures 9 and 13, ViT', sign=-1,
         sweep='stable_warmup', text='To leave out the warm-up costs Stable-Transformer less than GPT-2',
         contrast=f'{_STABLE["none"]} - {_STABLE["10%"]} - {_GPT2["none"]} + {_GPT2["10%"]}'),
    dict(paper='Stable', short='no warm-up: StableInit, Xavier', said='figure 2', why='no run diverged',
         text='Without a warm-up, training goes on for longer until it diverges with StableInit than with Xavier\'s start'),
    dict(paper='Stable', short='no warm-up: α 0 − α 0.5', said='figure 3', sign=1, sweep='stable_warmup',
         text='Without a warm-up, an α of 0 in StableNorm is worse than 0.5', contrast=f'{_cold("α 0")} - {_cold("α 0.5")}'),
    *(dict(paper='Stable', short=f'Stable − Stable with {l2}', said='figure 14', sign=-1, sweep='stable_warmup',
           text=f'Stable-Transformer is better with StableAtten than with {l2} attention',
           contrast=f'{_STABLE["10%"]} - model=Stable {l2},warmup=10%') for l2 in ('L2', 'tied L2')),
    dict(paper='LN stability', short='Peri-LN: step 0.1 − step 1', said='−0.02 (774M: −0.02, 1.5B: −0.02)', effect=-0.02,
         text='In Peri-LN, a residual step of 0.1 is better than 1', sweep='ln_residual',
         contrast=f'{_ln("peri", "step 0.1")} - {_ln("peri", "none")}'),
    dict(paper='LN stability', short='step 0.1: Peri-LN − Pre-LN', said='−0.03 (774M: −0.02, 1.5B: −0.01)', effect=-0.03,
         text='With a residual step of 0.1, Peri-LN is better than Pre-LN', sweep='ln_residual',
         contrast=f'{_ln("peri", "step 0.1")} - {_ln("pre", "step 0.1")}'),
    dict(paper='LN stability', short='at 0.064, Pre-LN: step 0.1 − step 1', said='3.13 − 5.43, at a tuned rate', sign=-1,
         text='At 0.064, 8 times the best rate, a residual step of 0.1 helps Pre-LN', sweep='ln_residual',
         contrast=f'{_ln("pre", "step 0.1", "0.064")} - {_ln("pre", "none", "0.064")}'),
    dict(paper='LN stability', short='at 0.064: Peri-LN − Pre-LN', said='3.12 − 5.43, at a tuned rate', sign=-1,
         text='At 0.064, Peri-LN is better than Pre-LN', sweep='ln_residual',
         contrast=f'{_ln("peri", "none", "0.064")} - {_ln("pre", "none", "0.064")}'),
    dict(paper='LN stability', short='no decay: Pre-LN, Peri-LN', why='no run diverged',
         text='Pre-LN diverges in some runs, and in more of them without weight decay. Peri-LN does not',
         said='table 1: of 5 runs of Pre-LN 3 without decay, 1 with'),
    *(dict(paper='Sharpness', short=f'LLaMA: {short} − none', said=f'{effect:+.3f}'.replace('-', '−'), effect=effect,
           text=f'{text}, with the baseline\'s learning rate for the norms, is better than one rate for all',
           sweep='blockwise_llama', contrast=f'{_llama(f"{change} kept")} - {_llama("none")}')
      for change, short, effect, text in (('ramp', 'Blockwise LR', -0.050, 'Blockwise LR'),
                                          ('Emb', 'Emb × 10', -0.016, 'A rate 10 times as large for the embeddings alone'),
                                          ('Emb and FFN', 'Emb × 10, FFN × 6', -0.043,
                                           'A rate 10 times as large for the embeddings and 6 times for the FFN'))),
    dict(paper='Sharpness', short='LLaMA: Blockwise LR, 60% − none, 100%', said='nearly 2× faster', sign=-1,
         text='Blockwise LR with 60% of the tokens is better than one rate for all with all tokens',
         sweep='blockwise_llama', contrast=f'{_llama("ramp kept", "2.5M")} - {_llama("none")}'),
]
