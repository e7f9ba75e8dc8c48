"""The programs of ouro as console scripts of the package: each script executes the program of the same name."""
import os
import sys

from ouro._where import program


def main():
    path = program(os.path.basename(sys.argv[0]))
    os.execv(path, [path, *sys.argv[1:]])
