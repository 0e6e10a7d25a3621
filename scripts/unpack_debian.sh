#!/bin/sh
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# unpack_debian.sh FOLDER ARCHITECTURE PACKAGE...: Debian's packages into FOLDER/root, as any user. Nothing is
# installed, and the machine's own lists of packages stay as they are: FOLDER/apt has lists of its own.
set -eu
folder=$1 architecture=$2
shift 2
if [ -e "$folder/unpacked" ] && [ "$(cat "$folder/unpacked")" = "$architecture $*" ]; then
    exit 0
fi
command -v apt-get >/dev/null || {
    echo "there is no apt-get: this takes packages of Debian or its relatives" >&2
    exit 1
}
rm -rf "$folder/apt" "$folder/debs" "$folder/root"
mkdir -p "$folder/apt/lists/partial" "$folder/apt/archives/partial" "$folder/debs" "$folder/root"
folder=$(cd "$folder" && pwd)
touch "$folder/apt/status"
cat >"$folder/apt/conf" <<END
APT::Architecture "$architecture";
APT::Architectures { "$architecture"; };
APT::Sandbox::User "";
Dir::State "$folder/apt";
Dir::State::status "$folder/apt/status";
Dir::Cache "$folder/apt";
END
export APT_CONFIG="$folder/apt/conf"
# A source that is out of reach is none that matters, as long as the packages come.
apt-get update -q >"$folder/apt/log" 2>&1 || true
if ! (cd "$folder/debs" && apt-get download -q "$@") >>"$folder/apt/log" 2>&1; then
    echo "apt-get cannot download $* for $architecture: $(tail -n 1 "$folder/apt/log")" >&2
    exit 1
fi
for package in "$folder"/debs/*.deb; do
    dpkg-deb -x "$package" "$folder/root"
done
echo "$architecture $*" >"$folder/unpacked"
