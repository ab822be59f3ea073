#!/bin/bash
# Chromium of Debian, playwright to drive it, and axe-core to judge the pages, into DIRECTORY: no root, nothing installed.
# Where there is a Chromium that starts, it is taken.
set -euo pipefail
here=$(dirname "$0")
mkdir -p "$1"/apt/{state/lists,cache/archives}/partial "$1/apt/debs"
directory=$(cd "$1" && pwd)
"$PYTHON" -m pip install --quiet --disable-pip-version-check --upgrade --target "$directory/site" -r "$here/requirements.txt"
(cd "$directory" && npm pack --silent axe-core@4.14.1 && tar xzf axe-core-4.14.1.tgz --strip-components=1 package/axe.min.js)
if chromium --version > /dev/null 2>&1; then
    ln -sf "$(command -v chromium)" "$directory/chromium"
else
    # Apt's sources of this machine, with a state of this directory's own: what is installed, or half installed, does not matter.
    cat > "$directory/apt/apt.conf" << END
Dir::State "$directory/apt/state";
Dir::State::status "/dev/null";
Dir::Cache "$directory/apt/cache";
APT::Sandbox::User "root";
END
    export APT_CONFIG=$directory/apt/apt.conf
    apt-get update --quiet --quiet
    # The machine's own libc starts them all; drivers of graphics cards, and what starts a system, are not asked for.
    packages=$(apt-get install --simulate --no-install-recommends chromium fonts-dejavu-core |
        awk '/^Inst (lib|chromium|fonts)/ && !/^Inst (libc6|libllvm|libgl1-mesa|libperl|libsystemd-shared)/ {print $2}')
    root=$directory/root
    rm -rf "$root"
    (cd "$directory/apt/debs" && apt-get download --quiet --quiet $packages && for each in *.deb; do dpkg -x "$each" "$root"; done)
    machine=$(gcc -print-multiarch 2> /dev/null || echo "$(uname -m)-linux-gnu")
    echo "<fontconfig><dir>$root/usr/share/fonts</dir><cachedir>$directory/fonts</cachedir></fontconfig>" > "$directory/fonts.conf"
    cat > "$directory/chromium" << END
#!/bin/sh
export LD_LIBRARY_PATH=$root/usr/lib/$machine:$root/lib/$machine FONTCONFIG_FILE=$directory/fonts.conf
exec $root/usr/lib/chromium/chromium "\$@"
END
    chmod +x "$directory/chromium"
fi
rm -rf "$directory/apt"
"$directory/chromium" --version
touch "$directory/.installed"
