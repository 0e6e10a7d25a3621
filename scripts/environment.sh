# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# To be sourced: what scripts share that make a virtual environment. They set folder, the environment, and call
# begin, install, try and finish, in this order.
python=$folder/bin/python
made=$folder/made # the lists that were installed, written last
log=$folder/log

fail() {
    rm -f "$made"
    echo "$folder is not complete: $1" >&2
    exit 1
}

pip_says() {
    if grep -q "(from versions: none)" "$log"; then
        echo "the package index is out of reach"
    else
        sed -n 's/^ERROR: //p' "$log" | tail -n 1
    fi
}

begin() { # begin INTERPRETER LIST...: the script ends here, quietly, if the environment is as the lists say
    interpreter=$1
    shift
    if [ -x "$python" ] && cat "$@" | cmp -s - "$made"; then
        exit 0
    fi
    echo "making $folder, which takes minutes the first time"
    if [ ! -x "$python" ] && [ -e "$folder/pyvenv.cfg" ]; then
        rm -rf "$folder" # of an interpreter that is gone
    fi
    mkdir -p "$folder"
    "$interpreter" -m venv "$folder" >/dev/null || fail "$interpreter cannot make virtual environments here"
}

install() { # install LIST OPTION...: a network that swallows everything must not hold it up for long
    "$python" -m pip install -q --disable-pip-version-check --retries 1 --timeout 60 -r "$@" >"$log" 2>&1 ||
        fail "pip cannot install what $1 lists: $(pip_says)"
}

try() { # try WHAT PROGRAM: a program that imports it
    "$python" -c "$2" >"$log" 2>&1 || fail "$1 cannot be imported: $(tail -n 1 "$log")"
}

finish() { # finish LIST...
    cat "$@" >"$made"
}
