"""Fails unless this Python has what the requirement lines in its arguments name."""

import re
import sys
from importlib.metadata import PackageNotFoundError, version

old = sys.version_info < (3, 11)
for pin in sys.argv[1:]:
    name, wanted, mark = re.fullmatch(r"([\w.-]+)==(\S+)( ; .*)?", pin).groups()
    if mark and ("<" in mark) != old:
        continue
    try:
        found, _, build = version(name).partition("+")
        number, _, other = wanted.partition("+")
        if found != number or (other and build[:2] in ("", "cu")):  # PyPI's is for NVIDIA
            sys.exit(1)
    except PackageNotFoundError:
        sys.exit(1)
