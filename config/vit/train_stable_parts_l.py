# Which part of Stable-Transformer makes ViT-L more stable without warm-up? (Stable-Transformer, figures 2, 3 and 4)
#     torchrun --nproc_per_node=8 -m vision.train config/vit/train_stable_parts_l.py
# This file is ViT-L without any of them. To try one at a time, add an --out_dir and:
#     Xavier, StableInit (figure 2)           --init=xavier, --init=stable
#     StableNorm (figure 3)                   --norm=stablenorm --norm_eps=1e-8 --norm_alpha=0, 0.125, 0.25, 0.375 or 0.5
#     heads (figure 4, left)                  --n_head=8 or 32
#     StableAtten (figure 4, right)           --attention=stable
# The paper shows curves without numbers: with StableInit training takes longer to diverge, an extremely small α may let gradients
# vanish and a large α may be unstable, more heads and StableAtten are more stable. It names ViT-L only for figure 4, and only 8
# of these numbers of heads. config/sweep/vit_parts.py has these runs at the scale of a laptop.
# The baseline's norm and initialization are not given; config/arch/pre.py says what they are here.
include('config/vit/train_stablevit_l.py')
include('config/arch/pre.py')
out_dir = 'out-stable-parts-l'
