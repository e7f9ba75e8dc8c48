# An environment that tools/torch-env made under another name: its scripts get the name that it has. Usage:
# env_test.py TORCH_ENV
import os
import pathlib
import subprocess
import sys
import tempfile

with tempfile.TemporaryDirectory() as place:
    folder = pathlib.Path(place, "of a test")
    (folder / "bin").mkdir(parents=True)
    (folder / "torch-env.txt").write_text("torch 2.15.0+cu132 numpy 2.4.6\n")
    (folder / "bin/python").symlink_to(sys.executable)
    (folder / "bin/program").write_bytes(b"\xff\xfe of a test, in no text\n")
    (folder / "pyvenv.cfg").write_text(f"command = python -m venv {folder}.partial\n")
    script = folder / "bin/torchrun"
    script.write_text(f"#!/bin/sh\nexec '{folder}.partial/bin/python' -c 'print(6 * 7)'\n")
    script.chmod(0o755)
    for again, said in (False, "mended the paths in torchrun, pyvenv.cfg"), (True, "is there: torch 2.15.0"):
        done = subprocess.run([sys.argv[1], str(folder)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and said in done.stdout and again == ("mended" not in done.stdout), done
        assert subprocess.run([script], capture_output=True, text=True, timeout=60).stdout == "42\n"
    assert sorted(os.listdir(folder / "bin")) == ["program", "python", "torchrun"]
    assert "partial" not in (folder / "pyvenv.cfg").read_text()
print("the scripts run")
