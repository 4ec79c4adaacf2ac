"""Makes a virtual environment around packages that lie in it already. Runs on a node, with the
Python that the environment adds to: environment.py UNFINISHED FINAL."""

import os
import re
import shutil
import site
import sys
import sysconfig
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

# The head of a command that pip or uv made: the Python that it names, perhaps through a shell.
HEAD = re.compile(
    rb"#!(?:/bin/sh\n'''exec' [\"']?([^\"'\n]+/python[\w.]*)[\"']? [^\n]*\n' '''|"
    rb"([^\n]*/python[\w.]*)[^\n]*)\n"
)


def copy_commands(folder, of_node):
    # Commands of packages, for the Python of this environment: those of the node's own Python
    # (torchrun) would not see the packages that lie here.
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        source, target = os.path.join(folder, name), os.path.join(unfinished, "bin", name)
        if os.path.exists(target) or not (os.path.isfile(source) and os.access(source, os.R_OK)):
            continue
        with open(source, "rb") as file:
            text = file.read(LONGEST if of_node else -1)
        head = HEAD.match(text)
        python = os.fsdecode(head.group(1) or head.group(2)).strip() if head else ""
        if of_node and (os.path.dirname(python), os.path.realpath(python)) != OWN:
            continue
        if python:  # the kernel takes no long path, and none with a space
            new = f"#!/bin/sh\n'''exec' \"{final}/bin/python\" \"$0\" \"$@\"\n' '''\n"
            text = new.encode() + text[head.end() :]
        with open(target, "wb") as file:
            file.write(text)
        os.chmod(target, 0o755)


LONGEST = 1 << 20
OWN = os.path.dirname(sys.executable), os.path.realpath(sys.executable)
copy_commands(os.path.join(packages, "bin"), of_node=False)
copy_commands(sysconfig.get_path("scripts"), of_node=True)
if beneath:
    copy_commands(os.path.join(site.getuserbase(), "bin"), of_node=True)
try:
    os.rename(unfinished, final)
except OSError:
    if not os.path.isdir(final):
        raise
    shutil.rmtree(unfinished)
