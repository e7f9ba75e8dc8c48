# Checks that everything that programs were compiled with is unchanged: exported names, prototypes, values of
# enumerations, offsets of fields. Usage: abi_baseline.py LIBRARY HEADER COMPILER BASELINE [--write]. Lines of the
# baseline that are missing or differ are errors; new lines are not, and --write adds them.
import os
import pathlib
import re
import subprocess
import sys
import tempfile

library, header, compiler, baseline = sys.argv[1:5]
FLAGS = ["-std=c99", "-DOURO_NCCL_WITHOUT_CUDA", "-Wno-comment"]


def output(*command, **kwargs):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **kwargs).stdout


def symbols():
    for line in output("nm", "-D", "--defined-only", library).splitlines():
        _, kind, name = line.split()
        yield f"symbol {name} {kind}"


def prototypes(folder):
    """Each function as the compiler parsed it."""
    source, told = folder / "prototypes.c", folder / "prototypes.txt"
    source.write_text(f'#include "{header}"\n')
    subprocess.run([compiler, *FLAGS, "-aux-info", told, "-c", source, "-o", os.devnull], check=True)
    for line in told.read_text().splitlines():
        found = re.match(r"/\* (\S+):\d+:\S+ \*/ extern (.*?);", line)
        if found and os.path.basename(found[1]) == os.path.basename(header):
            yield "function " + found[2]


def without_nested(body):
    """The members of a structure, without those of structures nested in it."""
    while True:
        shorter = re.sub(r"(struct|union)\s*\{[^{}]*\}", r"\1", body)
        if shorter == body:
            return body
        body = shorter


def layouts(folder):
    text = re.sub(r"/\*.*?\*/|^#.*?(?<!\\)$", "", pathlib.Path(header).read_text(), flags=re.DOTALL | re.MULTILINE)
    prints = []
    for kind, rest in re.findall(r"typedef\s+(struct|enum)\b([^;{]*\{.*?\}\s*\w+\s*);", text, re.DOTALL):
        if kind == "struct" and rest.count("{") != rest.count("}"):  # cut off by a nested one
            start = text.index(rest)
            depth, at = 0, start
            while True:
                depth += (text[at] == "{") - (text[at] == "}")
                at += 1
                if depth == 0 and text[at - 1] == "}":
                    break
            rest = text[start:text.index(";", at)]
        name, body = re.search(r"(\w+)\s*$", rest)[1], rest[rest.index("{") + 1:rest.rindex("}")]
        if kind == "enum":
            for entry in body.split(","):
                if entry.strip():
                    value = entry.split("=")[0].strip()
                    prints.append(f'printf("enum {name} {value} %d\\n", (int){value});')
            continue
        prints.append(f'printf("struct {name} %d bytes\\n", (int)sizeof({name}));')
        for declaration in without_nested(body).split(";"):
            for field in declaration.split(","):
                found = re.search(r"(\w+)\s*(\[[^\]]*\])?\s*$", field)
                if found and declaration.strip():
                    prints.append(f'printf("struct {name} {found[1]} at %d, %d bytes\\n", (int)offsetof({name}, {found[1]}), '
                                  f'(int)sizeof((({name}*)0)->{found[1]}));')
    source, program = folder / "layouts.c", folder / "layouts"
    source.write_text(f'#include "{header}"\n#include <stdio.h>\nint main(void) {{\n' + "\n".join(prints) + "\nreturn 0;\n}\n")
    subprocess.run([compiler, *FLAGS, source, "-o", program], check=True)
    yield from output(program).splitlines()


if "clang" in output(compiler, "--version"):
    print("SKIP: not built by GCC, whose -aux-info lists prototypes")
    sys.exit(77)
with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    now = sorted({*symbols(), *prototypes(folder), *layouts(folder)})
kinds = {word: sum(line.startswith(word + " ") for line in now) for word in ("symbol", "function", "struct", "enum")}
assert kinds["function"] > 170 and kinds["struct"] > 70 and kinds["enum"] > 30, kinds
if sys.argv[5:] == ["--write"]:
    pathlib.Path(baseline).write_text("\n".join(now) + "\n")
gone = [line for line in pathlib.Path(baseline).read_text().splitlines() if line not in now]
for line in gone:
    print("GONE:", line)
print(f"{kinds}; {len(now)} facts, {len(gone)} of the baseline gone")
sys.exit(1 if gone else 0)
