#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What a package of ferry is made of (SBOM), as SPDX 2.3 in JSON, from the files themselves.

    sbom.py --name libferry0 --version 0.1.0 --folder ROOT --out FILE [--leave-out PATH ...] [--part PART ...]
    sbom.py --check FILE --folder ROOT

A PART is NAME:LIBRARY:VERSION:LICENCE, such as jansson:libjansson:2.14-2:MIT. It is one of the files if there is
a LIBRARY.so, it is the machine's if a file asks for one that is not there, and else it is linked into the files.
An empty LIBRARY is a header.
"""

import argparse
import hashlib
import json
import os
import re
import sys
import time
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from elf import needed  # noqa: E402

TOOL = "Tool: ferry-sbom-1"


def spdx_id(kind, name):
    return "SPDXRef-%s-%s" % (kind, re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-"))


def read_folder(folder, left_out=()):
    """{path: bytes} of the regular files below a folder."""
    files = {}
    for path in sorted(Path(folder).rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not path.is_symlink() and name not in left_out:
            files[name] = path.read_bytes()
    return files


def verification_code(files):
    return hashlib.sha1("".join(sorted(hashlib.sha1(data).hexdigest()
                                       for data in files.values())).encode()).hexdigest()


def describe_files(files):
    rows = []
    for number, (name, data) in enumerate(sorted(files.items())):
        rows.append({"SPDXID": "SPDXRef-File-%d" % number, "fileName": "./" + name,
                     "checksums": [{"algorithm": kind.upper(),
                                    "checksumValue": hashlib.new(kind, data).hexdigest()}
                                   for kind in ("sha1", "sha256")]})
    return rows


def package(name, version, licence, **more):
    row = {"SPDXID": spdx_id("Package", name), "name": name, "downloadLocation": "NOASSERTION",
           "filesAnalyzed": False, "licenseConcluded": licence, "licenseDeclared": licence,
           "copyrightText": "NOASSERTION"}
    if version:
        row["versionInfo"] = version
    return dict(row, **more)


def links(files):
    """{library: names of files that ask for it} of the libraries that are not among the files."""
    brought = {name.rsplit("/", 1)[-1] for name in files}
    wanted = {}
    for name, data in sorted(files.items()):
        for library in needed(data):
            if library not in brought:
                wanted.setdefault(library, []).append(name)
    return wanted


def relation(source, kind, target):
    return {"spdxElementId": source, "relationshipType": kind, "relatedSpdxElement": target}


def make(name, version, files, left_out=(), parts=(), when=0):
    """The document about these files. What is linked is read from them."""
    code = verification_code(files)
    me = package(name, version, "Apache-2.0", filesAnalyzed=True,
                 copyrightText="Copyright The ferry authors", supplier="Organization: The ferry authors",
                 packageVerificationCode={"packageVerificationCodeValue": code,
                                          "packageVerificationCodeExcludedFiles":
                                              ["./" + path for path in sorted(left_out)]})
    rows, packages = describe_files(files), [me]
    ids = {row["fileName"][2:]: row["SPDXID"] for row in rows}
    relations = [relation("SPDXRef-DOCUMENT", "DESCRIBES", me["SPDXID"])]
    relations += [relation(me["SPDXID"], "CONTAINS", row["SPDXID"]) for row in rows]
    wanted = links(files)
    for part in parts:
        what, library, its_version, licence = part.split(":", 3)
        if library and any(one.startswith(library + ".so") for one in wanted):
            continue
        own = [name for name in files if library and name.rsplit("/", 1)[-1].startswith(library + ".so")]
        packages.append(package(what, its_version, licence))
        relations.append(relation(me["SPDXID"], "CONTAINS" if own else "STATIC_LINK", packages[-1]["SPDXID"]))
    for library, users in sorted(wanted.items()):
        packages.append(package(library, "", "NOASSERTION",
                                comment="A library of the machine that it is installed on."))
        relations += [relation(ids[user], "DYNAMIC_LINK", packages[-1]["SPDXID"]) for user in users]
    return {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
            "name": "%s-%s" % (name, version),
            "documentNamespace": "urn:uuid:%s" % uuid.uuid5(uuid.NAMESPACE_OID, name + version + code),
            "creationInfo": {"created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when)),
                             "creators": [TOOL]},
            "packages": packages, "files": rows, "relationships": relations}


def excluded(document):
    code = document["packages"][0]["packageVerificationCode"]
    return [path[2:] for path in code["packageVerificationCodeExcludedFiles"]]


def wrong(document, files):
    """What the document says that is not so of these files, as sentences."""
    said = {row["fileName"][2:]: row for row in document["files"]}
    problems = ["%s is not listed" % name for name in sorted(set(files) - set(said))]
    problems += ["%s is listed and not there" % name for name in sorted(set(said) - set(files))]
    for name in sorted(set(said) & set(files)):
        for checksum in said[name]["checksums"]:
            kind = checksum["algorithm"].lower()
            if hashlib.new(kind, files[name]).hexdigest() != checksum["checksumValue"]:
                problems.append("%s has another %s" % (name, kind))
    main = document["packages"][0]
    if main["packageVerificationCode"]["packageVerificationCodeValue"] != verification_code(files):
        problems.append("the package's verification code is another")
    by_id = {row["SPDXID"]: row["name"] for row in document["packages"]}
    names = {row["SPDXID"]: row["fileName"][2:] for row in document["files"]}
    shown = {(names.get(row["spdxElementId"]), by_id.get(row["relatedSpdxElement"]))
             for row in document["relationships"] if row["relationshipType"] == "DYNAMIC_LINK"}
    true = {(user, library) for library, users in links(files).items() for user in users}
    problems += ["%s links %s, which is not said" % pair for pair in sorted(true - shown)]
    problems += ["%s does not link %s" % pair for pair in sorted(shown - true, key=str)]
    return problems + wrong_static(document, by_id, files)


def wrong_static(document, by_id, files):
    """Parts that are said to be inside must not be asked for as well."""
    inside = [by_id.get(row["relatedSpdxElement"]) for row in document["relationships"]
              if row["relationshipType"] == "STATIC_LINK"]
    return ["%s is said to be in the files, and %s is asked for" % (part, library)
            for part in inside for library in links(files)
            if library.startswith(("lib%s.so" % part, "%s.so" % part))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--name")
    parser.add_argument("--version")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--out")
    parser.add_argument("--leave-out", action="append", default=[])
    parser.add_argument("--part", action="append", default=[])
    parser.add_argument("--check")
    arguments = parser.parse_args()
    if arguments.check:
        document = json.loads(Path(arguments.check).read_text(encoding="utf-8"))
        problems = wrong(document, read_folder(arguments.folder, excluded(document)))
        for problem in problems:
            print(problem, file=sys.stderr)
        sys.exit(1 if problems else 0)
    document = make(arguments.name, arguments.version,
                    read_folder(arguments.folder, arguments.leave_out), arguments.leave_out,
                    arguments.part, int(os.environ.get("SOURCE_DATE_EPOCH", "0")))
    Path(arguments.out).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
