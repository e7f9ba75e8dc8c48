# How ranks of several hosts join despite strangers, mistakes and other jobs. Usage: join_test.py BIN CASE. Needs
# root; skipped if network namespaces are unavailable.
import subprocess
import sys
import time
import unittest

import lab

# Connects MANY times within a time limit, sends garbage or nothing on each connection, and prints how many it made.
FLOOD = """
import select, socket, sys, time
where, many, words = (sys.argv[1], int(sys.argv[2])), int(sys.argv[3]), [
    b"GET / HTTP/1.0\\r\\n\\r\\n", b"\\x16\\x03\\x01\\x02\\x00\\x01\\x00", b"",
    b"OURO\\x01\\x00\\x01\\x01\\xff\\xff\\xff\\xff",
    b"\\x00" * 600, b"SSH-2.0-x\\r\\n", b"\\xff" * 64]
made, open_ones = 0, []
end = time.monotonic() + float(sys.argv[4])
while made < many and time.monotonic() < end:
    s = socket.socket()
    s.settimeout(2)
    try:
        s.connect(where)
    except OSError:
        time.sleep(0.01)
        continue
    try:
        s.sendall(words[made % len(words)])
    except OSError:
        pass
    made += 1
    open_ones.append(s)
    if len(open_ones) > 200:
        open_ones.pop(0).close()
print(made)
"""

SILENT = """
import socket, sys, time
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
begin = time.monotonic()
s.settimeout(10)
while s.recv(4096):
    pass
print(time.monotonic() - begin)
"""


# Opens RATE connections per second for SECONDS, sends one byte on each, and keeps it until the peer closes it. Prints
# how many.
CROWD = """
import selectors, socket, sys, time
where, rate, seconds = (sys.argv[1], int(sys.argv[2])), float(sys.argv[3]), float(sys.argv[4])
waiting, begin, made = selectors.DefaultSelector(), time.monotonic(), 0
while (now := time.monotonic() - begin) < seconds:
    while made < now * rate:
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex(where)
        waiting.register(s, selectors.EVENT_WRITE)
        made += 1
    for key, events in waiting.select(0.002):
        s = key.fileobj
        try:
            if events & selectors.EVENT_WRITE:
                s.send(b"O")
                waiting.modify(s, selectors.EVENT_READ)
            elif not s.recv(4096):
                raise OSError
        except OSError:
            waiting.unregister(s)
            s.close()
print(made)
"""


def stranger(host, program, *arguments):
    command = ["ip", "netns", "exec", lab.host(host), sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


class Join(unittest.TestCase):
    hosts = 2


class Garbage(Join):
    hosts = 3

    def test_sixteen_ranks_join_amid_ten_thousand_strangers(self):
        with lab.Job((8, 8), ["join"]) as job:
            job.start([0])
            listening = f":{lab.PORT}"
            self.assertTrue(lab.until(lambda: listening in lab.on(0, "ss", "-Htln")), job.story())
            flood = stranger(2, FLOOD, lab.address(0), lab.PORT, 10_000, 30)
            try:
                time.sleep(0.3)
                job.start(range(1, 16))
                codes = job.end(40)
                self.assertEqual(set(codes.values()), {0}, job.story())
                # The listener of rank 0 ends with the job; the remaining strangers connect to the rendezvous of a
                # second job.
                with lab.Job((1, 1), ["join"]) as second:
                    second.start([0])
                    made = int(flood.communicate(timeout=60)[0])
                    second.start([1])
                    self.assertEqual(set(second.end(20).values()), {0}, second.story())
            finally:
                flood.kill()
                flood.wait()
            slowest = max(r.first("joined")["seconds"] for r in job.ranks)
            self.assertEqual(made, 10_000)
            self.assertEqual({r.first("left")["sum"] for r in job.ranks}, {16})
            self.assertLess(slowest, 15)
            print(f"{made} strangers; the slowest of 16 ranks joined in {slowest:.2f} s")


class Silent(Join):
    def test_a_client_that_says_nothing_is_hung_up_on_and_keeps_nobody_out(self):
        with lab.Job((1, 1), ["join"]) as job:
            job.start([0])
            self.assertTrue(lab.until(lambda: f":{lab.PORT}" in lab.on(0, "ss", "-Htln")), job.story())
            silent = stranger(1, SILENT, lab.address(0), lab.PORT)
            kept = float(silent.communicate(timeout=15)[0])
            job.start([1])
            self.assertEqual(job.end(), {0: 0, 1: 0}, job.story())
            self.assertLess(kept, 1 + 1)
            print(f"kept for {kept:.2f} s")


class Crowd(Join):
    """Strangers connect over the same slow path, from the address of a host that has to join: its first frame needs a round
    trip, their single byte does not."""
    network = ["--emulate", "seed=15", "delay=40"]
    rate, deadline = 800, 40

    def test_keeps_nobody_out_who_is_a_round_trip_away(self):
        with lab.Job((1, 1), ["join"], env={"OURO_JOIN_DEADLINE": str(self.deadline)}) as job:
            job.start([0])
            self.assertTrue(lab.until(lambda: f":{lab.PORT}" in lab.on(0, "ss", "-Htln")), job.story())
            crowd = stranger(1, CROWD, lab.address(0), lab.PORT, self.rate, self.deadline + 20)
            try:
                time.sleep(1)
                begin = time.monotonic()
                job.start([1])
                lab.until(lambda: job[1].first("joined") or job[1].process.poll() is not None, self.deadline + 10)
                took = time.monotonic() - begin
                self.assertIsNone(crowd.poll())
            finally:
                crowd.kill()
                crowd.communicate()
            self.assertEqual(job.end(20), {0: 0, 1: 0}, job.story())
            print(f"joined in {took:.2f} s among {self.rate} strangers a second")


class Refused(Join):
    def join_with(self, word, variables, arguments=("join",)):
        """Rank 1 joins with other variables and is refused at once; rank 0 reports it too, and waits for the right rank 1."""
        with lab.Job((1, 1), list(arguments), env={"OURO_DEBUG": "INFO", "OURO_DEBUG_SUBSYS": "ALL"}) as job:
            other = job.folder / "other"
            job.write_secret(other)
            job.of_rank[1] = {k: v.replace("OTHER", str(other)) for k, v in variables.items()}
            job.start()
            self.assertTrue(job.all_say("refused", [job[1]], 10), job.story())
            said = job[1].first("refused")
            self.assertEqual(said["reason"], "refused", said["message"])
            self.assertIn(word, said["message"])
            self.assertTrue(lab.until(lambda: job[0].logged(word), 2), job.story())
            self.assertIsNone(job[0].process.poll(), job.story())
            print("rank 1:", said["message"], "\nrank 0:", job[0].logged(word)[1])
            refused = job.ranks.pop()
            refused.end(5)
            del job.of_rank[1]
            job.start([1])
            self.assertEqual(job.end(), {0: 0, 1: 0}, job.story())

    def test_a_wrong_secret(self):
        self.join_with("bad-mac", {"OURO_SECRET_FILE": "OTHER"})

    def test_a_wrong_job(self):
        self.join_with("wrong-job", {"OURO_JOB_ID": "another"})

    def test_no_secret_is_an_error_before_anything_is_sent(self):
        with lab.Job((1, 1), ["join"], env={"OURO_SECRET_FILE": ""}) as job:
            job.start()
            self.assertEqual(job.end(10), {0: 5, 1: 5}, job.story())
            self.assertEqual(job[1].first("refused")["reason"], "invalid")
            self.assertIn("OURO_SECRET_FILE", job[1].first("refused")["message"])

    def test_settings_that_differ_are_named_with_both_values(self):
        with lab.Job((1, 1), ["join"], of_rank={1: {"OURO_SLOT_BYTES": "65536"}}) as job:
            job.start()
            self.assertEqual(job.end(10), {0: 5, 1: 5}, job.story())
            for r in job.ranks:
                self.assertIn("65536", r.first("refused")["message"])
                self.assertIn("131072", r.first("refused")["message"])


class Missing(Join):
    def test_who_never_joins_is_named(self):
        with lab.Job((2, 2), ["join"], env={"OURO_JOIN_DEADLINE": "2"}) as job:
            job.start([0, 1, 2])
            self.assertEqual(set(job.end(10).values()), {5}, job.story())
            for r in job.ranks:
                said = r.first("refused")
                self.assertEqual(said["reason"], "never-joined")
                self.assertIn("3", said["text"])

    def test_nobody_at_the_rendezvous(self):
        with lab.Job((1, 1), ["join"], env={"OURO_JOIN_DEADLINE": "1"}) as job:
            job.start([1])
            self.assertEqual(job.end(10), {1: 5}, job.story())
            said = job[1].first("refused")
            self.assertEqual(said["reason"], "never-joined")
            self.assertIn(f"{lab.address(0)}:{lab.PORT}", said["message"])


CASES = {case.__name__: case for case in (Garbage, Silent, Crowd, Refused, Missing)}

if __name__ == "__main__":
    lab.main(CASES)
