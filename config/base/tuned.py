# The placements of config/sweep/decay.py and its successors, as {name: arguments of train.py} at a width. GPT-2's matrices
# (Pre, Peri, Post) start with the gain that a std of 0.02 has at a width of 768, and its embeddings with about the std of S1's.


def _placements(width):
    gpt2 = f'--emb_std=0.08 --init_gain={(768 / width) ** 0.5:.2f}'
    return {'S1': 'config/arch/s1.py', 'DNT': 'config/arch/s5.py', 'Pre': f'config/arch/pre.py {gpt2}',
            'S1+InputNorm': 'config/arch/s1.py --input_norm=True',
            'S1 large': 'config/arch/s1.py --emb_init=normal --emb_std=0.3',
            'Peri': f'config/arch/peri.py {gpt2}', 'Post': f'config/arch/post.py {gpt2}'}


# Each placement's weight decay and learning rate at 0.2M parameters, by the rule of config/sweep/decay.py: those with the lowest
# validation loss of seed 1 in results/csv/decay.csv and brackets.csv. A test recomputes them.
# For Post by AdamW, and for Pre, S1 large and Peri by momentum SGDW, that is the lowest decay tried. The next decay is only 0.001
# to 0.013 worse.
_tuned = {'adamw': {'Pre': (0.1, 8e-3), 'S1': (0.1, 8e-3), 'S1+InputNorm': (0.1, 16e-3), 'S1 large': (0.1, 16e-3),
                    'Peri': (0.3, 8e-3), 'DNT': (0.3, 8e-3), 'Post': (0.03, 8e-3)},
          'sgdw': {'Pre': (2e-4, 0.4), 'S1': (2e-3, 0.4), 'S1+InputNorm': (6e-4, 0.8), 'S1 large': (2e-4, 0.8),
                   'Peri': (2e-4, 0.2), 'DNT': (6e-3, 0.2), 'Post': (2e-4, 0.8)}}
