#!/usr/bin/env bash
# mjlab 1.6.0's Unitree Go1 on Surefoot: its own commands, unmodified, and no rsl-rl-lib.
#
#     bash examples/mjlab_go1.sh [VENV]
#
# Where mjlab is installed already, only `pip install 'surefoot[rsl-rl]'` is missing: put `surefoot rsl-rl`
# before its commands, as below. Sizes and `CUDA_VISIBLE_DEVICES=` are for a CPU, where mjlab steps some 50
# environments a second; on a GPU leave both out.
set -euo pipefail

venv=${1:-mjlab-venv}
repository=$(cd "$(dirname "$0")/.." && pwd)

if [ ! -x "$venv/bin/train" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install torch==2.13.0
    "$venv/bin/pip" install "$repository[rsl-rl]"
    # what mjlab requires, but for rsl-rl-lib, which brings torchvision and with it another torch
    "$venv/bin/pip" install 'mujoco~=3.11.0' 'mujoco-warp~=3.11.0' warp-lang==1.19.0 prettytable tqdm \
        'tyro>=1.0.1' 'torchrunx>=0.3.4' 'trimesh>=4.8.3' 'scipy>=1.15' 'viser>=1.0.27' 'mjviser>=0.0.14' \
        'mediapy>=1.2.7' imageio-ffmpeg 'onnxscript>=0.5.4' 'wandb>=0.22.3'
    "$venv/bin/pip" install --no-deps mjlab==1.6.0
fi

export CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 MUJOCO_GL=${MUJOCO_GL:-egl}
task=Mjlab-Velocity-Flat-Unitree-Go1
sizes=(--env.scene.num-envs 8 --agent.num-steps-per-env 8 --agent.logger tensorboard)
surefoot=$venv/bin/surefoot

# The first start compiles Warp's kernels, for some minutes. Runs go where mjlab puts them: checkpoints that
# rsl-rl-lib can read too, and an ONNX file with mjlab's metadata.
"$surefoot" rsl-rl train "$task" "${sizes[@]}" --agent.max-iterations 3
"$surefoot" rsl-rl train "$task" "${sizes[@]}" --agent.max-iterations 2 --agent.resume True

run=$(ls -d logs/rsl_rl/go1_velocity/* | tail -n 1)
ls "$run"
echo "To watch it in a browser, until Ctrl-C:"
echo "  $surefoot rsl-rl play $task --checkpoint-file $(ls "$run"/model_*.pt | tail -n 1) --num-envs 1"
