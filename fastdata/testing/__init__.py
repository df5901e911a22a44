"""Checks for code that works with fastdata: backends, datasets and samplers of your own.

`check_backend`       runs the contract of `fastdata.loaders.backend` against a decode backend
`check_resume`        stops a loader after every batch and compares what a resumed one gives
`synthetic_dataset`   writes a small folder of JPEGs with classes

They raise AssertionError, so they can be called from any test framework.  fastdata's own tests call the checks, too.
"""

from fastdata.testing.backend_checks import CHECKS, check_backend
from fastdata.testing.pictures import synthetic_dataset
from fastdata.testing.resume_checks import check_resume

__all__ = ["CHECKS", "check_backend", "check_resume", "synthetic_dataset"]
