#!/usr/bin/env bash
# Adds the Mooncake transfer engine to the environment of install.sh: install_mooncake.sh DIR
# Its wheel wants Debian's RDMA libraries, which are unpacked into DIR/debian: no root, nothing installed.
set -euo pipefail
dir=$1
"$dir/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps mooncake-transfer-engine-non-cuda==0.3.13.post1
mkdir -p "$dir/debian/debs"
cd "$dir/debian/debs"
apt-get download --quiet libibverbs1 librdmacm1 libnl-3-200 libnl-route-3-200 libnuma1
for deb in *.deb; do
    dpkg -x "$deb" ..
done
