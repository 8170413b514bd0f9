# S3: S2 with a norm on the embeddings (DNT, figure 6)
include('config/arch/s2.py')
input_norm = True
