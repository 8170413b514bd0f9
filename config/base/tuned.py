# Each placement's weight decay and learning rate at 0.2M parameters, by the rule of config/sweep/decay.py: those with the lowest
# validation loss of seed 1 in results/csv/decay.csv and brackets.csv. A test recomputes them.
# For Post by AdamW, and for Pre, S1 large and Peri by momentum SGDW, that is the lowest decay tried. The next decay is only 0.001
# to 0.013 worse.
include(__file__.rpartition('sweep')[0] + 'base/placements.py')
_tuned = {'adamw': {'Pre': (0.1, 8e-3), 'S1': (0.1, 8e-3), 'S1+InputNorm': (0.1, 16e-3), 'S1 large': (0.1, 16e-3),
                    'Peri': (0.3, 8e-3), 'DNT': (0.3, 8e-3), 'Post': (0.03, 8e-3)},
          'sgdw': {'Pre': (2e-4, 0.4), 'S1': (2e-3, 0.4), 'S1+InputNorm': (6e-4, 0.8), 'S1 large': (2e-4, 0.8),
                   'Peri': (2e-4, 0.2), 'DNT': (6e-3, 0.2), 'Post': (2e-4, 0.8)}}
