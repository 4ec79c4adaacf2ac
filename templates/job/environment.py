"""Makes a virtual environment around packages that lie in it already. Runs on a node, with the
Python that the environment adds to: environment.py UNFINISHED FINAL."""

import os
import shutil
import site
import sys
import venv

unfinished, final = sys.argv[1:]
if os.path.isdir(final):  # another job was faster
    shutil.rmtree(unfinished)
    sys.exit()
# This Python may be that of a virtual environment itself, which a new one does not see. What lies
# below that one is seen only if it does so: there may be other packages, and slow start-up files.
inner = sys.prefix != sys.base_prefix
beneath = not inner
if inner:
    with open(os.path.join(sys.prefix, "pyvenv.cfg"), encoding="utf-8") as file:
        settings = file.read().lower().replace(" ", "").splitlines()
    beneath = "include-system-site-packages=true" in settings
venv.EnvBuilder(system_site_packages=beneath, symlinks=True).create(unfinished)
minor = "python{}.{}".format(*sys.version_info)
packages = os.path.join(unfinished, "lib", minor, "site-packages")
if inner:
    with open(os.path.join(packages, "clusterctl_node.pth"), "w", encoding="utf-8") as file:
        file.write(f"import site; list(map(site.addsitedir, {site.getsitepackages()!r}))\n")
scripts = os.path.join(packages, "bin")
for name in os.listdir(scripts) if os.path.isdir(scripts) else ():
    target = os.path.join(unfinished, "bin", name)
    with open(os.path.join(scripts, name), "rb") as file:
        text = file.read()
    first, _, rest = text.partition(b"\n")
    if first.startswith(b"#!/bin/sh") and rest.startswith(b"'''exec'"):
        rest = rest.split(b"\n", 2)[2]
    elif not (first.startswith(b"#!") and b"python" in first):
        rest = b""
    if rest:  # the kernel takes no long path, and none with a space
        head = f"#!/bin/sh\n'''exec' \"{final}/bin/python\" \"$0\" \"$@\"\n' '''\n"
        text = head.encode() + rest
    if not os.path.exists(target):
        with open(target, "wb") as file:
            file.write(text)
        os.chmod(target, 0o755)
try:
    os.rename(unfinished, final)
except OSError:
    if not os.path.isdir(final):
        raise
    shutil.rmtree(unfinished)
