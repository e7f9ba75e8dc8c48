# Finds forbidden code in the library, as far as patterns can. Usage: words.py ROOT. Exits with 1 and
# prints a line for each finding; warns, without failing, about files that are too long.
import re
import sys

import tree

FD_CALLS = r"open|openat|socket|socketpair|accept4|pipe2|memfd_create|eventfd|timerfd_create|signalfd|epoll_create1|inotify_init1|dup3"

# (name, pattern, paths in which it is allowed, why)
RULES = [
    ("ftruncate", r"\bftruncate(64)?\s*\(", ("runtime/core/segment.cc",),
     "a sparse segment dies by SIGBUS later: only segment.cc makes segments, with fallocate behind it"),
    ("exit", r"\b(?<!\.)(?<!->)(std::|::)?(_exit|_Exit|quick_exit|exit|terminate)\s*\(", ("runtime/context/faults.cc",), "the library never ends the process"),
    ("abort", r"(\bstd::|(?<![\w.:>])::)abort\s*\(|\b__builtin_trap\s*\(", ("runtime/core/status.cc",),
     "the library never ends the process, unless the value of a failed Result is used"),
    ("signal handler", r"\b(std::|::)?(sigaction|signal|sigset|sigprocmask)\s*\(",
     ("transport/net/ucx/ucx_api.cc",), "the library installs no signal handler (and takes back those of UCX)"),
    ("bare thread", r"\bstd::j?thread\b(?!::)|\bstd::async\b|\bpthread_create\s*\(", ("runtime/core/thread.h", "runtime/core/thread.cc"),
     "threads are started by core/thread.h, which keeps the program's signals out of them and names them"),
    ("/dev/shm", r"/dev/shm/|\bshm_open\s*\(", (), "segments have no names"),
    ("wildcard", r"\bINADDR_ANY\b|\bin6addr_any\b|\"0\.0\.0\.0\"|\"::\"|address_v[46]::any\s*\(", (), "bind to one interface"),
    ("wall clock", r"\bsystem_clock\b|\bgettimeofday\s*\(|\bCLOCK_REALTIME\b|\b(std::)?time\s*\(\s*(nullptr|NULL|0)\s*\)",
     ("runtime/core/log.cc",), "wall clocks jump: steady_clock, except in logs"),
    ("no close-on-exec", r"(?<![\w.>:])(::(accept|pipe|epoll_create|inotify_init)|(::)?dup)\s*\(|\bfopen\s*\(", (),
     "use the variant that takes a CLOEXEC flag"),
    ("catch all", r"catch\s*\(\s*\.\.\.\s*\)\s*\{\s*\}", (), "an exception becomes a Status, it does not vanish"),
]
RULES = [(name, re.compile(pattern), right, why) for name, pattern, right, why in RULES]
# Calls without the colons are found only if no member or local has such a name.
FD_CALL = re.compile(rf"(?<![\w.>])::({FD_CALLS})\s*\(|(?<![\w.>:])(accept4|memfd_create|pipe2|socketpair|socket(?=\s*\(\s*AF_))\s*\(")
CLOEXEC = re.compile(r"CLOEXEC")
REASON_IN_QUOTES = re.compile(r'"(peer|link|data|ring)-(?!dead"|unresponsive"|lost"|corrupt")[a-z]+"')

LONG = 400  # lines; longer files are reported


def arguments(code, start):
    """The text from `start`, which is behind an opening bracket, to the matching closing bracket."""
    depth = 1
    for i in range(start, min(len(code), start + 2000)):
        depth += (code[i] == "(") - (code[i] == ")")
        if depth == 0:
            return code[start:i]
    return code[start:]


def findings(path, text):
    """(line, rule, why) of each violation in one file of the library."""
    code = tree.without_comments(text)

    def line_of(position):
        return code.count("\n", 0, position) + 1

    for name, pattern, right, why in RULES:
        if path in right:
            continue
        for match in pattern.finditer(code):
            yield line_of(match.start()), name, why
    for match in FD_CALL.finditer(code):
        inside = arguments(code, match.end())
        flagless = match[1] == "open" and "O_PATH" in inside
        if not CLOEXEC.search(inside) and not flagless:
            yield line_of(match.start()), "no close-on-exec", f"{match[1] or match[2]} without a CLOEXEC flag"
    for match in REASON_IN_QUOTES.finditer(code):
        yield line_of(match.start()), "reason", f"{match[0]} is not in the list of reasons"


def self_test():
    bad = [
        "::ftruncate(fd, n);", "exit(1);", "::_exit(3);", "std::abort();", "std::terminate();", "::signal(SIGPIPE, SIG_IGN);",
        'open_at("/dev/shm/x");', "address.sin_addr.s_addr = INADDR_ANY;", "boost::asio::ip::address_v4::any()",
        "std::chrono::system_clock::now();", "time(nullptr);", "::open(p, O_RDONLY);", "::socket(AF_INET,\n SOCK_STREAM, 0);",
        "::accept(s, a, n);", "::pipe(ends);", "try { f(); } catch (...) {}", 'f("peer-gone");', "::memfd_create(\"x\", 0);",
        "Fd f(dup(fd));", "::dup(fd);", "socket(AF_INET, SOCK_STREAM, 0);", "accept4(s, nullptr, nullptr, SOCK_NONBLOCK);",
        "std::thread t([] {});", "std::jthread t(f);", "std::vector<std::thread> all;", "std::async(f);", "pthread_create(&t, nullptr, f, p);",
    ]
    good = [
        "// exit(1) is not called", "/* ::open(p, 0) */", "::open(p, O_RDONLY | O_CLOEXEC);", "group.abort();", "g->abort(why);",
        "void Group::abort(std::string);", "void abort(std::string why = \"\");", "::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, f(0));",
        "std::chrono::steady_clock::now();", 'f("peer-dead");', "bool exit_code() const;",
        "in.open(path);", "work.dup(x);", "socket(io, line.release())", "accept4(s, a, n, SOCK_CLOEXEC);", "std::atexit", "std::thread::id owner;", "std::this_thread::yield();", "Thread t(\"ouro-x\", f);", "deadline_time(0);", "catch (...) { return status(); }", 'log("see /dev/shm, 64 MB");',
    ]
    wrong = [f"missed: {code}" for code in bad if not list(findings("runtime/x.cc", code))]
    return wrong + [f"falsely accused: {code}: {list(findings('runtime/x.cc', code))}" for code in good
                    if list(findings("runtime/x.cc", code))]


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: words.py ROOT")
    wrong = self_test()
    if wrong:
        sys.exit("the check itself is broken:\n" + "\n".join(wrong))
    root = tree.root_of(sys.argv[1])
    found = 0
    for path in tree.files(root, tree.LIBRARY_FOLDERS):
        if path.parts[:2] == ("api", "examples"):
            continue  # these are programs
        for line, rule, why in findings(path.as_posix(), (root / path).read_text()):
            print(f"{path}:{line}: {rule}: {why}")
            found += 1
    for path in tree.files(root):
        lines = (root / path).read_text().count("\n")
        if lines > LONG:
            print(f"warning: {path} has {lines} lines, more than {LONG}")
    print(f"{found} findings")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
