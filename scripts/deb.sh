#!/bin/sh
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# deb.sh [FOLDER]: Debian packages in FOLDER, or build/deb: libferry0, libferry-dev, ferry, two plugins and
# python3-ferry, from the files that git knows, each with a list of what is in it (SBOM).
set -eu
cd "$(dirname "$0")/.."
out=${1:-build/deb}
scripts/packages.sh packages
version=$(sed -n '1s/.*(\(.*\)).*/\1/p' packaging/debian/changelog)
rm -rf "$out/ferry-$version"
mkdir -p "$out/ferry-$version"
if git rev-parse --git-dir >/dev/null 2>&1; then
    git ls-files -z --cached --others --exclude-standard
else
    find . -path ./build -prune -o -type f -print0
fi | tar -c --null -T - | tar -x -C "$out/ferry-$version"
cp -r packaging/debian "$out/ferry-$version/debian"
cd "$out/ferry-$version"
chmod -R u=rwX,go=rX .
umask 022
dpkg-buildpackage -us -uc -b
