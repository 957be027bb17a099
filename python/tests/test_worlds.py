"""Runs of functions on ranks: results, errors, and tensors that outlive their world."""

import gc
import sys
import threading
import time
import weakref

import pytest

import shard
from shard import Layout, ProcessMesh, Shard

PAIR = ProcessMesh([2], ["p"])


def ones(n=4, layout="p"):
    return shard.ones([n], layout=Layout(PAIR, layout))


def test_results_come_by_rank():
    assert shard.run(lambda: (shard.rank(), shard.world_size(), shard.in_world()), 3) == [(i, 3, True) for i in range(3)]
    assert shard.run(lambda a, b: a + b, 2, args=(1,), kwargs={"b": 2}) == [3, 3]
    assert len(shard.run(lambda: None)) == 4
    assert not shard.in_world()


def test_there_is_no_rank_outside_of_a_run():
    for call in (shard.rank, shard.world_size, shard.get_policies):
        with pytest.raises(shard.LayoutError, match="shard.run"):
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
