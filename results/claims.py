"""
The claims of the papers that results/ tests.

`text` says what the paper claims, `said` its numbers, as they are there, and `short` labels the picture. `contrast`, of rows of
csv/SWEEP.csv, is what tests it. `effect` is the first of the paper's numbers, for the picture and for the direction; a claim
without a number has its direction as `sign`. Of a claim that cannot be tested here, `why` says the reason.
"""
_S1, _S5 = (f'setting={setting},embedding=as a head,optim=adamw' for setting in ('S1', 'S5'))
_S2_SGD, _S3_SGD, _S5_SGD = (f'setting={setting},embedding=as a head,optim=sgdw' for setting in ('S2', 'S3', 'S5'))
# with as much weight decay as AdamW has
_S1_ADAMW, _S1_MSGDW, _DNT_ADAMW, _DNT_MSGDW = (f'setting={setting},optim={optim}' for setting in ('S1', 'DNT')
                                                for optim in ('adamw,weight_decay=0.1', 'sgdw,weight_decay=0.002'))

CLAIMS = [
    dict(paper='DNT', short='S1: mSGDW − AdamW', text='With momentum SGDW the standard Transformer (S1) is worse than with AdamW',
         said='+0.039 (774M: +0.052, 1.4B: +0.037)', effect=0.039, sweep='decay', contrast=f'{_S1_MSGDW} - {_S1_ADAMW}'),
    dict(paper='DNT', short='DNT: mSGDW − AdamW', text='With momentum SGDW, DNT is better than with AdamW',
         said='−0.014 (774M: +0.022, 1.4B: +0.012)', effect=-0.014, sweep='decay', contrast=f'{_DNT_MSGDW} - {_DNT_ADAMW}'),
    dict(paper='DNT', short='second − first', text='DNT loses less by momentum SGDW than S1 does',
         said='−0.053 (774M: −0.030, 1.4B: −0.025)', effect=-0.053, sweep='decay',
         contrast=f'{_DNT_MSGDW} - {_DNT_ADAMW} - {_S1_MSGDW} + {_S1_ADAMW}'),
    dict(paper='DNT', short='AdamW: DNT − S1', text='With AdamW, DNT is better than S1',
         said='−0.004 (774M: −0.011, 1.4B: −0.039)', effect=-0.004, sweep='dnt_parts', contrast=f'{_S5} - {_S1}'),
    dict(paper='DNT', short='mSGDW: DNT − S1', text='With momentum SGDW, DNT is better than S1',
         said='−0.057 (774M: −0.041, 1.4B: −0.064)', effect=-0.057, sweep='decay', contrast=f'{_DNT_MSGDW} - {_S1_MSGDW}'),
    dict(paper='DNT', short='mSGDW: S3 − S2', text='With momentum SGDW, adding an InputNorm to S2, which gives S3, helps',
         said='figure 6', sign=-1, sweep='dnt_parts', contrast=f'{_S3_SGD} - {_S2_SGD}'),
    dict(paper='DNT', short='mSGDW: DNT − S3', text='With momentum SGDW, DNT is better than S3', said='figure 6', sign=-1,
         sweep='dnt_parts', contrast=f'{_S5_SGD} - {_S3_SGD}'),
]
