"""Programs in processes of their own, for tests of what may hang or end a process."""

import shutil
import signal
import subprocess
import sys
import textwrap
import time

import pytest

MPI = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n"]
needs_mpi = pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun")


def script(text, *launcher, fails=False):
    """Runs a program in a process of its own, and returns what it has printed. Fails if it does not end in time."""
    command = [*launcher, sys.executable, "-c", textwrap.dedent(text)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert fails or done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return done.stdout


def start_script(text):
    command = [sys.executable, "-u", "-c", textwrap.dedent(text)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=take_interrupts
    )


def take_interrupts():
    """Shells start programs in the background with interrupts ignored, which their children inherit; Python raises none then."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupt_when_ready(process, timeout=20):
    assert process.stdout.readline().strip() == "ready"
    time.sleep(1.0)  # what follows "ready" has begun then, on a busy machine too
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return output, time.monotonic() - begin
