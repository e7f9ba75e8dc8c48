# Compiles every block of C++ and C of the README as it is. Usage: readme.py ROOT CXX CC [FLAGS...] Exits with
# 1 and prints the compiler's messages for each block that does not compile.
import re
import subprocess
import sys
from pathlib import Path

BLOCK = re.compile(r"^```(cpp|c)\n(.*?)^```$", re.M | re.S)
WHOLE = re.compile(r"^#include ", re.M)  # a complete file; otherwise it is part of a function

# The context that the README's text assumes for a part of a function: names, and the function around it.
PARTS = {
    "cpp": """#include "ouro/ouro.hpp"
int part(ouro::Result<ouro::Context>& context, void* my_cuda_stream) {{
{body}
  return work.wait().ok() ? 0 : 1;
}}
""",
    "c": """#include <stdio.h>
#include "ouro/ouro.h"
int part(const float* in, float* out, size_t count) {{
{body}
  return 0;
}}
""",
}


def blocks(text):
    """(line, language, code) of each block."""
    for found in BLOCK.finditer(text):
        yield text.count("\n", 0, found.start()) + 2, found[1], found[2]


def unit(language, code):
    return code if WHOLE.search(code) else PARTS[language].format(body=code)


def compile_errors(root, compilers, flags, language, code):
    """The compiler's messages; empty: it compiles without a warning."""
    standard = {"cpp": ["-x", "c++", "-std=c++20"], "c": ["-x", "c", "-std=c99", "-pedantic-errors"]}[language]
    command = [compilers[language], *standard, "-fsyntax-only", "-Wall", "-Wextra", "-Werror", *flags,
               f"-I{root}/api/include", f"-I{root}", "-"]
    done = subprocess.run(command, input=unit(language, code), text=True, capture_output=True, timeout=240)
    return done.stderr if done.returncode != 0 else ""


def main():
    if len(sys.argv) < 4:
        sys.exit("usage: readme.py ROOT CXX CC [FLAGS...]")
    root, flags = Path(sys.argv[1]), sys.argv[4:]
    compilers = {"cpp": sys.argv[2], "c": sys.argv[3]}
    found = list(blocks((root / "README.md").read_text()))
    kinds = [(language, bool(WHOLE.search(code))) for _, language, code in found]
    for kind in (("cpp", True), ("cpp", False), ("c", False)):
        if kind not in kinds:
            sys.exit(f"no block of kind {kind} found: the README has changed, or this check reads it wrongly")
    planted = '#include "ouro/ouro.hpp"\nStatus f(ouro::Context& c);\n'
    if not compile_errors(root, compilers, flags, "cpp", planted):
        sys.exit("the check itself is broken: a block without its using directive compiles")
    wrong = 0
    for line, language, code in found:
        if said := compile_errors(root, compilers, flags, language, code):
            print(f"README.md:{line}: this block does not compile:\n{said}")
            wrong += 1
    print(f"{len(found)} blocks, {wrong} do not compile")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
