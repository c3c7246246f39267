"""Run in a process of its own, where kernels are no interpreter's: `rung` with each list of arguments, from and to JSON."""

import contextlib
import io
import json
import sys

from rung.cli.main import main

answers = []
for arguments in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    answers.append({"code": code, "out": out.getvalue(), "err": err.getvalue()})
json.dump(answers, sys.stdout)
