# bench_gpu_floor prints each of its rows once, at once, on an emulated device; what a time is says nothing there.
# Usage: gpu_floor_test.py bench_gpu_floor
import os
import re
import subprocess
import sys
import unittest

CALLS = ("record", "wait_passed_event", "wait_pending_event", "batch_of_1", "batch_of_8", "launch_16B", "launch_2500B",
         "launch_3600B", "copy_16B", "set_16B", "host_function", "query_event", "query_stream", "capturing", "pointer",
         "current_device")
ROWS = {
    "us": {"launch_and_wait", "launch_in_a_row", "launch_in_a_graph", "event_hand_off", "event_hand_off_with_launch",
           "value_hand_off_device", "value_hand_off_host", "word_of_kernel_until_seen", "word_of_stream_until_seen",
           "launch_until_query", "process_words", "process_kernels_in_turn"}
    | {f"{call}_x{threads}" for call in CALLS for threads in (1, 2, 4, 8)}
    | {f"{what}_{size}" for what in ("ipc_open", "ipc_close", "import_fd", "unmap_fd") for size in ("2M", "64M")},
    "GB/s": {"copy_engine", "copy_kernel", "copy_kernel_l2", "set", "kernel_reads_1_writes_8", "kernel_reads_8_writes_1"},
}


def run(*arguments, devices="1"):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=100,
                          env={**os.environ, "OURO_FAKE_GPUS": devices, "CUDA_VISIBLE_DEVICES": ""})


class Floor(unittest.TestCase):
    def test_each_row_appears_once(self):
        done = run("--quick")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        head, *lines = done.stdout.splitlines()
        self.assertRegex(head, "^# 0: fake GPU")
        found = [re.fullmatch(r"([A-Za-z0-9_]+) ([0-9]+\.[0-9]+) (us|GB/s)", line) for line in lines]
        self.assertEqual([line for line, match in zip(lines, found) if not match], [])
        for unit, names in ROWS.items():
            self.assertEqual(sorted(m[1] for m in found if m[3] == unit), sorted(names))
        # A count that is wrong by orders of magnitude would pass for a time; a second would not.
        self.assertEqual([m[0] for m in found if m[3] == "us" and float(m[2]) > 1e6], [])
        self.assertEqual([m[0] for m in found if m[3] == "GB/s" and not 0 < float(m[2]) < 1e5], [])

    def test_rows_are_written_at_once(self):
        with subprocess.Popen([PROGRAM, "--quick"], stdout=subprocess.PIPE, text=True,
                              env={**os.environ, "OURO_FAKE_GPUS": "1"}) as process:
            process.stdout.readline()
            first = process.stdout.readline()  # the others have not been measured yet
            process.kill()
        self.assertTrue(first.startswith("copy_engine "), first)
        self.assertEqual(process.returncode, -9)

    def test_the_last_device(self):
        done = run("--quick", "1", devices="2")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"^# 1: fake GPU(.|\n)*\nprocess_kernels_in_turn ")

    def test_wrong_arguments(self):
        for arguments in (("--fast",), ("-1",), ("0", "0"), ("--serve", "3", "x"), ("--serve", "0", "0")):
            self.assertEqual(run(*arguments).returncode, 2, arguments)
        self.assertEqual(run(devices="0").returncode, 77)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
