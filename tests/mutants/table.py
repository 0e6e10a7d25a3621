# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Tables of mutants: planted faults, and for each the test that must fail.

Each is a fault in one file, as a hunk without line numbers:

    @ src/layout/box.c unit/geometry
     uint64_t volume = 1;
    -for (uint32_t d = 0; d < n_dims; d++) {
    +for (uint32_t d = 1; d < n_dims; d++) {

The lines that begin with a blank or a minus must stand in the file exactly once, one after the other.
Behind the file stands the test that must fail, if need be with arguments for its program that leave
out its other cases; or `equivalent` for a fault that no test can see; or `open` for one that no test
sees yet. For these two, lines with # say why. Blanks at the ends of lines do not count, those at their
beginning do.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT = "equivalent"
OPEN = "open"


class Stale(Exception):
    """The table does not fit the sources any more; the text says where."""


class Mutant:
    """A fault: what stands in the file, what would stand there instead, and who must notice."""

    def __init__(self, path, test, arguments=(), lines=(), comment=(), place=""):
        self.path, self.test, self.arguments = path, test, list(arguments)
        self.lines, self.comment, self.place = list(lines), list(comment), place

    @property
    def before(self):
        return [line[1:] for line in self.lines if line[0] in " -"]

    @property
    def after(self):
        return [line[1:] for line in self.lines if line[0] in " +"]

    @property
    def asked(self):
        """The test as a table has it."""
        return " ".join([self.test, *self.arguments])

    def __str__(self):
        head = "@ %s %s" % (self.path, self.asked)
        return "\n".join([head, *self.comment, *(line.rstrip() for line in self.lines)]) + "\n"

    def planted_in(self, text):
        """The text of the file with the fault."""
        lines = text.split("\n")
        old = [line.rstrip() for line in self.before]
        found = [i for i in range(len(lines) - len(old) + 1)
                 if [line.rstrip() for line in lines[i:i + len(old)]] == old]
        if len(found) != 1:
            raise Stale("%s: the lines of this mutant stand %d times in %s" % (
                self.place, len(found), self.path))
        lines[found[0]:found[0] + len(old)] = self.after
        return "\n".join(lines)

    def planted(self):
        """The same of the file as it is now."""
        path = ROOT / self.path
        if not path.is_file():
            raise Stale("%s: there is no file %s" % (self.place, self.path))
        return self.planted_in(path.read_text(encoding="utf-8"))


def read_table(path):
    """The mutants of a table."""
    mutants = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").split("\n"), 1):
        place = "%s:%d" % (Path(path).name, number)
        if line.startswith("@ "):
            words = line.split()
            if len(words) < 3:
                raise Stale("%s: a mutant begins with @ FILE TEST" % place)
            mutants.append(Mutant(words[1], words[2], words[3:], place=place))
        elif mutants and line[:1] == "#":
            mutants[-1].comment.append(line)
        elif mutants and line[:1] in (" ", "-", "+") and line:
            mutants[-1].lines.append(line)
        elif line.strip() and line[:1] != "#":
            raise Stale("%s: a line begins with @, #, a blank, - or +" % place)
    for mutant in mutants:
        if mutant.before == mutant.after or not mutant.before:
            raise Stale("%s: this mutant changes nothing" % mutant.place)
        if mutant.test in (EQUIVALENT, OPEN) and not mutant.comment:
            raise Stale("%s: say why no test sees it" % mutant.place)
    return mutants


def read_tables():
    """Those of all tables beside this file."""
    return [mutant for path in sorted(Path(__file__).parent.glob("*.mutants"))
            for mutant in read_table(path)]
