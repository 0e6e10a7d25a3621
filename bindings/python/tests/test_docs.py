# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Examples in docstrings run, and everything public has a docstring."""

import doctest
import importlib
import inspect
import os
import pkgutil
import re
import unittest

import ferry


def modules():
    """Of the package; those that need what is not installed are left out."""
    found = [ferry]
    for info in pkgutil.walk_packages(ferry.__path__, "ferry."):
        if info.name.endswith("__main__"):
            continue
        try:
            found.append(importlib.import_module(info.name))
        except ImportError as error:
            if error.name is None or error.name.startswith("ferry"):
                raise
    return found


class Docstrings(unittest.TestCase):
    def test_examples(self):
        n_tried = 0
        for module in modules():
            if module.__name__ == "ferry._ferry":
                continue
            result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
            self.assertEqual(result.failed, 0, module.__name__)
            n_tried += result.attempted
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        for name, place in ferry._MODULE_OF.items():  # which say that they are of ferry
            names = vars(importlib.import_module("ferry." + place))
            for test in doctest.DocTestFinder().find(getattr(ferry, name), name, False, names):
                result = runner.run(test)
                self.assertEqual(result.failed, 0, name)
                n_tried += result.attempted
        self.assertGreater(n_tried, 60)

    def test_everything_public_says_what_it_is(self):
        for name in ferry.__all__:
            value = getattr(ferry, name)
            if name == "__version__":
                continue
            self.assertTrue(inspect.getdoc(value), name)
            if inspect.isclass(value) and value.__module__.startswith("ferry"):
                for method, function in vars(value).items():
                    if not method.startswith("_") and inspect.isfunction(function):
                        self.assertTrue(inspect.getdoc(function), "%s.%s" % (name, method))

    def test_a_stub_for_every_name_of_the_extension(self):
        from ferry import _ferry

        folder = os.path.dirname(os.path.abspath(ferry.__file__))
        with open(os.path.join(folder, "_ferry.pyi")) as file:
            text = file.read()
        missing = [name for name in dir(_ferry) if not name.startswith("__") and
                   re.search(r"(?m)^(def |class )?%s\b" % name, text) is None]
        self.assertEqual(missing, [])


if __name__ == "__main__":
    unittest.main()
