"""Runs an example, as a test. Usage: example_test.py FILE."""
import runpy
import sys

import needs  # noqa: F401

runpy.run_path(sys.argv[1], run_name="__main__")
