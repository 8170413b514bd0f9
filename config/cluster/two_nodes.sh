#!/usr/bin/env bash
# Two nodes on one machine: network namespaces that are joined by a virtual cable and share nothing else but the disk. Trains on
# both by torchrun, kills one node in the middle, starts both again, and the run goes on from its checkpoint.
#     sudo config/cluster/two_nodes.sh [config files and --key=value of train.py]
# Needs Linux, root and iproute2, and torchrun in the PATH or at TORCHRUN.
set -euo pipefail
cd "$(dirname "$0")/../.."
TORCHRUN=${TORCHRUN:-torchrun}
OUT=${OUT:-out-two-nodes}
RANKS=${RANKS:-1}                                       # of each node
KEYS=(config/train_quick.py --max_iters=60 --eval_interval=20 --eval_iters=5 --warmup_iters=5 --gradient_accumulation_steps=4 --compile=False "$@")

clean_up() {
    for node in 0 1; do
        ip netns pids nanonorm$node 2>/dev/null | xargs -r kill -KILL 2>/dev/null || true
        ip netns del nanonorm$node 2>/dev/null || true
    done
}
trap clean_up EXIT
clean_up
ip netns add nanonorm0
ip netns add nanonorm1
ip link add cable0 netns nanonorm0 type veth peer name cable1 netns nanonorm1
for node in 0 1; do
    ip -n nanonorm$node link set lo up
    ip -n nanonorm$node addr add 10.77.0.$((node + 1))/24 dev cable$node
    ip -n nanonorm$node link set cable$node up
done

start() {                                               # node, on which train.py starts or goes on
    ip netns exec nanonorm"$1" env GLOO_SOCKET_IFNAME=cable"$1" "$TORCHRUN" --nnodes=2 --nproc_per_node="$RANKS" --node_rank="$1" \
        --master_addr=10.77.0.1 --master_port=29500 train.py "${KEYS[@]}" --out_dir="$OUT" --init_from=auto >"$OUT.node$1" 2>&1 &
}

rm -rf "$OUT" "$OUT".node?
start 0
first=$!
start 1
until grep -q '"val_loss"' "$OUT/log.jsonl" 2>/dev/null && [ -e "$OUT/ckpt.pt" ]; do
    kill -0 $first 2>/dev/null || { cat "$OUT".node?; exit 1; }
    sleep 0.2
done
sleep 1
echo "node 1 dies, with a checkpoint of iteration 20 or later there"
SECONDS=0
ip netns pids nanonorm1 | xargs kill -KILL
wait $first && { echo "node 0 has ended well, too early to be killed"; exit 1; }
echo "node 0 has ended $SECONDS s later and says:"
grep -h 'error: rank' "$OUT.node0" || { cat "$OUT.node0"; exit 1; }

echo "both start again"
start 0
first=$!
start 1
wait $first || { cat "$OUT.node0"; exit 1; }
grep -h -e 'an iteration' -e 'val loss' "$OUT.node0"
