#!/usr/bin/env bash
# Installs SGLang 0.5.23 for CPU into its own environment, and 0.5.10.post1 in its folder `older`: install.sh DIR
# NIXL joins prefill and decode workers. Some 770 MB are downloaded the first time. No GPU, no root.
set -euo pipefail
dir=$1
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
[ -x "$dir/bin/python" ] || "$python" -m venv "$dir"
# Without dependencies: SGLang's own list has CUDA kernels; requirements.txt is what it needs on CPU, in exact versions.
"$dir/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps torch==2.13.0 sglang==0.5.23 -r "$here/requirements.txt"
"$dir/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps nixl==1.5.1 nixl-cu13==1.5.1
# NIXL's thread polls without a pause, a whole core for each engine; with a millisecond (its events still wake it)
# two cores are enough.
site=$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
sed -i 's/agent_config.pthrDelay = 0$/agent_config.pthrDelay = 1000/' "$site/nixl_cu13/_api.py"
# The last release that drops salts and publishes arrays, with the same dependencies; PYTHONPATH chooses it.
"$dir/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps --upgrade --target "$dir/older" sglang==0.5.10.post1
