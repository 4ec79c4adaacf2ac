# Of rank.sh, for a point of a sweep: gives it a folder of its own, in which all that was staged is there
# as links until it ends, its arguments and variables, and a GPU that no other job has.
# shellcheck shell=sh disable=SC1090,SC1091,SC2034,SC2154

cctl_folder=points/$cctl_rank
mkdir -p "$cctl_folder" || exit 6
for cctl_entry in ./* ./.[!.]*; do
    [ "$cctl_entry" = ./points ] || [ ! -e "$cctl_entry" ] || [ -e "$cctl_folder/$cctl_entry" ] ||
        ln -s "../../${cctl_entry#./}" "$cctl_folder/$cctl_entry"
done
cd "$cctl_folder" || exit 6
. "$cctl_job/point"
RANK=0 CLUSTERCTL_POINT=$cctl_rank MASTER_ADDR=127.0.0.1 MASTER_ADDRESS=127.0.0.1
[ -z "$cctl_free_port" ] || MASTER_PORT=$(/bin/sh "$cctl_free_port") # a task of a batch system has one
export CLUSTERCTL_POINT MASTER_ADDR MASTER_ADDRESS MASTER_PORT
while [ "$cctl_gpus" != 0 ] && ! take_gpu "$((cctl_gpus - 1))"; do # ranks of other jobs have the first ones
    cctl_gpus=$((cctl_gpus - 1))
done
[ -z "$cctl_gpu" ] || export "$cctl_gpu_variable=$((cctl_gpus > 0 ? cctl_gpus - 1 : cctl_slot))"

clear_point() { # what the program has made stays
    for cctl_entry in ./* ./.[!.]*; do
        case $(readlink "$cctl_entry") in ../../*) rm -f "$cctl_entry" ;; esac
    done
}
