# One line of JSON about the Python that runs it (3.6 or newer): path, version, {name: version} of
# the packages that are asked for, and all packages as `name==version`. Arguments: names.
import sys

sys.path = [folder for folder in sys.path if folder]  # no module of the current folder's

import json  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402


def descriptions(folder):
    # Files in which the packages of a folder say what they are.
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        names = []
    for name in names:
        path = os.path.join(folder, name)
        if name.endswith(".dist-info"):
            yield os.path.join(path, "METADATA")
        elif name.endswith(".egg-info"):
            yield os.path.join(path, "PKG-INFO") if os.path.isdir(path) else path
    yield os.path.join(folder, "EGG-INFO", "PKG-INFO")


def name_and_version(path):
    # Read by hand, and no more than it takes: importlib.metadata reads all of each file, which
    # takes five times as long.
    about = {}
    try:
        with open(path, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                key, colon, value = line.partition(":")
                about[key] = value.strip()
                if not colon or ("Name" in about and "Version" in about):
                    break
    except OSError:
        pass
    return about.get("Name"), about.get("Version")


wanted = set(sys.argv[1:])
pairs = [name_and_version(path) for folder in sys.path for path in descriptions(folder)]
pairs = [pair for pair in reversed(pairs) if all(pair)]  # of two, the first is imported
found = {name.lower(): version for name, version in pairs if name.lower() in wanted}
every = {re.sub("[-_.]+", "-", name).lower(): version for name, version in pairs}
every = " ".join("==".join(pair) for pair in sorted(every.items()))
print(json.dumps([sys.executable, ".".join(map(str, sys.version_info[:3])), found, every]))
