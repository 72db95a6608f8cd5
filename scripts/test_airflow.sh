#!/usr/bin/env bash
# Runs tests/airflow/checks.py in .setup/airflow: Airflow has some 130 packages of its own, which .venv does without.
# Arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
place=.setup/airflow
key=$(cksum < pyproject.toml)" $PWD"
if [ "$(cat "$place/made-from" 2>/dev/null)" != "$key" ]; then
  echo "==> Making $place (some 400 MB)" >&2
  rm -rf "$place"
  .venv/bin/python -m venv "$place"
  "$place/bin/python" -m pip install -q --disable-pip-version-check -e '.[airflow]' pytest pytest-timeout >&2
  printf '%s\n' "$key" > "$place/made-from"
fi
exec "$place/bin/python" -m pytest -q --noconftest -p no:cacheprovider "$@" tests/airflow/checks.py
