# Blockwise LR for AdamW and Lion (sharpness disparity, equation 5). Norms, learned positions and an untied head
# keep the base rate.
# By default each type warms up to its own peak, as in the authors' code. Their text describes --blockwise=jump.
r_emb, r_qk, r_ffn, r_vo = 10.0, 8.0, 6.0, 4.0
