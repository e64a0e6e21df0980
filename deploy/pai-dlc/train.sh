#!/usr/bin/env bash
# Start command of a PAI-DLC job (framework: PyTorch), the same on every node: bash deploy/pai-dlc/train.sh [more flags of train]
# DLC sets WORLD_SIZE (number of nodes), RANK (which of them this is), NPROC_PER_NODE (GPUs of a node), MASTER_ADDR and MASTER_PORT.
set -euo pipefail

# A name from the job, so that another job on the same file system is another run. DLC names node 0 after it: dlc18isgeayd-master-0.
job=${MASTER_ADDR%%-master-*}

# PPO from images alone, as in the article; `train Hand-Reorient-Cube-Vision --teacher pretrained` learns from a policy of the state.
task=mjtrain_tasks.hand_reorient_vision:make_without_teacher

# 512 environments and all three streams of the camera on each GPU. --resume auto: begins a run, or resumes this job's after a restart.
flags=(--num-envs 512 --max-iterations 24000 --run-name "pai-dlc-$job" --resume auto)

if [ "${LAUNCHER:-mjtrain}" = torchrun ]; then
    # By default torchrun kills ranks 30 s after SIGTERM; train has 60 s to save and 30 s to upload.
    exec torchrun --shutdown-timeout=110 --nproc_per_node="$NPROC_PER_NODE" --nnodes="$WORLD_SIZE" --node_rank="$RANK" \
        --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" -m mjtrain.cli.train "$task" "${flags[@]}" "$@"
fi

# Set MJTRAIN_JOB_TOKEN to a secret among the job's environment variables; without it anyone who reaches MASTER_PORT can join.
[ -n "${MJTRAIN_JOB_TOKEN:-}" ] || flags+=(--no-job-token)

# One command per node starts its GPUs' ranks and watches over them; node 0 has the console, the run directory and the restarts.
exec train "$task" --gpu-ids all --max-restarts 3 "${flags[@]}" "$@"
