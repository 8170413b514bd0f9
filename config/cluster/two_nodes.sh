#!/usr/bin/env bash
# A run on two nodes, tried on one machine. The nodes are network namespaces, which a virtual cable joins and which share only the
# disk. The script trains on both by torchrun, kills one of them in the middle, and starts both again. The run must then go on
# from its checkpoint.
#     sudo config/cluster/two_nodes.sh [config files and --key=value of train.py]
# It needs Linux, root, iproute2, the data of data/pycode/prepare.py, and torchrun: at TORCHRUN, in the PATH or in .venv/bin.
# The run and the logs of the nodes are in OUT.
set -euo pipefail
cd "$(dirname "$0")/../.."
TORCHRUN=${TORCHRUN:-$(command -v torchrun || echo .venv/bin/torchrun)}
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

start() {                                               # node: train.py starts there, or goes on
    ip netns exec nanonorm"$1" env GLOO_SOCKET_IFNAME=cable"$1" "$TORCHRUN" --nnodes=2 --nproc_per_node="$RANKS" --node_rank="$1" \
        --master_addr=10.77.0.1 --master_port=29500 train.py "${KEYS[@]}" --out_dir="$OUT" --init_from=auto >"$OUT/node$1.txt" 2>&1 &
}

rm -rf "$OUT"
mkdir -p "$OUT"
start 0
first=$!
start 1
until grep -q '"val_loss"' "$OUT/log.jsonl" 2>/dev/null && [ -e "$OUT/ckpt.pt" ]; do
    kill -0 $first 2>/dev/null || { cat "$OUT"/node?.txt; exit 1; }
    sleep 0.2
done
sleep 1
echo "node 1 is killed, after a checkpoint at iteration 20 or later"
SECONDS=0
ip netns pids nanonorm1 | xargs kill -KILL
wait $first && { echo "node 0 has already ended without an error, before node 1 was killed"; exit 1; }
echo "node 0 ends $SECONDS s later and says:"
grep -h 'error: rank' "$OUT/node0.txt" || { cat "$OUT/node0.txt"; exit 1; }

echo "both nodes start again"
start 0
first=$!
start 1
wait $first || { cat "$OUT/node0.txt"; exit 1; }
grep -h -e 'an iteration' -e 'val loss' "$OUT/node0.txt"
