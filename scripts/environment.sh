# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2154
# To be sourced: what scripts share that make a virtual environment. They set folder, the environment;
# python, its interpreter; made, the file in it that says what was installed; and log.

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

install() { # install LIST OPTION...: a network that swallows everything must not hold it up for long
    "$python" -m pip install -q --disable-pip-version-check --retries 1 --timeout 60 -r "$@" >"$log" 2>&1 ||
        fail "pip cannot install what $1 lists: $(pip_says)"
}
