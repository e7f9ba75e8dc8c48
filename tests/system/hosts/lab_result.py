# What a test of labs returns to ctest. Used by the tests of this folder and of tests/tools/netlab.
CANNOT = 77  # for ctest to show as skipped


def exit_code(result):
    """Of a unittest result: 0 all well; 77 all was skipped (a class that skips in setUpClass ran 0 tests); else 1."""
    if not result.wasSuccessful():
        return 1
    if result.skipped and len(result.skipped) >= result.testsRun:
        return CANNOT
    return 0 if result.testsRun else 1
