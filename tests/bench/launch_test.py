# A launch: lines are read, failures told, and nothing is left running, whatever the processes do.
import os
import sys
import time
import unittest

import here  # noqa: F401  (finds the package)
from comparison import launch


def python(code, *more):
    """Commands of one launch that runs `code` with the arguments of a rank behind it."""
    return lambda arguments: [[sys.executable, "-c", c, *arguments] for c in (code, *more)]


class Launch(unittest.TestCase):
    def setUp(self):
        launch.adopt_orphans()
        self.points = []

    def run_(self, commands, seconds=20):
        return launch.run(commands, dict(os.environ), ["all_reduce 8"], seconds, self.points.append)

    def test_points_arrive_and_other_words_do_not(self):
        code = "print('hello'); print('{\"point\": 0, \"us\": 1.5}'); import sys; print(open(sys.argv[2]).read().strip(), file=sys.stderr)"
        self.assertIsNone(self.run_(python(code)))
        self.assertEqual(self.points, [{"point": 0, "us": 1.5}])

    def test_a_failure_is_told_in_its_own_words(self):
        why = self.run_(python("import sys; print('{\"point\": 0}'); print('out of luck', file=sys.stderr); sys.exit(3)"))
        self.assertIn("out of luck", why)
        self.assertIn("3", why)
        self.assertEqual(len(self.points), 1)

    def test_a_dead_rank_ends_the_waiting_one(self):
        began = time.monotonic()
        why = self.run_(python("import time; time.sleep(100)", "raise SystemExit(4)"))
        self.assertIsNotNone(why)
        self.assertLess(time.monotonic() - began, 15)
        self.assertEqual(launch.children(), [])

    def test_the_deadline_ends_grandchildren_in_groups_of_their_own(self):
        code = ("import subprocess, sys, time, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
                "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'], start_new_session=True); "
                "print('{\"pid\": %d}' % p.pid, flush=True); time.sleep(100)")
        why = self.run_(python(code), seconds=2)
        self.assertIn("deadline", why)
        self.assertEqual(len(self.points), 1)
        self.assertFalse(os.path.exists(f"/proc/{self.points[0]['pid']}"))
        self.assertEqual(launch.children(), [])


if __name__ == "__main__":
    unittest.main()
