"""Waiting for other ranks without the interpreter's lock, Ctrl-C, and the end of the program."""

import os
import sys
import threading
import time

import pytest

import shard
from processes import interrupt_when_ready, script, start_script

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
            kept = []
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
                    kept.append(shard.ones([1 << 12], layout=Layout(mesh, "p")).reshard_async("-"))
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


def test_ctrl_c_ends_a_collective_that_waits_for_a_rank_that_sleeps():
    process = start_script(
        """
        import time
        import shard
        from shard import Layout, ProcessMesh

        def program():
            if shard.rank() == 1:
                time.sleep(600)
            print("ready")
            try:
                try:
                    shard.ones([4], layout=Layout(ProcessMesh([2]), "a")).full_tensor()
                except shard.CommunicationError as error:
                    print("failed:", error.code, error)
                    raise
            except KeyboardInterrupt as interrupt:  # Python 3.10 raises it before the first line of the handler
                print("failed:", interrupt.__context__.code, interrupt.__context__)
                raise

        try:
            shard.run(program, 2, timeout=600)
        except KeyboardInterrupt as error:
            print("interrupted", error.__notes__)
        """
    )
    output, seconds = interrupt_when_ready(process)
    assert "failed: peer_failed" in output and "the run was interrupted" in output, output
    assert "interrupted ['some ranks go on" in output and seconds < 15


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
    assert "interrupted" in output and seconds < 4 and process.returncode == 0, output


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


@pytest.mark.parametrize("work", ["shard.matmul(x, x) * 0.0 + 1.0", "shard.run(lambda: x * 2, 2)"], ids=["ops", "runs"])
def test_processes_exit_while_daemon_threads_compute(work):
    output = script(
        f"""
        import threading, time
        import shard

        def loop():
            x = shard.ones([200, 200])
            while True:
                try:
                    {work}
                except shard.Error:  # the program is ending
                    pass

        for _ in range(3):
            threading.Thread(target=loop, daemon=True).start()
        time.sleep(0.2)
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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_ranks_may_fork():
    output = script(
        """
        import multiprocessing, os, sys, threading
        import shard
        from shard import Layout, ProcessMesh

        def square(n):
            x = shard.full([n], 3.0).requires_grad_()
            (x * x).sum().backward()
            return x.grad.tolist()

        def program():
            mesh = ProcessMesh([2], ["p"])
            total = shard.sum(shard.ones([4], layout=Layout(mesh, "p"))).item()
            statuses = []
            if shard.rank() == 0:
                for end in ("return", "exit", "raise"):
                    child = os.fork()
                    if child == 0:
                        assert not shard.in_world() and square(2) == [6.0, 6.0]
                        assert shard.run(lambda: shard.rank(), 2) == [0, 1]
                        if end == "exit":
                            sys.exit(3)
                        if end == "raise":
                            raise ValueError("in the child")
                        print("child", flush=False)
                        return None
                    statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
                with multiprocessing.get_context("fork").Pool(1) as pool:
                    statuses.append(pool.map(square, [1]))
            return total + shard.sum(shard.ones([4], layout=Layout(mesh, "p"))).item(), statuses

        print(shard.run(program, 2, timeout=30), flush=True)
        """
    )
    assert output.splitlines() == ["child", "[(8.0, [0, 3, 1, [[6.0]]]), (8.0, [])]"]


def test_threads_of_ranks_leave_no_state_behind():
    for _ in range(20):
        shard.run(lambda: threading.get_ident(), 4)
    assert len(sys._current_frames()) <= threading.active_count() + 1
