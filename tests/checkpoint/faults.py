#!/usr/bin/env python3
"""`ferry reshard` that is killed or interrupted, and what --resume makes of what was left.

    faults.py --ferry PATH [--seed S] [--count N] [--mib M] [--only TEXT] [--keep-going] [--keep]

Each case runs N times, with other moments. Whatever happens, DST is whole or is not there, and no
leftovers stay where none may.
"""

import os
import shutil
import signal
import sys
import time

import fault_scene
from fault_scene import digest_tree, end, kill_late, partial_bytes, wait_until
from runner import Failure, must

# ---- killed --------------------------------------------------------------------------------------


def kill_plain(place, folder, rng):
    """SIGKILL at any moment; a plain run then removes what was left and does everything."""
    process = place.start()
    time.sleep(rng.uniform(0, 1.2) * place.scene.seconds)
    process.kill()
    end(process)
    if place.out.exists():
        place.require_whole()
        return
    must(place.finish()["resumed_bytes"] == 0, "a plain run resumes")


def kill_resume(place, folder, rng):
    """SIGKILL several times, --resume each time."""
    for _ in range(rng.randint(1, 4)):
        process = place.start("--resume")
        time.sleep(rng.uniform(0, 1.1) * place.scene.seconds)
        process.kill()
        end(process)
        if place.out.exists():
            place.require_whole()
            return
    place.finish("--resume")


def resume_goes_on(place, folder, rng):
    """What a killed run had written is not written again."""
    best = 0
    for _ in range(5):
        must(kill_late(place, rng, "--resume"), "no run could be killed in time")
        told = place.finish("--resume")
        must(told["resumed_bytes"] <= told["written_bytes"], "resumed more than written: %s" % told)
        best = max(best, told["resumed_bytes"])
        if best:
            return
        shutil.rmtree(place.out)
    raise Failure("five runs were killed late, none was resumed")


def resume_of_plain(place, folder, rng):
    """--resume after a plain run was killed, and the reverse: the result is right."""
    first, second = rng.choice([([], ["--resume"]), (["--resume"], [])])
    must(kill_late(place, rng, *first), "no run could be killed in time")
    told = place.finish(*second)
    must(second or told["resumed_bytes"] == 0, "a plain run resumes")


def resume_nothing(place, folder, rng):
    must(place.finish("--resume")["resumed_bytes"] == 0, "there was nothing to resume")


def resume_other_source(place, folder, rng):
    """The source was written anew with other bytes: nothing of the dead run may be used."""
    source = place.own_source(folder)
    must(kill_late(place, rng, "--resume"), "no run could be killed in time")
    path = rng.choice(list(source.glob("*.safetensors")))
    data = bytearray(path.read_bytes())
    for _ in range(2000):
        data[rng.randrange(len(data) // 2, len(data))] ^= 1 << rng.randrange(8)
    if rng.random() < 0.5:
        path.unlink()
    path.write_bytes(data)
    expected, _ = place.scene.convert(source, "other-%d" % rng.getrandbits(32))
    told = place.finish("--resume", expected=expected)
    must(told["resumed_bytes"] == 0, "resumed with another source")


def resume_other_files(place, folder, rng):
    """A file that is only copied changed meanwhile: the new one is in the result."""
    source = place.own_source(folder)
    must(kill_late(place, rng, "--resume"), "no run could be killed in time")
    rng.choice([
        lambda: (source / "config.json").write_bytes(rng.randbytes(rng.choice([2, 5000]))),
        lambda: (source / "big.bin").unlink(),
        lambda: (source / "new.txt").write_bytes(b"new"),
    ])()
    expected, _ = place.scene.convert(source, "other-%d" % rng.getrandbits(32))
    place.finish("--resume", expected=expected)


def resume_touched_source(place, folder, rng):
    """Only the time changed: that counts as another source."""
    source = place.own_source(folder)
    must(kill_late(place, rng, "--resume"), "no run could be killed in time")
    path = rng.choice(list(source.glob("*.safetensors")))
    about = path.stat()
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns + 1000))
    must(place.finish("--resume")["resumed_bytes"] == 0, "resumed though a time changed")


def resume_other_options(place, folder, rng):
    """Another layout or other options: anew, and with the right result."""
    must(kill_late(place, rng, "--resume"), "no run could be killed in time")
    options, layout = rng.choice([(["--subset", "layers.*s"], None), (["--cast", "f16"], None),
                                  ([], place.scene.other_layout), ([], "hf"),
                                  (["--part-bytes", "1000000"], "hf")])
    clean = place.parent.parent / "clean"
    place.ferry.reshard(place.source, layout or place.scene.layout, clean, *options)
    told = place.finish("--resume", *options, expected=digest_tree(clean), layout=layout)
    must(told["resumed_bytes"] == 0, "resumed with other options: %s" % options)


def resume_damaged(place, folder, rng):
    """Bytes of the unfinished files changed meanwhile: the result is right all the same."""
    must(kill_late(place, rng, "--resume"), "no run could be killed in time")
    files = [path for path in place.partial().iterdir() if path.stat().st_size]
    for path in files:
        spoil(path, rng, rng.choice([1, 1, 30]))
    if rng.random() < 0.5:
        path = rng.choice(files)
        size = path.stat().st_size
        os.truncate(path, rng.choice([0, size // 2, size - 1, size + 5]))
    if rng.random() < 0.3:
        rng.choice(files).unlink()
    place.finish("--resume")


def resume_damaged_data(place, folder, rng):
    """As before, but the journal is whole and everything else as it was: one byte of one file."""
    must(kill_late(place, rng, "--resume"), "no run could be killed in time")
    files = [path for path in place.partial().iterdir() if path.suffix == ".safetensors"]
    for path in rng.sample(files, min(2, len(files))):
        spoil(path, rng, 1)
    place.finish("--resume")


def spoil(path, rng, n):
    size = path.stat().st_size
    with open(path, "r+b") as file:
        for _ in range(n if size else 0):
            at = rng.randrange(size)
            file.seek(at)
            old = file.read(1)
            file.seek(at)
            file.write(bytes([old[0] ^ 1 << rng.randrange(8)]))


def resume_journal_torn(place, folder, rng):
    """The journal ends anywhere, or has more behind its end."""
    must(kill_late(place, rng, "--resume"), "no run could be killed in time")
    for path in place.partial().iterdir():
        if path.suffix == ".safetensors" or not path.stat().st_size:
            continue
        data = path.read_bytes()
        path.write_bytes(rng.choice([data[:rng.randrange(len(data))], data + rng.randbytes(50),
                                     data + data, rng.randbytes(len(data))]))
    place.finish("--resume")


# ---- signals -------------------------------------------------------------------------------------


def interrupted(place, folder, rng):
    """A signal ends the run as it ends any program; --resume leaves what the next run needs."""
    number = rng.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    options = rng.choice([[], ["--resume"]])
    wanted = rng.uniform(0, 0.9) * (1 << 20)
    process = place.start(*options)
    in_time = wait_until(process, lambda: place.partial() is not None
                         and partial_bytes(place) > wanted)
    if rng.random() < 0.3:
        time.sleep(rng.uniform(0, 0.5) * place.scene.seconds)
    process.send_signal(number)
    code, _, error = end(process)
    if code == 0:
        place.require_whole()
        return
    must(in_time and code == -number, "exit status %d after signal %d: %s" % (code, number, error))
    must(error.count("\n") <= 1, "several lines: %s" % error)
    must(not place.out.exists(), "DST is there after a signal")
    if not options:
        place.require_nothing()
    else:
        must(place.partial() is not None, "nothing is left for --resume")
        place.finish("--resume")


CASES = [kill_plain, kill_resume, resume_goes_on, resume_of_plain, resume_nothing,
         resume_other_source, resume_other_files, resume_touched_source, resume_other_options,
         resume_damaged, resume_damaged_data, resume_journal_torn, interrupted]

if __name__ == "__main__":
    sys.exit(fault_scene.run(__doc__, CASES, []))
