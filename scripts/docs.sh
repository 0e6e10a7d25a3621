#!/bin/sh
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# Makes the references of all C and Python names as pages in build/docs (or in the folder that is named), from the
# headers' comments and the package's docstrings:
#     scripts/docs.sh [--build FOLDER] [FOLDER]
# Wants doxygen, and a build that has the Python package (build/release). Ends with 1 if a name lacks its entry or a link
# leads nowhere.
set -eu
cd "$(dirname "$0")/.."
build=build/release
if [ "${1:-}" = --build ]; then
    build=$2
    shift 2
fi
out=${1:-build/docs}
if ! command -v doxygen >/dev/null 2>&1; then
    echo "doxygen is missing: scripts/packages.sh tests installs it" >&2
    exit 1
fi
rm -rf "$out"
mkdir -p "$out"
FERRY_PLUGINS=$build python3 scripts/reference.py --headers include --package "$build/bindings/python" --out "$out/input"
version=$(sed -n 's/^#define FERRY_VERSION_TEXT "\(.*\)"/\1/p' include/ferry/ferry.h)
cp scripts/reference.dox "$out/input/"
for side in c python; do
    if [ $side = c ]; then
        name="ferry: C reference" input="$out/input/include $out/input/reference.dox" like=YES
    else
        name="ferry: Python reference" input="$out/input/python" like=NO
    fi
    {
        echo "PROJECT_NAME = \"$name\""
        echo "PROJECT_NUMBER = $version"
        echo "INPUT = $input"
        echo "OUTPUT_DIRECTORY = $out"
        echo "HTML_OUTPUT = $side"
        echo "XML_OUTPUT = xml-$side"
        echo "STRIP_FROM_PATH = $out/input/include $out/input/python"
        echo "STRIP_FROM_INC_PATH = $out/input/include"
        echo "OPTIMIZE_OUTPUT_FOR_C = $like"
        cat scripts/Doxyfile
    } >"$out/$side.doxyfile"
    doxygen "$out/$side.doxyfile" >"$out/$side.log" 2>&1 || {
        cat "$out/$side.log" >&2
        exit 1
    }
done
cp scripts/reference.html "$out/index.html"
python3 tests/docs/check_reference.py --docs "$out" --package "$build/bindings/python"
rm -rf "$out/input" "$out"/xml-* "$out"/*.doxyfile
echo "the references are in $out: open $out/index.html"
