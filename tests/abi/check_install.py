#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What is installed is enough: programs build against it by pkg-config alone, and by CMake alone.

    check_install.py --build FOLDER [--cmake CMAKE] [--cc CC]

Installs the build into a prefix of its own and builds program.c with the shared library, with the
static one, and as a CMake project. Then it runs each of them.
"""

import argparse
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

PROGRAM = pathlib.Path(__file__).resolve().parent / "program.c"
PROJECT = """cmake_minimum_required(VERSION 3.20)
project(user LANGUAGES C)
find_package(ferry %(version)s REQUIRED)
add_executable(user %(program)s)
target_link_libraries(user PRIVATE ferry::ferry)
"""


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        sys.exit("FAILED %s\n%s%s" % (shlex.join(map(str, command)), done.stdout, done.stderr))
    return done.stdout


class Prefix:
    """An installed tree, found by nothing but the two variables that users set."""

    def __init__(self, folder, arguments):
        self.folder = folder
        self.arguments = arguments
        run([arguments.cmake, "--install", arguments.build, "--prefix", folder])
        self.pc_file = self.one("ferry.pc")
        self.environment = dict(os.environ, PKG_CONFIG_PATH=str(self.pc_file.parent))

    def one(self, name):
        found = list(self.folder.rglob(name))
        if len(found) != 1:
            sys.exit("FAILED %s is installed %d times" % (name, len(found)))
        return found[0]

    def flags(self, *options):
        text = run(["pkg-config", *options, "ferry"], env=self.environment)
        return shlex.split(text)

    def build_and_run(self, name, flags, **variables):
        output = self.folder / name
        run([self.arguments.cc, "-std=c11", "-Wall", "-Werror", PROGRAM, "-o", output, *flags])
        print("%s: %s" % (name, run([output], env=dict(os.environ, **variables)).strip()))
        return output


def check_pkg_config(prefix):
    libraries = prefix.one("libferry.a").parent
    shared = prefix.build_and_run("shared", prefix.flags("--cflags", "--libs"),
                                  LD_LIBRARY_PATH=str(libraries))
    if "libferry.so" not in run(["ldd", shared]):
        sys.exit("FAILED the program does not use the shared library")
    # With no shared library in reach the same name finds the static one.
    for library in libraries.glob("libferry.so*"):
        library.unlink()
    prefix.build_and_run("static", prefix.flags("--cflags", "--libs", "--static"))


def check_cmake(prefix):
    version = run(["pkg-config", "--modversion", "ferry"], env=prefix.environment).strip()
    project = prefix.folder / "project"
    project.mkdir()
    (project / "CMakeLists.txt").write_text(
        PROJECT % {"version": version, "program": PROGRAM.as_posix()})
    build = project / "build"
    run([prefix.arguments.cmake, "-S", project, "-B", build,
         "-DCMAKE_PREFIX_PATH=%s" % prefix.folder, "-DCMAKE_C_COMPILER=%s" % prefix.arguments.cc])
    run([prefix.arguments.cmake, "--build", build])
    print("cmake: %s" % run([build / "user"]).strip())


def check_command(prefix):
    version = run([prefix.folder / "bin" / "ferry", "--version"]).strip()
    pages = sorted(page.name for page in prefix.folder.glob("share/man/man1/*.1"))
    if "ferry.1" not in pages:
        sys.exit("FAILED the man page of ferry is not installed")
    print("command: %s; man pages: %s" % (version, " ".join(pages)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", required=True, help="a finished build folder")
    parser.add_argument("--cmake", default="cmake")
    parser.add_argument("--cc", default="cc")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        prefix = Prefix(pathlib.Path(folder), arguments)
        check_cmake(prefix)
        check_pkg_config(prefix)
        check_command(prefix)
    return 0


if __name__ == "__main__":
    sys.exit(main())
