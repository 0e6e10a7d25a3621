#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""check_packages.py wheel|deb|root|reproducible|arm64: the packages, built and tried. Takes minutes to an hour.

wheel          is it a manylinux_2_28 wheel for auditwheel, and is its SBOM what its files are?
deb            are there all packages, and does lintian find no error?
root           both in a Debian that has nothing of ferry: command, job, import, refit
reproducible   two builds in different folders: the same bytes?
arm64          compiled for ARM64 without a warning, and the unit tests under qemu-user
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "support")]
import sbom  # noqa: E402
import skips  # noqa: E402

PLATFORM = "manylinux_2_28_x86_64"
SHARED = ("man/man1/ferry.1", "man/man1/ferry-simulate.1", "bash-completion/completions/ferry",
          "zsh/site-functions/_ferry", "fish/vendor_completions.d/ferry.fish")
# Unit tests with cases that qemu-user cannot run.
LEFT_OUT = {"unit/" + name for name in ("exposed", "folder", "link_open", "queue", "room", "shm", "team")}
DEBS = {"ferry", "ferry-plugin-pmix", "ferry-plugin-ucx", "libferry-dev", "libferry0", "python3-ferry"}


class Skip(Exception):
    """What this machine cannot do."""


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False, **options)
    if done.returncode != 0:
        sys.exit("FAILED %s\n%s" % (" ".join(map(str, command)), done.stdout[-8000:]))
    return done.stdout


def build_wheel(tree, out):
    print(run(tree / "scripts" / "wheel.sh", out))
    wheel, = Path(out).glob("*.whl")
    return wheel


def build_debs(tree, out):
    run(tree / "scripts" / "deb.sh", out)
    return sorted(Path(out).glob("*.deb"))


def plugins():
    """Where each plugin lies in the wheel that was built, the test kind of memory left out."""
    built = {path.name for path in (ROOT / "build" / "wheel-objects").glob("libferry_*.so")}
    assert built >= {"libferry_%s.so" % name for name in ("ucx", "pmix", "nvshmem", "far")}, built
    return ["ferry/" + name for name in sorted(built - {"libferry_far.so"})]


def check_wheel(folder):
    wheel = build_wheel(ROOT, folder / "wheel")
    assert wheel.name.endswith("-cp39-abi3-%s.whl" % PLATFORM), wheel.name
    said = (ROOT / "build" / "wheel" / "auditwheel.log").read_text(encoding="utf-8")
    assert PLATFORM in said, said
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
        assert archive.testzip() is None
    for name in ("ferry/_ferry.abi3.so", "ferry/libferry.so.0", "ferry/ferry", "ferry/py.typed", *plugins()):
        assert name in files, "%s is not in the wheel" % name
    for name in SHARED:
        assert [path for path in files if path.endswith("/data/share/" + name)], "%s is not in the wheel" % name
    assert not [name for name in files if re.search(r"libuc[ps]|libpmix|libc\.so", name)]
    newest = max(tuple(map(int, version.split(b"."))) for data in files.values()
                 for version in re.findall(rb"\0GLIBC_(2\.[0-9]+)", data))
    assert newest <= (2, 28), "it asks for glibc %d.%d" % newest
    place, = [name for name in files if name.endswith("/sboms/ferry.spdx.json")]
    document = json.loads(files[place])
    rest = {name: data for name, data in files.items() if name not in sbom.excluded(document)}
    assert sbom.wrong(document, rest) == [], sbom.wrong(document, rest)


def check_deb(folder):
    debs = build_debs(ROOT, folder / "deb")
    names = {deb.name.split("_")[0] for deb in debs}
    assert {name for name in names if not name.endswith("-dbgsym")} == DEBS, names
    changes, = (folder / "deb").glob("*.changes")
    print(run("lintian", "--fail-on", "error", "--allow-root", changes))


def sources():
    """Where apt gets packages from, as lines of a list."""
    text = run("apt-get", "indextargets", "--format",
               "deb $(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages")
    return "\n".join(sorted(set(text.splitlines()))) + "\n"


def readme_program():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.search(r"<!-- docs: file refit.py -->\n```python\n(.*?)```", text, re.S).group(1)


def check_root(folder):
    if os.geteuid() != 0 or not shutil.which("mmdebstrap"):
        raise Skip("a clean root needs root and mmdebstrap")
    inside = folder / "in"
    inside.mkdir()
    build_wheel(ROOT, inside)
    for deb in build_debs(ROOT, folder / "deb"):
        if "-dbgsym" not in deb.name:
            shutil.copy(deb, inside)
    (inside / "refit.py").write_text(readme_program(), encoding="utf-8")
    shutil.copy(ROOT / "examples" / "run" / "tp4-to-tp2dp2.json", inside / "run.json")
    for name in ("scripts/sbom.py", "scripts/elf.py", "tests/packages/in_root.sh"):
        shutil.copy(ROOT / name, inside)
    (folder / "sources.list").write_text(sources(), encoding="utf-8")
    codename = re.search("VERSION_CODENAME=(.*)", Path("/etc/os-release").read_text(encoding="utf-8")).group(1)
    out = run("mmdebstrap", "--variant=apt", "--include=python3-venv", "--format=null",
              "--customize-hook=copy-in %s /root" % inside,
              "--customize-hook=chroot \"$1\" sh /root/in/in_root.sh /root/in",
              codename, "/dev/null", folder / "sources.list")
    assert "all is installed and runs" in out, out[-4000:]


def copy_tree(target):
    """The files that git knows, elsewhere."""
    names = run("git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in names.split("\0"):
        if name and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def digests(files):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def check_reproducible(folder):
    """Each from its own copy, with nothing from a cache, of which the second lies deeper and is built later."""
    when = run("git", "-C", ROOT, "log", "-1", "--format=%ct").strip()
    os.environ.update(SOURCE_DATE_EPOCH=when, CCACHE_DISABLE="1")
    found = []
    for name in ("first", "another/much/deeper"):
        tree = folder / name / "ferry"
        copy_tree(tree)
        wheel = build_wheel(tree, folder / name / "wheel")
        found.append(digests([wheel, *build_debs(tree, folder / name / "deb")]))
    assert len(found[0]) > len(DEBS), found
    for name in sorted(set(found[0]) | set(found[1])):
        assert found[0].get(name) == found[1].get(name), "two builds of %s differ" % name
        print(found[0][name], name)


def check_arm64(_):
    out = run(ROOT / "scripts" / "arm64.sh")
    assert "warning:" not in out, out
    print(out[-6000:])
    assert re.search(r"100% tests passed, 0 tests failed out of \d{3}", out)
    assert LEFT_OUT == set(re.findall(r"^skipped in (\S+): test_", out, re.M)), "other tests have cases left out"


def main():
    check = {"wheel": check_wheel, "deb": check_deb, "root": check_root, "reproducible": check_reproducible,
             "arm64": check_arm64}[sys.argv[1]]
    for name in [name for name in os.environ if name.startswith(("FERRY_", "PYTHON", "LD_"))]:
        del os.environ[name]
    if not shutil.which("dpkg"):
        sys.exit(skips.whole(sys.argv[1], "packages are made on Debian and its relatives"))
    run(ROOT / "scripts" / "packages.sh", "packages")
    with tempfile.TemporaryDirectory(prefix="ferry-packages-") as folder:
        try:
            check(Path(folder))
        except Skip as reason:
            sys.exit(skips.whole(sys.argv[1], reason))


if __name__ == "__main__":
    main()
