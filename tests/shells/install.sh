#!/bin/bash
# Debian's zsh and fish with their libraries, unpacked into DIRECTORY: no root, nothing installed.
set -euo pipefail
directory=$1
mkdir -p "$directory/debs"
cd "$directory/debs"
apt-get download zsh zsh-common fish fish-common libpcre2-32-0
cd ..
for deb in debs/*.deb; do
    dpkg -x "$deb" root
done
touch .installed
