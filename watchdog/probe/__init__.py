"""What runs inside the ranks: writes progress, opens torch's own server, records exceptions.

Everything below this folder is standard library only and Python 3.9+, because it is executed by
the ranks' interpreter, where fabwatch may not be installed: ``site/sitecustomize.py`` loads the
modules by path under the private package name ``_fabwatch_probe``.
"""

from __future__ import annotations

import os


def site_folder() -> str:
    """Absolute path of the folder that goes first on PYTHONPATH to arm the probe."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")
