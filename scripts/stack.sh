#!/usr/bin/env bash
# Starts the servers of docker-compose.yml without containers, on loopback: Kafka, Aerospike, two instances and
# Prometheus with the repository's alert rules. Then publishes real blocks, prints the addresses, and waits.
#
#   scripts/stack.sh [--store aerospike|fjall] [--directory DIR] [--ports FIRST] [--program FILE]
#                    [--for SECONDS] [--keep]
#
# --store      aerospike needs `asd` in PATH and is the default where `asd` is; fjall is embedded, with one instance
# --directory  empty directory for data, logs and settings; by default a temporary directory
# --ports      first of eight ports in a row; by default free ports are chosen
# --program    utxo-store; by default the newest of target/{release,demo,debug}/utxo-store
# --for        stops after that time; by default Ctrl-C stops
# --keep       leaves the directory
#
# Kafka's jars come from Maven Central once, into .kafka, as for the tests. A server that ends is started again, as
# Compose does: to see an alert, stop a server with SIGSTOP; its process id is in DIR/NAME.pid.
set -euo pipefail
cd "$(dirname "$0")/.."
# Messages while servers end: bash reports a killed server on standard error, with its whole command.
exec 3>&2

fail() { echo "stack: $*" >&2; exit 1; }
missing() { fail "missing: $1 (e.g. apt-get install $2)"; }
usage() { sed -n '2,/^set/s/^# \{0,1\}//p' scripts/stack.sh; }

store='' directory='' first_port='' program='' seconds='' keep=''
while [ $# -gt 0 ]; do
    case $1 in
        --store | --directory | --ports | --program | --for) [ $# -gt 1 ] || fail "$1 needs a value" ;;&
        --store) store=$2; shift 2 ;;
        --directory) directory=$2; shift 2 ;;
        --ports) first_port=$2; shift 2 ;;
        --program) program=$2; shift 2 ;;
        --for) seconds=$2; shift 2 ;;
        --keep) keep=yes; shift ;;
        -h | --help) usage; exit ;;
        *) fail "unknown option $1; the options are in scripts/stack.sh --help" ;;
    esac
done
if [ -z "$store" ]; then store=$(command -v asd >/dev/null && echo aerospike || echo fjall); fi
[[ $store =~ ^(aerospike|fjall)$ ]] || fail "--store is aerospike or fjall, not $store"
[[ $seconds =~ ^[0-9]*$ ]] || fail "--for is a number of seconds, not $seconds"
[[ $first_port =~ ^[0-9]*$ ]] || fail "--ports is a port, not $first_port"

if [ -z "$program" ]; then
    builds=("${CARGO_TARGET_DIR:-target}"/{release,demo,debug}/utxo-store)
    program=$(ls -t "${builds[@]}" 2>/dev/null | head -1 || true)
    [ -n "$program" ] || fail "missing: target/release/utxo-store (cargo build --release, or --program FILE)"
fi
[ -x "$program" ] || fail "$program is no program"
program=$(realpath "$program")
command -v java >/dev/null || missing java default-jre-headless
command -v curl >/dev/null || missing curl curl
command -v setsid >/dev/null || missing setsid util-linux
command -v prometheus >/dev/null || missing prometheus prometheus
if [ "$store" = aerospike ]; then
    command -v asd >/dev/null || fail "missing: asd (the server of Aerospike; or --store fjall)"
fi

# Fetches the jars of the tests' Kafka, and a logger: the tests' own jars log nothing.
pom=tests/it/kafka_server.pom.xml
version=$(sed -n '/kafka_2.13/,/version/s/.*<version>\(.*\)<.*/\1/p' "$pom")
logger=slf4j-simple-$(sed -n '/slf4j-nop/,/version/s/.*<version>\(.*\)<.*/\1/p' "$pom").jar
jars=$PWD/.kafka/$version loggers=$PWD/.kafka/loggers
fetch() {
    if [ -f "$jars/complete" ] && [ -f "$loggers/$logger" ]; then return; fi
    command -v mvn >/dev/null || missing mvn maven
    echo "stack: fetching Kafka $version from Maven Central" >&2
    mkdir -p "$jars" "$loggers"
    local mvn=(mvn -q -B -Dstyle.color=never)
    if [ ! -f "$jars/complete" ]; then
        cp "$pom" "$jars/pom.xml"
        "${mvn[@]}" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=. -f "$jars/pom.xml" >&2 ||
            fail "cannot fetch Kafka from Maven Central"
        touch "$jars/complete"
    fi
    "${mvn[@]}" dependency:copy -Dartifact="org.slf4j:${logger%-*}:$(basename "${logger##*-}" .jar)" \
        -DoutputDirectory="$loggers" >&2 || fail "cannot fetch $logger from Maven Central"
}

# A port is free when nothing accepts connections there.
is_free() { ! (: <>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
ports=()
# Chooses eight ports below those that the kernel gives to outgoing connections.
choose_ports() {
    local port
    while [ ${#ports[@]} -lt 8 ]; do
        port=$((first_port ? first_port + ${#ports[@]} : 20000 + RANDOM % 12000))
        if is_free "$port"; then
            [[ " ${ports[*]} " == *" $port "* ]] || ports+=("$port")
        elif [ -n "$first_port" ]; then
            fail "port $port is taken: choose others with --ports, or none for free ports"
        fi
    done
}

# Servers in the order of their start, with their commands and process ids.
servers=()
declare -A commands pids

# launch NAME COMMAND...: starts a server in a session of its own, so that Ctrl-C reaches this script alone. The script
# stops the instances before the servers that they need.
launch() {
    local name=$1
    shift
    commands[$name]=$(printf '%q ' "$@")
    servers+=("$name")
    start "$name"
}
start() {
    eval "setsid ${commands[$1]} </dev/null >>'$directory/$1.log' 2>&1 3>&- &"
    pids[$1]=$!
    echo "${pids[$1]}" >"$directory/$1.pid"
}
runs() { kill -0 "${pids[$1]}" 2>/dev/null; }

# await NAME COMMAND...: waits until the command succeeds. A server that ends, or does not answer within two minutes,
# ends the script with the last lines of the server's log.
await() {
    local name=$1 limit=$((SECONDS + ${STACK_START_SECONDS:-120})) why=''
    shift
    until "$@" >/dev/null 2>&1; do
        runs "$name" || why="$name has ended"
        [ $SECONDS -lt $limit ] || why="$name does not answer"
        if [ -n "$why" ]; then
            echo "stack: $why; the last lines of its log:" >&2
            tail -n 15 "$directory/$name.log" | cut -c1-300 >&2
            exit 1
        fi
        sleep 0.2
    done
}

# Stops the servers, the last one first. A second Ctrl-C kills them.
stop() {
    local status=$? name limit hurry=''
    trap 'hurry=yes' INT TERM
    trap - EXIT
    exec 2>/dev/null
    for name in $(printf '%s\n' ${servers[@]+"${servers[@]}"} | tac); do
        # A stopped process (SIGSTOP) would not see the signal.
        kill -TERM "${pids[$name]}" 2>/dev/null && kill -CONT "${pids[$name]}" 2>/dev/null || continue
        # An instance drains for up to 20 s, and commits for up to 10 s.
        limit=$((SECONDS + 45))
        while runs "$name"; do
            if [ -n "$hurry" ] || [ $SECONDS -ge $limit ]; then kill -KILL "${pids[$name]}" 2>/dev/null || true; fi
            sleep 0.1 || true
        done
    done
    if [ -z "$directory" ]; then
        :
    elif [ -n "$keep" ] || { [ "$status" -ne 0 ] && [ "$status" -ne 130 ] && [ "$status" -ne 143 ]; }; then
        # The logs of a failure stay.
        echo "stack: stopped; $directory stays" >&3
    else
        rm -rf "$directory"
        echo "stack: stopped; $directory is removed" >&3
    fi
    exit "$status"
}

fetch
choose_ports
kafka=${ports[0]} controller=${ports[1]} aerospike=${ports[2]} prometheus=${ports[5]}
instances=("${ports[6]}" "${ports[7]}")
if [ "$store" = fjall ]; then instances=("${ports[6]}"); fi
if [ -n "$directory" ]; then
    mkdir -p "$directory"
    [ -z "$(ls -A "$directory")" ] || fail "$directory is not empty"
    directory=$(realpath "$directory")
fi
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
directory=${directory:-$(mktemp -d "${TMPDIR:-/tmp}/utxo-stack.XXXXXX")}

# The server of docker-compose.yml, with one listener.
cat >"$directory/kafka.properties" <<END
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$controller
listeners=PLAINTEXT://127.0.0.1:$kafka,CONTROLLER://127.0.0.1:$controller
advertised.listeners=PLAINTEXT://127.0.0.1:$kafka
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=$directory/kafka
auto.create.topics.enable=false
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
END
java=(java -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp "$loggers/$logger:$jars/*")
"${java[@]}" kafka.tools.StorageTool format -t AAAAAAAAAAAAAAAAAAAAAQ -c "$directory/kafka.properties" \
    >"$directory/kafka.log" 2>&1 || { cat "$directory/kafka.log" >&2; fail "cannot format the directory of Kafka"; }
launch kafka "${java[@]}" -Xmx768m kafka.Kafka "$directory/kafka.properties"

url=fjall://$directory/store
if [ "$store" = aerospike ]; then
    url="aerospike://127.0.0.1:$aerospike/utxo?set=txmeta"
    mkdir -p "$directory"/aerospike/{smd,usr/udf/lua}
    sed -e "s|^service {|&\n  work-directory $directory/aerospike|" \
        -e "s|^logging {|mod-lua {\n  user-path $directory/aerospike/usr/udf/lua\n}\n\n&|" \
        -e "s|port 3000|port $aerospike|; s|port 3001|port ${ports[3]}|; s|port 3002|port ${ports[4]}|" \
        -e "s|/var/lib/aerospike|$directory/aerospike|; s|filesize 64G|filesize 2G|" \
        deploy/aerospike.conf >"$directory/aerospike.conf"
    launch aerospike asd --foreground --config-file "$directory/aerospike.conf"
fi

mkdir "$directory/blobs"
cat >"$directory/utxo-store.toml" <<END
[kafka]
brokers = "127.0.0.1:$kafka"

[store]
url = "$url"
network = "main"

[store.blobs]
url = "file://$directory/blobs"

[http]
listen = "127.0.0.1:${instances[0]}"
api = true
control = true

[log]
format = "json"
END
await kafka eval "! is_free $kafka"
if [ "$store" = aerospike ]; then await aerospike eval "! is_free $aerospike"; fi
"$program" topics create --config "$directory/utxo-store.toml" --partitions 8 --replication-factor 1 \
    >"$directory/topics.log" 2>&1 || { cat "$directory/topics.log" >&2; fail "cannot create the topics"; }
number=0
for port in "${instances[@]}"; do
    number=$((number + 1))
    launch "utxo-store-$number" env "UTXO_STORE__HTTP__LISTEN=127.0.0.1:$port" \
        "UTXO_STORE__KAFKA__CLIENT_ID=utxo-store-$number" "$program" run --config "$directory/utxo-store.toml"
done

targets=$(printf ', 127.0.0.1:%s' "${instances[@]}")
sed "s|targets: .*|targets: [${targets#, }]|" deploy/compose/prometheus.yml >"$directory/prometheus.yml"
ln -s "$PWD/deploy/prometheus" "$directory/rules"
launch prometheus prometheus --config.file="$directory/prometheus.yml" \
    --storage.tsdb.path="$directory/prometheus" --web.listen-address="127.0.0.1:$prometheus"
for number in "${!instances[@]}"; do
    await "utxo-store-$((number + 1))" curl -fs "http://127.0.0.1:${instances[$number]}/health/ready"
done
await prometheus curl -fs "http://127.0.0.1:$prometheus/-/ready"
# Debian's build has the classic pages alone.
alerts=http://127.0.0.1:$prometheus/alerts
curl -fs -o /dev/null "$alerts" || alerts=http://127.0.0.1:$prometheus/classic/alerts

"$program" generate --blocks tests/data/mainnet-0-4312.blk --config "$directory/utxo-store.toml" \
    >"$directory/generate.log" 2>&1 || { cat "$directory/generate.log" >&2; fail "cannot publish the blocks"; }

cat <<END
stack: Kafka, $store, Prometheus, instances: ${#instances[@]}; $(head -1 "$directory/generate.log")
  page        http://127.0.0.1:${instances[0]}/
  metrics     $(printf ' http://127.0.0.1:%s/metrics' "${instances[@]}" | cut -c2-)
  Prometheus  http://127.0.0.1:$prometheus/
  alerts      $alerts
  Kafka       127.0.0.1:$kafka
  settings    $directory/utxo-store.toml
  logs, ids   $directory/*.log, $directory/*.pid
stack: Ctrl-C stops${seconds:+, or the end of $seconds s}
END

# From here on Ctrl-C is no failure.
trap 'exit 0' INT TERM
limit=$((SECONDS + ${seconds:-0}))
while [ -z "$seconds" ] || [ $SECONDS -lt $limit ]; do
    for name in "${servers[@]}"; do
        runs "$name" && continue
        code=0
        wait "${pids[$name]}" || code=$?
        echo "stack: $name has ended with code $code, and is started again" >&3
        start "$name"
    done
    sleep 1
done 2>/dev/null
