#!/usr/bin/env python3
"""Shows that the tests of CUDA kernels find faults: builds the kernels with each fault of mutations.py in turn, and demands that the
test which is named there fails. Nothing of the build is changed: the changed source, its object and the linked test program are in a
folder of their own, which is removed at the end.

    tests/cuda/mutations/run_mutations.py build-dev            # all of them, about 15 minutes of one core
    tests/cuda/mutations/run_mutations.py build-dev --only N   # those whose names contain N
    tests/cuda/mutations/run_mutations.py build-dev --list
"""
import argparse
import contextlib
import dataclasses
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time

from mutations import KERNELS, MUTATIONS

SOURCE = pathlib.Path(__file__).resolve().parents[3]
OBJECTS = "tests/cuda/host/CMakeFiles/shard_cuda_model_kernels.dir/__/__/__/runtime/shard/kernels/cuda"
COMPILE_SECONDS = 600


class Failure(Exception):
    pass


def command_of(build, target):
    """The arguments of the command by which Ninja makes a target."""
    done = subprocess.run(["ninja", "-C", build, "-t", "commands", "-s", target], capture_output=True, text=True)
    if done.returncode != 0 or not done.stdout.strip():
        raise Failure(f"ninja knows no command for {target}: {done.stderr.strip()}")
    lines = [line for line in done.stdout.splitlines() if not line.startswith("ninja: ")]
    return lines[-1]


def shell(build, command, what):
    done = subprocess.run(command, cwd=build, shell=True, capture_output=True, text=True, timeout=COMPILE_SECONDS)
    if done.returncode != 0:
        raise Failure(f"{what} failed:\n{(done.stdout + done.stderr)[-3000:]}")


def mutated_text(one):
    text = (SOURCE / KERNELS / one.file).read_text()
    if text.count(one.old) != 1:
        raise Failure(f"{KERNELS}/{one.file} has this text {text.count(one.old)} times, and should have it once:\n{one.old}")
    return text.replace(one.old, one.new)


def compile_mutant(build, one, scratch):
    """The object of the source file with the fault, which may be in a header that it includes."""
    mutant = scratch / "include" / KERNELS.removeprefix("runtime/") / one.file
    mutant.parent.mkdir(parents=True, exist_ok=True)
    mutant.write_text(mutated_text(one))
    name = f"{OBJECTS}/{one.source}.o"
    words = shlex.split(command_of(build, name))
    compiler = words.index("-c")
    target = str(scratch / "mutant.o")
    words = [target if word == name else word for word in words]
    words = [str(scratch / "mutant.d") if word == name + ".d" else word for word in words]
    if one.file == one.source:
        words[compiler + 1] = str(mutant)
    first = next(i for i, word in enumerate(words) if word.startswith("-I"))
    words[first:first] = ["-w", f"-I{scratch / 'include'}"]  # found before the header that it replaces
    shell(build, shlex.join(words), f"the compilation of {one.source}")
    return target


def link_mutant(build, one, target, scratch):
    """The test program with the object in the place of the one without the fault. It comes first: of templates that several objects
    have, the linker takes the first."""
    program = scratch / one.program
    command = command_of(build, f"tests/{one.program}")
    links = [part for part in command.split("&&") if " -o " in part]
    if len(links) != 1:
        raise Failure(f"the command that links {one.program} has {len(links)} parts with -o: {command}")
    words = shlex.split(links[0])
    words[words.index("-o") + 1] = str(program)
    name = f"{OBJECTS}/{one.source}.o"
    if words.count(name) != 1:
        raise Failure(f"{one.program} is linked {words.count(name)} times with {name}, and should be once")
    words.remove(name)
    words.insert(next(i for i, word in enumerate(words) if word.endswith(".o")), target)
    shell(build, shlex.join(words), f"linking {one.program}")
    return program


def run_test(program, one):
    """The exit status of the test and its output."""
    try:
        test = one.test.replace(",", "\\,")  # else it is a list of tests
        done = subprocess.run([program, test], cwd=program.parent, capture_output=True, text=True, errors="replace",
                              timeout=one.seconds)
    except subprocess.TimeoutExpired:
        return "timeout", ""
    return done.returncode, done.stdout + done.stderr


def check_unmutated(build, one, scratch):
    """The same source without the fault, compiled and linked by the same commands, passes: it is the fault that tests find."""
    unmutated = dataclasses.replace(one, new=one.old)
    target = compile_mutant(build, unmutated, scratch)
    status, output = run_test(link_mutant(build, unmutated, target, scratch), one)
    if status != 0 or "No test cases matched" in output or "skipped: " in output:
        raise Failure(f"without a fault, {one.program} \"{one.test}\" does not pass (status {status}):\n{output[-3000:]}")


FINDING = re.compile(
    r"with no barrier in between|never written|it is in no \w+|by another block|does not name the calling lane|takes no part in it|"
    r"threads reach the barrier|of the block waits at|cannot be launched"
)


def how_caught(output):
    """What the test says of the fault, in a few words."""
    finding = FINDING.search(" ".join(output.split()))  # the lines of which are wrapped
    return f"the model: {finding.group()}" if finding else "wrong values"


def check_mutant(build, one, scratch):
    """How the test finds the fault."""
    target = compile_mutant(build, one, scratch)
    status, output = run_test(link_mutant(build, one, target, scratch), one)
    if status == 0:
        raise Failure(f"SURVIVES: {one.program} \"{one.test}\" passes with this fault")
    if status == "timeout":
        raise Failure(f"{one.program} \"{one.test}\" does not end within {one.seconds} s with this fault")
    if "FAILED:" not in output or "fatal error condition" in output:
        raise Failure(f"{one.program} \"{one.test}\" ends with status {status} and neither a finding nor a wrong value:\n"
                      f"{output[-3000:]}")
    return how_caught(output)


@contextlib.contextmanager
def scratch_folder(build, one):
    """An empty folder, of the same name in each run, so that ccache knows the compilation; objects and programs are large."""
    folder = build / "tests/mutants" / re.sub(r"\W+", "_", one.name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, help="the folder of a build with Ninja, with its tests built")
    parser.add_argument("--only", help="faults whose names contain this")
    parser.add_argument("--ctest", action="store_true", help="the few that CTest runs")
    parser.add_argument("--list", action="store_true", help="print the faults, and do nothing")
    options = parser.parse_args()
    chosen = [one for one in MUTATIONS if (not options.ctest or one.in_ctest)
              and (options.only is None or options.only in one.name)]
    if not chosen:
        sys.exit("no fault has such a name")
    if options.list:
        for one in chosen:
            print(f"{one.name} [{one.kind}] in {one.file}: {one.program} \"{one.test}\"")
        return
    build = options.build.resolve()
    failures, passed = [], set()
    for one in chosen:
        start = time.monotonic()
        try:
            if (one.file, one.source, one.test) not in passed:
                with scratch_folder(build, one) as scratch:
                    check_unmutated(build, one, scratch)
                passed.add((one.file, one.source, one.test))
            with scratch_folder(build, one) as scratch:
                result = "found by " + check_mutant(build, one, scratch)
        except (Failure, subprocess.TimeoutExpired) as problem:
            failures.append(one.name)
            result = f"FAILED: {problem}"
        print(f"{one.name} [{one.kind}]: {result} ({time.monotonic() - start:.0f} s)", flush=True)
    print(f"{len(chosen) - len(failures)} of {len(chosen)} faults are found")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
