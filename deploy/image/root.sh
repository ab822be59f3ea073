#!/bin/sh
# Root file system of the image from Debian's packages: sh root.sh DIRECTORY
# Unpacked are the packages below with what they depend on, and no program that only installs packages.
# /var/lib/dpkg/status lists them, for scanners and for sbom.py.
set -eu
root=$1
packages="base-files ca-certificates coreutils dash libstdc++6 media-types netbase python3 tzdata"
unneeded="debconf debianutils dpkg mawk openssl readline-common tar"

mkdir -p "$root" "$root.debs/partial"
for name in bin lib sbin lib64; do  # Debian's merged /usr
    mkdir -p "$root/usr/$name"
    ln -s "usr/$name" "$root/$name"
done
apt-get -qq -y --no-install-recommends --download-only -o Dir::State::status=/dev/null \
    -o Dir::Cache::archives="$root.debs" -o APT::Sandbox::User=root -o Debug::NoLocking=1 install $packages
for package in $unneeded; do rm -f "$root.debs/$package"_*.deb; done

mkdir -p "$root/var/lib/dpkg/info" "$root/var/cache/kvgate"
for deb in "$root.debs"/*.deb; do
    dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$root" --keep-directory-symlink
    dpkg-deb --field "$deb" | sed '/^Package:/a Status: install ok installed' >> "$root/var/lib/dpkg/status"
    echo >> "$root/var/lib/dpkg/status"
done
rm -r "$root.debs"

# What maintainer scripts would have done. Without nsswitch.conf, a name is asked of DNS before /etc/hosts.
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
printf 'root:x:0:0::/:/usr/sbin/nologin\nkvgate:x:10001:10001::/var/cache/kvgate:/usr/sbin/nologin\n' > "$root/etc/passwd"
printf 'root:x:0:\nkvgate:x:10001:\n' > "$root/etc/group"
printf 'passwd: files\ngroup: files\nhosts: files dns\nservices: files\n' > "$root/etc/nsswitch.conf"

chown -hR 0:0 "$root"
find "$root" ! -type l ! -path "$root/tmp" -perm /6022 -exec chmod a-s,go-w {} +

# A read-only root can keep no bytecode: it comes with the image. Licences stay, other documents go.
find "$root/usr/share/doc" -type f ! -name copyright -delete
find "$root/usr/share/doc" -xtype l -delete
find "$root/usr/share/doc" -type d -empty -delete
rm -rf "$root/usr/share/man" "$root/usr/share/info" "$root/usr/share/locale" "$root/usr/share/lintian" \
    "$root/usr/share/ca-certificates" "$root/usr/share/bash-completion" "$root/usr/share/pixmaps"
python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash -s "$root" "$root"/usr/lib/python3*
