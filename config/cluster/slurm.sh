#!/usr/bin/env bash
# L-DNT-XL by momentum SGDW on 32 GPUs, 4 nodes of 8:
#     sbatch config/cluster/slurm.sh [config files and --key=value of train.py]
# Ended by its time limit, or by a node that fails, the job is queued again and goes on from its checkpoint.
#SBATCH --job-name=nanonorm
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@180
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --kill-on-bad-exit=1 bash -c 'exec torchrun --nnodes="$SLURM_NNODES" --nproc_per_node=8 --node_rank="$SLURM_NODEID" \
    --master_addr="$0" --master_port=29500 train.py "$@"' "$HEAD" config/train_ldnt_xl_sgd.py --init_from=auto "$@" ||
    scontrol requeue "$SLURM_JOB_ID"
