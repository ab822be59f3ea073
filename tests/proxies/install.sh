#!/bin/bash
# Debian's nginx and HAProxy with their libraries, unpacked into DIRECTORY: no root, nothing installed.
set -euo pipefail
directory=$1
mkdir -p "$directory/debs"
cd "$directory/debs"
apt-get download nginx nginx-common haproxy liblua5.3-0 libopentracing-c-wrapper0 libopentracing1 libpcre2-8-0
cd ..
for deb in debs/*.deb; do
    dpkg -x "$deb" root
done
touch .installed
