"""The part of the package's metadata that has to be computed: its dependencies.

torch belongs to the user. On a ROCm machine it is a special build that `pip` must never replace, so a
plain requirement on it would do harm; but `pip install .` on a machine without any torch should give a
working `rung climb`. So torch is required only when pip is installing into an environment that has none.
"""

import os
import subprocess
import sys

from setuptools import setup

TORCH = "torch==2.13.0"

REQUIRED = [
    "demangle>=0.6; python_version >= '3.11'",
    "isal>=1.7; platform_machine in 'x86_64 AMD64 aarch64 arm64'",
    "jinja2>=3.1",
    "msgspec>=0.19",
    "numpy>=1.26",
    "polars>=1.30",
    "psutil>=5.9",
    "rich>=13.7",
    "scipy>=1.11",
    "tomli>=2.0; python_version < '3.11'",
]


def target_lacks_torch() -> bool:
    """Whether pip is building for an environment in which torch cannot be imported.

    pip builds with the interpreter of the environment that it installs into, hiding its packages through
    PYTHONPATH. Other installers build elsewhere, where nothing can be said about the target: then no.
    """
    if "PIP_BUILD_TRACKER" not in os.environ:
        return False
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONNOUSERSITE")}
    probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is not None)"
    return subprocess.run([sys.executable, "-c", probe], env=env, check=False, cwd="/").returncode == 0


setup(install_requires=REQUIRED + ([TORCH] if target_lacks_torch() else []))
