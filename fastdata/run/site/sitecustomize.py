"""Read by Python processes that a program under `fastdata run` starts, since this folder comes first in PYTHONPATH.

It leaves no trace of itself: the folder goes from sys.path, and what is imported as `sitecustomize` is what would have
been found without it, or nothing.  Any Python may read this file, also one that is old or has no fastdata.
"""

import os
import sys

sys.path[:] = [folder for folder in sys.path if folder != os.path.dirname(__file__)]
sys.modules.pop(__name__, None)
try:
    import sitecustomize  # noqa: F401 - the next one; if there is none, the ImportError is what Python's `site` expects
finally:
    if os.environ.get("FASTDATA_RUN", "").lower() not in ("", "0", "false", "off", "no"):
        try:
            from fastdata.run.startup import install

            install()
        except Exception as error:  # noqa: BLE001 - a process must start in any case
            if getattr(error, "name", "fastdata") != "fastdata":  # another Python, which does not know it
                sys.stderr.write("fastdata: FASTDATA_RUN has no effect: " + str(error) + "\n")
