"""Runs of functions on ranks: results, errors, waiting without the interpreter's lock, signals, exit, MPI, policies and seeds."""

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import pytest

import shard
from shard import Layout, Partial, ProcessMesh, Replicate, Shard

PAIR = ProcessMesh([2], ["p"])


def ones(n=4, layout="p"):
    return shard.ones([n], layout=Layout(PAIR, layout))


def script(text, *launcher, timeout=60, env=None):
    """Runs a program in a process of its own, and returns what it has printed. Fails if it does not end in time."""
    command = [*launcher, sys.executable, "-c", textwrap.dedent(text)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env={**os.environ, **(env or {})})
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return done.stdout


def start_script(text):
    command = [sys.executable, "-u", "-c", textwrap.dedent(text)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def interrupt_when_ready(process, timeout=20):
    assert process.stdout.readline().strip() == "ready"
    time.sleep(0.5)
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return output, time.monotonic() - begin


def test_results_come_by_rank():
    assert shard.run(lambda: (shard.rank(), shard.world_size(), shard.in_world()), 3) == [(i, 3, True) for i in range(3)]
    assert shard.run(lambda a, b: a + b, 2, args=(1,), kwargs={"b": 2}) == [3, 3]
    assert len(shard.run(lambda: None)) == 4
    assert not shard.in_world()


def test_there_is_no_rank_outside_of_a_run():
    for call in (shard.rank, shard.world_size, shard.get_policies):
        with pytest.raises(shard.LayoutError, match="World::run"):
            call()


def test_wrong_arguments_of_run_are_refused():
    with pytest.raises(TypeError, match="argument 'fn' must be callable, not int"):
        shard.run(3)
    with pytest.raises(TypeError, match="argument 'nranks' must be int"):
        shard.run(print, "4")
    with pytest.raises(shard.ArgumentError, match="at least one rank"):
        shard.run(print, 0)
    with pytest.raises(shard.ArgumentError, match="timeout"):
        shard.run(print, 1, timeout=0)
    with pytest.raises(TypeError, match="argument 'devices'"):
        shard.run(print, 1, devices=[3])


def test_the_first_exception_comes_with_its_traceback_and_rank():
    class Mine(Exception):
        pass

    def deeper():
        raise Mine("wrong")

    def program():
        if shard.rank() == 2:
            deeper()
        mesh = ProcessMesh([4])
        shard.full_tensor(shard.ones([4], layout=Layout(mesh, [Shard(0)])))

    with pytest.raises(Mine, match="wrong") as caught:
        shard.run(program, 4)
    names = []
    trace = caught.value.__traceback__
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert names[-2:] == ["program", "deeper"]
    assert caught.value.__notes__ == ["raised by rank 2 of 4"]


def test_other_ranks_learn_why_their_collective_failed():
    seen = {}

    def program():
        if shard.rank() == 0:
            raise ValueError("out of cheese")
        try:
            ones().full_tensor()
        except shard.CommunicationError as error:
            seen[shard.rank()] = (error.code, str(error))
            raise

    with pytest.raises(ValueError, match="out of cheese"):
        shard.run(program, 2)
    assert seen[1][0] == "peer_failed" and "rank 0 failed: ValueError: out of cheese" in seen[1][1]


def test_a_collective_that_others_do_not_join_times_out():
    def program():
        if shard.rank() == 0:
            ones().full_tensor()

    begin = time.monotonic()
    with pytest.raises(shard.CommunicationError, match="rank 1 never joined"):
        shard.run(program, 2, timeout=0.3)
    assert time.monotonic() - begin < 10


def test_ranks_that_diverge_are_told():
    def program():
        x = shard.ones([4, 4], layout=Layout(PAIR, "p, -"))
        x.reshard("-, p") if shard.rank() == 0 else x.reshard("-, -")

    with pytest.raises(shard.CommunicationError, match="diverged"):
        shard.run(program, 2)


def test_system_exit_and_base_exceptions_pass():
    def program():
        if shard.rank() == 1:
            sys.exit(3)
        ones().full_tensor()

    with pytest.raises(SystemExit) as caught:
        shard.run(program, 2)
    assert caught.value.code == 3


def test_a_rank_may_run_another_world():
    def inner():
        return shard.rank(), shard.world_size()

    def program():
        before = shard.rank()
        result = shard.run(inner, 3)
        assert shard.rank() == before
        return result

    assert shard.run(program, 2) == [[(0, 3), (1, 3), (2, 3)]] * 2


def test_runs_of_several_threads_do_not_disturb_each_other():
    results = {}

    def run(i):
        results[i] = shard.run(lambda: ones(4 + i).full_tensor().shape, 2)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert results == {i: [(4 + i,)] * 2 for i in range(4)}


def test_tensors_may_outlive_their_world():
    tensors = shard.run(lambda: (ones(), ones().local(), shard.zeros([2])), 2)
    for _ in range(3):
        shard.run(lambda: ones(), 2)
    gc.collect()
    for x, local, plain in tensors:
        assert x.shape == (4,) and x.layout.text == "[p]" and x.local is not None
        assert shard.sum(local).item() == 2.0 and shard.sum(plain).item() == 0.0
        with pytest.raises(shard.LayoutError):
            x + 1

    def other():
        with pytest.raises(shard.LayoutError):
            tensors[0][0] + 1

    shard.run(other, 2)


def test_tensors_with_collectives_in_flight_may_outlive_a_world_that_failed():
    kept = []

    def program():
        x = shard.ones([4], layout=Layout(PAIR, "p"))
        kept.append((x, x.reshard_async("-")))
        if shard.rank() == 1:
            raise ValueError("stop")
        time.sleep(0.1)
        ones().full_tensor()

    with pytest.raises(ValueError, match="stop"):
        shard.run(program, 2)
    shard.run(lambda: None, 2)
    kept.clear()
    gc.collect()
    shard.run(lambda: None, 2)


def test_what_a_failed_run_held_is_freed():
    class Held:
        pass

    refs = []

    def program():
        held = Held()
        refs.append(weakref.ref(held))
        raise ValueError("stop")

    with pytest.raises(ValueError):
        shard.run(program, 2)
    gc.collect()
    assert all(ref() is None for ref in refs)


DROP = """
    import threading
    import shard
    from shard import Layout, ProcessMesh

    mesh = ProcessMesh([2], ["p"])
    barrier = threading.Barrier(2)

    def program():
        x = shard.ones([64], layout=Layout(mesh, "p"))
        if shard.rank() == 0:
            y = x.reshard_async("-")
            barrier.wait()
            del y, x          # waits for rank 1, which needs the interpreter to join
        else:
            barrier.wait()
            import time
            time.sleep(0.2)
            y = x.reshard_async("-")
            del y
        return shard.rank()

    print(shard.run(program, 2, timeout=10))
"""


def test_dropping_a_tensor_that_others_have_not_joined_does_not_block_them():
    begin = time.monotonic()
    assert script(DROP).strip() == "[0, 1]"
    assert time.monotonic() - begin < 9  # not by a timeout, which a destructor hides


def test_the_garbage_collector_may_find_a_tensor_of_another_rank():
    output = script(
        """
        import gc, threading, time
        import shard
        from shard import Layout, ProcessMesh

        mesh = ProcessMesh([2], ["p"])
        barrier = threading.Barrier(2)
        gc.disable()

        class Node:
            pass

        def program():
            for step in range(20):
                if shard.rank() == 1:
                    node = Node()
                    node.cycle = node
                    x = shard.ones([1 << 12], layout=Layout(mesh, "p"))
                    node.y = x.reshard_async("-")
                    del x, node
                barrier.wait()
                if shard.rank() == 0:
                    begin = time.monotonic()
                    gc.collect()             # frees a tensor of rank 1, whose collective this rank has not joined
                    assert time.monotonic() - begin < 2
                    shard.ones([1 << 12], layout=Layout(mesh, "p")).reshard_async("-")
                barrier.wait()
            return shard.sum(shard.ones([4], layout=Layout(mesh, "p"))).item()

        print(shard.run(program, 2, timeout=10))
        """
    )
    assert output.strip() == "[4.0, 4.0]"


def test_ctrl_c_ends_ranks_that_wait_for_others():
    process = start_script(
        """
        import threading
        import shard
        from shard import Layout, ProcessMesh
        mesh = ProcessMesh([2], ["p"])

        def program():
            if shard.rank() == 0:
                print("ready")
                shard.ones([4], layout=Layout(mesh, "p")).full_tensor()
            else:
                while True:
                    pass

        try:
            shard.run(program, 2, timeout=600)
        except KeyboardInterrupt as error:
            print("interrupted", getattr(error, "__notes__", []))
        print(shard.run(lambda: shard.rank(), 2))
        """
    )
    output, seconds = interrupt_when_ready(process)
    assert "interrupted []" in output and "[0, 1]" in output, output
    assert seconds < 10 and process.returncode == 0


def test_ctrl_c_does_not_wait_for_ranks_that_sleep():
    process = start_script(
        """
        import time
        import shard

        def program():
            if shard.rank() == 0:
                print("ready")
            time.sleep(600)

        try:
            shard.run(program, 2)
        except KeyboardInterrupt as error:
            print("interrupted", error.__notes__)
        """
    )
    output, seconds = interrupt_when_ready(process, timeout=30)
    assert "interrupted ['some ranks go on" in output, output
    assert seconds < 20 and process.returncode == 0


def test_ctrl_c_reaches_runs_within_runs():
    process = start_script(
        """
        import shard
        from shard import Layout, ProcessMesh

        def inner():
            if shard.rank() == 0:
                print("ready", flush=True)
                shard.ones([4], layout=Layout(ProcessMesh([2]), "a")).full_tensor()
            while True:
                pass

        def outer():
            shard.run(inner, 2, timeout=600)

        try:
            shard.run(outer, 1)
        except KeyboardInterrupt:
            print("interrupted")
        """
    )
    output, seconds = interrupt_when_ready(process)
    assert "interrupted" in output and seconds < 10 and process.returncode == 0, output


def test_processes_exit_while_threads_still_run_ranks():
    output = script(
        """
        import threading, time
        import shard
        from shard import Layout, ProcessMesh
        mesh = ProcessMesh([2], ["p"])

        def program():
            kept = [shard.ones([4], layout=Layout(mesh, "p"))]
            kept.append(kept)
            if shard.rank() == 0:
                kept[0].full_tensor()
            while True:
                time.sleep(0.001)

        threading.Thread(target=lambda: shard.run(program, 2), daemon=True).start()
        time.sleep(0.3)
        print("done")
        """
    )
    assert output.strip() == "done"


def test_processes_exit_with_tensors_and_worlds_alive():
    output = script(
        """
        import shard
        from shard import Layout, ProcessMesh
        mesh = ProcessMesh([2], ["p"])
        kept = shard.run(lambda: (shard.ones([4], layout=Layout(mesh, "p")), shard.ones([2])), 2)
        kept.append(kept)
        import builtins
        builtins.more = kept
        print("done")
        """
    )
    assert output.strip() == "done"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_computes():
    output = script(
        """
        import multiprocessing
        import shard
        from shard import Layout, ProcessMesh

        def compute(n):
            mesh = ProcessMesh([2], ["p"])
            total = shard.sum(shard.ones([n])).item()
            ranks = shard.run(lambda: shard.sum(shard.ones([n], layout=Layout(mesh, "p"))).item(), 2)
            return total, ranks

        if __name__ == "__main__":
            print(compute(64))
            with multiprocessing.get_context("fork").Pool(2) as pool:
                print(pool.map(compute, [4, 8]))
        """
    )
    assert output.splitlines() == ["(64.0, [64.0, 64.0])", "[(4.0, [4.0, 4.0]), (8.0, [8.0, 8.0])]"]


def test_threads_of_ranks_leave_no_state_behind():
    for _ in range(20):
        shard.run(lambda: threading.get_ident(), 4)
    assert len(sys._current_frames()) <= threading.active_count() + 1


# --- policies, seeds, devices ---


def test_policies_hold_for_a_scope():
    def program():
        x = shard.ones([4], layout=Layout(PAIR, "p"))
        before = shard.get_policies()
        with shard.policies(comm="forbid", view="sync"):
            assert shard.get_policies() == {**before, "comm": "forbid", "view": "sync"}
            with shard.policies(sums="rounded"):
                assert shard.get_policies()["sums"] == "rounded" and shard.get_policies()["comm"] == "forbid"
            with pytest.raises(shard.PolicyError):
                shard.add(x, x.reshard_async("-")) if False else shard.cumsum(shard.sort(x) if hasattr(shard, "sort") else shard.argsort(x))
        try:
            with shard.policies(comm="forbid"):
                raise KeyError
        except KeyError:
            pass
        assert shard.get_policies() == before
        return before

    assert shard.run(program, 2)[0]["view"] == "strict"


def test_names_of_policies_that_do_not_exist_are_refused():
    def program():
        before = shard.get_policies()
        with pytest.raises(shard.ArgumentError, match="view, inplace, comm, fallback, promotion, save, sums"):
            with shard.policies(comms="forbid"):
                pass
        with pytest.raises(shard.ArgumentError, match="'allow', 'warn', 'forbid', 'forbid_reshards'"):
            with shard.policies(view="sync", comm="never"):
                pass
        assert shard.get_policies() == before

    shard.run(program, 2)


def numbers(x):
    return [shard.sum(x * shard.arange(0, x.size, dtype="float32")).item(), shard.sum(x).item()]


def test_seeds_repeat_random_numbers_of_threads_and_ranks():
    with shard.seed(7):
        first = numbers(shard.gaussian([8]))
        second = numbers(shard.gaussian([8]))
    shard.manual_seed(7)
    assert numbers(shard.gaussian([8])) == first != second
    with shard.seed(1):
        shard.gaussian([8])
    assert numbers(shard.gaussian([8])) == second  # the scope has restored the generator

    def program(seed):
        layout = Layout(PAIR, "p")
        made = [numbers(shard.gaussian([8], layout=layout).full_tensor())]
        with shard.seed(seed):
            made.append(numbers(shard.gaussian([8], layout=layout).full_tensor()))
            made.append(numbers(shard.gaussian([8])))
        shard.manual_seed(seed)
        made.append(numbers(shard.gaussian([8], layout=layout).full_tensor()))
        return made

    a, b = shard.run(program, 2, args=(7,), seed=5)
    assert a == b and a[1] == a[2] == a[3] == first and a[0] != first
    assert shard.run(program, 2, args=(7,), seed=5)[0] == a
    assert shard.run(program, 2, args=(7,), seed=6)[0][0] != a[0]
    with pytest.raises(TypeError, match="argument 'n'"):
        shard.manual_seed("x")


def test_default_devices_are_scopes():
    assert shard.get_default_device() == shard.Device("cpu")
    with shard.default_device("cpu") as device:
        assert device == shard.Device("cpu") and shard.zeros([2]).device == device
        with shard.default_device(shard.Device("cpu")):
            pass
    with pytest.raises(shard.ArgumentError, match="there is no device|no backend|cpu"):
        shard.default_device("abacus")
    with pytest.raises(TypeError, match="argument 'device'"):
        shard.default_device(3)
    assert shard.run(lambda: str(shard.get_default_device()), 2, devices="cpu") == ["cpu", "cpu"]


# --- traces ---


def test_a_run_writes_its_trace(tmp_path):
    path = tmp_path / "step.json"
    shard.run(lambda: shard.sum(ones()).item(), 2, trace=path)
    events = json.loads(path.read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    names = {event.get("name") for event in events}
    assert "all_reduce" in names and "sum" in names
    assert shard.save_trace(tmp_path / "again.json") == [str(tmp_path / "again.json")]
    with pytest.raises(shard.ArgumentError, match="cannot write"):
        shard.save_trace(tmp_path / "nowhere" / "step.json")
    with pytest.raises(shard.ArgumentError, match="ranks are running"):
        shard.run(lambda: shard.save_trace(tmp_path / "inside.json"), 1)


# --- MPI ---

MPI = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n"]
needs_mpi = pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun")

JOB = """
    {first}
    import shard
    from shard import Layout, ProcessMesh
    {second}
    mesh = ProcessMesh([4], ["p"])

    def program(n):
        x = shard.ones([n], layout=Layout(mesh, "p"))
        return shard.rank(), shard.world_size(), shard.sum(x).item()

    [result] = shard.run(program, 2, args=(8,))
    [again] = shard.run(program, args=(12,))
    assert again == (result[0], 4, 12.0), again
    assert shard.in_mpi_job()
    {last}
    print("rank", *result, flush=True)
"""


@needs_mpi
@pytest.mark.parametrize(
    "first, second, last",
    [
        ("", "", ""),
        ("from mpi4py import MPI", "", "assert MPI.COMM_WORLD.allreduce(1) == 4"),
        ("", "", "from mpi4py import MPI; assert MPI.COMM_WORLD.allreduce(1) == 4"),
    ],
    ids=["alone", "after mpi4py", "before mpi4py"],
)
def test_the_same_script_runs_under_mpi(first, second, last):
    if "mpi4py" in first + last:
        pytest.importorskip("mpi4py")
    output = script(JOB.format(first=first, second=second, last=last), *MPI, "4")
    assert sorted(output.splitlines()) == [f"rank {i} 4 8.0" for i in range(4)]


@needs_mpi
def test_a_rank_of_mpi_that_fails_fails_the_others():
    output = script(
        """
        import shard
        from shard import Layout, ProcessMesh

        def program():
            if shard.rank() == 1:
                raise ValueError("mine")
            shard.ones([4], layout=Layout(ProcessMesh([2]), "a")).full_tensor()

        try:
            shard.run(program)
        except Exception as error:
            print(type(error).__name__, str(error)[:60], flush=True)
        """,
        *MPI,
        "2",
    )
    lines = sorted(output.splitlines())
    assert lines[1].startswith("ValueError mine") and lines[0].startswith("CommunicationError") and "rank 1 failed" in lines[0]


@needs_mpi
def test_a_rank_of_mpi_that_waits_can_be_interrupted():
    process = subprocess.Popen(
        [*MPI, "2", sys.executable, "-u", "-c", textwrap.dedent("""
            import os, signal, threading, time
            import shard
            from shard import Layout, ProcessMesh

            def program():
                x = shard.ones([4], layout=Layout(ProcessMesh([2]), "a"))
                if shard.rank() == 0:
                    threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
                    x.full_tensor()
                else:
                    time.sleep(3)
                    x.full_tensor()

            try:
                shard.run(program, timeout=600)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            except shard.CommunicationError as error:
                print("peer", error.code, flush=True)
            """)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    try:
        output, _ = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert "interrupted" in output and "peer peer_failed" in output, output
