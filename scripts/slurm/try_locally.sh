#!/bin/bash
# Two Slurm nodes on this machine, to try job scripts on: slurmctld and two slurmd, both on the loopback interface.
#
#   apt-get install slurm-wlm munge                   # Debian, Ubuntu; once
#   eval "$(scripts/slurm/try_locally.sh up)"         # as root; sbatch, squeue and scancel now mean this Slurm
#   sbatch --nodes 2 scripts/slurm/train.sbatch data.path=faces devices=cpu
#   scripts/slurm/try_locally.sh down                 # cancels the jobs, removes everything; `status` shows it
#
# The nodes are called 127.0.0.1 and 127.0.0.2, so their names lead somewhere without a change of /etc/hosts. A job in
# the partition "high" preempts those in "low", the default one, which are queued again. Configuration, logs, key and
# state are in one folder, the second argument (/tmp/pggan-slurm); another Slurm on this machine is not touched.
# Exit codes: 0; 2 for a wrong call; 3 where something is missing, with what it is; 1 where a daemon does not start.
set -uo pipefail

CALL="Usage: $0 up|status|down [FOLDER]"
SECONDS_TO_START=60
folder=$(realpath --canonicalize-missing "${2:-/tmp/pggan-slurm}")
export SLURM_CONF=$folder/slurm.conf
PATH=$PATH:/usr/sbin:/sbin # the daemons are there

fail() { # CODE MESSAGE
    echo "$2" >&2
    exit "$1"
}

require_programs() {
    local program missing=()
    for program in munged slurmctld slurmd sbatch srun scontrol squeue; do
        command -v "$program" >/dev/null || missing+=("$program")
    done
    if [ ${#missing[@]} -gt 0 ]; then
        fail 3 "Missing: ${missing[*]}. On Debian and Ubuntu: apt-get install slurm-wlm munge"
    fi
    [ "$(id -u)" -eq 0 ] || fail 3 "slurmd starts jobs as their users, so it has to run as root: use sudo."
}

free_ports() { # The first of three ports that nothing listens on, below those of the jobs and of the system.
    local first port
    for first in $(seq $((10000 + $$ % 3000 * 3)) 3 19000); do
        for port in "$first" $((first + 1)) $((first + 2)); do
            (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null && continue 2
        done
        echo "$first"
        return
    done
}

write_configuration() {
    local port
    port=$(free_ports)
    cat >"$SLURM_CONF" <<END
ClusterName=pggan
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmctldPort=$port
SlurmctldPidFile=$folder/slurmctld.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmdLogFile=$folder/slurmd-%n.log
SlurmdSpoolDir=$folder/spool-%n
StateSaveLocation=$folder/state
# Credentials come from a munged of our own. A job that is queued again waits until its last ones expire; Slurm takes
# no less than 5 s.
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$folder/munge.socket,cred_expire=5
# Jobs take the rendezvous port 20000 + their number: two of these clusters must not count alike.
FirstJobId=$((1 + $$ % 9000))
# Processes are followed without cgroups, and nothing is bound: containers seldom allow either.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1
MinJobAge=3600
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
# More processors than there are, so that several jobs of eight fit.
SlurmdParameters=config_overrides
NodeName=127.0.0.1 NodeHostname=localhost NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=64
NodeName=127.0.0.2 NodeHostname=localhost NodeAddr=127.0.0.1 Port=$((port + 2)) CPUs=64
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=60
PartitionName=high Nodes=ALL PriorityTier=2 PreemptMode=OFF
END
}

start_daemons() {
    local node
    mkdir -m 700 "$folder/state"
    (umask 077 && head -c 1024 /dev/urandom >"$folder/munge.key")
    # Forced, because munged wants all users to reach its socket; here root alone needs to.
    munged --force --socket="$folder/munge.socket" --key-file="$folder/munge.key" --pid-file="$folder/munged.pid" \
        --log-file="$folder/munged.log" --seed-file="$folder/munge.seed" 2>>"$folder/munged.log" || return
    slurmctld || return
    for node in 127.0.0.1 127.0.0.2; do
        mkdir "$folder/spool-$node"
        slurmd -N "$node" || return
    done
    while [ "$(sinfo --noheader --Node --partition low --format %T 2>/dev/null | grep --count idle)" -ne 2 ]; do
        [ "$SECONDS" -lt $SECONDS_TO_START ] || return
        sleep 0.1
    done
}

up() {
    require_programs
    if [ -e "$SLURM_CONF" ]; then
        fail 2 "There is one in $folder already. End it with: $0 down $folder"
    fi
    mkdir "$folder" || exit 2
    write_configuration
    if ! start_daemons >&2; then
        tail --lines 5 "$folder"/*.log >&2
        down
        fail 1 "Slurm did not start; the ends of its logs are above."
    fi
    echo "export SLURM_CONF=$SLURM_CONF"
    echo "export GLOO_SOCKET_IFNAME=lo"
}

down() {
    local file pid
    [ -e "$SLURM_CONF" ] || fail 2 "There is no Slurm in $folder."
    if [ -e "$folder/slurmctld.pid" ]; then
        scancel --state PENDING --user root
        scancel --signal KILL --full --user root
        for _ in $(seq 100); do
            [ "$(squeue --noheader 2>/dev/null)" ] || break
            sleep 0.1
        done
    fi
    for file in "$folder"/slurmd-*.pid "$folder"/slurmctld.pid "$folder"/munged.pid; do
        pid=$(cat "$file" 2>/dev/null) || continue
        kill "$pid"
        for _ in $(seq 100); do
            [ -e "$file" ] || continue 2 # each daemon removes its own as the last thing
            sleep 0.1
        done
        kill -KILL "$pid"
    done
    rm -rf "$folder"
}

status() {
    [ -e "$SLURM_CONF" ] || fail 2 "There is no Slurm in $folder."
    sinfo --long --Node
    squeue --long
}

case ${1:-} in
up | down | status) "$1" ;;
*) fail 2 "$CALL" ;;
esac
