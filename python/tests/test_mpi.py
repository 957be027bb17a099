"""The same programs in a job of MPI."""

import re
import subprocess
import sys
import textwrap
import time

import pytest

from processes import MPI, needs_mpi, script

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
    print("rank {{}} {{}} {{}}".format(*result), flush=True)
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
    assert sorted(re.findall(r"rank \d 4 8.0", output)) == [f"rank {i} 4 8.0" for i in range(4)]


@needs_mpi
def test_each_rank_of_mpi_writes_a_trace(tmp_path):
    text = f"""
        import shard
        from shard import Layout, ProcessMesh
        x = shard.run(lambda: shard.sum(shard.ones([4], layout=Layout(ProcessMesh([2]), "a"))).item(), trace={str(tmp_path / "step.json")!r})
        """
    script(text, *MPI, "2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step.rank0.json", "step.rank1.json"]
    assert "all_reduce" in (tmp_path / "step.rank1.json").read_text()


@needs_mpi
def test_a_rank_of_mpi_that_fails_fails_the_others():
    output = script(
        """
        import time
        import shard
        from shard import Layout, ProcessMesh

        def program():
            if shard.rank() == 1:
                raise ValueError("mine")
            shard.ones([4], layout=Layout(ProcessMesh([2]), "a")).full_tensor()

        try:
            shard.run(program)
        except Exception as error:
            print(type(error).__name__ + " " + str(error)[:60], flush=True)
            time.sleep(1)  # mpirun ends the others when a rank ends without MPI_Finalize
        """,
        *MPI,
        "2",
        fails=True,
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

            signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells may have had ignored

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
                time.sleep(4)  # mpirun ends the others when a rank ends without MPI_Finalize
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


SCRIPT = """
    {first}
    import shard
    from shard import ProcessMesh, Replicate, Shard
    shard.init(seed=3)
    {second}
    mesh = ProcessMesh([2, shard.world_size() // 2], ["dp", "tp"])
    x = shard.shard_tensor(shard.tensor([[1.0, 2.0]] * 8), mesh, [Shard(0), Replicate()])
    w = shard.shard_tensor(shard.ones([2, 6]), mesh, [Replicate(), Shard(1)]).requires_grad_()
    y = x.matmul(w)
    y.sum().backward()
    total, gradients = y.full_tensor().sum().item(), w.grad.full_tensor().sum().item()
    print(f"rank {{shard.rank()}} {{shard.world_size()}} {{total}} {{gradients}}\\n", end="", flush=True)
    {last}
"""


@needs_mpi
@pytest.mark.parametrize(
    "first, second, last",
    [
        ("", "", ""),
        ("from mpi4py import MPI", "", "assert MPI.COMM_WORLD.allreduce(1) == 4"),
        ("", "from mpi4py import MPI", "assert MPI.COMM_WORLD.allreduce(1) == 4"),
        ("", "", "import time; time.sleep(0.5 * shard.rank())"),
    ],
    ids=["alone", "after mpi4py", "before mpi4py", "ranks that end at other times"],
)
def test_plain_scripts_are_ranks_after_init(first, second, last):
    if "mpi4py" in first + second:
        pytest.importorskip("mpi4py")
    output = script(SCRIPT.format(first=first, second=second, last=last), *MPI, "4")
    assert sorted(re.findall(r"rank \d 4 144.0 144.0", output)) == [f"rank {i} 4 144.0 144.0" for i in range(4)]


def test_a_plain_script_alone_is_a_world_of_one_rank():
    output = script("""
        import os, threading
        import shard
        from shard import ProcessMesh, Shard
        mesh = ProcessMesh([1])
        try:
            shard.shard_tensor(shard.ones([4]), mesh, [Shard(0)])
        except shard.LayoutError as error:
            assert "call this inside shard.run(), or after shard.init()" in str(error), error
        failed = []
        def elsewhere():
            try:
                shard.init()
            except shard.ArgumentError as error:
                failed.append(str(error))
        thread = threading.Thread(target=elsewhere)
        thread.start(); thread.join()
        assert "main thread" in failed[0]
        shard.init()
        x = shard.shard_tensor(shard.ones([4]), mesh, [Shard(0)])
        try:
            shard.init()
        except shard.ArgumentError as error:
            assert "call it once" in str(error), error
        if os.fork() == 0:
            assert not shard.in_world()
            raise SystemExit(0)  # this process meets nobody at its end
        assert os.wait()[1] == 0
        print(shard.rank(), shard.world_size(), x.sum().item())
        """)
    assert output.split() == ["0", "1", "4.0"]


@needs_mpi
def test_a_plain_script_that_fails_ends_the_job():
    text = """
        import time
        import shard
        from shard import ProcessMesh, Shard
        shard.init()
        x = shard.shard_tensor(shard.ones([4]), ProcessMesh([2]), [Shard(0)])
        if shard.rank() == 1:
            raise ValueError("mine")
        try:
            x.full_tensor()
        except shard.CommunicationError as error:
            print(error, flush=True)
            raise
        """
    begin = time.monotonic()
    done = subprocess.run([*MPI, "2", sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and time.monotonic() - begin < 25  # not the time that a collective waits
    assert "ValueError: mine" in done.stderr and "Traceback" in done.stderr


@needs_mpi
def test_peers_of_a_plain_script_that_ends_early_learn_of_it():
    output = script("""
        import sys
        import shard
        from shard import ProcessMesh, Shard
        shard.init(timeout=60)
        x = shard.shard_tensor(shard.ones([4]), ProcessMesh([2]), [Shard(0)])
        if shard.rank() == 1:
            sys.exit(0)
        try:
            x.full_tensor()
        except shard.CommunicationError as error:
            print(error, flush=True)
        """, *MPI, "2", fails=True)
    assert "rank 1 never joined" in output and "has ended its program" in output


@needs_mpi
def test_peers_of_a_plain_script_that_fails_learn_why():
    output = script("""
        import sys, time
        import shard
        from shard import ProcessMesh, Shard
        shard.init()
        x = shard.shard_tensor(shard.ones([4]), ProcessMesh([2]), [Shard(0)])
        if shard.rank() == 1:
            hook = sys.excepthook
            sys.excepthook = lambda *error: (hook(*error), time.sleep(2))  # mpirun ends the others when a rank ends without MPI_Finalize
            raise ValueError("mine")
        try:
            x.full_tensor()
        except shard.CommunicationError as error:
            print(error, flush=True)
        """, *MPI, "2", fails=True)
    assert "rank 1 failed: ValueError: mine" in output
