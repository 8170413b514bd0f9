#!/usr/bin/env bash
# Measure a GPU by commands of bench.py and train.py, in at most nine minutes, and write their output to a page. `make gpu` runs this:
#     bash lab/gpu.sh python3                 # results/gpu/<the GPU's name>.md, or PAGE=FILE
#     DEVICE=cpu TINY=1 bash lab/gpu.sh       # small models on any machine, into out-gpu/page.md
# The most valuable commands come first, and the page has the output of each as soon as it ends. After BUDGET seconds no command
# starts. A failing command does not end the others. Needs PyTorch, NumPy and a prepared data/pycode.
cd "$(dirname "$0")/.." || exit 1
PYTHON=${1:-python3} DEVICE=${DEVICE:-cuda} OUT=out-gpu BUDGET=${BUDGET:-540} FAILED=
rm -rf $OUT && mkdir -p $OUT results/gpu
if [ "$DEVICE" = cuda ]; then
    name=$($PYTHON -c 'import torch; print(torch.cuda.get_device_name())') || exit 1
    [ "${TINY:-}" ] || PAGE=${PAGE:-results/gpu/$(echo "$name" | tr 'A-Z' 'a-z' | tr -cs 'a-z0-9' '-' | sed 's/-*$//').md}
fi
PAGE=${PAGE:-out-gpu/page.md}
SMALL=${TINY:+--n_layer=2 --n_head=2 --n_embd=32 --block_size=64 --vocab_size=256 --batch_size=2}
QUICK="train.py config/train_quick.py --compile=True --max_iters=20 --lr_decay_iters=20 --warmup_iters=5 --eval_interval=10
    --eval_iters=2 --log_interval=1 --device=$DEVICE"
GPT2="config/train_gpt2_adamw.py --dataset=pycode --vocab_size=50304 --device=$DEVICE $SMALL"
TRAIN="train.py $GPT2 --gradient_accumulation_steps=16 --max_iters=8 --warmup_iters=4 --eval_interval=100 --eval_iters=1 --log_interval=1"
BENCH="bench.py $GPT2 --bench_iters=10"
TORCHRUN="-m torch.distributed.run --standalone"

run() {                 # run NAME SECONDS ARGUMENTS…: a section of the page
    local name=$1 limit=$2 left=$((BUDGET - SECONDS)) code; shift 2
    printf '\n## %s\n\n    python %s\n\n' "$name" "$*"
    [ $left -ge 15 ] || { printf 'Not run: the %s s are over.\n' "$BUDGET"; return; }
    limit=$((left < limit ? left : limit))
    timeout -k 5 "$limit" $PYTHON "$@" >$OUT/output.txt 2>&1; code=$?
    grep -v '^iter ' $OUT/output.txt | tail -n 30 | sed 's/^/    /'
    [ $code = 0 ] || { FAILED="$FAILED; $name"; printf '\n**Failed** with exit code %s (124: it took longer than %s s).\n' $code "$limit"; }
}
losses() {              # losses NAME [LIKE WITHIN]: the logged losses, and whether they equal those of another run
    [ -e "$OUT/$1/log.jsonl" ] || return                # not run, or failed before its first line
    $PYTHON - "$@" <<'PY' || FAILED="$FAILED; losses of $1"
import json, sys
name, like, within = (*sys.argv[1:], '', '0')[:3]
read = lambda run: [row['loss'] for row in map(json.loads, open(f'out-gpu/{run}/log.jsonl')) if 'loss' in row]
found = read(name)
print(f'\nLosses {found[0]:.4f} to {found[-1]:.4f} in {len(found)} iterations.')
good = found[-1] < found[0]
if like:
    if len(found) != len(read(like)):
        sys.exit(f'{like} has other iterations, so they cannot be compared.')
    off = max(abs(a - b) for a, b in zip(found, read(like)))
    print(f'They differ from those of {like} by {off:.2e}; {within} is allowed.')
    good = good and off <= float(within)
sys.exit(not good)
PY
}
quick() { local name=$1 limit=$2; shift 2; run "$name" "$limit" $QUICK --out_dir=$OUT/"$name" "$@"; }
half() { quick "$1" 30 "$2" --max_iters=10; run "$1, resumed" 30 $QUICK --out_dir=$OUT/"$1" "$2" --init_from=resume; }

{
echo "# ${name:-$DEVICE}"
echo
$PYTHON -c 'import platform, torch; print(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, Python {platform.python_version()}")'
echo "Commit $(git rev-parse --short=12 HEAD)$(git diff --quiet HEAD || echo ' with changes'), by \`bash lab/gpu.sh\`."
quick quick 60;                                             losses quick
run 'GPT-2, AdamW' 90 $TRAIN config/arch/pre.py --out_dir=$OUT/gpt2
run 'GPT-2, DNT by SGDW' 75 $TRAIN config/arch/s5.py config/optim/sgdw.py --out_dir=$OUT/dnt
run placements 75 $BENCH --archs=pre,s5                     # both are compiled by now
quick fp32 30 --compile=False --dtype=float32 --tf32=False
quick cpu 40 --compile=False --dtype=float32 --device=cpu;  losses cpu fp32 1e-3
quick eager 30 --compile=False;                             losses eager quick 5e-2
half half --deterministic=False;                            losses half quick 2e-2
run ddp 45 $TORCHRUN $QUICK --out_dir=$OUT/ddp;             losses ddp quick 2e-2
run fsdp 45 $TORCHRUN $QUICK --parallel=fsdp --out_dir=$OUT/fsdp;   losses fsdp quick 2e-2
run optimizers 60 $BENCH --optimizers=adamw,sgdw,lion,adam_mini,muon
# what follows runs only if the commands above were fast
quick exact 45 --deterministic=True
half exact-half --deterministic=True;                       losses exact-half exact 0
[ "$DEVICE" != cuda ] || { quick fp16 30 --dtype=float16;   losses fp16 quick 5e-2; }
run 'more placements' 120 $BENCH --archs=pre,peri,post,stable,llama
printf '\n%s\n' "${FAILED:+Failed, or too far apart: ${FAILED#; }.}"
} | tee "$PAGE"
echo "wrote $PAGE"
! grep -q '^Failed, or too far apart' "$PAGE"
