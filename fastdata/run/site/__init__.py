"""The folder that `fastdata run` puts into PYTHONPATH: interpreters that start with it read its `sitecustomize.py`."""
