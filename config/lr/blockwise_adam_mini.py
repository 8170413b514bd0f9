# Blockwise LR for Adam-mini (sharpness disparity, section 6.3 and appendix A.3). Norms, learned
# positions and an untied head keep the base rate.
r_emb, r_qk, r_ffn, r_vo = 4.0, 1.0, 4.0, 4.0
