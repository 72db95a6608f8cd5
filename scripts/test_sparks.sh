#!/usr/bin/env bash
# Runs the connector's core tests (the mark every_spark) on the newest release of each minor version of Spark. Each has
# an environment of its own in .setup/spark-X.Y, made by scripts/setup.sh. Fails if the tests fail on one.
#
#   SPARKS="4.0 4.1"   these instead of all; 4.0.0 is that release
#   CORE="FILE ..."    the tests of these files alone
#   PYTHON=...         the interpreter of the environments
#   arguments          go to pytest
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
known="4.0 4.1 4.2 4.3"
# Ctrl-C ends the tests that run, and begins no others.
trap 'exit 130' INT

say() { printf '==> %s\n' "$*" >&2; }

for version in ${SPARKS:-}; do
  case " $known " in *" $(cut -d. -f1,2 <<<"$version") "*) ;; *) say "SPARKS=$SPARKS: only these are known: $known"; exit 2 ;; esac
done

JAVA_HOME=$(cat .setup/java_home) || exit 1
export JAVA_HOME
java=$("$JAVA_HOME/bin/java" -XshowSettings:properties -version 2>&1 | sed -n 's/^ *java\.specification\.version = //p')
passed=() failed=()
for version in ${SPARKS:-$known}; do
  place=$PWD/.setup/spark-$version
  if [[ $version == 4.[01]* ]] && [ "${java%%.*}" -ge 24 ]; then
    say "Spark $version does not start on Java $java. Choose 17 or 21: make setup JAVA_HOME=/path/to/jdk"
    failed+=("$version (Java $java)"); continue
  fi
  if ! scripts/setup.sh spark "$version"; then failed+=("$version (its environment)"); continue; fi
  release=$("$place/bin/python" -c 'import pyspark; print(pyspark.__version__)') || release="$version (no PySpark)"
  say "Spark $release"
  # Its programs first on the path: Spark takes the first python3.
  if PATH="$place/bin:$PATH" PYSPARK_PYTHON=$place/bin/python PYSPARK_DRIVER_PYTHON=$place/bin/python \
      "$place/bin/python" -m pytest ${CORE:-tests/unit/spark tests/unit/tables tests/spark} -m "every_spark and not official and not soak" \
      -n "${WORKERS:-2}" --dist loadscope -p no:cacheprovider "$@"; then
    passed+=("$release")
  else
    failed+=("$release")
  fi
done
say "Spark: passed on ${passed[*]:-none}; failed on ${failed[*]:-none}"
[ ${#failed[@]} = 0 ]
