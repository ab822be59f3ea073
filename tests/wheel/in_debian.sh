#!/bin/bash
# The wheel, compiled and run by the Python of a release of Debian: bash tests/wheel/in_debian.sh forky .cache/debian
# For a Python that this machine has not. Needs root and Debian's mirror; some minutes.
set -euo pipefail
suite=$1
mkdir -p "$2"
root=$(realpath "$2")/$suite
cd "$(dirname "$0")/../.."

if [ ! -f "$root.installed" ]; then
    rm -rf "$root"
    script=/usr/share/debootstrap/scripts/$suite
    [ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid  # a release that this debootstrap does not know yet
    debootstrap --variant=minbase --include=ca-certificates,g++,gcc,libc6-dev,python3,python3-dev,python3-venv \
        "$suite" "$root" http://deb.debian.org/debian "$script" > "$root.log"
    touch "$root.installed"
fi
# The package index may be reached through a proxy with a certificate that this machine alone knows.
cp /etc/ssl/certs/ca-certificates.crt "$root/index.pem"
cp /etc/resolv.conf "$root/etc/resolv.conf"
rm -rf "$root/src" "$root/opt/kvgate"
mkdir "$root/src"
git ls-files -z kvgate gateway engines setup.py pyproject.toml README.md LICENSE requirements.lock tests/wheel/smoke.py |
    xargs -0 cp --parents -t "$root/src"

# shellcheck disable=SC2016
unshare --mount --pid --fork chroot "$root" env -i PATH=/usr/bin:/bin PIP_CERT=/index.pem sh -euc '
    mount -t proc proc /proc
    mount -t tmpfs tmpfs /tmp
    cd /src
    export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=1 PIP_ROOT_USER_ACTION=ignore
    python3 --version
    python3 -m venv /opt/kvgate
    /opt/kvgate/bin/pip install --require-hashes -r requirements.lock
    /opt/kvgate/bin/pip wheel --no-deps -w /src/dist .
    /opt/kvgate/bin/pip install --no-deps /src/dist/*.whl
    ls /src/dist
    cd / && /opt/kvgate/bin/python -P /src/tests/wheel/smoke.py'
