# B2T connection: Post-LN whose block adds its input in front of its last norm too (Takase et al. 2022)
include('config/arch/post.py')
b2t = True
