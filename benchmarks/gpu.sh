#!/bin/bash
# All that mjtrain has to show on a GPU, in one command, as a page of Markdown to paste into docs/gpu.md:
#
#     bash benchmarks/gpu.sh                          # every task at 1,024, 4,096 and 16,384 environments
#     bash benchmarks/gpu.sh --device cpu --tiny      # the same steps on a CPU, small: whether this script works
#
# --out FOLDER   where report.md and the runs go (default: gpu-report)
# --sizes "N …"  environments per rank of the throughput
# --tasks "T …"  tasks of the throughput (default: all that list-tasks prints)
# --only "S …"   parts of the report: tests throughput start resume ranks video
#
# It needs the environment of `uv sync`, and no network after that. A step that fails is a line in the report, and the
# status is 1 in the end. UV_NO_SYNC and UV_OFFLINE are set, so that no package changes on the way. Without a .venv here,
# python3 and what it imports are taken.
set -u
export UV_NO_SYNC=1 UV_OFFLINE=1
cd "$(dirname "$0")/.." || exit 2
python=(uv run python)
[ -d .venv ] || python=(python3)

device=gpu out=gpu-report sizes="1024 4096 16384" tasks="" tiny="" only="tests throughput start resume ranks video"
while [ $# -gt 0 ]; do
    case "$1" in
        --device) device=${2:-}; shift ;;
        --out) out=${2:-}; shift ;;
        --sizes) sizes=${2:-}; shift ;;
        --tasks) tasks=${2:-}; shift ;;
        --only) only=${2:-}; shift ;;
        --tiny) tiny=1 ;;
        *) echo "gpu.sh: $1: unknown; --device, --out, --sizes, --tasks, --only, --tiny" >&2; exit 2 ;;
    esac
    shift
done
case "$device" in
    gpu) where=(--gpu-ids 0) two=(--gpu-ids 0 1) ;;
    cpu) where=(--gpu-ids None --num-threads 1) two=(--gpu-ids None --num-workers 2) ;;
    *) echo "gpu.sh: --device $device: gpu or cpu" >&2; exit 2 ;;
esac
for part in $only; do
    case "$part" in
        tests | throughput | start | resume | ranks | video) ;;
        *) echo "gpu.sh: --only $part: tests, throughput, start, resume, ranks or video" >&2; exit 2 ;;
    esac
done
tests=$(grep -rl "pytest.mark.gpu" tests --include="test_*.py") # others may import what is not installed here
iterations=10 task=Quadruped-Velocity-Flat envs=4096 length_s=5
if [ -n "$tiny" ]; then
    tests=tests/sim/engines/test_warp.py iterations=1 task=Cartpole-Balance envs=8 length_s=0.2 sizes=8
    tasks=${tasks:-Cartpole-Balance}
fi
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
report=$out/report.md failures=0
: > "$report"

say() { printf '%s\n' "$@" | tee -a "$report"; }

# A step: its name, the seconds that it may take, and the command. Its output goes to a file; what it says to the report
# is up to the caller. Returns the command's status.
step() {
    local name=$1 limit=$2; shift 2
    timeout -k 10 "$limit" "$@" > "$out/$name.log" 2>&1
    local status=$?
    if [ $status -ne 0 ]; then
        failures=$((failures + 1))
        say "" "**$name failed with status $status** (124: took more than $limit s):" "" '```' "$(tail -n 15 "$out/$name.log")" '```' ""
    fi
    return $status
}

run_of() { ls -d "$out/$1"/*/* 2>/dev/null | tail -n 1; }

# A training in $out/NAME; the further arguments are flags of train.
train() {
    local name=$1; shift
    step "$name" 1800 "${python[@]}" -m mjtrain train "$task" --engine warp --num-envs $envs --seed 1 --logger none --log-root "$out/$name" "$@"
}

say "## $(date -u +%Y-%m-%d), $device" "" '```'
if [ "$device" = gpu ]; then
    say "$(nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader 2>&1)"
fi
say "$("${python[@]}" -c "
import platform, importlib.metadata as m, os, torch
names = ('torch', 'warp-lang', 'mujoco', 'mujoco-warp', 'rsl-rl-lib')
print(', '.join(f'{n} {m.version(n)}' for n in names), 'CUDA', torch.version.cuda)
print(platform.platform(), len(os.sched_getaffinity(0)), 'cores, commit', os.popen('git rev-parse --short HEAD').read().strip())
" 2>&1)" '```' ""

part_tests() {
    say "### Tests that need a GPU" ""
    step tests 3600 "${python[@]}" -m pytest -q -n 0 -m gpu -rfE -p no:cacheprovider $tests
    say '```' "$(tail -n 1 "$out/tests.log")" '```' ""
}

part_throughput() {
    say "### Throughput" "" "One rank, default settings of each task, warp engine; medians of $iterations iterations." ""
    say "$("${python[@]}" benchmarks/gpu_throughput.py --head)"
    local name size log
    [ -n "$tasks" ] || tasks=$("${python[@]}" -m mjtrain list-tasks --json |
        "${python[@]}" -c 'import json, sys; print(*(task["name"] for task in json.load(sys.stdin)))')
    for name in $tasks; do
        for size in $sizes; do
            log=$out/throughput-$name-$size.log
            if timeout -k 10 1800 "${python[@]}" benchmarks/gpu_throughput.py --device $device --task "$name" \
                --num-envs "$size" --num-iterations $iterations > "$log" 2>&1; then
                say "$(tail -n 1 "$log")"
            else
                failures=$((failures + 1))
                say "| $name | $size | failed: $(grep -v '^ *$' "$log" | tail -n 1 | tr '|' '/' | cut -c1-160) | | | | | | |"
            fi
        done
    done
    say ""
}

part_start() {
    say "### Start-up" "" "From the command to the end of $task, $envs environments, 2 iterations." ""
    local kernels folder began spent
    for kernels in "to be compiled" "compiled before"; do
        folder=start-${kernels// /-}
        began=$(date +%s%3N)
        WARP_CACHE_PATH=$out/warp-cache train "$folder" "${where[@]}" --max-iterations 2
        spent=$(($(date +%s%3N) - began))
        say "* kernels $kernels: $((spent / 1000)).$((spent % 1000 / 100)) s"
    done
    say ""
}

# A run of four iterations, which several parts need.
straight() {
    [ -n "$(run_of straight)" ] || train straight "${where[@]}" --max-iterations 4 --env.warp.deterministic
}

part_resume() {
    say "### Resume" "" "4 iterations in a row, and 2, then resumed to 4; with --env.warp.deterministic." ""
    straight
    train resumed "${where[@]}" --max-iterations 2 --env.warp.deterministic &&
        train resumed "${where[@]}" --max-iterations 4 --env.warp.deterministic --resume "$(run_of resumed)" &&
        step compare 300 "${python[@]}" benchmarks/compare_runs.py "$(run_of straight)" "$(run_of resumed)" &&
        say '```' "$(cat "$out/compare.log")" '```'
    say ""
}

part_ranks() {
    say "### Two ranks" ""
    local gpus
    gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
    if [ "$device" = gpu ] && [ "$gpus" -lt 2 ]; then
        say "Not tried: GPUs here: $gpus." ""
        return
    fi
    train two-ranks "${two[@]}" --max-iterations $((iterations + 2)) --agent.save-interval 5 &&
        say '```' "$(grep '^iteration' "$out/two-ranks.log" | tail -n 2)" '```' \
            "Networks, normalisers and optimizer of both ranks were compared before each checkpoint, and are equal bit for bit." ""
}

part_video() {
    say "### Video" ""
    local drawing=${MUJOCO_GL:-egl}
    straight
    step video 900 env MUJOCO_GL="$drawing" "${python[@]}" -m mjtrain play "$(run_of straight)" --engine warp "${where[@]:0:2}" \
        --video "$out/video.mp4" --video-length-s $length_s &&
        say "By MUJOCO_GL=$drawing: video.mp4, $(stat -c %s "$out/video.mp4") bytes." ""
}

for part in $only; do
    "part_$part"
done

say "$failures steps failed."
[ "$failures" -eq 0 ]
