"""The options of other launcher programs, and what becomes of each: a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

REFUSED, IGNORED, KEPT = "refused", "ignored", "kept"


class OptionRow(NamedTuple):
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

    rows: tuple[OptionRow, ...]
    python: bool = True
    local_rank: str = ""
    """The option by which it tells a program its number on the node."""
    one_dash: bool = False
    """Long options may have one dash, too: `-np`; else, letters and values may be glued: `-n4`."""
    abbreviates: bool = False
    """The beginning of a long option will do."""
    programs: bool = False
    """A `:` separates programs."""
    settings: str = ""
    """A file below Hugging Face's folder that it reads where no other is named."""

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


def _list_rules(rows: tuple[OptionRow, ...]) -> Iterator[tuple[str, Rule]]:
    for row in rows:
        for word in row.options.split():
            name = word.rstrip("=?")
            values = -1 if word.endswith("?") else len(word) - len(name)
            yield name, Rule(row.use, values, row.name, row.why)


_ITSELF = "let the launcher start the ranks: `clusterctl run --once -- sh -c '...'`"
_ABOUT = OptionRow(REFUSED, "-h --help -V --version --usage", why=_ITSELF)
ONE_PROGRAM = "run a script that chooses by the variable RANK what each rank does"
_DEBUGGER = "leave it out: `clusterctl doctor` shows where ranks are"
_MPI = (
    _ABOUT,
    OptionRow("ranks", "--np= -n= --n="),
    OptionRow("ranks_per_node", "--ppn= --perhost="),
    OptionRow("hosts", "-H= --host= --hosts="),
    OptionRow("hostfile", "--hostfile= --machinefile="),
    OptionRow("folder", "--wdir= --wd="),
    OptionRow("timeout", "--timeout="),
    OptionRow(
        IGNORED,
        "--prefix= --tmpdir= -v --verbose --nolocal --preload-binary --output-filename="
        " --personality= --report-pid= --report-uri= --stdin=",
    ),
    OptionRow(REFUSED, "--app= --configfile=", why=ONE_PROGRAM),
)

# `mpirun --help` of Open MPI 4.1, and https://docs.open-mpi.org/en/v5.0.x/man-openmpi/man1/mpirun.1.html
_OPEN_MPI = (
    OptionRow("ranks", "-c="),
    OptionRow("ranks_per_node", "-N= --npernode="),
    OptionRow("ranks_per_node", "--pernode", name="1"),
    OptionRow("retries", "--max-restarts="),
    OptionRow("hostfile", "--default-hostfile="),
    OptionRow("variables", "-x= --set-env="),
    OptionRow("mca", "--mca== --gmca== --omca== --gomca=="),
    OptionRow("map-by", "--map-by="),
    OptionRow("cores", "--cpus-per-proc= --cpus-per-rank="),
    OptionRow("mpirun", "--bind-to= --rank-by="),
    OptionRow("mpirun", "--bind-to-core", name="--bind-to core"),
    OptionRow("mpirun", "--bind-to-socket", name="--bind-to socket"),
    OptionRow("mpirun", "--pmixmca== --gpmixmca==", name="--pmixmca"),
    OptionRow(
        IGNORED,
        "--allow-run-as-root --oversubscribe --nooversubscribe --use-hwthread-cpus --bynode"
        " --byslot --bycore --prtemca== --noprefix --pmix-prefix= --app-pmix-prefix="
        " --no-app-prefix --launch-agent= --exec-agent= --max-vm-size= --novm --hetero-nodes"
        " --do-not-resolve --fwd-mpirun-port --enable-instant-on-support --use-regexp --set-sid"
        " --forward-signals= --keepalive= --pset= --memory-alloc-kinds= --gpu-support="
        " --disable-recovery",
    ),
    OptionRow(
        IGNORED,
        "-q --quiet --output= --tag-output --timestamp-output --merge-stderr-to-stdout --xml"
        " --xml-file= --output-directory= --output-proctable --stream-buffering= --show-progress"
        " --display= --display-map --display-allocation --display-topo --display-devel-map"
        " --display-diffable-map --display-devel-allocation --report-bindings --report-events="
        " --report-state-on-timeout --report-child-jobs-separately --get-stack-traces"
        " --spawn-timeout= -d --debug-devel --debug-daemons --debug-daemons-file"
        " --leave-session-attached --test-suicide= --no-ready-msg",
    ),
    OptionRow(
        REFUSED,
        "--debug --debugger= --tv --xterm= --stop-on-exec --stop-in-init --stop-in-app",
        why=_DEBUGGER,
    ),
    OptionRow(
        REFUSED,
        "--do-not-launch",
        why="leave it out: `clusterctl run --dry-run` shows what would run",
    ),
    OptionRow(
        REFUSED, "-s", why="leave it out: the files of the program's folder are on all nodes"
    ),
    OptionRow(REFUSED, "--preload-files=", why="`clusterctl run --include PATH` copies more files"),
    OptionRow(
        REFUSED,
        "--set-cwd-to-session-dir",
        why="leave it out: ranks start in a copy of your current folder",
    ),
    OptionRow(REFUSED, "--path=", why="name the program by its path, or use `--env PATH=...`"),
    OptionRow(
        REFUSED,
        "--unset-env= --append-env== --prepend-env==",
        why="`run --env NAME=VALUE` sets a variable",
    ),
    OptionRow(REFUSED, "--am= --tune=", why="give each parameter with `--mca NAME VALUE`"),
    OptionRow(
        REFUSED,
        "--rankfile= --rf= --npersocket= --ppr= --cpu-list= --cpu-set= --cf= --cartofile=",
        why="use --map-by and --bind-to, or --ranks-per-node",
    ),
    OptionRow(
        REFUSED,
        "--add-host= --add-hostfile= --dvm --hnp= --ompi-server= --continuous --enable-recovery"
        " --runtime-options= --index-argv-by-rank --with-ft= --singleton= --system-server",
        why="leave it out: each job has its own mpirun, and ends with its first failed rank",
    ),
)

# `mpiexec.hydra --help` of MPICH 4 and of Intel MPI 2021.
_HYDRA = (
    OptionRow("hostfile", "-f="),
    OptionRow("pair", "--genv== --env=="),
    OptionRow("export", "--genvlist= --envlist="),
    OptionRow(
        IGNORED,
        "--genvall --envall --genvnone --envnone --launcher= --launcher-exec= --bootstrap="
        " --bootstrap-exec= --rmk= --iface= --info --print-all-exitcodes --print-rank-map"
        " --prepend-rank -l --prepend-pattern= --outfile-pattern= --errfile-pattern="
        " --ordered-output --nameserver= --disable-auto-cleanup --disable-hostname-propagation"
        " --localhost= --cleanup --branch-count= --demux= --rr --grr= --membind="
        " --topolib= --usize=",
    ),
    OptionRow(
        REFUSED,
        "--gtool= --trace --check-mpi --profile --ilp64 --echo --gpus-per-proc= --skip-launch-node"
        " --ckpointlib= --ckpoint-*",
        why=_ITSELF,
    ),
)
_OF_HYDRA_ALONE = (OptionRow(IGNORED, "--bind-to= --binding= --map-by= -s= --tune?"),)

_MEETING = OptionRow(
    IGNORED,
    "--master-addr= --master-port= --node-rank= --rdzv-backend= --rdzv-endpoint= --rdzv-id="
    " --rdzv-conf= --standalone --local-addr=",
)

# https://docs.pytorch.org/docs/stable/elastic/run.html
_TORCHRUN = (
    _ABOUT,
    _MEETING,
    OptionRow("ranks_per_node", "--nproc-per-node="),
    OptionRow("nodes", "--nnodes="),
    OptionRow("retries", "--max-restarts="),
    OptionRow("module", "-m --module"),
    OptionRow("command", "--no-python"),
    OptionRow(
        IGNORED,
        "--monitor-interval= --start-method= --event-log-handler= --role= --log-dir= -r="
        " --redirects= -t= --tee= --local-ranks-filter= --duplicate-stdout-filters="
        " --duplicate-stderr-filters= --logs-specs= --numa-binding= --signals-to-handle="
        " --shutdown-timeout= --run-path",
    ),
    OptionRow(
        REFUSED, "--virtual-local-rank", why="leave it out: LOCAL_RANK numbers the ranks of a node"
    ),
)

# https://huggingface.co/docs/accelerate/package_reference/cli#accelerate-launch
_ACCELERATE = (
    _ABOUT,
    OptionRow("ranks", "--num-processes="),
    OptionRow("nodes", "--num-machines="),
    OptionRow("retries", "--max-restarts="),
    OptionRow("module", "-m --module"),
    OptionRow("command", "--no-python"),
    OptionRow("config", "--config-file="),
    OptionRow("env", "--mixed-precision=", name="ACCELERATE_MIXED_PRECISION"),
    OptionRow("env", "--num-cpu-threads-per-process=", name="OMP_NUM_THREADS"),
    OptionRow("env", "--dynamo-backend=", name="ACCELERATE_DYNAMO_BACKEND"),
    OptionRow("env", "--dynamo-mode=", name="ACCELERATE_DYNAMO_MODE"),
    OptionRow("set", "--dynamo-use-fullgraph", name="ACCELERATE_DYNAMO_USE_FULLGRAPH=True"),
    OptionRow("set", "--dynamo-use-dynamic", name="ACCELERATE_DYNAMO_USE_DYNAMIC=True"),
    OptionRow(
        "set",
        "--dynamo-use-regional-compilation",
        name="ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION=True",
    ),
    OptionRow("set", "--enable-cpu-affinity", name="ACCELERATE_CPU_AFFINITY=1"),
    OptionRow(
        "env", "--gradient-accumulation-steps=", name="ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
    ),
    OptionRow("set", "--cpu", name="ACCELERATE_USE_CPU=true"),
    OptionRow("set", "--debug", name="ACCELERATE_DEBUG_MODE=true"),
    OptionRow(
        IGNORED,
        "--machine-rank= --main-process-ip= --main-process-port= --rdzv-backend= --rdzv-conf="
        " --multi-gpu --same-network --gpu-ids= -q --quiet -t= --tee= --log-dir= --role="
        " --monitor-interval= --no-tpu-cluster",
    ),
    OptionRow(
        REFUSED,
        "--use-deepspeed --use-fsdp --use-parallelism-config --use-megatron-lm --fsdp-*"
        " --deepspeed-* --zero-stage= --zero3-* --offload-* --gradient-clipping= --megatron-lm-*"
        " --parallelism-config-* --fp8-* --mpirun-hostfile=",
        why="let accelerate start the ranks of each node: `clusterctl run --ranks-per-node 1 -- sh"
        " -c 'accelerate launch ...'`",
    ),
    OptionRow(
        REFUSED,
        "--tpu --tpu-* --vm= --env= --main-training-function= --downcast-bf16 --aws-*",
        why="leave it out: it is for TPUs and SageMaker",
    ),
)

# https://www.deepspeed.ai/getting-started/#launching-deepspeed-training
_DEEPSPEED = (
    _ABOUT,
    OptionRow("ranks_per_node", "--num-gpus= --num-accelerators="),
    OptionRow("nodes", "--num-nodes="),
    OptionRow("hostfile", "-H= --hostfile="),
    OptionRow("include", "-i= --include="),
    OptionRow("exclude", "-e= --exclude="),
    OptionRow("module", "-m --module"),
    OptionRow("command", "--no-python"),
    OptionRow("no-local-rank", "--no-local-rank"),
    OptionRow(
        IGNORED,
        "--master-addr= --master-port= --node-rank= --launcher= --launcher-args= --no-ssh"
        " --no-ssh-check --force-multi --save-pid --enable-each-rank-log= --ssh-port= --log-level="
        " -q --quiet --bind-cores-to-rank --bind-core-list=",
    ),
    OptionRow(
        REFUSED,
        "--autotuning= --elastic-training --min-elastic-nodes= --max-elastic-nodes=",
        why=_ITSELF,
    ),
    OptionRow(
        REFUSED,
        "--venv-script=",
        why="leave it out: clusterctl installs the project's packages, or use `run --venv DIR`",
    ),
)

# https://horovod.readthedocs.io/en/stable/running_include.html
_HOROVODRUN = (
    _ABOUT,
    OptionRow("ranks", "--np= --num-proc="),
    OptionRow("hosts", "-H= --hosts="),
    OptionRow("hostfile", "--hostfile="),
    OptionRow("env", "--log-level=", name="HOROVOD_LOG_LEVEL"),
    OptionRow("env", "--timeline-filename=", name="HOROVOD_TIMELINE"),
    OptionRow("env", "--gloo-timeout-seconds=", name="HOROVOD_GLOO_TIMEOUT_SECONDS"),
    OptionRow("env", "--num-nccl-streams=", name="HOROVOD_NUM_NCCL_STREAMS"),
    OptionRow("set", "--autotune", name="HOROVOD_AUTOTUNE=1"),
    OptionRow(
        IGNORED,
        "-p= --ssh-port= -i= --ssh-identity-file= --start-timeout= --network-interface="
        " --network-interfaces= --output-filename= --verbose --gloo --mpi --disable-cache --tcp"
        " --prefix-timestamp --prefix-output-with-timestamp",
    ),
    OptionRow(
        REFUSED,
        "--fusion-* --cycle-* --cache-* --hierarchical-* --no-* --torus-* --autotune-* --timeline-*"
        " --stall-* --mpi-threads-* --thread-* --log-*",
        why="set the variable that Horovod reads: `run --env HOROVOD_...`",
    ),
    OptionRow(
        REFUSED, "--mpi-args= --binding-args=", why="`run --mpirun-arg` gives options to mpirun"
    ),
    OptionRow(
        REFUSED,
        "-v --check-build --cb --config-file= --min-* --max-* --slots-per-host= --elastic-*"
        " --reset-limit= --blacklist-* --host-discovery-script= --jsrun",
        why=_ITSELF,
    ),
)

# https://slurm.schedmd.com/srun.html
_SRUN = (
    _ABOUT,
    OptionRow("ranks", "-n= --ntasks="),
    OptionRow("ranks_per_node", "--ntasks-per-node="),
    OptionRow("nodes", "-N= --nodes="),
    OptionRow("export", "--export="),
    OptionRow("folder", "-D= --chdir="),
    OptionRow("native", "-A=", name="account"),
    OptionRow("native", "-b=", name="begin"),
    OptionRow("native", "-B=", name="extra-node-info"),
    OptionRow("native", "-c=", name="cpus-per-task"),
    OptionRow("native", "-C=", name="constraint"),
    OptionRow("native", "-d=", name="dependency"),
    OptionRow("native", "-G=", name="gpus"),
    OptionRow("native", "-H", name="hold"),
    OptionRow("native", "-J=", name="job-name"),
    OptionRow("native", "-L=", name="licenses"),
    OptionRow("native", "-m=", name="distribution"),
    OptionRow("native", "-O", name="overcommit"),
    OptionRow("native", "-p=", name="partition"),
    OptionRow("native", "-q=", name="qos"),
    OptionRow("native", "-s", name="oversubscribe"),
    OptionRow("native", "-S=", name="core-spec"),
    OptionRow("native", "-t=", name="time"),
    OptionRow("native", "-w=", name="nodelist"),
    OptionRow("native", "-x=", name="exclude"),
    OptionRow(
        "native",
        "--account= --begin= --extra-node-info= --cpus-per-task= --constraint= --dependency="
        " --gpus= --hold --job-name= --licenses= --distribution= --overcommit --partition= --qos="
        " --oversubscribe --core-spec= --time= --nodelist= --exclude= --acctg-freq= --bb= --bbf="
        " --cluster-constraint= --comment= --contiguous --cores-per-socket= --cpu-freq="
        " --cpus-per-gpu= --deadline= --delay-boot= --exclusive? --gpu-bind= --gpu-freq="
        " --gpus-per-node= --gpus-per-socket= --gpus-per-task= --gres= --gres-flags= --hint="
        " --mail-type= --mail-user= --mcs-label= --mem= --mem-per-cpu= --mem-per-gpu= --mincpus="
        " --mpi= --nice? --ntasks-per-core= --ntasks-per-socket= --power= --priority= --profile="
        " --propagate? --reboot --reservation= --signal= --sockets-per-node= --spread-job"
        " --switches= --thread-spec= --threads-per-core= --time-min= --tmp= --use-min-nodes"
        " --wckey=",
    ),
    OptionRow(
        IGNORED,
        "-l --label -u --unbuffered -K? --kill-on-bad-exit? -k --no-kill -Q --quiet -v --verbose"
        " -X --disable-status --quit-on-interrupt -W= --wait= -T= --threads= -E --preserve-env"
        " -I? --immediate? --cpu-bind= --mem-bind= --accel-bind= --overlap --exact"
        " --resv-ports? --slurmd-debug= --bcast? --bcast-exclude= --compress? --send-libs?"
        " -o= --output= -e= --error= --open-mode= --network=",
    ),
    OptionRow(REFUSED, "-i= --input=", why="let the program read the file itself"),
    OptionRow(REFUSED, "--multi-prog", why=ONE_PROGRAM),
    OptionRow(REFUSED, "--pty?", why="`clusterctl run --interactive` opens a terminal"),
    OptionRow(REFUSED, "--container=", why="`clusterctl run --container IMAGE` takes an image"),
    OptionRow(REFUSED, "-M= --clusters=", why="`clusterctl run -c NAME` chooses the cluster"),
    OptionRow(
        REFUSED,
        "--prolog= --epilog= --task-prolog= --task-epilog=",
        why="write a script that does it, and run the script",
    ),
    OptionRow(
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
        rows=(*_TORCHRUN, OptionRow("no-local-rank", "--use-env")),
        local_rank="--local-rank",
        abbreviates=True,
    ),
    "accelerate launch": OtherLauncher(rows=_ACCELERATE, settings="accelerate/default_config.yaml"),
    "deepspeed": OtherLauncher(rows=_DEEPSPEED, local_rank="--local_rank", abbreviates=True),
    **dict.fromkeys(("mpirun", "mpiexec", "orterun", "prterun"), _MPIRUN),
    **dict.fromkeys(("mpirun.openmpi", "mpiexec.openmpi"), _MPIRUN),
    **dict.fromkeys(("mpiexec.hydra", "mpirun.mpich", "mpiexec.mpich"), _MPIEXEC_HYDRA),
    "horovodrun": OtherLauncher(rows=_HOROVODRUN, python=False, one_dash=True),
    "srun": OtherLauncher(rows=_SRUN, python=False, abbreviates=True, programs=True),
}


class Wrapper(NamedTuple):
    """A command that starts what follows its options. `use`: what becomes of it before a launcher:
    IGNORED, it means nothing to ranks; KEPT, each rank is started behind it; REFUSED, what it would
    do to ranks is not what it does to their launcher. `values`: its options with a value, `*` for
    all; `operands`: words that it takes before the command; `refused`: options with which it is
    refused; `other`: with which it does something else."""

    use: str = IGNORED
    values: str = ""
    operands: int = 0
    refused: str = ""
    other: str = ""


_CONDA = Wrapper(values="-n --name -p --prefix --cwd -r --root-prefix -e --env")
_SINGULARITY = Wrapper(
    REFUSED,
    "-B --bind --env --env-file -H --home -W --workdir -S --scratch --app --network --overlay"
    " -o --pwd --cwd --security --mount --dns --hostname --add-caps --drop-caps --no-mount"
    " --fusemount",
    operands=1,
)
_DOCKER = Wrapper(
    REFUSED,
    "-v --volume -e --env --env-file -w --workdir --name --network --net -u --user --gpus"
    " --shm-size --ipc --pid --mount --entrypoint --device --runtime -p --publish -h --hostname -m"
    " --memory --cpus --platform --ulimit --security-opt --cap-add -l --label --add-host --tmpfs",
    operands=1,
)
WRAPPERS: dict[str, Wrapper] = {
    **dict.fromkeys(("nohup", "setsid", "tini", "dumb-init"), Wrapper()),
    "exec": Wrapper(values="-a"),
    "time": Wrapper(values="-f --format -o --output"),
    "command": Wrapper(other="-v -V"),
    **dict.fromkeys(("conda run", "mamba run", "micromamba run"), _CONDA),
    "env": Wrapper(values="-u --unset -C --chdir", refused="-C --chdir", other="-S --split-string"),
    "sudo": Wrapper(values="-u --user -g --group"),
    "timeout": Wrapper(KEPT, "-k --kill-after -s --signal", operands=1),
    "numactl": Wrapper(
        KEPT, "-i --interleave -N --cpunodebind -m --membind -C --physcpubind -p --preferred"
    ),
    "taskset": Wrapper(KEPT, operands=1),
    "nice": Wrapper(KEPT, "-n --adjustment"),
    "ionice": Wrapper(KEPT, "-c --class -n --classdata"),
    "chrt": Wrapper(KEPT, operands=1),
    "stdbuf": Wrapper(KEPT, "-i --input -o --output -e --error"),
    "unbuffer": Wrapper(KEPT),
    "strace": Wrapper(
        REFUSED, "-a -b -e -E -I -o --output -O -p --attach -P -s --string-limit -S -u --user -U -X"
    ),
    "ltrace": Wrapper(REFUSED, "-a -A -D -e -F -l -n -o --output -p -s -u -x -w"),
    **dict.fromkeys(("gdb", "cuda-gdb"), Wrapper(REFUSED, "-ex -iex -x --command -cd")),
    "lldb": Wrapper(REFUSED, "-o --one-line -s --source -f --file"),
    **dict.fromkeys(
        ("perf record", "perf stat", "perf trace"),
        Wrapper(REFUSED, "-e --event -F --freq -c -o --output -C --cpu -p -t -r -I --call-graph"),
    ),
    **dict.fromkeys(("nsys profile", "nsys launch", "vtune"), Wrapper(REFUSED, "*")),
    "ncu": Wrapper(REFUSED, "-o --export -k --kernel-name -c --launch-count --set --section"),
    "compute-sanitizer": Wrapper(REFUSED, "--tool --log-file"),
    **dict.fromkeys(("rocprof", "rocprofv3"), Wrapper(REFUSED, "-i -o -d --output-directory")),
    "tau_exec": Wrapper(REFUSED, "-T"),
    **dict.fromkeys(
        ("valgrind", "ddt", "map", "heaptrack", "hpcrun", "rr record", "nvprof"), Wrapper(REFUSED)
    ),
    "xvfb-run": Wrapper(
        REFUSED, "-e --error-file -f --auth-file -n --server-num -p -s --server-args -w --wait"
    ),
    **dict.fromkeys(
        (f"{name} {verb}" for name in ("singularity", "apptainer") for verb in ("exec", "run")),
        _SINGULARITY,
    ),
    **dict.fromkeys(
        (f"{name} {verb}" for name in ("docker", "podman") for verb in ("exec", "run")), _DOCKER
    ),
    "enroot start": Wrapper(REFUSED, "-c --conf -e --env -m --mount", operands=1),
    "ch-run": Wrapper(REFUSED, "-b --bind -c --cd", operands=1),
    "shifter": Wrapper(REFUSED, "-i --image -V --volume -m --module"),
}
