#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Puts the SBOM into a wheel and writes it anew: names in order, one time, so that two builds are the same."""

import argparse
import base64
import hashlib
import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import sbom  # noqa: E402

# What of Debian's packages gets into libferry: name, library, package, licence.
PARTS = (("jansson", "libjansson", "libjansson-dev", "MIT"),
         ("libsodium", "libsodium", "libsodium-dev", "ISC"),
         ("xxhash", "", "libxxhash-dev", "BSD-2-Clause"))
OLDEST = 315532800  # 1980: a zip cannot say less


def read_wheel(path):
    """{name: bytes} and {name: may it be run}, without RECORD."""
    files, runs = {}, {}
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if not entry.is_dir() and not entry.filename.endswith(".dist-info/RECORD"):
                files[entry.filename] = archive.read(entry)
                runs[entry.filename] = bool(entry.external_attr >> 16 & 0o111)
    return files, runs


def parts():
    """The parts as sbom.py wants them, with the versions of the packages that are installed."""
    rows = []
    for name, library, package, licence in PARTS:
        version = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], check=True, text=True,
                                 stdout=subprocess.PIPE).stdout
        rows.append(":".join((name, library, version, licence)))
    return rows


def record(files, info):
    rows = ["%s,sha256=%s,%d" % (name, base64.urlsafe_b64encode(hashlib.sha256(data).digest())
                                 .rstrip(b"=").decode(), len(data))
            for name, data in sorted(files.items())]
    return ("\n".join(rows + [info + "/RECORD,,"]) + "\n").encode()


def write_wheel(path, files, runs, when):
    stamp = time.gmtime(max(when, OLDEST))[:6]
    order = sorted(files, key=lambda name: (".dist-info/" in name, name.endswith("/RECORD"), name))
    with zipfile.ZipFile(path, "w") as archive:
        for name in order:
            entry = zipfile.ZipInfo(name, stamp)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            entry.external_attr = (0o100755 if runs.get(name) else 0o100644) << 16
            archive.writestr(entry, files[name], compresslevel=9)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel")
    parser.add_argument("--out", required=True, help="the folder that it is written to")
    arguments = parser.parse_args()
    when = int(os.environ["SOURCE_DATE_EPOCH"])
    files, runs = read_wheel(arguments.wheel)
    info, = {name.split("/")[0] for name in files if ".dist-info/" in name}
    version = info[:-len(".dist-info")].split("-")[1]
    place = info + "/sboms/ferry.spdx.json"
    document = sbom.make("ferry", version, files, [place, info + "/RECORD"], parts(), when)
    files[place] = (json.dumps(document, indent=1) + "\n").encode()
    files[info + "/RECORD"] = record(files, info)
    out = Path(arguments.out) / Path(arguments.wheel).name
    write_wheel(out, files, runs, when)
    print(out)


if __name__ == "__main__":
    main()
