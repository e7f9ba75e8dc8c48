# The source tree as the checks see it: files, includes, text without comments. Used by the scripts beside it.
import pathlib
import re

SOURCE_SUFFIXES = {".h", ".hpp", ".cc", ".cu", ".cuh"}
CODE_FOLDERS = ("api", "runtime", "kernels", "transport", "tests", "bench", "tools")
LIBRARY_FOLDERS = ("api", "runtime", "kernels", "transport")


def files(root, folders=CODE_FOLDERS, suffixes=SOURCE_SUFFIXES):
    """Paths relative to root, sorted."""
    found = []
    for folder in folders:
        for path in (root / folder).rglob("*"):
            if path.suffix in suffixes and path.is_file():
                found.append(path.relative_to(root))
    return sorted(found)


INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def includes(text):
    """(line number, '<' or '"', name) of each #include."""
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match[1], match[2]


TOKEN = re.compile(
    r'R"([^()\\ ]{0,16})\(.*?\)\1"'  # raw string
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'(?:\\.|[^'\\\n])+'"
    r"|//[^\n]*"
    r"|/\*.*?\*/",
    re.DOTALL,
)


def without_comments(text):
    """The code with comments blanked and line numbers kept."""

    def blank(match):
        token = match[0]
        return re.sub(r"[^\n]", " ", token) if token.startswith(("//", "/*")) else token

    return TOKEN.sub(blank, text)


def root_of(argument):
    return pathlib.Path(argument).resolve()
