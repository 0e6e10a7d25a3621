#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Tests of what all commands have in common: output that is lost, and files that they replace.

    check_all_commands.py --ferry PATH

Prints the name of every failing case with its reason and exits 1.
"""

import errno
import fcntl
import json
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import cases

LIMIT_S = 600
FERRY = ""

WHOLE = {"mesh": [["tp", 2]], "rules": [{"match": "*"}]}
SPEC = {"format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [8], "dtype": "f32"}],
        "source": WHOLE, "destination": WHOLE}


def ask(*words, stdout=subprocess.PIPE, program=None):
    done = subprocess.run([*(program or [FERRY]), *map(str, words)], stdout=stdout,
                          stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
                          timeout=LIMIT_S)
    return done.returncode, done.stdout, done.stderr


def spec_in(folder):
    path = Path(folder) / "spec.json"
    path.write_text(json.dumps(SPEC))
    return path


def case_output_that_is_lost():
    """Also where the end of a long text finds room again, or where there is nothing but help."""
    with tempfile.TemporaryDirectory() as folder, open("/dev/full", "w") as full:
        spec = spec_in(folder)
        for words in [["--help"], ["--version"], ["--man"], ["help"], ["help", "plan"],
                      ["bench", "--help"], ["reshard", "--help"], ["launch", "--man"],
                      ["bench"], ["plan", spec], ["plan", spec, "--json"], ["inspect", spec]]:
            status, _, error = ask(*words, stdout=full)
            assert status == 1, (words, status)
            assert error.count("\n") == 1 and "could not be written" in error, (words, error)


def case_closed_streams():
    """Their numbers do not go to a file or a socket that the command opens, nor the text into it."""
    closed = ["sh", "-c", 'exec "$0" "$@" <&- >&-', FERRY]
    with tempfile.TemporaryDirectory() as folder:
        spec = spec_in(folder)
        for words in [["run", spec], ["plan", spec], ["--help"]]:
            status, _, error = ask(*words, program=closed)
            assert status == 1, (words, status, error)
            assert error.count("\n") == 1 and "could not be written" in error, (words, error)


def case_trace_beside_a_link():
    """The name that a trace has while it is written is not one that another could have guessed."""
    with tempfile.TemporaryDirectory() as folder:
        spec, victim = spec_in(folder), Path(folder) / "victim"
        victim.write_text("untouched")
        script = 'cd "$1" && ln -s victim trace.$$.tmp && exec "$2" plan spec.json --trace trace'
        status, _, error = ask(folder, FERRY, program=["sh", "-c", script, "sh"])
        assert (status, error) == (0, ""), (status, error)
        assert victim.read_text() == "untouched", spec
        trace = Path(folder) / "trace"
        assert not trace.is_symlink() and json.loads(trace.read_text()), trace


MIXED = ["tune", "--transport", "inproc", "--local-tp", "2", "--max-bytes", "8K"]
OUTPUTS = [["plan", "SPEC", "--save"], ["plan", "SPEC", "--trace"], ["plan", "SPEC", "--html"],
           ["draw", "SPEC", "--out"], [*MIXED, "--out"]]


def written(words, folder, path, **about):
    """What the command says on stderr when its last option names the path."""
    spec = spec_in(folder)
    status, out, error = ask(*[spec if word == "SPEC" else word for word in words], path, **about)
    assert status == 0, (words, status, out, error)
    return error


def case_outputs_to_a_fifo():
    """It is written to, and stays a FIFO: also behind a link."""
    for words in OUTPUTS:
        with tempfile.TemporaryDirectory() as folder:
            fifo, link = Path(folder) / "fifo", Path(folder) / "link"
            os.mkfifo(fifo)
            link.symlink_to("fifo")
            for path in (fifo, link):
                with subprocess.Popen(["cat", fifo], stdout=subprocess.PIPE) as reader:
                    try:
                        written(words, folder, path)
                        text = reader.communicate(timeout=60)[0]
                    finally:
                        reader.kill()  # it would wait for ever for who writes to another file
                assert len(text) > 100 and fifo.is_fifo() and link.is_symlink(), (words, text)
            assert sorted(os.listdir(folder)) == ["fifo", "link", "spec.json"], os.listdir(folder)


def case_outputs_to_what_is_open():
    """/dev/stdout is what is open there: behind what was written, and not a file in its place."""
    for words in OUTPUTS[:4]:
        with tempfile.TemporaryDirectory() as folder:
            spec_in(folder)
            words = ["spec.json" if word == "SPEC" else word for word in words]
            script = 'cd "$1" && shift && echo before > log && "$@" plain > out && "$@" /dev/stdout >> log'
            status, out, error = ask(folder, FERRY, *words, program=["sh", "-c", script, "sh"])
            assert (status, error) == (0, ""), (words, status, out, error)
            log, plain, out = [(Path(folder) / name).read_text() for name in ("log", "plain", "out")]
            assert log.startswith("before\n") and plain in log, (words, log[:200])
            assert len(log) == len("before\n") + len(plain) + len(out.replace("plain", "/dev/stdout")), words


def case_outputs_behind_links():
    """The link stays, and its file gets what a plain one gets, old or new."""
    for words in OUTPUTS[:4]:
        with tempfile.TemporaryDirectory() as folder:
            plain, link, inner = (Path(folder) / name for name in ("plain", "link", "in/file"))
            written(words, folder, plain)
            inner.parent.mkdir()
            link.symlink_to("in/file")
            for what in ("new", "old"):
                written(words, folder, link)
                assert inner.read_bytes() == plain.read_bytes() and link.is_symlink(), (words, what)
            number = inner.stat().st_ino
            inner.write_text("x" * 100000)
            written(words, folder, link)
            assert inner.read_bytes() == plain.read_bytes() and link.is_symlink(), words
            assert inner.stat().st_ino != number, "written over, and not replaced"
            assert os.listdir(inner.parent) == ["file"], os.listdir(inner.parent)


def case_outputs_keep_permissions():
    """Who may read the old file may read the new one, and nobody else."""
    for mode in (0o600, 0o666, 0o640):
        for words in OUTPUTS[:4]:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "out"
                path.touch()
                path.chmod(mode)
                owner = 1234 if os.geteuid() == 0 else os.geteuid()
                os.chown(path, owner, -1)
                written(words, folder, path)
                assert path.stat().st_mode & 0o7777 == mode and path.stat().st_size > 0, (words, oct(mode))
                assert path.stat().st_uid == owner, words


def case_outputs_to_one_file():
    """Two outputs to one file would lose the first, and one to the input the input."""
    for first, second in (("--save", "--html"), ("--html", "--trace"), ("--trace", "--save")):
        for path, other, is_there in (("out", "out", False), ("out", "./out", False), ("out", "link", False),
                                      ("out", "link", True), ("out", "hard", True), ("dangling", "new", False)):
            with tempfile.TemporaryDirectory() as folder:
                spec_in(folder)
                if is_there:
                    (Path(folder) / "out").write_text("old")
                    os.link(Path(folder) / "out", Path(folder) / "hard")
                (Path(folder) / "link").symlink_to("out")
                (Path(folder) / "dangling").symlink_to("new")
                script = 'cd "$1" && shift && exec "$@"'
                status, out, error = ask(folder, FERRY, "plan", "spec.json", first, path, second, other,
                                         program=["sh", "-c", script, "sh"])
                assert (status, out) == (2, "") and error.count("\n") == 1, (first, path, other, status, error)
                assert "is what --" in error, error
                assert not (Path(folder) / "new").exists() and (Path(folder) / "out").exists() == is_there
    for words in [*OUTPUTS[:4], ["run", "SPEC", "--html"], ["simulate", "SPEC", "--html"]]:
        with tempfile.TemporaryDirectory() as folder:
            spec = Path(spec_in(folder))
            before = spec.read_bytes()
            status, out, error = ask(*[spec if word == "SPEC" else word for word in words], spec)
            assert (status, out) == (2, "") and "is the file that is read" in error, (words, status, error)
            assert spec.read_bytes() == before
    with tempfile.TemporaryDirectory() as folder:
        read, layout = Path(folder) / "read", Path(folder) / "layout.json"
        read.mkdir()
        header = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
        files = {read / "w.safetensors": len(header).to_bytes(8, "little") + header + bytes(8),
                 read / "config.json": b"{}", layout: b"{}"}
        for path, content in files.items():
            path.write_bytes(content)
        for source, to, path in ((read / "w.safetensors", "hf", read / "w.safetensors"), (read, "hf", read / "config.json"),
                                 (read / "w.safetensors", layout, layout)):
            status, out, error = ask("reshard", source, "--to", to, "--out", Path(folder) / "new", "--html", path)
            assert (status, out) == (2, "") and "is the file that is read" in error, (source, path, status, error)
            assert path.read_bytes() == files[path] and not (Path(folder) / "new").exists()
    with tempfile.TemporaryDirectory() as folder:
        for path in ("/dev/null", "/dev/stderr"):  # which take one thing behind another
            status, out, error = ask("plan", spec_in(folder), "-q", "--html", path, "--trace", path)
            assert status == 0, (path, status, error)


def case_outputs_to_readers_that_leave():
    """Of a pipe that nobody reads to its end the command says so: a signal would end it silently."""
    with tempfile.TemporaryDirectory() as folder:
        fifo = Path(folder) / "fifo"
        os.mkfifo(fifo)
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
        words = ["plan", spec_in(folder), "--html", str(fifo)]  # more than it holds now
        writer = subprocess.Popen([FERRY, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        select.select([reader], [], [], 60)
        os.close(reader)
        error = writer.communicate(timeout=60)[1]
        assert writer.returncode == 1 and "fifo: cannot be written: Broken pipe" in error, (writer.returncode, error)


def case_outputs_that_cannot_be():
    """They are refused before any work, by the name of the option and with the system's reason."""
    with tempfile.TemporaryDirectory() as folder:
        tensors = Path(folder) / "w.safetensors"
        header = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
        tensors.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
        result, link = Path(folder) / "result", Path(folder) / "link"
        link.symlink_to("none/file")
        circle = Path(folder) / "circle"
        circle.symlink_to("circle")
        socket_path = os.path.join(folder, "socket")
        socket.socket(socket.AF_UNIX).bind(socket_path)
        for words in [*OUTPUTS, ["run", "SPEC", "--trace"], ["run", "SPEC", "--html"],
                      ["simulate", "SPEC", "--html"],
                      ["reshard", tensors, "--to", "hf", "--out", result, "--html"]]:
            for path, number in (("/nosuch/x", errno.ENOENT), (folder, errno.EISDIR), (link, errno.ENOENT),
                                 (circle, errno.ELOOP), ("/dev/fd/77", errno.EBADF), (socket_path, errno.ENXIO)):
                said = [spec_in(folder) if word == "SPEC" else word for word in words]
                status, out, error = ask(*said, path)
                wanted = '%s: no file can be made at "%s": %s\n' % (words[-1], path, os.strerror(number))
                assert (status, out) == (1, ""), (words, path, status, out)
                assert wanted in error and error.count("\n") == 1, (words, error)
        assert not result.exists()


def case_outputs_in_folders_of_others():
    """Root may write everywhere, so the command is another user's where this is root."""
    other = {"user": 65534, "group": 65534} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o555)
        for words in (["plan", "/dev/null", "--html"], ["draw", "/dev/null", "--out"], [*MIXED, "--out"]):
            path = os.path.join(folder, "x")
            done = subprocess.run([FERRY, *words, path], capture_output=True, text=True, timeout=LIMIT_S, **other)
            wanted = '%s: no file can be made at "%s": %s\n' % (words[-1], path, os.strerror(errno.EACCES))
            assert done.returncode == 1 and done.stderr.endswith(wanted), (words, done)
        os.chmod(folder, 0o755)


def case_options_that_are_given_twice():
    """Of two values one would be forgotten; flags say the same twice, and lists take both."""
    for words, option in (
            (["plan", "--names", "hf", "--to", "tp=4", "--to", "tp=4", "M"], "--to"),
            (["plan", "S", "--schedule=optimal", "--schedule"], "--schedule"),
            (["plan", "S", "--rank", "0", "--rank=1"], "--rank"),
            (["plan", "S", "--html", "a", "--htm", "b"], "--html"),
            (["launch", "-n", "2", "-n3", "true"], "-n"), (["bench", "-n1", "--iterations", "2"], "--iterations"),
            (["reshard", "a", "--to", "hf", "--out", "b", "--out", "c"], "--out"),
            (["run", "S", "--memory", "ferry", "--memory", "malloc"], "--memory"),
            (["verify", "a", "b", "--dequantize", "--dequantize=mxfp8"], "--dequantize")):
        status, out, error = ask(*words)
        wanted = ": %s can be given once only, and is there twice; see " % option
        assert (status, out) == (2, "") and wanted in error and error.count("\n") == 1, (words, status, error)
    with tempfile.TemporaryDirectory() as folder:
        spec = spec_in(folder)
        for words in (["--json", "--json"], ["-q", "-q"], ["--include", "w", "--include", "w*"],
                      ["--exclude", "w?", "--exclude", "x"], ["--subset", "w", "--subset", "w*"]):
            status, _, error = ask("plan", spec, *words)
            assert "once only" not in error, (words, error)
        # Without 0 and 1 nothing is left of two ranks: both lists count.
        status, out, error = ask("plan", spec, "--without", "0", "--without", "1")
        assert (status, out) == (1, "") and "all of its ranks, 2, are left out as lost" in error, error
        for option in ("--cluster", "--sweep", "--fault"):
            assert "once only" not in ask("simulate", spec, option, "x", option, "x")[2], option


# A name that would colour a terminal, ring, begin a line, and turn the direction of the text.
NASTY = "w\x1b[31mRED\x07\nline\u009b\u202eevil\u2066\u2028\u00e9"
SHOWN = "w?[31mRED?line?evil?\u00e9"


def case_names_that_terminals_obey():
    """In no table and no error do they reach one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nasty.json"
        spec = {**SPEC, "tensors": [{"name": NASTY, "shape": [8], "dtype": "f32"}],
                "destination": {"mesh": [], "rules": [{"match": "*"}]}}
        path.write_text(json.dumps(spec))
        for words, wanted in ((["plan", path, "--rank", "0"], 0), (["inspect", path], 0),
                              (["draw", path, "--tensor", NASTY + "x"], 1),
                              (["plan", path, "--include", NASTY + "x"], 1)):
            status, out, error = ask(*words)
            said = re.sub(r"\?+", "?", out + error)  # in errors one for each byte
            assert status == wanted, (words, status, error)
            assert SHOWN in said and not set(said) & set(NASTY) - set(SHOWN) - {"\n"}, (words, said)
        spec["tensors"].append({"name": "x", "source": NASTY, "shape": [8], "dtype": "f32"})
        path.write_text(json.dumps(spec))
        status, out, error = ask("plan", path, "--rank", "0")
        assert status == 0 and "x [0:8] from " + SHOWN in re.sub(r"\?+", "?", out) and "\x1b" not in out, (out, error)


def case_empty_short_forms():
    """As of a variable of a shell that is not set; nothing at all is one rank."""
    config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8, "vocab_size": 32,
              "num_attention_heads": 4, "intermediate_size": 16}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        for option in ("--from", "--to"):
            status, out, error = ask("plan", "--names", "hf", path, option, "")
            assert (status, out) == (2, "") and option + " takes a short form" in error, error
        assert ask("plan", "--names", "hf", path, "--from", "tp=2", "-q") == (0, "", "")
        # No layout file is read here, so none is pointed to.
        for form, wrong in (("./x.json", "./x.json"), ("tp=8,cp=2", "cp=2")):
            status, out, error = ask("plan", "--names", "hf", path, "--from", form)
            assert (status, out) == (1, "") and "%s\" is none of pp=, dp=, ep= and tp=" % wrong in error, error
            assert "file of that name" not in error, error


def case_plans_of_nothing_say_why():
    with tempfile.TemporaryDirectory() as folder:
        spec = spec_in(folder)
        for words, wanted in ((["--include", "nope"], 'no tensor of the destination fits the subset "nope"'),
                              (["--exclude", "w"], 'no tensor of the destination fits the subset "!w"'),
                              (["--without", "1,0"], "all of its ranks, 2, are left out as lost")):
            status, out, error = ask("plan", spec, *words)
            assert (status, out) == (1, "") and wanted in error and error.count("\n") == 1, (words, error)
        empty = Path(folder) / "empty.json"
        empty.write_text(json.dumps({**SPEC, "tensors": []}))
        status, out, error = ask("plan", empty)
        assert (status, out) == (1, "") and "the spec has no tensor for the destination\n" in error, error


def case_specs_that_are_refused():
    """In words of the format, with all that would have been right."""
    cut = {"mesh": [["tp", 2]], "rules": [{"match": "*", "shard": [{"dim": 0, "axis": 5}]}]}
    tensor = SPEC["tensors"][0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bad.json"
        for change, wanted in [
                ({"source": {**WHOLE, "box": []}}, "first_rank, ranks, stages, rules, boxes\n"),
                ({"source": cut}, "axis must be the name of an axis, or an array of such names\n"),
                ({"tensors": [{**tensor, "name": "a\0b"}]}, "\\u0000 is not allowed in a string, "),
                ({"tensors": [{**tensor, "shape": [0, 1 << 62]}]},
                 "has more than 2^63 bits, with 1 in the place of each 0 ("),
                ({"tensors": [{**tensor, "shape": [2, 1 << 62]}]}, "has more than 2^63 bits (")]:
            path.write_text(json.dumps({**SPEC, **change}))
            status, out, error = ask("plan", path)
            assert (status, out) == (1, "") and wanted in error, (change, error)


def case_tune_of_less_than_is_measured():
    for size, wanted in (("1K", '"1K"'), ("8191", '"8191"')):
        status, out, error = ask("tune", "--max-bytes", size)
        assert (status, out) == (2, "") and "at least 8K" in error and wanted in error, error


def case_short_options():
    """-c of bench takes nothing, -n of launch a value; nothing is measured, nothing runs long."""
    for words, wanted in [
            (["launch", "-n", "1", "--", "printf", "%s,", "-n", "7", "-c"], "-n,7,-c,"),
            (["launch", "-n2", "printf", "%s\\n", "-n3"], "-n3\n-n3\n"),
            (["launch", "-n1", "echo", "-c"], "-c\n"),
            (["launch", "--tag", "-n1", "echo", "-n5"], "[0] -n5\n")]:
        assert ask(*words) == (0, wanted, ""), (words, ask(*words))

    check = "--check cannot be combined with copy"
    number = "-n takes a number from 1 to 16777216, not "
    for words, wanted in [
            (["bench", "copy", "-c"], check), (["bench", "-c", "copy"], check),
            (["bench", "-cc", "copy"], check), (["bench", "--check", "copy"], check),
            (["bench", "copy", "-cx"], "unknown option -x;"),
            (["bench", "copy", "-xc"], "unknown option -x;"),
            (["bench", "copy", "-c4"], "unknown option -4;"),
            (["bench", "copy", "-n", "4"], "--iterations cannot be combined with copy"),
            (["bench", "copy", "-n"], "-n needs a value;"),
            (["bench", "copy", "--check=1"], "--check=1: the option takes no value;"),
            (["launch", "-n"], "-n needs a value;"), (["launch", "--tag", "-n"], "-n needs a value;"),
            (["launch", "-n", "--", "true"], number + '"--";'),
            (["launch", "-n=2", "true"], number + '"=2";'),
            (["launch", "-n2x", "true"], number + '"2x";'),
            (["launch", "-n", "2", "-c", "true"], "unknown option -c;"),
            (["launch", "-n", "0", "true"], number + '"0";'),
            (["plan", "-n", "4", "spec"], "unknown option -n;"),
            (["plan", "spec", "-\u00e9"], "unknown option -\u00e9;"),
            (["plan", "spec", "-\u00e9a", "b"], "unknown option -\u00e9a;")]:
        status, out, error = ask(*words)
        assert (status, out) == (2, ""), (words, status, out)
        assert error.count("\n") == 1 and wanted in error + ";", (words, error)
        assert error.startswith("ferry %s: " % words[0]), (words, error)


def case_help_of_short_options():
    for command, rows in {"bench": ("-b, --min-bytes SIZE", "-n, --iterations N", "-c, --check"),
                          "launch": ("-n N",), "verify": ("-q, --quiet", "-v, --verbose")}.items():
        lines = ask(command, "--help")[1].splitlines()
        for row in rows:
            assert any(line.startswith("  " + row) for line in lines), (command, row)


def row_of(option, text):
    """The option's lines of a help text."""
    lines = text.split("\n")
    at = next(i for i, line in enumerate(lines) if line.split(" ")[2:3] == [option])
    end = next(i for i in range(at + 1, len(lines)) if not lines[i].startswith(" " * 22))
    return "\n".join(lines[at:end])


def case_options_that_commands_share():
    """The same row in the help of each, and the same sentence about a wrong value."""
    rows = {"--replica": ["plan", "run"], "--subset": ["plan", "run"],
            "--no-relays": ["plan", "run"], "--join": ["run", "bench", "tune"],
            "--transport": ["run", "tune"]}
    for option, names in rows.items():
        texts = [row_of(option, ask(name, "--help")[1]) for name in names]
        assert len(set(texts)) == 1 and len(texts[0]) > 30, (option, texts)
    for option, value in [("--replica", "any"), ("--slot-bytes", "-1"), ("--slot-bytes", "1T"),
                          ("--slot-bytes", "0K")]:
        sentences = {ask(name, "spec", option, value)[2].split(": ", 1)[1].split(";")[0]
                     for name in ("plan", "run")}
        assert len(sentences) == 1 and value in sentences.pop(), (option, value)


if __name__ == "__main__":
    sys.exit(cases.main(globals()))
