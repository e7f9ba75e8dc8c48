"""Requirements of the tests of the Python package: its compiled part, and NumPy. Used by the
tests in this folder."""
import importlib.util
import sys

import ouro


def compiled():
    """Ends the program as skipped if something is missing."""
    if importlib.util.find_spec("ouro._ouro") is None:
        print("SKIP: no Python module in this build: it needs nanobind (tools/torch-env) and the headers of Python")
        sys.exit(77)
    if importlib.util.find_spec("numpy") is None:
        print("SKIP: not installed: NumPy for this interpreter (tools/torch-env)")
        sys.exit(77)


def raises(kind, words, call):
    """Makes the call, and returns the exception, which must be of this kind and have all the
    words in its text."""
    try:
        call()
    except kind as error:
        missing = [w for w in words if w not in str(error)]
        assert not missing, f"{missing} is not in: {error}"
        return error
    raise AssertionError(f"expected {kind.__name__} with {words}, and nothing was raised")


compiled()
assert ouro.__version__ == ouro.library_version()
