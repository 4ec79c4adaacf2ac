# shellcheck shell=sh
# What clusterctl/agent/outputs.py takes for staged: by `find`, which starts in a tenth of the time of a Python.
(cd work && find . -ignore_readdir_race \( -type f -o -type l \) ! -path '*/__pycache__/*' ! -path './.clusterctl-call/*' \
    -printf '%s %T@ %C@ %P\0') >.staged.new && mv .staged.new .staged || exit
