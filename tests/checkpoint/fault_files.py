#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""`ferry reshard` without space, with something at DST, or robbed of its source.

    fault_files.py --ferry PATH --stopper PATH [--seed S] [--count N] [--mib M] [--only TEXT] [--keep-going]

Some cases run once, the others N times, with other moments. Whatever happens, DST is whole or is as
it was, and a failed run says one sentence and leaves nothing.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import fault_scene
import store
from fault_scene import SLOW, Mount, digest_tree, end, kill_late, partial_bytes, wait_until
from runner import Ferry, Skip, must, require_sentence, require_status, scratch
from store import Tensor

# ---- space ---------------------------------------------------------------------------------------


def disk_full(place, folder, rng):
    """No space at any moment: one sentence; with more space the next run goes on."""
    if os.geteuid() != 0:
        raise Skip("only root can mount")
    total = sum(path.stat().st_size for path in place.source.iterdir())
    size = rng.choice([int(total * rng.uniform(0.02, 0.99)), 8192,
                       total + rng.randint(-200, 20) * 4096])
    options = rng.choice([[], [], ["--resume"]])
    with Mount(place.parent, max(4096, size)) as mount:
        done = place.ferry.call(*place.arguments(*options))
        if done.code == 0:
            place.require_whole()
            return
        require_sentence(done, "ferry reshard")
        place.require_kept(done.error)
        mount.remount("size=%d" % (3 * total))
        place.finish(*options)


def read_only_parent(place, folder, rng):
    if os.geteuid() != 0:
        raise Skip("only root can mount")
    with Mount(place.parent, 1 << 20) as mount:
        mount.remount("ro")
        require_sentence(place.ferry.call(*place.arguments()), str(place.parent))
        place.require_nothing()


# ---- what is at DST ------------------------------------------------------------------------------


def dst_exists(place, folder, rng):
    """A file, a folder with something or nothing in it, links to them and to nowhere."""
    target = folder / "target"
    makers = {
        "file": lambda path: path.write_bytes(b"precious"),
        "empty folder": lambda path: path.mkdir(),
        "folder": lambda path: (path.mkdir(), (path / "x").write_bytes(b"precious")),
        "dangling link": lambda path: path.symlink_to(folder / "nowhere"),
        "link to a folder": lambda path: (target.mkdir(), path.symlink_to(target)),
        "fifo": os.mkfifo,
    }
    for name, make in makers.items():
        make(place.out)
        if name == "fifo":
            before = None
        else:
            before = store.tree(place.parent)
        for options in ([], ["--resume"], ["--dry-run"]):
            require_sentence(place.ferry.call(*place.arguments(*options)), "dst")
        must(place.names() == ["dst"], "%s: leftovers: %s" % (name, place.names()))
        if before is not None:
            must(store.tree(place.parent) == before, "%s: was changed" % name)
        if place.out.is_dir() and not place.out.is_symlink():
            shutil.rmtree(place.out)
        else:
            place.out.unlink()
    must(not target.exists() or not list(target.iterdir()), "wrote through a link")


def dst_cannot_be(place, folder, rng):
    """A parent that is missing, a file, or the name itself too long or no name."""
    (folder / "a-file").write_bytes(b"")
    for out in (folder / "missing" / "dst", folder / "a-file" / "dst", place.parent / ("n" * 256),
                place.parent / "..", place.parent / ".", "/"):
        done = place.ferry.call("reshard", place.source, "--to", place.scene.layout, "--out",
                                str(out))
        require_sentence(done)
    must(not (folder / "missing").exists(), "the parent was made")
    place.require_nothing()


def dst_slash(place, folder, rng):
    """A slash at the end, a relative path, and a name of the greatest length that can be."""
    layout, source = place.scene.layout, place.source
    place.ferry.reshard(source, layout, str(place.out) + "/", *SLOW)
    place.require_whole()
    shutil.rmtree(place.out)
    done = place.ferry.call("reshard", source, "--to", layout, "--out", "dst", *SLOW,
                            cwd=place.parent)
    must(done.code == 0, str(done))
    place.require_whole()


def dst_appears(place, folder, rng):
    """DST comes into being while the run lasts: it stays as it is, and the run says so."""
    process = place.start()
    seen = wait_until(process, lambda: place.partial() is not None)
    try:
        place.out.mkdir()
    except FileExistsError:
        seen = False
    code, _, error = end(process)
    if seen:
        must(code == 1 and error.count("\n") == 1 and "dst" in error, "exit status %d: %s"
             % (code, error))
        must("dst" in place.names() and not list(place.out.iterdir()), "DST was changed")
        place.out.rmdir()
        place.require_kept(error)
    else:
        must(code == 0, error)


def two_at_once(place, folder, rng):
    """Two runs to one DST: one does it, the other says a sentence."""
    options = rng.choice([[], ["--resume"]])
    processes = [place.start(*options)]
    if rng.random() < 0.7:
        wait_until(processes[0], lambda: place.partial() is not None)
    processes.append(place.start(*options))
    ends = [end(process) for process in processes]
    codes = sorted(code for code, _, _ in ends)
    must(codes == [0, 1], "exit statuses %s: %s" % (codes, [error for _, _, error in ends]))
    error = next(error for code, _, error in ends if code == 1)
    must(error.count("\n") == 1 and "dst" in error, error)
    place.require_whole()


def many_at_once(place, folder, rng):
    """Eight that start at once, some are killed: never more than one result, always whole."""
    processes = [place.start() for _ in range(8)]
    for process in rng.sample(processes, 2):
        wait_until(process, lambda: place.partial() is not None)
        process.kill()
    codes = [end(process)[0] for process in processes]
    must(set(codes) <= {0, 1, -signal.SIGKILL} and codes.count(0) <= 1, "exit statuses %s" % codes)
    if 0 in codes:
        must(digest_tree(place.out) == place.scene.expected, "the result differs")
        left = place.partial()
        if left is not None:  # of one that was killed
            shutil.rmtree(left)
    else:
        place.finish()


def leftover_is_a_link(place, folder, rng):
    """Where the unfinished folder should be lies a link: nothing behind it is touched."""
    kill_late(place, rng)
    name = place.partial()
    shutil.rmtree(name)
    precious = folder / "precious"
    precious.mkdir()
    (precious / "rank-00000.safetensors").write_bytes(b"precious")
    (precious / "keep").write_bytes(b"precious")
    before = store.tree(precious)
    name.symlink_to(precious)
    for options in ([], ["--resume"]):
        done = place.ferry.call(*place.arguments(*options))
        must(store.tree(precious) == before, "%s\nfiles behind a link were changed" % done)
        if done.code == 0:
            must(digest_tree(place.out) == place.scene.expected, "the result differs")
            return
        require_sentence(done)


# ---- the source ----------------------------------------------------------------------------------


def source_spoiled(place, folder, rng):
    """A source file is cut, emptied, removed or replaced while the run reads it."""
    source = place.own_source(folder)
    path = rng.choice(list(source.glob("*.safetensors")))
    wanted = rng.uniform(0, 0.5) * path.stat().st_size
    options = rng.choice([[], ["--resume"]])
    process = place.start(*options)
    wait_until(process, lambda: partial_bytes(place) > wanted)
    how = rng.choice(["cut", "empty", "remove", "replace", "grow"])
    if how == "cut":
        os.truncate(path, path.stat().st_size // rng.choice([2, 3, 50]))
    elif how == "empty":
        os.truncate(path, 0)
    elif how == "remove":
        path.unlink()
    elif how == "replace":
        new = path.with_name("new")
        new.write_bytes(b"\0" * (path.stat().st_size // 2))
        new.rename(path)
    else:
        os.truncate(path, path.stat().st_size + 4096)
    code, _, error = end(process)
    about = "%s: exit status %d: %s" % (how, code, error)
    if code == 0:
        must(digest_tree(place.out) == place.scene.expected, "%s, but the result differs" % about)
    else:
        must(code == 1 and error.count("\n") == 1, about)
        must(path.name in error, "must name the file: %s" % about)
        place.require_kept(error)
        must(how in ("remove", "replace") or place.names() == [], "of no use is: %s" % place.names())


def source_overwritten(place, folder, rng):
    """Other bytes are written into a source file in the middle: never a result that mixes both
    and is called done."""
    source = place.own_source(folder)
    path = rng.choice(list(source.glob("*.safetensors")))
    process = place.start()
    wait_until(process, lambda: partial_bytes(place) > path.stat().st_size // 4)
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(rng.randbytes(path.stat().st_size // 2))
    code, _, error = end(process)
    if code == 0:
        must(digest_tree(place.out) == place.scene.expected,
             "the source changed while it was read, but the run was called done")
    else:
        must(code == 1 and error.count("\n") == 1, "exit status %d: %s" % (code, error))


def source_is_no_file(place, folder, rng):
    """A folder, a fifo, a device, a link to nowhere or to itself where a part should be."""
    source = place.own_source(folder)
    path = next(iter(sorted(source.glob("*.safetensors"))))
    path.unlink()
    makers = [Path.mkdir, os.mkfifo, lambda p: p.symlink_to("/dev/zero"),
              lambda p: p.symlink_to(folder / "nowhere"), lambda p: p.symlink_to(p),
              lambda p: p.symlink_to("/proc/self/mem"), lambda p: None]
    for make in makers:
        make(path)
        for command in (place.arguments(), ["inspect", source],
                        ["verify", source, place.scene.source]):
            require_sentence(place.ferry.call(*command, timeout=200))
        place.require_nothing()
        if path.is_symlink() or path.exists():
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def source_of_links(place, folder, rng):
    """Parts that are links are read, wherever they lead; of other files see other_files.py."""
    source = folder / "links"
    source.mkdir()
    for path in place.source.iterdir():
        if path.suffix == ".safetensors":
            (source / path.name).symlink_to(path)
        else:
            shutil.copy(path, source)
    place.source = source
    place.finish()
    must(not any(path.is_symlink() for path in place.out.iterdir()), "the result has links")


# ---- limits --------------------------------------------------------------------------------------


def few_descriptors(place, folder, rng):
    """More ranks than a process may open files."""
    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    layout = folder / "wide.json"
    layout.write_text(json.dumps({"mesh": [["tp", 300]], "rules": [
        {"match": "*.cols", "shard": [{"dim": 0, "axis": "tp"}]}, {"match": "*"}]}))
    subset = ["--subset", "layers.0.*s"]
    place.ferry.reshard(place.source, layout, folder / "wide", *subset)
    limited = Ferry(place.ferry.path, limit)
    limited.reshard(place.source, layout, folder / "limited", *subset)
    must(digest_tree(folder / "wide") == digest_tree(folder / "limited"), "other bytes")
    limited.reshard(folder / "limited", "hf", folder / "back")
    limited.require_equal(folder / "back", folder / "limited")


def peak_memory(process):
    """The most anonymous memory that is seen while it lives, in bytes."""
    peak = 0
    while process.poll() is None:
        try:
            for line in Path("/proc/%d/status" % process.pid).read_text().splitlines():
                if line.startswith("RssAnon:"):
                    peak = max(peak, int(line.split()[1]) << 10)
        except (FileNotFoundError, ProcessLookupError):
            pass
    return peak


def bounded_memory(place, folder, rng):
    """Tensors far larger than the cap, in pieces of a byte and as one element that is never cut."""
    if place.ferry.is_sanitized():
        raise Skip("sanitizers need memory of their own")
    mib, source = 1 << 20, folder / "large"
    source.mkdir()
    block = rng.randbytes(mib)
    tensors = [Tensor("whole", "BF16", [80, mib // 2], block * 80),
               Tensor("columns", "U8", [mib, 8], block * 8),
               Tensor("six", "F6_E2M3", [100, mib // 75 * 100], (block * 100)[:mib // 75 * 7500])]
    (source / store.SINGLE).write_bytes(store.form_file(tensors, {}))
    layout = folder / "layout.json"
    layout.write_text(json.dumps({"mesh": [["tp", 4]], "rules": [
        {"match": "whole", "shard": [{"dim": 1, "axis": "tp"}]},
        {"match": "columns", "shard": [{"dim": 1, "axis": "tp"}]}, {"match": "*"}]}))
    for arguments in (["reshard", source, "--to", layout, "--out", place.out],
                      ["verify", source, place.out],
                      ["reshard", place.out, "--to", "hf", "--out", folder / "back"]):
        process = place.ferry.start(*arguments, "--memory-cap", "1M")
        peak = peak_memory(process)
        code, _, error = end(process)
        must(code == 0, "%s: exit status %d: %s" % (arguments, code, error))
        must(peak <= 65 * mib + 2048 * len(tensors), "%s: %d MiB of anonymous memory"
             % (arguments, peak >> 20))
    place.ferry.require_equal(folder / "back", source)


def huge_replicas(place, folder, rng):
    """Of an element larger than a window every replica is compared, with no checksum to help."""
    source, out = folder / "one", folder / "two"
    source.mkdir()
    data = rng.randbytes(3000000)
    header = json.dumps({"blob": {"dtype": "BLOB", "shape": [60],
                                  "data_offsets": [0, len(data)]}}).encode()
    header += b" " * (-len(header) % 8)
    (source / store.SINGLE).write_bytes(len(header).to_bytes(8, "little") + header + data)
    layout = folder / "layout.json"
    layout.write_text(json.dumps({"mesh": [["tp", 3]], "rules": [{"match": "*"}]}))
    place.ferry.reshard(source, layout, out)
    for path in sorted(out.glob("*.safetensors")):
        path.write_bytes(path.read_bytes().replace(b"ferry.xxh3.blob", b"other.name.blob"))
    place.ferry.require_equal(source, out)
    path = out / store.rank_name(rng.randrange(1, 3))
    data = bytearray(path.read_bytes())
    data[-1 - rng.randrange(2900000)] ^= 4
    path.write_bytes(data)
    # Windows of 16 KiB: less than an element.
    done = place.ferry.verify(source, out, "--memory-cap", "1M", "--threads", "8")
    require_status(done, 1, ["blob", "differs", path.name])


def stdout_closed(place, folder, rng):
    """Nobody reads what is printed: the result is whole all the same, or nothing is there."""
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.Popen([place.ferry.path, *map(str, place.arguments("--json"))],
                               stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    end(process)
    must(place.names() in (["dst"], []), "leftovers: %s" % place.names())
    if place.out.exists():
        place.require_whole()


def other_file_system(place, folder, rng):
    """Source and result on two file systems, and the way back."""
    far = scratch("/var/tmp" if os.path.isdir("/var/tmp") else None)
    try:
        place.ferry.reshard(place.source, place.scene.layout, far / "dst", *SLOW)
        must(digest_tree(far / "dst") == place.scene.expected, "the result differs")
        place.ferry.reshard(far / "dst", "hf", folder / "back")
        place.ferry.require_equal(folder / "back", place.source)
    finally:
        shutil.rmtree(far, ignore_errors=True)


def without_rights(place, folder, rng):
    """As a user who may not read a part, or not write to the parent."""
    if os.geteuid() != 0:
        raise Skip("only root can become another user")
    source = place.own_source(folder)
    path = rng.choice(list(source.glob("*.safetensors")))

    def drop():
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    for each in (folder, folder.parent, place.scene.folder):
        each.chmod(0o755)
    nobody = Ferry(place.ferry.path, drop)
    if nobody.call("inspect", source).code != 0:
        raise Skip("another user cannot run the command here")
    require_sentence(nobody.call(*place.arguments()), str(place.parent))
    place.parent.chmod(0o777)
    path.chmod(0)
    require_sentence(nobody.call(*place.arguments()), path.name)
    require_sentence(nobody.call("inspect", source), path.name)
    require_sentence(nobody.call("verify", place.scene.source, source), path.name)
    path.chmod(0o644)
    (source / "config.json").chmod(0)
    done = nobody.call(*place.arguments())
    require_sentence(done, "config.json")
    must(place.require_kept(done.error), "nothing was kept")


CASES = [disk_full, dst_appears, two_at_once, many_at_once, source_spoiled, source_overwritten]
ONCE = [read_only_parent, dst_exists, dst_cannot_be, dst_slash, leftover_is_a_link,
        source_is_no_file, source_of_links, few_descriptors, huge_replicas, stdout_closed, other_file_system,
        without_rights, bounded_memory]

if __name__ == "__main__":
    sys.exit(fault_scene.run(__doc__, CASES, ONCE))
