"""How a process of Rung's begins: `python start.py MODULE ARGUMENTS...` calls `main(arguments)` of a module.

`python -m MODULE` would put the current folder first on the import path, and a `select.py` there in the place of the
standard library's. `-P` prevents that only from Python 3.11 on.
"""

import os
import sys

START = os.path.abspath(__file__)

if __name__ == "__main__":  # not in processes that the workload spawns, which import this file under another name
    here = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.realpath(folder) != here]
    # The coordinator may have found Rung in its current folder: then it is looked for where this file is, after PYTHONPATH.
    root = os.path.dirname(os.path.dirname(here))
    if root not in map(os.path.realpath, sys.path):
        library = os.path.dirname(os.__file__)
        last = [k for k, folder in enumerate(sys.path) if folder in (library, os.path.join(library, "lib-dynload"))]
        sys.path.insert(max(last, default=-1) + 1, root)

    import importlib

    sys.exit(importlib.import_module(sys.argv[1]).main(sys.argv[2:]))
