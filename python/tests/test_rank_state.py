"""What a rank sets for its calls (policies, seeds, the default device), and traces of ranks."""

import json

import pytest

import shard
from shard import Layout, ProcessMesh

PAIR = ProcessMesh([2], ["p"])


def ones(n=4, layout="p"):
    return shard.ones([n], layout=Layout(PAIR, layout))


def test_policies_hold_for_a_scope():
    def program():
        x = shard.ones([4], layout=Layout(PAIR, "p"))
        before = shard.get_policies()
        with shard.policies(comm="forbid", view="sync"):
            assert shard.get_policies() == {**before, "comm": "forbid", "view": "sync"}
            with shard.policies(sums="rounded", algorithms="fastest"):
                assert shard.get_policies() == {
                    **before, "comm": "forbid", "view": "sync", "sums": "rounded", "algorithms": "fastest"
                }
            with pytest.raises(shard.PolicyError):
                shard.argsort(x)  # along a dim that is sharded
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
        with pytest.raises(shard.ArgumentError, match="view, inplace, comm, fallback, promotion, save, sums, algorithms"):
            with shard.policies(comms="forbid"):
                pass
        with pytest.raises(shard.ArgumentError, match="'allow', 'warn', 'forbid', 'forbid_reshards'"):
            with shard.policies(view="sync", comm="never"):
                pass
        assert shard.get_policies() == before

    shard.run(program, 2)


def test_the_policy_warn_logs_what_communicates(caplog):
    def program():
        x = ones()
        with shard.policies(comm="warn"):
            shard.argsort(x)

    shard.run(program, 2)
    assert [r.name for r in caplog.records] == ["shard"] * 2
    assert all("[argsort] would communicate" in r.getMessage() for r in caplog.records)


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
    shard.synchronize()
    shard.synchronize("cpu")
    with shard.default_device("cpu") as device:
        assert device == shard.Device("cpu") and shard.zeros([2]).device == device
        with shard.default_device(shard.Device("cpu")):
            pass
    with pytest.raises(shard.ArgumentError, match="there is no device|no backend|cpu"):
        shard.default_device("abacus")
    with pytest.raises(TypeError, match="argument 'device'"):
        shard.default_device(3)
    assert shard.run(lambda: str(shard.get_default_device()), 2, devices="cpu") == ["cpu", "cpu"]


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
