#!/bin/sh
# Runs the agent: VERB ARGUMENT…. What is exported here may be a program's: nothing of it is changed.
cctl_agent=${0%/*}
while IFS= read -r cctl_python <&3; do
    [ ! -x "$cctl_python" ] || exec "$cctl_python" -I -S "$cctl_agent/__main__.py" "$@" 3<&-
done 3<"$cctl_agent/pythons"
# Of a job's modules, or of another machine that shares this folder.
for cctl_python in python3 /usr/libexec/platform-python "${CONDA_PREFIX:-/opt/conda}/bin/python3"; do
    ! "$cctl_python" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 6))' 2>/dev/null ||
        exec "$cctl_python" -I -S "$cctl_agent/__main__.py" "$@" 3<&-
done
echo "no Python 3.6 or newer is on this machine" >&2
exit 69
