#!/usr/bin/env bash
# Makes what the other make targets need: .venv, a Java, the official RocketMQ jars and a Go client for the tests.
# Every step leaves a stamp in .setup/ keyed on what it was made from, so that a second run does nothing, offline too.
#
#   scripts/setup.sh python    .venv with everything
#   scripts/setup.sh console   + the console's files for browsers, by npm
#   scripts/setup.sh demo      + Java 17 or later for Spark
#   scripts/setup.sh tables    Java, and a Spark for which the table formats have releases, in .setup/spark-4.0
#   scripts/setup.sh test      + a JDK, Maven, the RocketMQ jars in .setup/java/; Go, and tests/go built to .setup/go_driver;
#                              the clients of RocketMQ 5 (Python, Java, Go, Node) and Apache's gRPC proxy; kombu's tests;
#                              a PostgreSQL server, its programs' folder in .setup/postgres_bin; Prometheus; systemd-analyze; an older Spark;
#                              Chromium, its program's path in .setup/chromium, and axe-core in .setup/axe;
#                              the classes of Spark and of the official RocketMQ as JVMs map them
#   scripts/setup.sh spark X.Y...   .setup/spark-X.Y: an environment with the newest PySpark X.Y (X.Y.Z: with that one)
#
# PYTHON=... chooses the interpreter, JAVA_HOME=... the Java, GO=... the go command, NODE=... the node command,
# CHROMIUM=... the browser.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p .setup
level=${1:-test}
jvm_roots=${JVM_ROOTS:-/usr/lib/jvm /opt/java /Library/Java/JavaVirtualMachines}
go_roots=${GO_ROOTS:-/usr/local/go /usr/lib/go /usr/lib/go-1.*}
postgres_roots=${POSTGRES_ROOTS:-/usr/lib/postgresql/* /usr/pgsql-* /opt/homebrew/opt/postgresql*}
client_versions="5.5.0 4.9.7"
server_version="5.5.0"
# The Java client that speaks gRPC.
grpc_client_version="5.2.0"
# The last one with access control 1.0, whose broker judges ours.
old_server_version="5.2.0"
# Beside the newest one, which .venv has: what `make test-official` runs the connector's core on.
older_spark="4.0"

say() { printf '==> %s\n' "$*" >&2; }
stop() { printf 'setup: %s\n' "$@" >&2; exit 1; }
fingerprint() { { printf '%s ' "$@"; cat pyproject.toml scripts/setup.sh; } | cksum; }
stamped() { [ -f ".setup/$1" ] && [ "$(cat ".setup/$1")" = "$2" ]; }

# ------------------------------------------------------------------ packages of the system

is_debian() { command -v apt-get >/dev/null 2>&1; }

# apt_install WHY PACKAGE...: installs as root on Debian and Ubuntu; elsewhere stops with the exact command.
apt_install() {
  local why=$1; shift
  is_debian || stop "$why Install it with your system's package manager, then run make again."
  if [ "$(id -u)" != 0 ]; then
    stop "$why To install it run:" "    sudo apt-get update && sudo apt-get install -y $*" "and then make again."
  fi
  say "$why Installing $*"
  # A new machine often installs updates by itself: five minutes are waited for that to end.
  mkdir -p .setup && echo 'DPkg::Lock::Timeout "300";' > .setup/apt.conf
  (
    export DEBIAN_FRONTEND=noninteractive APT_CONFIG=$PWD/.setup/apt.conf
    apt-get update && apt-get install -y "$@"
  ) >&2 || return 1
  hash -r
}

# ------------------------------------------------------------------ Python

python_fits() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
  local candidate
  if [ -n "${PYTHON:-}" ]; then
    python_fits "$PYTHON" || stop "PYTHON=$PYTHON is not a Python 3.11 or later."
    echo "$PYTHON"; return
  fi
  for candidate in python3.13 python3.12 python3.11 python3; do
    if python_fits "$candidate"; then command -v "$candidate"; return; fi
  done
  stop "no Python 3.11 or later found (tried python3.13, python3.12, python3.11, python3)." \
       "Install one, or name it: make setup PYTHON=/path/to/python3.11"
}

setup_python() {
  local key python version
  key=$(fingerprint python)
  # Scripts in a .venv name its place: a copied or moved tree needs a new one.
  if [ -f .setup/place ] && [ "$(cat .setup/place)" != "$PWD" ]; then rm -rf .venv .setup/python; fi
  if stamped python "$key" && python_fits .venv/bin/python; then return; fi
  if ! python_fits .venv/bin/python || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
      apt_install "$python cannot make virtual environments (its venv and ensurepip modules are missing)." \
        "python$version-venv" || stop "installing python$version-venv failed, see above."
    fi
    say "Making .venv with $python (Python $version)"
    rm -rf .venv
    "$python" -m venv .venv || stop "$python could not make a virtual environment in $PWD/.venv, see above."
  fi
  say "Installing RocketSpark and what it needs into .venv (Spark alone is about 450 MB; a few minutes)"
  .venv/bin/python -m pip install --disable-pip-version-check -e '.[demo,dev]' >&2 ||
    stop "installing the Python packages failed, see above. Once the cause is gone, run make setup again."
  # As pip compiles a package; with PYTHONDONTWRITEBYTECODE each process that tests start would compile it anew.
  .venv/bin/python -m compileall -q src >&2 || stop "compiling src failed, see above."
  printf '%s\n' "$PWD" > .setup/place
  printf '%s\n' "$key" > .setup/python
}

# ------------------------------------------------------------------ other versions of Spark

# python_of_sparks: what the environments of Sparks are made with: the Python of .venv, but for PYTHON=...
python_of_sparks() {
  if [ -z "${PYTHON:-}" ] && python_fits .venv/bin/python; then echo .venv/bin/python; else find_python; fi
}

setup_spark() {  # X.Y or X.Y.Z
  local key made_with parts python place=.setup/spark-$1 wanted="pyspark==$1"
  [[ $1 == *.*.* ]] || wanted="$wanted.*"
  python=$(python_of_sparks)
  made_with="$PWD $("$python" -c 'import sys; print(sys.version)')"
  # With the data sets: `make demo-archive FORMAT=delta` runs there.
  parts=demo,pipelines,tests
  key="$(cksum < pyproject.toml) $parts $made_with"
  if stamped "spark-$1/made-from" "$key" && python_fits "$place/bin/python"; then return; fi
  if ! stamped "spark-$1/made-with" "$made_with" || ! python_fits "$place/bin/python"; then
    say "Making $place for Spark $1"
    rm -rf "$place"
    "$python" -m venv "$place" || stop "$python could not make a virtual environment in $PWD/$place, see above."
    printf '%s\n' "$made_with" > "$place/made-with"
  fi
  say "Installing $wanted and RocketSpark into $place (some 450 MB; a few minutes)"
  # As a constraint it holds for pyspark with extras too, of which pip would fetch each newer version to look at it.
  echo "$wanted" > "$place/constraint"
  "$place/bin/python" -m pip install -q --disable-pip-version-check -e ".[$parts]" -c "$place/constraint" "$wanted" >&2 ||
    stop "installing PySpark $1 failed, see above: the package index has to be reached once." \
         "Once the cause is gone, run make again."
  printf '%s\n' "$key" > "$place/made-from"
}

# ------------------------------------------------------------------ Java

# java_home_of JAVA: its home, if it is Java 17 or later with jdk.incubator.vector (PySpark needs that module).
java_home_of() {
  local settings version
  settings=$("$1" -XshowSettings:properties -version 2>&1) || return 1
  version=$(sed -n 's/^ *java\.specification\.version = //p' <<<"$settings")
  [ "${version%%.*}" -ge 17 ] 2>/dev/null || return 1
  "$1" --list-modules 2>/dev/null | grep '^jdk\.incubator\.vector' >/dev/null || return 1
  sed -n 's/^ *java\.home = //p' <<<"$settings"
}

# find_java java|javac: prints the home of the first Java that fits and has that tool.
find_java() {
  local candidate home
  for candidate in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)" \
      $(for root in $jvm_roots; do echo "$root"/*/bin/java "$root"/*/Contents/Home/bin/java; done); do
    [ -x "$candidate" ] || continue
    home=$(java_home_of "$candidate") || continue
    if [ -x "$home/bin/$1" ]; then echo "$home"; return 0; fi
  done
  return 1
}

setup_java() {
  local tool=$1 home package; shift
  if [ -f .setup/java_home ]; then
    home=$(cat .setup/java_home)
    if [ -x "$home/bin/$tool" ] && { [ -z "${JAVA_HOME:-}" ] || [ "$JAVA_HOME" = "$(cat .setup/java_asked 2>/dev/null)" ]; }; then
      return
    fi
  fi
  if ! home=$(find_java "$tool"); then
    for package in "$@"; do
      apt_install "No Java 17 or later with ${tool/javac/a compiler (javac) and} the module jdk.incubator.vector found." \
        "$package" || continue
      if home=$(find_java "$tool"); then break; fi
    done
    [ -n "$home" ] || stop "no fitting Java found, and $* did not bring one." \
      "Install a JDK 17 or later and name it: make setup JAVA_HOME=/path/to/jdk"
  fi
  say "Using Java at $home"
  printf '%s\n' "${JAVA_HOME:-}" > .setup/java_asked
  printf '%s\n' "$home" > .setup/java_home
}

# ------------------------------------------------------------------ the official RocketMQ jars

copy_jars() {  # PROFILE VERSION
  local target=$PWD/.setup/java/$1-$2
  say "Fetching the RocketMQ $2 $1 jars with Maven"
  rm -rf "$target"
  JAVA_HOME=$(cat .setup/java_home) mvn -B -ntp -q -Dstyle.color=never -f tests/java/pom.xml "-P$1" "-Drocketmq.version=$2" \
    dependency:copy-dependencies -DincludeScope=runtime "-DoutputDirectory=$target" >&2 ||
    stop "Maven could not fetch the RocketMQ $2 $1 jars, see above. Once the cause is gone, run make setup again."
}

setup_jars() {
  local key version
  key=$(cksum < tests/java/pom.xml)" $client_versions $server_version"
  if stamped jars "$key"; then return; fi
  command -v mvn >/dev/null 2>&1 || apt_install "Maven (mvn) is missing; it fetches the RocketMQ jars for the tests." maven ||
    stop "installing maven failed, see above."
  for version in $client_versions; do copy_jars client "$version"; done
  copy_jars server "$server_version"
  printf '%s\n' "$key" > .setup/jars
}

setup_old_jars() {
  local key
  key=$(cksum < tests/java/pom.xml)" $old_server_version"
  if stamped old_jars "$key"; then return; fi
  copy_jars server "$old_server_version"
  printf '%s\n' "$key" > .setup/old_jars
}

# ------------------------------------------------------------------ table formats and object stores for an older Spark

setup_s3a_jars() {
  local key target=$PWD/.setup/java/s3a
  key=$(cksum < tests/spark/lakehouse/pom.xml)
  if stamped s3a_jars "$key"; then return; fi
  say "Fetching the jars of s3a:// and the table formats with Maven"
  rm -rf "$target"
  JAVA_HOME=$(cat .setup/java_home) mvn -B -ntp -q -Dstyle.color=never -f tests/spark/lakehouse/pom.xml \
    dependency:copy-dependencies -DincludeScope=runtime "-DoutputDirectory=$target" >&2 ||
    stop "Maven could not fetch the jars of s3a://, see above. Once the cause is gone, run make setup again."
  printf '%s\n' "$key" > .setup/s3a_jars
}

# ------------------------------------------------------------------ the clients of RocketMQ 5, and Apache's proxy

setup_v5_jars() {
  local key
  key=$(cksum < tests/java/pom.xml)" $grpc_client_version $server_version"
  if stamped v5_jars "$key"; then return; fi
  copy_jars grpc-client "$grpc_client_version"
  copy_jars proxy "$server_version"
  printf '%s\n' "$key" > .setup/v5_jars
}

# The official client has an environment of its own: its generated modules and ours would meet in one process.
setup_v5_python() {
  local key place=.setup/python_v5
  key="$PWD $(.venv/bin/python -c 'import sys; print(sys.version)') $(cksum < tests/v5/python/requirements.txt)"
  if stamped v5_python "$key" && python_fits "$place/bin/python"; then return; fi
  say "Making $place for the Python client of RocketMQ 5"
  rm -rf "$place"
  .venv/bin/python -m venv "$place" || stop "could not make a virtual environment in $PWD/$place, see above."
  "$place/bin/python" -m pip install -q --disable-pip-version-check -r tests/v5/python/requirements.txt >&2 ||
    stop "installing the Python client of RocketMQ 5 failed, see above. Once the cause is gone, run make setup again."
  printf '%s\n' "$key" > .setup/v5_python
}

# kombu's own tests of transports, which its wheel has not.
setup_kombu() {
  local version place=.setup/kombu_source
  version=$(.venv/bin/python -c 'import kombu; print(kombu.__version__)')
  if stamped kombu "$version" && [ -f "$place/t/integration/common.py" ]; then return; fi
  say "Fetching the sources of kombu $version, for its tests of transports"
  rm -rf "$place" && mkdir -p "$place"
  { .venv/bin/python -m pip download -q --disable-pip-version-check --no-deps --no-binary kombu -d "$place" \
      "kombu==$version" && tar xzf "$place/kombu-$version.tar.gz" -C "$place" --strip-components=1; } >&2 ||
    stop "fetching the sources of kombu $version failed, see above. Once the cause is gone, run make setup again."
  printf '%s\n' "$version" > .setup/kombu
}

setup_v5_go() {
  local key go wanted
  key=$(cat tests/v5/go/* | cksum)
  if stamped v5_go "$key" && [ -x .setup/go_v5_driver ]; then return; fi
  wanted=$(sed -n 's/^go //p' tests/v5/go/go.mod)
  go=${GO:-$(find_go)} || stop "no Go found; the tests drive the Go client of RocketMQ 5, which needs Go $wanted."
  say "Building the test program with the Go client of RocketMQ 5"
  # A Go from 1.21 on fetches the newer one that is asked for.
  (cd tests/v5/go && GOTOOLCHAIN=auto CGO_ENABLED=0 "$go" build -buildvcs=false -o ../../../.setup/go_v5_driver . >&2) ||
    stop "Go could not build tests/v5/go, see above; it needs Go $wanted, and $go is $("$go" env GOVERSION)." \
      "Install one and name it: make setup GO=/path/to/go"
  printf '%s\n' "$key" > .setup/v5_go
}

node_fits() { [ "$("$1" -p 'Number(process.versions.node.split(".")[0]) >= 18' 2>/dev/null)" = true ]; }

setup_v5_node() {
  local key node=${NODE:-node}
  key=$(cksum < tests/v5/node/package.json)
  if stamped v5_node "$key" && [ -f .setup/node ] && node_fits "$(cat .setup/node)"; then return; fi
  if ! node_fits "$node" || ! command -v npm >/dev/null 2>&1; then
    apt_install "No Node 18 or later with npm found; the tests drive the Node client." nodejs npm ||
      stop "installing nodejs and npm failed, see above."
    node_fits "$node" || stop "nodejs did not bring Node 18 or later." "Install one and name it: make setup NODE=/path/to/node"
  fi
  say "Fetching the Node client of RocketMQ 5 with npm"
  mkdir -p .setup/node_v5
  cp tests/v5/node/package.json .setup/node_v5/
  npm install --prefix .setup/node_v5 --no-package-lock --no-audit --no-fund --ignore-scripts --loglevel=error >&2 ||
    stop "npm could not fetch the Node client of RocketMQ 5, see above. Once the cause is gone, run make setup again."
  command -v "$node" > .setup/node
  printf '%s\n' "$key" > .setup/v5_node
}

# ------------------------------------------------------------------ what browsers get of npm packages

setup_console() {
  local key folder=src/rocketspark/console
  key=$(cksum < "$folder/assets.toml")
  if stamped console "$key" && [ -f "$folder/static/vendor/assets.sha256" ]; then return; fi
  if ! command -v npm >/dev/null 2>&1; then
    apt_install "npm is missing; it fetches the console's files for browsers." nodejs npm ||
      stop "installing nodejs and npm failed, see above."
  fi
  say "Fetching the console's files for browsers with npm"
  .venv/bin/python "$folder/assets.py" console ||
    stop "the console's files for browsers could not be fetched, see above. Once the cause is gone, run make again."
  printf '%s\n' "$key" > .setup/console
}

# axe-core, by which tests look for faults of pages, and the script by which the site is searched from a disk.
setup_axe() {
  local key folder=src/rocketspark/console
  key=$(cksum < "$folder/assets.toml")
  if stamped axe_from "$key" && [ -d .setup/axe ] && [ -d docs/vendor ]; then return; fi
  say "Fetching axe-core and iframe-worker with npm"
  mkdir -p .setup/axe docs/vendor
  .venv/bin/python "$folder/assets.py" tests .setup/axe ||
    stop "axe-core could not be fetched, see above. Once the cause is gone, run make again."
  .venv/bin/python "$folder/assets.py" site docs/vendor ||
    stop "iframe-worker could not be fetched, see above. Once the cause is gone, run make again."
  printf '%s\n' "$key" > .setup/axe_from
}

# ------------------------------------------------------------------ the Go client's program

go_fits() {  # GO: is it 1.18 or later?
  local version
  version=$("$1" env GOVERSION 2>/dev/null) || return 1
  [[ $version =~ ^go([0-9]+)\.([0-9]+) ]] && (( BASH_REMATCH[1] > 1 || BASH_REMATCH[2] >= 18 ))
}

find_go() {
  local candidate
  for candidate in "$(command -v go || true)" $(for root in $go_roots; do echo "$root/bin/go"; done); do
    if [ -x "$candidate" ] && go_fits "$candidate"; then echo "$candidate"; return 0; fi
  done
  return 1
}

setup_go() {
  local key go
  key=$(cat tests/go/program/* | cksum)
  if stamped go "$key" && [ -x .setup/go_driver ]; then return; fi
  if [ -n "${GO:-}" ]; then
    go_fits "$GO" || stop "GO=$GO is not a Go 1.18 or later."
    go=$GO
  elif ! go=$(find_go); then
    apt_install "No Go 1.18 or later found; the tests drive the Go client." golang-go ||
      stop "installing golang-go failed, see above."
    go=$(find_go) || stop "golang-go did not bring Go 1.18 or later." \
      "Install one and name it: make setup GO=/path/to/go"
  fi
  say "Building the Go client's test program with $go"
  (cd tests/go/program && CGO_ENABLED=0 "$go" build -buildvcs=false -o ../../../.setup/go_driver . >&2) ||
    stop "Go could not build tests/go/program, see above. Once the cause is gone, run make setup again."
  printf '%s\n' "$key" > .setup/go
}

# ------------------------------------------------------------------ PostgreSQL

postgres_fits() {  # FOLDER: has it the programs of a PostgreSQL 12 or later?
  local version
  [ -x "$1/initdb" ] && version=$("$1/postgres" --version 2>/dev/null) || return 1
  [[ $version =~ ([0-9]+) ]] && (( BASH_REMATCH[1] >= 12 ))
}

find_postgres() {
  local folder program
  program=$(command -v postgres || true)
  for folder in "${program%/*}" $(for root in $postgres_roots; do echo "$root/bin"; done); do
    if [ -n "$folder" ] && postgres_fits "$folder"; then echo "$folder"; return 0; fi
  done
  return 1
}

setup_postgres() {
  local folder
  if [ -f .setup/postgres_bin ] && postgres_fits "$(cat .setup/postgres_bin)"; then return; fi
  if ! folder=$(find_postgres); then
    apt_install "No PostgreSQL 12 or later found; the tests start a server of their own." postgresql ||
      stop "installing postgresql failed, see above."
    folder=$(find_postgres) || stop "postgresql did not bring a server of PostgreSQL 12 or later."
  fi
  say "Using the PostgreSQL server in $folder"
  printf '%s\n' "$folder" > .setup/postgres_bin
}

# ------------------------------------------------------------------ Prometheus

find_prometheus() {
  local program
  program=$(command -v promtool) && [ -x "${program%/*}/prometheus" ] && echo "${program%/*}"
}

setup_prometheus() {
  local folder
  if [ -f .setup/prometheus_bin ] && [ -x "$(cat .setup/prometheus_bin)/prometheus" ]; then return; fi
  if ! folder=$(find_prometheus); then
    apt_install "No Prometheus with promtool found; the tests of boards and alerts start one." --no-install-recommends \
      prometheus || stop "installing prometheus failed, see above."
    folder=$(find_prometheus) || stop "the package prometheus did not bring prometheus and promtool."
  fi
  say "Using Prometheus in $folder"
  printf '%s\n' "$folder" > .setup/prometheus_bin
}

# ------------------------------------------------------------------ Chromium

find_chromium() {
  local candidate
  for candidate in ${CHROMIUM:+"$CHROMIUM"} chromium chromium-browser google-chrome; do
    if command -v "$candidate" 2>/dev/null; then return 0; fi
  done
  return 1
}

setup_systemd() {
  command -v systemd-analyze >/dev/null 2>&1 && return
  apt_install "No systemd-analyze found; a test checks the units in examples/deploy by it." --no-install-recommends \
    systemd || stop "installing systemd failed, see above."
}

setup_chromium() {
  local program
  if [ -f .setup/chromium ] && [ -x "$(cat .setup/chromium)" ]; then return; fi
  if ! program=$(find_chromium); then
    apt_install "No Chromium found; the tests of the console drive one." chromium ||
      stop "installing chromium failed, see above."
    program=$(find_chromium) || stop "the package chromium did not bring a browser." \
      "Install one and name it: make setup CHROMIUM=/path/to/chromium"
  fi
  say "Using the browser $program"
  printf '%s\n' "$program" > .setup/chromium
}

# ------------------------------------------------------------------ classes that JVMs map

# One file for the jars of a program: a JVM that maps it starts with half of the processor time, and tests start hundreds.
setup_classes() {
  local home key python
  home=$(cat .setup/java_home)
  key="$PWD $(cat .setup/{jars,v5_jars,java_home,python} ".setup/spark-$older_spark/made-from" "$home/release" \
    tests/support/{java,spark}_classes.py 2>/dev/null | cksum || true)"
  if stamped classes "$key"; then return; fi
  say "Writing down the classes of Spark and of the official RocketMQ for the JVMs of the tests (two minutes)"
  rm -rf .setup/java_classes .setup/spark_classes
  for python in .venv/bin/python ".setup/spark-$older_spark/bin/python"; do
    "$python" -m tests.support.spark_classes >/dev/null 2>&1 || say "The tests go on without those of Spark"
  done
  .venv/bin/python -m tests.support.java_classes >/dev/null 2>&1 || say "The tests go on without those of RocketMQ"
  printf '%s\n' "$key" > .setup/classes
}

case $level in
  python) setup_python ;;
  console) setup_python; setup_console ;;
  demo) setup_python; (setup_console) || say "The demo goes on without the console in the browser";
        setup_java java default-jre-headless default-jdk-headless openjdk-17-jdk-headless ;;
  tables) setup_java java openjdk-17-jre-headless openjdk-17-jdk-headless default-jre-headless default-jdk-headless;
          setup_spark "$older_spark" ;;
  test) setup_python; setup_java javac default-jdk-headless openjdk-17-jdk-headless; setup_jars; setup_old_jars; setup_go;
        setup_v5_jars; setup_v5_python; setup_kombu; setup_v5_go; setup_v5_node; setup_console; setup_axe; setup_postgres;
        setup_prometheus; setup_systemd; setup_chromium; setup_spark "$older_spark"; setup_s3a_jars; setup_classes ;;
  spark) shift; for version in "$@"; do setup_spark "$version"; done ;;
  *) stop "unknown level '$level' (python, console, demo, tables, test or spark)." ;;
esac
