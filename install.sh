#!/usr/bin/env bash
# Makes the virtual environment and installs kvalet with everything its tests need.
# llama.cpp is compiled from source, which takes minutes, so a line with the time goes out while it works.
set -euo pipefail
PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}
LOG=$VENV/install.log

say() { printf '[install] %s\n' "$*"; }
fail() { say "$1"; exit 1; }

command -v "$PYTHON" >/dev/null || fail "no '$PYTHON' here: install Python 3.11 or newer, or run 'make PYTHON=/path/to/python3'"
"$PYTHON" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' || fail "'$PYTHON' is $("$PYTHON" -V 2>&1): kvalet needs Python 3.11 or newer"
command -v c++ >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || fail "no C++ compiler here: install g++ or clang (Debian: apt-get install g++)"
"$PYTHON" -c 'import venv, ensurepip' 2>/dev/null || fail "this Python has no venv module (Debian: apt-get install python3-venv)"

[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"

# Runs a command with its output in the log and a line every 15 s, so that a long compile is seen to live.
step() {
    local what=$1; shift
    local start=$SECONDS
    say "$what"
    "$@" >>"$LOG" 2>&1 &
    local pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        sleep 1
        if (( (SECONDS - start) % 15 == 14 )); then
            say "  ... $((SECONDS - start)) s, last line: $(tail -n 1 "$LOG" | cut -c 1-100)"
        fi
    done
    if ! wait "$pid"; then
        tail -n 40 "$LOG"
        fail "$what: failed; the whole log is in $LOG"
    fi
    say "  done in $((SECONDS - start)) s"
}

: >"$LOG"
step "upgrading pip" "$VENV/bin/python" -m pip install --upgrade pip
step "llama.cpp through llama-cpp-python (compiles from source, about 6 minutes on 2 cores)" \
    "$VENV/bin/python" -m pip install -v -c constraints.txt llama-cpp-python
step "kvalet and what its tests need" "$VENV/bin/python" -m pip install -c constraints.txt -e '.[models,dev]'
say "ready: $VENV/bin/kvalet serve"
