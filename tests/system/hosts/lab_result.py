# The exit code that a test with a lab returns to ctest. Used by the tests of this folder and of tests/tools/netlab.
CANNOT = 77  # ctest shows it as skipped


def exit_code(result):
    """The exit code of a unittest result: 0 success; 77 all skipped (a class that skips in setUpClass ran 0 tests); else 1."""
    if not result.wasSuccessful():
        return 1
    if result.skipped and len(result.skipped) >= result.testsRun:
        return CANNOT
    return 0 if result.testsRun else 1
