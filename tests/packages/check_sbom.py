#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""check_sbom.py --library LIBFERRY --command FERRY: is an SBOM what the files are, and are wrong ones told?"""

import argparse
import copy
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import sbom  # noqa: E402
from elf import needed  # noqa: E402

PARTS = ["jansson:libjansson:2.14:MIT", "xxhash::0.8:BSD-2-Clause", "other:libother:1:ISC",
         "own:libown:1:ISC"]


def check_needed(library):
    """The parser reads what readelf reads."""
    text = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
    want = [line.split("[")[1].split("]")[0] for line in text.splitlines() if "(NEEDED)" in line]
    assert want and needed(Path(library).read_bytes()) == want, want
    assert needed(b"text") == [] and needed(b"") == []


def relations(document, kind):
    names = {row["SPDXID"]: row.get("name") or row["fileName"][2:]
             for row in document["packages"] + document["files"]}
    return {(names[row["spdxElementId"]], names[row["relatedSpdxElement"]])
            for row in document["relationships"] if row["relationshipType"] == kind}


def check_document(document, files):
    """What SPDX 2.3 wants of a document, and what is linked here."""
    for key in ("spdxVersion", "dataLicense", "SPDXID", "name", "documentNamespace", "creationInfo"):
        assert document[key], key
    ids = [row["SPDXID"] for row in document["packages"] + document["files"]]
    assert len(ids) == len(set(ids)), "an SPDXID is there twice"
    for row in document["relationships"]:
        assert {row["spdxElementId"], row["relatedSpdxElement"]} <= set(ids) | {"SPDXRef-DOCUMENT"}, row
    assert document["creationInfo"]["created"] == "2001-09-09T01:46:40Z"
    assert {name for _, name in relations(document, "STATIC_LINK")} == {"xxhash", "other"}
    assert ("lib/libferry.so", "libjansson.so.4") in relations(document, "DYNAMIC_LINK")
    assert ("ferry", "own") in relations(document, "CONTAINS")
    assert not any(name == "libown.so.1" for _, name in relations(document, "DYNAMIC_LINK"))
    assert sbom.wrong(document, files) == [], sbom.wrong(document, files)


def wrong_ones(document, files):
    """(what must be said, document, files) of each."""
    changed = dict(files, **{"lib/libferry.so": files["lib/libferry.so"] + b"x"})
    yield "lib/libferry.so has another sha256", document, changed
    yield "the package's verification code is another", document, changed
    yield "more is not listed", document, dict(files, more=b"1")
    yield "text is listed and not there", document, {n: d for n, d in files.items() if n != "text"}
    silent = copy.deepcopy(document)
    silent["relationships"] = [row for row in silent["relationships"] if row["relationshipType"] != "DYNAMIC_LINK"]
    yield "lib/libferry.so links libjansson.so.4, which is not said", silent, files
    inside = copy.deepcopy(document)
    inside["packages"].append(sbom.package("jansson", "2.14", "MIT"))
    inside["relationships"].append(sbom.relation("SPDXRef-Package-ferry", "STATIC_LINK", "SPDXRef-Package-jansson"))
    yield "jansson is said to be in the files, and libjansson.so.4 is asked for", inside, files
    more = copy.deepcopy(document)
    more["relationships"].append(sbom.relation("SPDXRef-File-3", "DYNAMIC_LINK", "SPDXRef-Package-libjansson.so.4"))
    yield "text does not link libjansson.so.4", more, files


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True)
    parser.add_argument("--command", required=True)
    arguments = parser.parse_args()
    check_needed(arguments.library)
    check_needed(arguments.command)
    files = {"lib/libferry.so": Path(arguments.library).read_bytes(), "text": b"plain", "libown.so.1": b"",
             "bin/ferry": Path(arguments.command).read_bytes()}
    document = sbom.make("ferry", "1", files, ["sbom"], PARTS, 1000000000)
    assert json.dumps(document) == json.dumps(sbom.make("ferry", "1", dict(reversed(files.items())), ["sbom"],
                                                        PARTS, 1000000000)), "the order of files matters"
    check_document(document, files)
    for want, said, found in wrong_ones(document, files):
        problems = sbom.wrong(said, found)
        assert any(want in problem for problem in problems), "not told: %s, but %s" % (want, problems)


if __name__ == "__main__":
    main()
