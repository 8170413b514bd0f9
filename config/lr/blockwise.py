# Blockwise LR for AdamW and Lion (sharpness disparity, equation 5); the norms keep the base rate
r_emb, r_qk, r_ffn, r_vo = 10.0, 8.0, 6.0, 4.0
