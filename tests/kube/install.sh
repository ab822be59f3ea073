#!/bin/bash
# A real API server of Kubernetes 1.20 with etcd, of Debian 12's packages, into DIRECTORY: no root, nothing installed.
# Debian has no package of the server: it is built from the source package of kubectl, without network, in some six minutes
# of a core and 4 GB of disk, and only the binary stays: JOBS=1 bash tests/kube/install.sh .cache/kube (default: all cores)
set -euo pipefail
directory=$1
mkdir -p "$directory"/apt/{state/lists,cache/archives}/partial "$directory"/{build,bin}
directory=$(cd "$directory" && pwd)
cd "$directory"
for tool in apt-get dpkg-source make; do
    command -v "$tool" > /dev/null || { echo "tests/kube/install.sh needs $tool (Debian's packages apt, dpkg-dev, make)" >&2; exit 1; }
done

# Apt's settings of this machine, with sources and lists of this directory's own.
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep '/debian/*$' | head -n 1 || true)
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
for kind in deb deb-src; do
    echo "$kind [signed-by=$keyring] ${mirror:-http://deb.debian.org/debian} bookworm main"
done > apt/sources.list
cat > apt/apt.conf << END
Dir::State "$directory/apt/state";
Dir::State::status "/dev/null";
Dir::Cache "$directory/apt/cache";
Dir::Etc::SourceList "$directory/apt/sources.list";
Dir::Etc::SourceParts "/dev/null";
APT::Sandbox::User "root";
END
export APT_CONFIG=$directory/apt/apt.conf
apt-get update --quiet --quiet
cd build
apt-get download --quiet --quiet etcd-server golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev \
    rsync libpopt0 libxxhash0
for each in *.deb; do dpkg -x "$each" root; done
apt-get source --quiet --quiet --download-only kubernetes
rm -rf source
dpkg-source --no-check --extract kubernetes_*.dsc source > /dev/null

# reflect2 1.0.1, which the source has, crashes if it was compiled by Go 1.18 or newer.
rm -r source/vendor/github.com/modern-go/reflect2
cp -r root/usr/share/gocode/src/github.com/modern-go/reflect2 source/vendor/github.com/modern-go/
version=$(dpkg-parsechangelog --file source/debian/changelog --show-field Version | sed 's/.*really//; s/-.*//')
export PATH=$directory/build/root/usr/lib/go-1.19/bin:$PATH:$directory/build/root/usr/bin
export LD_LIBRARY_PATH=$directory/build/root/usr/lib/$(dpkg --print-architecture | sed 's/amd64/x86_64/; s/arm64/aarch64/')-linux-gnu
export GOROOT=$directory/build/root/usr/lib/go-1.19 GOCACHE=$directory/build/go GOPATH=$directory/build/gopath
# Nothing more in GOFLAGS: the makefiles take what follows for tags.
export GOFLAGS=-mod=vendor GOPROXY=off CGO_ENABLED=0 GOMAXPROCS=${JOBS:-$(nproc)}
export KUBE_GIT_VERSION=v$version KUBE_GIT_COMMIT=debian KUBE_GIT_TREE_STATE=archive
nice -n 5 make -s -C source WHAT=cmd/kube-apiserver > make.log 2>&1 || { tail -n 30 make.log >&2; exit 1; }
cp source/_output/bin/kube-apiserver root/usr/bin/etcd ../bin/
cd ..
bin/kube-apiserver --version
bin/etcd --version | head -n 1
chmod -R u+w build # what Go made is read-only
rm -rf build apt
touch .installed
