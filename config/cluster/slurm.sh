#!/usr/bin/env bash
# L-DNT-XL by momentum SGDW on 32 GPUs, 4 nodes of 8:
#     sbatch config/cluster/slurm.sh [config files and --key=value of train.py]
# When its time limit or a failing node ends the job, it is queued again and goes on from its checkpoint. The log is
# out-slurm/nanonorm-JOB.txt. torchrun is the one at TORCHRUN, in the PATH or in .venv/bin.
#SBATCH --job-name=nanonorm
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@180
#SBATCH --requeue
#SBATCH --output=/dev/null
set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
mkdir -p out-slurm
exec >>"out-slurm/$SLURM_JOB_NAME-$SLURM_JOB_ID.txt" 2>&1
export TORCHRUN=${TORCHRUN:-$(command -v torchrun || echo .venv/bin/torchrun)}
HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
srun --kill-on-bad-exit=1 bash -c 'exec "$TORCHRUN" --nnodes="$SLURM_NNODES" --nproc_per_node=8 --node_rank="$SLURM_NODEID" \
    --master_addr="$0" --master_port=29500 train.py "$@"' "$HEAD" config/train_ldnt_xl_sgd.py --init_from=auto "$@" ||
    scontrol requeue "$SLURM_JOB_ID"
