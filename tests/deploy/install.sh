#!/bin/bash
# Debian's Prometheus with promtool, unpacked into DIRECTORY: no root, nothing installed.
set -euo pipefail
directory=$1
mkdir -p "$directory/debs"
cd "$directory/debs"
apt-get download prometheus
cd ..
dpkg -x debs/prometheus_*.deb root
touch .installed
