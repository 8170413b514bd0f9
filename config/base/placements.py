# The placements of config/sweep/decay.py and its successors, as {name: arguments of train.py} at a width. GPT-2's matrices
# (Pre, Peri, Post) start with the gain that a std of 0.02 has at a width of 768, and its embeddings with about the std of S1's.


def _placements(width):
    gpt2 = f'--emb_std=0.08 --init_gain={(768 / width) ** 0.5:.2f}'
    return {'S1': 'config/arch/s1.py', 'DNT': 'config/arch/s5.py', 'Pre': f'config/arch/pre.py {gpt2}',
            'S1+InputNorm': 'config/arch/s1.py --input_norm=True', 'S1 large': 'config/arch/s1.py --emb_std=0.3',
            'Peri': f'config/arch/peri.py {gpt2}', 'Post': f'config/arch/post.py {gpt2}'}
