#!/bin/sh
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# in_root.sh FOLDER: run as root in a Debian that has nothing of ferry. FOLDER has a wheel, the packages, run.json
# (the README's job), refit.py (its program) and sbom.py with elf.py. First the wheel, as packages bring libraries.
set -eux
cd "$1"
python3 -m venv /wheel
/wheel/bin/pip install -q --disable-pip-version-check --no-index ./*.whl
site=$(echo /wheel/lib/python3*/site-packages)
test -e "$site/ferry/py.typed"
for name in man/man1/ferry-run.1 bash-completion/completions/ferry zsh/site-functions/_ferry fish/vendor_completions.d/ferry.fish; do
    test -s /wheel/share/$name
done
ldconfig -p | { ! grep -q -e libjansson -e libsodium; } # so it runs without them

try() { # try FERRY PYTHON SITE: the command, the job of the README, the import and the refit
    "$1" --version
    "$1" info | tee info
    grep -q "shm  *available" info
    "$1" run run.json | tee out
    grep -q "^Verified  *every byte of 72 destination shards" out
    (cd / && "$2" -c "import ferry; print(ferry.__version__, ferry.__file__)") | tee out
    grep -q "$3" out
    "$2" -m ferry --version
    "$2" -c "import importlib.util as u; assert not any(map(u.find_spec, ('numpy', 'torch')))" # so it did without
    "$1" launch -n 4 -- "$2" refit.py | tee out
    grep -q "version 3 is complete: 25165824 bytes moved between 4 ranks" out
}
try /wheel/bin/ferry /wheel/bin/python "$site"
grep -A2 "ucx  *missing" info # the libraries of plugins are the machine's to bring: sentences name them
grep -q "libucp.so.0" info
grep -A2 "nvshmem  *missing" info
grep -q "libnvshmem_host.so.3: cannot open" info

apt-get install -q -y ./*.deb
try /usr/bin/ferry /usr/bin/python3 /usr/lib/python3/dist-packages
grep -q "ucx  *available" info
FERRY_TRANSPORT=ucx UCX_TLS=tcp ferry launch -n 4 -- python3 refit.py
FERRY_TRANSPORT=ucx UCX_TLS=tcp /wheel/bin/ferry launch -n 4 -- /wheel/bin/python refit.py
for name in man/man1/ferry-run.1.gz bash-completion/completions/ferry zsh/site-functions/_ferry fish/vendor_completions.d/ferry.fish; do
    test -s /usr/share/$name
done
for package in ferry libferry0 libferry-dev ferry-plugin-ucx ferry-plugin-pmix python3-ferry; do
    dpkg -V $package
    dpkg-deb -R ./${package}_*.deb /unpacked
    python3 sbom.py --check /unpacked/usr/share/doc/$package/ferry.spdx.json --folder /unpacked
    rm -rf /unpacked
done
pip_list=$(python3 -c "import importlib.metadata as m; print(m.version('ferry'), *[e.name for e in m.entry_points(group='vllm.general_plugins')])")
echo "$pip_list" | grep "ferry$"
echo "all is installed and runs"
