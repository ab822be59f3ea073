#!/bin/bash
# Chromium of Debian, playwright to drive it, and axe-core to judge the pages, into DIRECTORY. Without root Chromium
# is unpacked there; with root, or where there is one already, it is the system's.
set -euo pipefail
directory=$1
here=$(dirname "$0")
mkdir -p "$directory"
"$PYTHON" -m pip install --quiet --disable-pip-version-check --upgrade --target "$directory/site" -r "$here/requirements.txt"
(cd "$directory" && npm pack --silent axe-core@4.14.1 && tar xzf axe-core-4.14.1.tgz --strip-components=1 package/axe.min.js)
if command -v chromium > /dev/null; then
    ln -sf "$(command -v chromium)" "$directory/chromium"
elif [ "$(id -u)" = 0 ]; then
    apt-get update --quiet --quiet
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends chromium fonts-dejavu-core
    ln -sf "$(command -v chromium)" "$directory/chromium"
else
    mkdir -p "$directory/debs"
    packages=$(apt-get install --simulate --no-install-recommends chromium fonts-dejavu-core | sed -n 's/^Inst \([^ ]*\) .*/\1/p')
    (cd "$directory/debs" && apt-get download $packages && for each in *.deb; do dpkg -x "$each" ../root; done)
    root=$(cd "$directory/root" && pwd)
    printf '#!/bin/sh\nLD_LIBRARY_PATH=%s/usr/lib/%s exec %s/usr/lib/chromium/chromium "$@"\n' \
        "$root" "$(dpkg-architecture -qDEB_HOST_MULTIARCH 2> /dev/null || echo x86_64-linux-gnu)" "$root" > "$directory/chromium"
    chmod +x "$directory/chromium"
fi
touch "$directory/.installed"
