"""The command, where it was built or is installed; `watch` is done here."""
import os
import sys

from . import installed


def main():
    words = sys.argv[1:]
    if words[:1] == ["watch"]:
        from . import watch
        return watch.main(words[1:])
    program = installed.command()
    if not program:
        print("tessera: error: tessera: the command is not installed, only what exports networks (pip install "
              "./tools/python without LIBTESSERA builds it)", file=sys.stderr)
        return 2
    os.execv(program, ["tessera", *words])


if __name__ == "__main__":
    sys.exit(main())
