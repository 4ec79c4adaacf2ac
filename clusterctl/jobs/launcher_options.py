"""The options of other launcher programs, and what becomes of each: a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

REFUSED, IGNORED = "refused", "ignored"


class Row(NamedTuple):
    """Options that mean the same. `use`: what becomes of them:

    - `ranks`, `ranks_per_node`, `nodes`, `retries`, `timeout`: the same options of `run`; `name` is
      the value of an option without one
    - `hosts` (`a:2,b`), `hostfile`, `include`, `exclude` (DeepSpeed's): nodes of the cluster
    - `native`: an option of a batch system that has this launcher, `name` where it is another
    - `env`: programs find the value as the variable `name`; `set`: `name` is NAME=VALUE
    - `variables`, `export`, `pair`: the values are variables: `A=1`, `ALL,A=1`, `A 1`
    - `mpirun`: our mpirun gets it, as `name` where it is another; `map-by`, `mca`, `cores`: so far
      as it does not say what clusterctl decides
    - `module`, `command`: what is started is a module, or any command
    - `no-local-rank`: programs do not get their number on the node as an argument
    - `folder`: the working folder; only the current one will do
    - `config`: a file in which options are keys
    - IGNORED: a note names it; REFUSED: an error says in `why` what to do instead

    `options` as getopt writes them: `--a` has no value, `--a=` has one, `--a==` two, and `--a?` may
    have one behind a `=`. A `*` stands for any end.
    """

    use: str
    options: str
    name: str = ""
    why: str = ""


class Rule(NamedTuple):
    """A row, for one option."""

    use: str
    values: int
    """-1: it may have one behind a `=`."""
    name: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherLauncher:
    """`python`: it starts a Python script or, with -m, a module; else any command."""

    rows: tuple[Row, ...]
    python: bool = True
    local_rank: str = ""
    """The option by which it tells a program its number on the node."""
    one_dash: bool = False
    """Long options may have one dash, too: `-np`; else, letters and values may be glued: `-n4`."""
    abbreviates: bool = False
    """The beginning of a long option will do."""
    programs: bool = False
    """A `:` separates programs."""

    def find(self, option: str) -> tuple[str, Rule] | None:
        """The option by its full name, and its rule."""
        rules = dict(_list_rules(self.rows))
        if option in rules:
            return option, rules[option]
        for name, rule in rules.items():
            if name.endswith("*") and option.startswith(name[:-1]):
                return option, rule
        matches = [name for name in rules if self.abbreviates and name.startswith(option)]
        if option.startswith("--") and len(option) > 2 and len(matches) == 1:
            return matches[0], rules[matches[0]]
        return None


def _list_rules(rows: tuple[Row, ...]) -> Iterator[tuple[str, Rule]]:
    for row in rows:
        for word in row.options.split():
            name = word.rstrip("=?")
            values = -1 if word.endswith("?") else len(word) - len(name)
            yield name, Rule(row.use, values, row.name, row.why)


_ITSELF = "let the launcher start the ranks: `clusterctl run --once -- sh -c '...'`"
_ABOUT = Row(REFUSED, "-h --help -V --version --usage", why=_ITSELF)
ONE_PROGRAM = "run a script that chooses by the variable RANK what each rank does"
_DEBUGGER = "leave it out: `clusterctl doctor` shows where ranks are"
_MPI = (
    _ABOUT,
    Row("ranks", "--np= -n= --n="),
    Row("ranks_per_node", "--ppn= --perhost="),
    Row("hosts", "-H= --host= --hosts="),
    Row("hostfile", "--hostfile= --machinefile="),
    Row("folder", "--wdir= --wd="),
    Row("timeout", "--timeout="),
    Row(
        IGNORED,
        "--prefix= --tmpdir= -v --verbose --nolocal --preload-binary --output-filename="
        " --personality= --report-pid= --report-uri= --stdin=",
    ),
    Row(REFUSED, "--app= --configfile=", why=ONE_PROGRAM),
)
# `mpirun --help` of Open MPI 4.1, and https://docs.open-mpi.org/en/v5.0.x/man-openmpi/man1/mpirun.1.html
_OPEN_MPI = (
    Row("ranks", "-c="),
    Row("ranks_per_node", "-N= --npernode="),
    Row("ranks_per_node", "--pernode", name="1"),
    Row("retries", "--max-restarts="),
    Row("hostfile", "--default-hostfile="),
    Row("variables", "-x= --set-env="),
    Row("mca", "--mca== --gmca== --omca== --gomca=="),
    Row("map-by", "--map-by="),
    Row("cores", "--cpus-per-proc= --cpus-per-rank="),
    Row("mpirun", "--bind-to= --rank-by="),
    Row("mpirun", "--bind-to-core", name="--bind-to core"),
    Row("mpirun", "--bind-to-socket", name="--bind-to socket"),
    Row("mpirun", "--pmixmca== --gpmixmca==", name="--pmixmca"),
    Row(
        IGNORED,
        "--allow-run-as-root --oversubscribe --nooversubscribe --use-hwthread-cpus --bynode"
        " --byslot --bycore --prtemca== --noprefix --pmix-prefix= --app-pmix-prefix="
        " --no-app-prefix --launch-agent= --exec-agent= --max-vm-size= --novm --hetero-nodes"
        " --do-not-resolve --fwd-mpirun-port --enable-instant-on-support --use-regexp --set-sid"
        " --forward-signals= --keepalive= --pset= --memory-alloc-kinds= --gpu-support="
        " --disable-recovery",
    ),
    Row(
        IGNORED,
        "-q --quiet --output= --tag-output --timestamp-output --merge-stderr-to-stdout --xml"
        " --xml-file= --output-directory= --output-proctable --stream-buffering= --show-progress"
        " --display= --display-map --display-allocation --display-topo --display-devel-map"
        " --display-diffable-map --display-devel-allocation --report-bindings --report-events="
        " --report-state-on-timeout --report-child-jobs-separately --get-stack-traces"
        " --spawn-timeout= -d --debug-devel --debug-daemons --debug-daemons-file"
        " --leave-session-attached --test-suicide= --no-ready-msg",
    ),
    Row(
        REFUSED,
        "--debug --debugger= --tv --xterm= --stop-on-exec --stop-in-init --stop-in-app",
        why=_DEBUGGER,
    ),
    Row(
        REFUSED,
        "--do-not-launch",
        why="leave it out: `clusterctl run --dry-run` shows what would run",
    ),
    Row(REFUSED, "-s", why="leave it out: the files of the program's folder are on all nodes"),
    Row(REFUSED, "--preload-files=", why="`clusterctl run --include PATH` copies more files"),
    Row(
        REFUSED,
        "--set-cwd-to-session-dir",
        why="leave it out: ranks start in a copy of your current folder",
    ),
    Row(REFUSED, "--path=", why="name the program by its path, or use `--env PATH=...`"),
    Row(
        REFUSED,
        "--unset-env= --append-env== --prepend-env==",
        why="`run --env NAME=VALUE` sets a variable",
    ),
    Row(REFUSED, "--am= --tune=", why="give each parameter with `--mca NAME VALUE`"),
    Row(
        REFUSED,
        "--rankfile= --rf= --npersocket= --ppr= --cpu-list= --cpu-set= --cf= --cartofile=",
        why="use --map-by and --bind-to, or --ranks-per-node",
    ),
    Row(
        REFUSED,
        "--add-host= --add-hostfile= --dvm --hnp= --ompi-server= --continuous --enable-recovery"
        " --runtime-options= --index-argv-by-rank --with-ft= --singleton= --system-server",
        why="leave it out: each job has its own mpirun, and ends with its first failed rank",
    ),
)
# `mpiexec.hydra --help` of MPICH 4 and of Intel MPI 2021.
_HYDRA = (
    Row("hostfile", "-f="),
    Row("pair", "--genv== --env=="),
    Row("export", "--genvlist= --envlist="),
    Row(
        IGNORED,
        "--genvall --envall --genvnone --envnone --launcher= --launcher-exec= --bootstrap="
        " --bootstrap-exec= --rmk= --iface= --info --print-all-exitcodes --print-rank-map"
        " --prepend-rank -l --prepend-pattern= --outfile-pattern= --errfile-pattern="
        " --ordered-output --nameserver= --disable-auto-cleanup --disable-hostname-propagation"
        " --localhost= --cleanup --branch-count= --demux= --rr --grr= --membind="
        " --topolib= --usize=",
    ),
    Row(
        REFUSED,
        "--gtool= --trace --check-mpi --profile --ilp64 --echo --gpus-per-proc= --skip-launch-node"
        " --ckpointlib= --ckpoint-*",
        why=_ITSELF,
    ),
)
_OF_HYDRA_ALONE = (Row(IGNORED, "--bind-to= --binding= --map-by= -s= --tune?"),)

_MEETING = Row(
    IGNORED,
    "--master-addr= --master-port= --node-rank= --rdzv-backend= --rdzv-endpoint= --rdzv-id="
    " --rdzv-conf= --standalone --local-addr=",
)
# https://docs.pytorch.org/docs/stable/elastic/run.html
_TORCHRUN = (
    _ABOUT,
    _MEETING,
    Row("ranks_per_node", "--nproc-per-node="),
    Row("nodes", "--nnodes="),
    Row("retries", "--max-restarts="),
    Row("module", "-m --module"),
    Row("command", "--no-python"),
    Row(
        IGNORED,
        "--monitor-interval= --start-method= --event-log-handler= --role= --log-dir= -r="
        " --redirects= -t= --tee= --local-ranks-filter= --duplicate-stdout-filters="
        " --duplicate-stderr-filters= --logs-specs= --numa-binding= --signals-to-handle="
        " --shutdown-timeout= --run-path",
    ),
    Row(
        REFUSED, "--virtual-local-rank", why="leave it out: LOCAL_RANK numbers the ranks of a node"
    ),
)
# https://huggingface.co/docs/accelerate/package_reference/cli#accelerate-launch
_ACCELERATE = (
    _ABOUT,
    Row("ranks", "--num-processes="),
    Row("nodes", "--num-machines="),
    Row("retries", "--max-restarts="),
    Row("module", "-m --module"),
    Row("command", "--no-python"),
    Row("config", "--config-file="),
    Row("env", "--mixed-precision=", name="ACCELERATE_MIXED_PRECISION"),
    Row("env", "--num-cpu-threads-per-process=", name="OMP_NUM_THREADS"),
    Row("env", "--dynamo-backend=", name="ACCELERATE_DYNAMO_BACKEND"),
    Row("env", "--dynamo-mode=", name="ACCELERATE_DYNAMO_MODE"),
    Row("set", "--dynamo-use-fullgraph", name="ACCELERATE_DYNAMO_USE_FULLGRAPH=True"),
    Row("set", "--dynamo-use-dynamic", name="ACCELERATE_DYNAMO_USE_DYNAMIC=True"),
    Row(
        "set",
        "--dynamo-use-regional-compilation",
        name="ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION=True",
    ),
    Row("set", "--enable-cpu-affinity", name="ACCELERATE_CPU_AFFINITY=1"),
    Row("env", "--gradient-accumulation-steps=", name="ACCELERATE_GRADIENT_ACCUMULATION_STEPS"),
    Row("set", "--cpu", name="ACCELERATE_USE_CPU=true"),
    Row("set", "--debug", name="ACCELERATE_DEBUG_MODE=true"),
    Row(
        IGNORED,
        "--machine-rank= --main-process-ip= --main-process-port= --rdzv-backend= --rdzv-conf="
        " --multi-gpu --same-network --gpu-ids= -q --quiet -t= --tee= --log-dir= --role="
        " --monitor-interval= --no-tpu-cluster",
    ),
    Row(
        REFUSED,
        "--use-deepspeed --use-fsdp --use-parallelism-config --use-megatron-lm --fsdp-*"
        " --deepspeed-* --zero-stage= --zero3-* --offload-* --gradient-clipping= --megatron-lm-*"
        " --parallelism-config-* --fp8-* --mpirun-hostfile=",
        why="let accelerate start the ranks of each node: `clusterctl run --ranks-per-node 1 -- sh"
        " -c 'accelerate launch ...'`",
    ),
    Row(
        REFUSED,
        "--tpu --tpu-* --vm= --env= --main-training-function= --downcast-bf16 --aws-*",
        why="leave it out: it is for TPUs and SageMaker",
    ),
)
# https://www.deepspeed.ai/getting-started/#launching-deepspeed-training
_DEEPSPEED = (
    _ABOUT,
    Row("ranks_per_node", "--num-gpus= --num-accelerators="),
    Row("nodes", "--num-nodes="),
    Row("hostfile", "-H= --hostfile="),
    Row("include", "-i= --include="),
    Row("exclude", "-e= --exclude="),
    Row("module", "-m --module"),
    Row("command", "--no-python"),
    Row("no-local-rank", "--no-local-rank"),
    Row(
        IGNORED,
        "--master-addr= --master-port= --node-rank= --launcher= --launcher-args= --no-ssh"
        " --no-ssh-check --force-multi --save-pid --enable-each-rank-log= --ssh-port= --log-level="
        " -q --quiet --bind-cores-to-rank --bind-core-list=",
    ),
    Row(
        REFUSED,
        "--autotuning= --elastic-training --min-elastic-nodes= --max-elastic-nodes=",
        why=_ITSELF,
    ),
    Row(
        REFUSED,
        "--venv-script=",
        why="leave it out: clusterctl installs the project's packages, or use `run --venv DIR`",
    ),
)
# https://horovod.readthedocs.io/en/stable/running_include.html
_HOROVODRUN = (
    _ABOUT,
    Row("ranks", "--np= --num-proc="),
    Row("hosts", "-H= --hosts="),
    Row("hostfile", "--hostfile="),
    Row("env", "--log-level=", name="HOROVOD_LOG_LEVEL"),
    Row("env", "--timeline-filename=", name="HOROVOD_TIMELINE"),
    Row("env", "--gloo-timeout-seconds=", name="HOROVOD_GLOO_TIMEOUT_SECONDS"),
    Row("env", "--num-nccl-streams=", name="HOROVOD_NUM_NCCL_STREAMS"),
    Row("set", "--autotune", name="HOROVOD_AUTOTUNE=1"),
    Row(
        IGNORED,
        "-p= --ssh-port= -i= --ssh-identity-file= --start-timeout= --network-interface="
        " --network-interfaces= --output-filename= --verbose --gloo --mpi --disable-cache --tcp"
        " --prefix-timestamp --prefix-output-with-timestamp",
    ),
    Row(
        REFUSED,
        "--fusion-* --cycle-* --cache-* --hierarchical-* --no-* --torus-* --autotune-* --timeline-*"
        " --stall-* --mpi-threads-* --thread-* --log-*",
        why="set the variable that Horovod reads: `run --env HOROVOD_...`",
    ),
    Row(REFUSED, "--mpi-args= --binding-args=", why="`run --mpirun-arg` gives options to mpirun"),
    Row(
        REFUSED,
        "-v --check-build --cb --config-file= --min-* --max-* --slots-per-host= --elastic-*"
        " --reset-limit= --blacklist-* --host-discovery-script= --jsrun",
        why=_ITSELF,
    ),
)
# https://slurm.schedmd.com/srun.html
_SRUN = (
    _ABOUT,
    Row("ranks", "-n= --ntasks="),
    Row("ranks_per_node", "--ntasks-per-node="),
    Row("nodes", "-N= --nodes="),
    Row("export", "--export="),
    Row("folder", "-D= --chdir="),
    Row("native", "-A=", name="account"),
    Row("native", "-b=", name="begin"),
    Row("native", "-B=", name="extra-node-info"),
    Row("native", "-c=", name="cpus-per-task"),
    Row("native", "-C=", name="constraint"),
    Row("native", "-d=", name="dependency"),
    Row("native", "-G=", name="gpus"),
    Row("native", "-H", name="hold"),
    Row("native", "-J=", name="job-name"),
    Row("native", "-L=", name="licenses"),
    Row("native", "-m=", name="distribution"),
    Row("native", "-O", name="overcommit"),
    Row("native", "-p=", name="partition"),
    Row("native", "-q=", name="qos"),
    Row("native", "-s", name="oversubscribe"),
    Row("native", "-S=", name="core-spec"),
    Row("native", "-t=", name="time"),
    Row("native", "-w=", name="nodelist"),
    Row("native", "-x=", name="exclude"),
    Row(
        "native",
        "--account= --begin= --extra-node-info= --cpus-per-task= --constraint= --dependency="
        " --gpus= --hold --job-name= --licenses= --distribution= --overcommit --partition= --qos="
        " --oversubscribe --core-spec= --time= --nodelist= --exclude= --acctg-freq= --bb= --bbf="
        " --cluster-constraint= --comment= --contiguous --cores-per-socket= --cpu-freq="
        " --cpus-per-gpu= --deadline= --delay-boot= --exclusive? --gpu-bind= --gpu-freq="
        " --gpus-per-node= --gpus-per-socket= --gpus-per-task= --gres= --gres-flags= --hint="
        " --mail-type= --mail-user= --mcs-label= --mem= --mem-per-cpu= --mem-per-gpu= --mincpus="
        " --nice? --ntasks-per-core= --ntasks-per-socket= --power= --priority= --profile="
        " --propagate? --reboot --reservation= --signal= --sockets-per-node= --spread-job"
        " --switches= --thread-spec= --threads-per-core= --time-min= --tmp= --use-min-nodes"
        " --wckey=",
    ),
    Row(
        IGNORED,
        "-l --label -u --unbuffered -K? --kill-on-bad-exit? -k --no-kill -Q --quiet -v --verbose"
        " -X --disable-status --quit-on-interrupt -W= --wait= -T= --threads= -E --preserve-env"
        " -I? --immediate? --mpi= --cpu-bind= --mem-bind= --accel-bind= --overlap --exact"
        " --resv-ports? --slurmd-debug= --bcast? --bcast-exclude= --compress? --send-libs?"
        " -o= --output= -e= --error= --open-mode= --network=",
    ),
    Row(REFUSED, "-i= --input=", why="let the program read the file itself"),
    Row(REFUSED, "--multi-prog", why=ONE_PROGRAM),
    Row(REFUSED, "--pty?", why="`clusterctl run --interactive` opens a terminal"),
    Row(REFUSED, "--container=", why="`clusterctl run --container IMAGE` takes an image"),
    Row(REFUSED, "-M= --clusters=", why="`clusterctl run -c NAME` chooses the cluster"),
    Row(
        REFUSED,
        "--prolog= --epilog= --task-prolog= --task-epilog=",
        why="write a script that does it, and run the script",
    ),
    Row(
        REFUSED,
        "--jobid= --het-group= -r= --relative= -Z --no-allocate --ntasks-per-gpu=",
        why="leave it out: `clusterctl run` asks for a job of its own",
    ),
)

_MPIRUN = OtherLauncher(
    rows=(*_MPI, *_OPEN_MPI, *_HYDRA), python=False, one_dash=True, programs=True
)
_MPIEXEC_HYDRA = OtherLauncher(
    rows=(*_MPI, *_OF_HYDRA_ALONE, *_HYDRA), python=False, one_dash=True, programs=True
)
LAUNCHERS: dict[str, OtherLauncher] = {
    "torchrun": OtherLauncher(rows=_TORCHRUN, abbreviates=True),
    "torch.distributed.launch": OtherLauncher(
        rows=(*_TORCHRUN, Row("no-local-rank", "--use-env")),
        local_rank="--local-rank",
        abbreviates=True,
    ),
    "accelerate launch": OtherLauncher(rows=_ACCELERATE),
    "deepspeed": OtherLauncher(rows=_DEEPSPEED, local_rank="--local_rank", abbreviates=True),
    **dict.fromkeys(("mpirun", "mpiexec", "orterun", "prterun"), _MPIRUN),
    **dict.fromkeys(("mpirun.openmpi", "mpiexec.openmpi"), _MPIRUN),
    **dict.fromkeys(("mpiexec.hydra", "mpirun.mpich", "mpiexec.mpich"), _MPIEXEC_HYDRA),
    "horovodrun": OtherLauncher(rows=_HOROVODRUN, python=False, one_dash=True),
    "srun": OtherLauncher(rows=_SRUN, python=False, abbreviates=True, programs=True),
}
