#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""`ferry reshard` and what lies beside the tensors: what is copied, what is not, and who is told.

    other_files.py --ferry PATH --stopper PATH [--seed S] [--only TEXT] [--keep]
"""

import json
import os
import shutil
import signal
import sys

import fault_scene
from fault_scene import stop
from runner import Skip, must, require_sentence


def dry_run(place, *options):
    done = place.ferry.call(*place.arguments("--dry-run", *options))
    must(done.code == 0, str(done))
    return done


def weights_in_other_formats(place, folder, rng):
    """They are left out, counted neither as written nor as needed, and named."""
    source = place.own_source(folder)
    names = ["pytorch_model.bin", "consolidated.00.pth", "model.gguf", "more.safetensors"]
    for name in names:
        (source / name).write_bytes(rng.randbytes(100))
    (source / "tokenizer.json").write_bytes(b"{}")
    told = place.ferry.call(*place.arguments())
    must(told.code == 0 and all(name in told.error for name in names[:3]), str(told))
    must(told.error.count("not copied") == 3, str(told))
    found = {path.name for path in place.out.iterdir()}
    must({"tokenizer.json", "config.json", "big.bin"} <= found, "lacks files: %s" % found)
    must(not found & set(names), "copied: %s" % (found & set(names)))


def dry_run_counts(place, folder, rng):
    """A dry run names and counts what the run would copy; so does --json."""
    source = place.own_source(folder)
    (source / "sub").mkdir()
    (source / "tokenizer.json").write_bytes(rng.randbytes(3 << 20))
    (source / "pytorch_model.bin").write_bytes(b"1")
    out = dry_run(place).out
    size = sum((source / name).stat().st_size
               for name in ("tokenizer.json", "config.json", "big.bin"))
    for text in ("Copies     tokenizer.json, 3.00 MiB", "Leaves out sub/: a folder",
                 "Leaves out pytorch_model.bin: weights", "Copies     big.bin"):
        must(text in out, "lacks %r: %s" % (text, out))
    others = json.loads(dry_run(place, "--json").out)["others"]
    must(sum(other["bytes"] for other in others if other["left_out"] is None) == size,
         "other sizes: %s" % others)
    must({other["name"] for other in others if other["left_out"]} == {"sub/", "pytorch_model.bin"},
         "others left out: %s" % others)


def space_for_others(place, folder, rng):
    """Their bytes count when the disk is looked at: nothing is written for nothing."""
    if os.geteuid() != 0:
        raise Skip("root: only root can mount")
    source = place.own_source(folder)
    total = sum(path.stat().st_size for path in source.iterdir())
    with open(source / "huge.txt", "wb") as file:
        file.truncate(4 * total)
    with fault_scene.Mount(place.parent, 3 * total):
        require_sentence(place.ferry.call(*place.arguments()), "needs", "free")
        place.require_nothing()


def links(place, folder, rng):
    """Only those that end in the folder are followed, or in the cache of the hub."""
    secret = folder / "secret"
    secret.write_bytes(b"secret")
    cache = folder / "models--x"
    source = cache / "snapshots" / "0a1b"
    source.parent.mkdir(parents=True)
    shutil.copytree(place.scene.source, source)
    (cache / "blobs").mkdir()
    (cache / "blobs" / "ff00").write_bytes(b"vocabulary")
    (source / "vocab.json").symlink_to("../../blobs/ff00")
    (source / "alias.json").symlink_to("config.json")
    (source / "whole.json").symlink_to(source / "config.json")
    bad = {"tokenizer.json": secret, "passwd": "/etc/passwd", "up.json": "../../../secret",
           "around.json": "../../blobs/../../secret"}
    for name, target in bad.items():
        (source / name).symlink_to(target)
    place.source = source
    told = place.ferry.call(*place.arguments())
    must(told.code == 0 and told.error.count("leads out") == len(bad), str(told))
    found = {path.name: path.read_bytes() for path in place.out.iterdir()}
    must(not found.keys() & bad.keys(), "followed: %s" % (found.keys() & bad.keys()))
    must(found["vocab.json"] == b"vocabulary" and found["alias.json"] == found["whole.json"] == b"{}",
         "not copied as they are")
    must(not any(path.is_symlink() for path in place.out.iterdir()), "the result has links")
    # A "blobs" that is itself a link elsewhere.
    shutil.rmtree(place.out)
    (cache / "blobs").rename(folder / "elsewhere")
    (cache / "blobs").symlink_to(folder / "elsewhere")
    told = place.ferry.call(*place.arguments())
    must(told.code == 0 and not (place.out / "vocab.json").exists(), str(told))


def torch_dtype(place, folder, rng):
    """A cast changes what config.json says of the tensors, and nothing else in it."""
    source = place.own_source(folder)
    text = '{ "rms_norm_eps": 1e-05, "torch_dtype":"float32",\n"text_config": {"dtype": "float16"}}'
    (source / "config.json").write_text(text)
    must("torch_dtype bfloat16" in dry_run(place, "--cast", "bf16").out, "a dry run is silent")
    place.ferry.reshard(source, place.scene.layout, place.out, "--cast", "bf16")
    expected = text.replace('"float32"', '"bfloat16"').replace('"float16"', '"bfloat16"')
    must((place.out / "config.json").read_text() == expected, (place.out / "config.json").read_text())
    shutil.rmtree(place.out)
    place.ferry.reshard(source, place.scene.layout, place.out)
    must((place.out / "config.json").read_text() == text, "changed without a cast")


def stopped_while_copying(place, folder, rng):
    """A signal while other files are copied ends the run, as at any other time."""
    source = place.own_source(folder)
    (source / "tokenizer.json").write_bytes(rng.randbytes(5 << 20))
    for number in (signal.SIGTERM, signal.SIGINT):
        # Of the calls to write only those of other files have so many bytes: 256 KiB and less.
        stopped = stop(place, at=6, do=number.name, only=["write"])
        must(stopped.code == 128 + number and stopped.call == "write", str(stopped))
        must(place.require_kept(stopped.error), "nothing was kept")
    place.finish(expected=place.scene.reshard(source, "clean"))


def stopped_at_the_end(place, folder, rng):
    """One that comes when all is written but the name."""
    n_calls = stop(place, at=0, only=["fsync"]).n_calls
    shutil.rmtree(place.out)
    stopped = stop(place, at=n_calls - 3, do="SIGTERM", only=["fsync"])
    must(stopped.code == 128 + signal.SIGTERM, str(stopped))
    must(place.require_kept(stopped.error), "nothing was kept")
    told = place.finish()
    must(told["resumed_bytes"] > told["written_bytes"] / 2, str(told))


def no_flock(place, folder, rng):
    """File systems without it: a claim stands for the lock, and a dead one is taken over."""
    for error in ("ENOSYS", "ENOLCK", "EOPNOTSUPP"):
        for options in ([], ["--resume"]):
            done = stop(place, *options, at=1, do=error, only=["flock"], every=True)
            must(done.code == 0 and done.call == "flock", str(done))
            place.require_whole()
            shutil.rmtree(place.out)
    # A live run holds it.
    claimed = place.parent / ".dst.ferry-partial"
    claimed.mkdir(mode=0o755)
    (claimed / ".ferry-lock").write_bytes(b"")
    (claimed / ".ferry-claim").symlink_to("17 1 elsewhere 0-0/pid:[1]")
    for every in (True, False):
        done = stop(place, at=1, do="ENOSYS" if every else "EINTR", only=["flock"], every=every)
        must(done.code == 1 and "process 17 of elsewhere" in done.error, str(done))
    must(sorted(os.listdir(claimed)) == [".ferry-claim", ".ferry-lock"], "it was changed")


def foreign_folder(place, folder, rng):
    """Of another user, with everybody's right to write: his files would be the result."""
    if os.geteuid() != 0:
        raise Skip("root: only root can act for others")
    place.parent.chmod(0o1777)
    partial = place.parent / ".dst.ferry-partial"
    partial.mkdir()
    os.chown(partial, 65534, 65534)
    partial.chmod(0o777)
    for options in ([], ["--resume"]):
        require_sentence(place.ferry.call(*place.arguments(*options)), "belongs to user 65534")
        must(place.names() == [partial.name] and not list(partial.iterdir()), "it was used")


CASES = []
ONCE = [weights_in_other_formats, dry_run_counts, space_for_others, links, torch_dtype,
        stopped_while_copying, stopped_at_the_end, no_flock, foreign_folder]

if __name__ == "__main__":
    sys.exit(fault_scene.run(__doc__, CASES, ONCE))
