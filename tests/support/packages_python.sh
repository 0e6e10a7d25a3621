#!/bin/sh
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# packages_python.sh PYTHON ARGUMENT...: the interpreter of build/packages, which has packages of others
# (scripts/python_packages.sh), or PYTHON where that is not made. A file, as CMake takes semicolons apart.
python=$(dirname "$0")/../../build/packages/bin/python
[ -x "$python" ] || python=$1
shift
exec "$python" "$@"
