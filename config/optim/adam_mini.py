# Adam-mini, with AdamW's settings unchanged
include('config/optim/adamw.py')
optimizer = 'adam_mini'
