#!/bin/bash
# Types and schemas of the gateways' custom resources (npm), and the TypeScript compiler, into DIRECTORY: bash tests/envoy/types.sh .cache/gateway-api
set -euo pipefail
mkdir -p "$1"
npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$1" \
    @kubernetes-models/gateway-api@2.0.0 @kubernetes-models/envoy-gateway@2.0.0 @kubernetes-models/istio@3.0.1 \
    @kubernetes-models/gke@4.6.2 kubernetes-models@5.1.0 typescript@5.9.3
touch "$1/.installed"
