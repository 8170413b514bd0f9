# Blockwise LR for AdamW and Lion (sharpness disparity, equation 5). Norms, learned positions and an untied head
# keep the base rate.
# By default each type's warm-up goes on at the base's slope to its own peak, one of two ways of the authors' code. Their text
# describes --blockwise=jump. docs/papers.md compares them.
r_emb, r_qk, r_ffn, r_vo = 10.0, 8.0, 6.0, 4.0
