#!/bin/sh
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# wheel.sh [FOLDER]: a wheel for manylinux_2_28 in FOLDER, or build/wheel/dist, with the plugins and a list of
# what is in it (SBOM). Two builds of a commit have the same bytes. Tools from PyPI go to build/wheel.
set -eu
cd "$(dirname "$0")/.."
root=$PWD
work=$root/build/wheel
objects=$root/build/wheel-objects
out=${1:-$work/dist}
mkdir -p "$work" "$out"
out=$(cd "$out" && pwd)
glibc=2.28
platform=manylinux_2_28_x86_64

scripts/packages.sh packages
if ! cmp -s scripts/wheel-tools.txt "$work/tools/made"; then
    rm -rf "$work/tools"
    python3 -m venv "$work/tools"
    "$work/tools/bin/pip" install -q --disable-pip-version-check -r scripts/wheel-tools.txt
    cp scripts/wheel-tools.txt "$work/tools/made"
fi
PATH=$work/tools/bin:$PATH
export ZIG_GLOBAL_CACHE_DIR=${ZIG_GLOBAL_CACHE_DIR:-$work/zig} # it would be in the home folder
python=$work/tools/bin/python
zig=$("$python" -c "import os, ziglang; print(os.path.join(os.path.dirname(ziglang.__file__), 'zig'))")

rm -rf "$work/made" "$work/repaired"
# The compiler is the one that all tests were run with. It is zig that links, for a C library as old as the
# oldest of the platform: what that does not have, its list of symbols does not have either. Debian's
# libsodium wants a newer one, its archive does not.
cat >"$work/link" <<END
#!/bin/sh
shift # the compiler
case " \$* " in *" -shared "*) ;; *) set -- -pie "\$@" ;; esac
exec "$zig" cc -target x86_64-linux-gnu.$glibc -Wl,--build-id=none -Wl,--as-needed "\$@" "$(cc -print-libgcc-file-name)"
END
chmod +x "$work/link"

SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}
export SOURCE_DATE_EPOCH
umask 022
CC=cc "$work/tools/bin/pip" wheel -q --disable-pip-version-check --no-deps --no-build-isolation \
    --config-settings="build-dir=$objects" \
    --config-settings="cmake.define.CMAKE_C_LINKER_LAUNCHER=$work/link" \
    --config-settings="cmake.define.FERRY_STATIC_SODIUM=ON" \
    --config-settings="cmake.define.FERRY_WERROR=ON" -w "$work/made" .
# What belongs to the machine's network and launcher is not for a wheel to bring: plugins look for it there.
auditwheel repair --plat $platform --exclude 'libuc?.so.*' --exclude 'libpmix.so.*' \
    -w "$work/repaired" "$work"/made/*.whl >"$work/auditwheel.log" 2>&1 || {
    cat "$work/auditwheel.log" >&2
    exit 1
}
[ -e "$objects/libferry_cuda.so" ] ||
    echo "without the plugin for CUDA devices: there is no nvcc with its headers here"
"$python" scripts/finish_wheel.py "$work"/repaired/*.whl --out "$out"
