"""The same programs in a job of MPI."""

import re
import subprocess
import sys
import textwrap

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
