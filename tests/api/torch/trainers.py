# Requirements of the trainers' tests besides PyTorch: the compiled part of the package, for the same interpreter.
import subprocess
import sys

import places


def run(script, ranks, *arguments):
    """Runs `script` as `ranks` processes to their ends, and prints their output; if something is missing the test
    ends as skipped."""
    python = places.interpreter()
    probe = subprocess.run([python, "-c", "import ouro._ouro"], capture_output=True, text=True)
    if "No module named 'ouro._ouro'" in probe.stderr:
        print(f"SKIP: no Python module in this build for {python} (nanobind, the headers of Python)")
        sys.exit(77)
    print("".join(places.run(script, ranks, *arguments)))
