# S4: S3 with a norm on the output of each branch (DNT, figure 6)
include('config/arch/s3.py')
mid_norm = True
