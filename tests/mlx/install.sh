#!/usr/bin/env bash
# Installs MLX's server for CPU into its own environment: install.sh DIR
# Some 120 MB are downloaded the first time. No GPU, no root.
set -euo pipefail
dir=$1
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
[ -x "$dir/bin/python" ] || "$python" -m venv "$dir"
# Without dependencies: requirements.txt has all of them, in the versions that ran.
"$dir/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps -r "$here/requirements.txt"
