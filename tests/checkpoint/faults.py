#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""`ferry reshard` that is killed or interrupted, and what the next run makes of what was left.

    faults.py --ferry PATH --stopper PATH [--seed S] [--count N] [--mib M] [--only TEXT] [--keep]

Each case runs N times, with other moments. Whatever happens, DST is whole or is not there, and no
leftovers stay where none may.
"""

import json
import os
import shutil
import signal
import struct
import sys

import fault_scene
import store
from fault_scene import digest_tree, end, kill_late, partial_bytes, stop, wait_until
from runner import must, require_sentence
from store import Tensor

# ---- killed --------------------------------------------------------------------------------------


def kill_restart(place, folder, rng):
    """SIGKILL at any call; --restart then removes what was left and does everything."""
    n_calls = stop(place, at=0).n_calls
    shutil.rmtree(place.out)
    must(stop(place, at=rng.randint(2, n_calls)).was_killed, "was not killed")
    if not place.out.exists():
        must(place.finish("--restart")["resumed_bytes"] == 0, "resumed after --restart")
    refuse_whole(place)


def refuse_whole(place, *options):
    """DST is whole; a run that was killed at its very end may have left its own there. The next
    run says that it exists, and only then nothing is left."""
    require_sentence(place.ferry.call(*place.arguments(*options)), "exists")
    place.require_whole()


def kill_resume(place, folder, rng):
    """SIGKILL several times, and on again each time; --resume says what is done anyway."""
    n_calls = stop(place, "--resume", at=0).n_calls
    shutil.rmtree(place.out)
    for _ in range(rng.randint(1, 4)):
        stop(place, "--resume", at=rng.randint(2, n_calls))
        if place.out.exists():
            refuse_whole(place, "--resume")
            return
    place.finish("--resume")


def resume_goes_on(place, folder, rng):
    """What a killed run had written is not written again: of each kind of source."""
    of, layout = rng.choice([(place.scene.source, place.scene.layout),
                             (place.scene.sharded, place.scene.other_layout),
                             (place.scene.sharded, "hf"),
                             (place.scene.source, place.scene.boxes),
                             (place.scene.boxed, place.scene.boxes),
                             (place.scene.boxed, place.scene.layout)])
    place.source = of
    expected = place.scene.reshard(of, "clean-%d" % rng.getrandbits(32), layout)
    at = rng.randint(6, 30)
    must(stop(place, "--resume", at=at, only=["write"], layout=layout).was_killed, "not killed")
    told = place.finish("--resume", expected=expected, layout=layout)
    must(0 < told["resumed_bytes"] < told["written_bytes"] and told["anew"] is None,
         "of %s: %s" % (of.name, told))


def resume_at_the_end(place, folder, rng):
    """Killed where the name is to be given, or where giving it fails: nothing is written again."""
    for do in ("kill", "EIO", "ENOSPC"):
        stopped = stop(place, "--resume", at=1, do=do, only=["renameat2"])
        must(stopped.call == "renameat2" and not place.out.exists(), str(stopped))
        told = place.finish("--resume")
        data = sum(file.n_bytes for file in map(DataFile, place.out.glob("*.safetensors")))
        must(told["resumed_bytes"] == data, "%d bytes of %d were resumed after %s"
             % (told["resumed_bytes"], data, do))
        shutil.rmtree(place.out)


class DataFile:
    """A safetensors file, and how many bytes of tensors it has."""

    def __init__(self, path):
        with open(path, "rb") as file:
            header = int.from_bytes(file.read(8), "little")
        self.n_bytes = path.stat().st_size - 8 - header


def resume_typed_otherwise(place, folder, rng):
    """The same source by another path is the same."""
    own = place.own_source(folder)
    kill_late(place, rng, "--resume")
    link = folder / "link"
    link.symlink_to(own)
    place.source = rng.choice([os.path.relpath(own), "%s/." % own, "%s//" % own, link,
                               own / ".." / own.name])
    told = place.finish("--resume")
    must(told["resumed_bytes"] > 0 and told["anew"] is None, "%s: %s" % (place.source, told))


def resume_other_layout_of_source(place, folder, rng):
    """The same rank files under a layout that reads them otherwise: other weights come out."""
    own = place.own_source(folder, place.scene.sharded)
    path = own / store.LAYOUT
    layout = json.loads(path.read_text())
    place.source, target = own, rng.choice([place.scene.other_layout, "hf"])
    stopped = stop(place, "--resume", at=rng.randint(10, 30), only=["write"], layout=target)
    must(stopped.was_killed, str(stopped))
    for rule in layout["rules"]:
        if rule["match"] == "*.rows":
            rule["shard"][0].pop("stride")
    about = path.stat()
    path.write_text(json.dumps(layout))
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    before = digest_tree(own)
    expected = place.scene.reshard(own, "clean-%d" % rng.getrandbits(32), target)
    must(expected != place.scene.reshard(place.scene.sharded, "other-%d" % rng.getrandbits(32),
                                         target), "the two layouts mean the same")
    told = place.finish("--resume", expected=expected, layout=target)
    must(told["resumed_bytes"] == 0 and "layout" in told["anew"], "resumed: %s" % told)
    must(digest_tree(own) == before, "the source was changed")


def resume_says_why(place, folder, rng):
    """People read on stderr why it starts anew."""
    place.own_source(folder)
    kill_late(place, rng, "--resume")
    done = place.ferry.call(*place.arguments("--resume", "--cast", "f16"))
    must(done.code == 0 and done.error.count("\n") == 1 and "starting anew" in done.error
         and "options" in done.error, str(done))


def resume_of_restart(place, folder, rng):
    """A run with --restart can be gone on with as any other."""
    kill_late(place, rng)
    kill_late(place, rng, "--restart")
    told = place.finish()
    must(told["resumed_bytes"] > 0 and told["anew"] is None, "nothing was resumed: %s" % told)


def resume_nothing(place, folder, rng):
    must(place.finish("--resume")["resumed_bytes"] == 0, "there was nothing to resume")


def resume_other_source(place, folder, rng):
    """The source was written anew with other bytes: nothing of the dead run may be used."""
    source = place.own_source(folder)
    kill_late(place, rng, "--resume")
    path = rng.choice(list(source.glob("*.safetensors")))
    data = bytearray(path.read_bytes())
    for _ in range(2000):
        data[rng.randrange(len(data) // 2, len(data))] ^= 1 << rng.randrange(8)
    if rng.random() < 0.5:
        path.unlink()
    path.write_bytes(data)
    expected = place.scene.reshard(source, "other-%d" % rng.getrandbits(32))
    told = place.finish("--resume", expected=expected)
    must(told["resumed_bytes"] == 0, "resumed with another source")


def resume_other_files(place, folder, rng):
    """Files that are only copied change, come and go behind a run that had copied all of them: the
    result is as if there had been one run."""
    source = place.own_source(folder)
    stopped = stop(place, "--resume", at=1, only=["renameat2"])
    must(stopped.was_killed and (place.partial() / "big.bin").exists(), str(stopped))
    (source / "config.json").write_bytes(rng.randbytes(rng.choice([2, 5000])))
    (source / "big.bin").unlink()
    (source / "new.txt").write_bytes(b"new")
    expected = place.scene.reshard(source, "other-%d" % rng.getrandbits(32))
    must("big.bin" not in expected and "new.txt" in expected, "the case is wrong")
    must(place.finish("--resume", expected=expected)["resumed_bytes"] > 0, "nothing was resumed")


def resume_touched_source(place, folder, rng):
    """Only the time changed: that counts as another source."""
    source = place.own_source(folder)
    kill_late(place, rng, "--resume")
    path = rng.choice(list(source.glob("*.safetensors")))
    about = path.stat()
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns + 1000))
    told = place.finish("--resume")
    must(told["resumed_bytes"] == 0 and "files" in told["anew"], "a time changed: %s" % told)


def resume_set_back(place, folder, rng):
    """Other bytes, and the time of change set back: it does not pass for the old source."""
    source = place.own_source(folder)
    kill_late(place, rng, "--resume")
    path = rng.choice(list(source.glob("*.safetensors")))
    about, data = path.stat(), bytearray(path.read_bytes())
    data[-1] ^= 1
    with open(path, "r+b") as file:
        file.write(data)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    expected = place.scene.reshard(source, "other-%d" % rng.getrandbits(32))
    told = place.finish("--resume", expected=expected)
    must(told["resumed_bytes"] == 0 and "files" in told["anew"], "resumed: %s" % told)


def resume_blocks(place, folder, rng):
    """Quantized weights: a weight counts as made where its codes and its scales are."""
    options = ["--quantize", rng.choice(["f8e4m3:16x16=*", "nvfp4=*s", "f8e5m2:1x7:e8m0=*cols"])]
    clean = place.parent.parent / "clean"
    place.ferry.reshard(place.source, "hf", clean, *options)
    stopped = stop(place, "--resume", *options, at=rng.randint(10, 60), only=["write"], layout="hf")
    if not stopped.was_killed:
        return
    if rng.random() < 0.5:
        for path in place.partial().glob("*.safetensors"):
            spoil(path, rng, 1)
    place.finish("--resume", *options, expected=digest_tree(clean), layout="hf")


def resume_boxes(place, folder, rng):
    """Parameters in boxes, of whatever was left: damaged, gone, or of another side."""
    scene = place.scene
    expected = scene.reshard(place.source, "clean-%d" % rng.getrandbits(32), scene.boxes)
    stopped = stop(place, "--resume", at=rng.randint(10, 60), only=["write"], layout=scene.boxes)
    if not stopped.was_killed:
        return
    side = json.loads(scene.boxes.read_text())
    other = folder / "other-boxes.json"
    chosen = rng.choice(["damaged", "gone", "other"])
    files = list(place.partial().glob("*.safetensors"))
    if chosen == "damaged":
        for path in files:
            spoil(path, rng, 1)
    elif chosen == "gone":
        rng.choice(files).unlink()
    else:
        next(entry for entry in side["boxes"] if "fill" in entry)["fill"][0]["bits"] = "4000"
        other.write_text(json.dumps(side))
        expected = scene.reshard(place.source, "other-%d" % rng.getrandbits(32), other)
    told = place.finish("--resume", expected=expected,
                        layout=other if chosen == "other" else scene.boxes)
    must(chosen != "other" or told["resumed_bytes"] == 0, "resumed of another side: %s" % told)


def resume_values(place, folder, rng):
    """Codes that become values in boxes: by other scales or blocks it begins anew."""
    layers = ["layers.%d.w" % layer for layer in range(16)]
    tensors = [Tensor(name, "F8_E4M3", [64, 160], rng.randbytes(64 * 160)) for name in layers]
    for name in layers:
        tensors += [Tensor(name + suffix, "F32", [8, 10], struct.pack("<80f", *(
            rng.uniform(0.1, 9) for _ in range(80)))) for suffix in ("_scale_inv", "_other")]
    place.source = folder / "codes"
    store.write_logical(rng, place.source, tensors, {}, 1, {})

    def side(scale="*_scale_inv"):
        path = folder / ("%d.json" % rng.getrandbits(32))
        path.write_text(json.dumps({"boxes": [
            {"ranks": [rank, 2], "parameter": "%s.%d" % (name, rank), "elements": 32 * 157,
             "dtype": "bf16", "dequantize": {"block": [8, 16], "scale": scale}, "holds": [
                 {"tensor": name, "begin": [32 * rank, 3], "shape": [32, 157], "offset": 0,
                  "strides": [1, 32]}]} for name in layers for rank in range(2)]}))
        return path

    first = side()
    stopped = stop(place, "--resume", at=rng.randint(6, 30), only=["write"], layout=first)
    must(stopped.was_killed and place.partial() is not None, "no run was killed: %s" % stopped)
    then = rng.choice([first, first, side("*_other")])
    expected = place.scene.reshard(place.source, "clean-%d" % rng.getrandbits(32), then)
    told = place.finish("--resume", expected=expected, layout=then)
    must((told["resumed_bytes"] > 0) == (then == first), "resumed: %s" % told)


def resume_codes(place, folder, rng):
    """Values that become codes in boxes: by scales of another kind it begins anew."""
    scene, f8, half = place.scene, "f8e4m3:16x16=*.cols", "nvfp4=*.rows"
    halves = folder / "halves.json"
    halves.write_text(json.dumps(scene.draw_halves()))
    for number, (first, then, layout) in enumerate((
            (f8, f8, scene.boxes), (f8, "f8e4m3:16x16:pow2=*.cols", scene.boxes),
            (half, half, halves))):
        clean = folder / ("clean-%d" % number)
        place.ferry.reshard(place.source, layout, clean, "--quantize", then)
        stopped = stop(place, "--resume", "--quantize", first, at=rng.randint(10, 40),
                       only=["write"], layout=layout)
        must(stopped.was_killed and place.partial() is not None, "no run was killed: %s" % stopped)
        told = place.finish("--resume", "--quantize", then, expected=digest_tree(clean),
                            layout=layout)
        must((told["resumed_bytes"] > 0) == (then == first), "resumed: %s" % told)
        shutil.rmtree(place.out)


def resume_other_options(place, folder, rng):
    """Another layout or other options: anew, and with the right result."""
    kill_late(place, rng, "--resume")
    options, layout = rng.choice([(["--subset", "layers.*s"], None), (["--cast", "f16"], None),
                                  (["--quantize", "mxfp8=*s"], "hf"), ([], place.scene.other_layout), ([], "hf"),
                                  (["--part-bytes", "1000000"], "hf")])
    clean = place.parent.parent / "clean"
    place.ferry.reshard(place.source, layout or place.scene.layout, clean, *options)
    told = place.finish("--resume", *options, expected=digest_tree(clean), layout=layout)
    must(told["resumed_bytes"] == 0, "resumed with other options: %s" % options)


def resume_damaged(place, folder, rng):
    """Bytes of the unfinished files changed meanwhile: the result is right all the same."""
    kill_late(place, rng, "--resume")
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
    kill_late(place, rng, "--resume")
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
    kill_late(place, rng, "--resume")
    for path in place.partial().iterdir():
        if path.suffix == ".safetensors" or not path.stat().st_size:
            continue
        data = path.read_bytes()
        path.write_bytes(rng.choice([data[:rng.randrange(len(data))], data + rng.randbytes(50),
                                     data + data, rng.randbytes(len(data))]))
    place.finish("--resume")


# ---- signals -------------------------------------------------------------------------------------


def interrupted(place, folder, rng):
    """A signal ends the run as it ends any program; it says how to go on."""
    number = rng.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    options = rng.choice([[], ["--resume"], ["--restart"]])
    wanted = rng.uniform(0, 0.9) * (1 << 20)
    process = place.start(*options)
    in_time = wait_until(process, lambda: place.partial() is not None
                         and partial_bytes(place) > wanted)
    process.send_signal(number)
    code, _, error = end(process)
    if code == 0:
        place.require_whole()
        return
    must(in_time and code == -number, "exit status %d after signal %d: %s" % (code, number, error))
    must(error.startswith("ferry reshard: interrupted") and error.count("\n") == 1, error)
    kept = place.require_kept(error)
    must((place.finish()["resumed_bytes"] > 0) == kept, "kept: %s" % kept)


CASES = [kill_restart, kill_resume, resume_goes_on, resume_of_restart, resume_other_source,
         resume_other_files, resume_other_layout_of_source, resume_typed_otherwise,
         resume_blocks, resume_boxes, resume_values, resume_codes, resume_other_options, resume_damaged,
         resume_damaged_data, resume_journal_torn, interrupted]
ONCE = [resume_nothing, resume_at_the_end, resume_touched_source, resume_set_back, resume_says_why]

if __name__ == "__main__":
    sys.exit(fault_scene.run(__doc__, CASES, ONCE))
