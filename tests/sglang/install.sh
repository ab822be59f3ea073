#!/usr/bin/env bash
# Installs SGLang 0.5.23 for CPU into its own environment, and 0.5.10.post1 in its folder `older`: install.sh DIR
# Some 700 MB are downloaded the first time. No GPU, no root.
set -euo pipefail
dir=$1
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
[ -x "$dir/bin/python" ] || "$python" -m venv "$dir"
# Without dependencies: SGLang's own list has CUDA kernels; requirements.txt is what it needs on CPU, in exact versions.
"$dir/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps torch==2.13.0 sglang==0.5.23 -r "$here/requirements.txt"
# The last release that drops salts and publishes arrays, with the same dependencies; PYTHONPATH chooses it.
"$dir/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps --upgrade --target "$dir/older" sglang==0.5.10.post1
