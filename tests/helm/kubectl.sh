#!/bin/bash
# kubectl 1.32 of Debian 13 into DIRECTORY, for Kustomize: no root, nothing installed: bash tests/helm/kubectl.sh .cache/helm
set -euo pipefail
mkdir -p "$1"/apt/{state/lists,cache/archives}/partial
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
cd "$directory/apt"
apt-get download --quiet --quiet kubectl
dpkg -x kubectl_*.deb root
mv root/usr/bin/kubectl "$directory/kubectl"
rm -rf "$directory/apt"
"$directory/kubectl" version --client
