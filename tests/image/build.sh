#!/bin/bash
# The image of deploy/Containerfile, built here: bash tests/image/build.sh DIRECTORY WHEELS
# No registry is asked: the base that the file names is made by Debian's debootstrap, as Debian makes the original,
# and the stage that compiles is replaced by the wheel in WHEELS. All other steps run as they stand.
# Leaves an OCI layout in DIRECTORY/layout, what a runtime starts in DIRECTORY/bundle, and the SBOM. Needs root.
set -euo pipefail
mkdir -p "$1"
directory=$(realpath "$1") wheels=$(realpath "$2")
python=${PYTHON:-python3}
cd "$(dirname "$0")/../.."

for tool in buildah umoci crun debootstrap; do
    command -v "$tool" > "$directory/which" || missing+=" $tool"
done
if [ -n "${missing:-}" ]; then
    apt-get -qq update
    # shellcheck disable=SC2086
    apt-get -qq install -y --no-install-recommends $missing > "$directory/apt.log"
fi
if [ ! -x "$directory/venv/bin/python" ]; then
    "$python" -m venv "$directory/venv"
    "$directory/venv/bin/python" -m pip install --quiet --disable-pip-version-check -r tests/image/requirements.txt
fi

build() { buildah --root "$directory/store" --runroot "$directory/run" "$@"; }

base=localhost/debian:bookworm-slim
if ! build inspect "$base" > "$directory/base.json" 2>&1; then
    rm -rf "$directory/base"
    debootstrap --variant=minbase bookworm "$directory/base" > "$directory/debootstrap.log"
    container=$(build from scratch)
    build add --quiet "$container" "$directory/base" / > "$directory/base.log"
    build commit --quiet --rm "$container" "$base" >> "$directory/base.log"
    rm -rf "$directory/base"
fi

# The package index may be reached through a proxy with a certificate that this machine alone knows.
printf '[global]\ncert = /index.pem\n' > "$directory/pip.conf"
build bud --pull-never --isolation chroot --network host --layers --format oci --quiet \
    -f deploy/Containerfile --ignorefile .dockerignore \
    --build-arg DEBIAN="$base" --build-context wheel="$wheels" \
    --build-arg VERSION="$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)" \
    --build-arg REVISION="$(git rev-parse HEAD 2> "$directory/git.log" || true)" \
    -v "$directory/pip.conf:/etc/pip.conf:ro" -v /etc/ssl/certs/ca-certificates.crt:/index.pem:ro \
    -t localhost/kvgate . > "$directory/build.log" 2>&1 || { tail -n 40 "$directory/build.log"; exit 1; }

rm -rf "$directory/layout" "$directory/bundle"
build push --quiet localhost/kvgate "oci:$directory/layout:kvgate" > "$directory/push.log"
umoci unpack --image "$directory/layout:kvgate" "$directory/bundle"
"$python" deploy/image/sbom.py "$directory/bundle/rootfs" > "$directory/sbom.json"
