"""Calls a function of the Python API on this rank: `call.py NAME`. What it returns or raises is
written to `results`, beside this file. `limits.json`: the Python that has pickled the function, and
the bytes that its result may have."""

import json
import os
import pickle
import sys
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(HERE, "limits.json")) as limits:
    PYTHON, MOST = json.load(limits)


def write(**outcome):
    folder = os.path.join(HERE, "results")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, os.environ["RANK"])
    with open(path + ".new", "wb") as file:
        pickle.dump(outcome, file, protocol=4)
    os.replace(path + ".new", path)


def pickled(value):
    """What cannot be pickled, or not be read back, raises here."""
    data = cloudpickle.dumps(value, protocol=5)
    if len(data) > MOST:
        raise ValueError(
            f"the result has {len(data):,} bytes, and at most {MOST:,} can be returned:"
            " write it to a file, and fetch that"
        )
    return data


def raised(error, trace):
    try:
        data = pickled(error)
        pickle.loads(data)
    except Exception:
        data = b""
    said = traceback.format_exception_only(type(error), error)[-1].strip()
    text = "".join(traceback.format_exception(type(error), error, trace))
    write(ok=False, data=data, said=said, traceback=text)
    sys.stderr.write(text)
    sys.stdout.flush()
    sys.exit(1)


def main():
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if here != PYTHON:
        raise RuntimeError(f"a function of Python {PYTHON} cannot run in Python {here}")
    with open(os.path.join(HERE, "function.pickle"), "rb") as file:
        function, args = pickle.load(file)
    return pickled(function(*args))


if __name__ == "__main__":
    # The program's own folder is searched, as if it was a script there; ours has other names in it.
    sys.path[0] = HERE
    import cloudpickle

    sys.path[0] = os.getcwd()
    del sys.argv[0]
    try:
        result = main()
    except Exception as error:
        raised(error, error.__traceback__.tb_next)
    except SystemExit as error:
        if error.code not in (None, 0):
            raised(error, error.__traceback__.tb_next)
        result = pickled(None)
    write(ok=True, data=result, said="", traceback="")
