# Adam-mini, which takes AdamW's settings as they are
include('config/optim/adamw.py')
optimizer = 'adam_mini'
