#!/bin/bash
# Go 1.24 with gRPC, and Rust's tonic, of Debian 13's packages, into DIRECTORY: no root, nothing installed: bash tests/clients/install.sh .cache/clients
# The compiler of Rust is the machine's own: Debian 13's needs a newer libc than Debian 12 has.
set -euo pipefail
mkdir -p "$1"/apt/{state/lists,cache/archives}/partial "$1/apt/debs"
directory=$(cd "$1" && pwd)
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep '/debian/*$' | head -n 1 || true)
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${mirror:-http://deb.debian.org/debian} trixie main" > "$directory/apt/sources.list"
cat > "$directory/apt/apt.conf" << END
Dir::State "$directory/apt/state";
Dir::State::status "/dev/null";
Dir::Cache "$directory/apt/cache";
Dir::Etc::SourceList "$directory/apt/sources.list";
Dir::Etc::SourceParts "/dev/null";
APT::Sandbox::User "root";
END
export APT_CONFIG=$directory/apt/apt.conf
apt-get update --quiet --quiet
cd "$directory/apt/debs"
apt-get install --simulate --no-install-recommends golang-1.24-go golang-google-grpc-dev protoc-gen-go protoc-gen-go-grpc \
    librust-tonic-dev librust-tonic-build-dev librust-prost-dev librust-tokio-dev |
    awk '/^Inst (golang|protoc-gen|librust)/ {print $2}' > ../names
xargs apt-get download --quiet --quiet < ../names
cd "$directory"
rm -rf root
for deb in apt/debs/*.deb; do dpkg -x "$deb" root; done
rm -rf apt
root/usr/lib/go-1.24/bin/go version
touch .installed
