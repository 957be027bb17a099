"""Tensors, ranks and captured functions on CUDA devices: those of this machine, or those of the model of CUDA.

SHARD_ON_CUDA_MODEL names the folder of a libshard with the model, which the target shard_on_cuda_model builds;
scripts/test_python.sh sets it where that is built.
"""

import os
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

import shard
from processes import MPI, needs_mpi

HERE = pathlib.Path(__file__).parent
MODEL = os.environ.get("SHARD_ON_CUDA_MODEL", "")


def has_device():
    try:
        shard.Device("cuda")
    except shard.ArgumentError:
        return False
    return True


on_devices = pytest.mark.skipif(not MODEL and not has_device(), reason="needs a device, or SHARD_ON_CUDA_MODEL")


def run_on_device(arguments, timeout=300, launcher=(), **environment):
    if MODEL:  # before $ORIGIN/lib
        environment["LD_LIBRARY_PATH"] = MODEL
    done = subprocess.run(
        [*launcher, sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, (done.returncode, done.stdout[-4000:], done.stderr[-4000:])
    return done.stdout


def script(text, **environment):
    return run_on_device(["-c", "import numpy as np, pytest, shard\n" + textwrap.dedent(text)], **environment)


@on_devices
def test_tensors_move_between_host_and_device():
    script("""
        x = shard.tensor([[1.0, 2.0], [3.0, 4.0]])
        y = x.cuda()
        assert y.device == shard.Device("cuda:0") and str(y.device) == "cuda:0"
        assert y.cpu().tolist() == x.tolist() and y.tolist() == x.tolist() and y[1, 0].item() == 3.0
        assert y.to("cuda") is y and y.cpu().device == shard.Device("cpu")
        assert shard.ones([2], device="cuda").device == y.device and shard.tensor([1, 2], device="cuda").tolist() == [1, 2]
        assert y.to("cpu", "float64").dtype == shard.float64 and x.to(y).device == y.device
        assert "device=cuda:0" in repr(y) and "[3., 4.]" in repr(y)
        with pytest.raises(shard.DeviceError, match="cpu"):
            y.numpy()
        with pytest.raises(shard.DeviceError, match="add.*cuda:0.*cpu|add.*cpu.*cuda:0"):
            x + y
        with pytest.raises(shard.ArgumentError, match="cuda:99"):
            x.to("cuda:99")
    """)


@on_devices
def test_scalars_indexing_and_assignment():
    script("""
        a = np.arange(24.0, dtype=np.float32).reshape(4, 6)
        x = shard.tensor(a, device="cuda")
        for key in [1, (2, 3), (slice(1, 3), None), (..., -1), [0, 2], (slice(None, None, 2), slice(1, None, 2))]:
            assert x[key].device == x.device and np.array_equal(x[key].cpu().numpy(), a[key]), key
        assert np.array_equal(x[x > 5.0].cpu().numpy(), a[a > 5.0])
        assert np.array_equal(x[shard.tensor([3, 0], device="cuda")].cpu().numpy(), a[[3, 0]])
        x[1] = 7.0
        x[:, 2] += 1.0
        x[[0, 3], 1:3] = 0.5
        a[1] = 7.0
        a[:, 2] += 1.0
        a[[0, 3], 1:3] = 0.5
        assert np.array_equal(x.cpu().numpy(), a)
        flat = x.reshape([-1])  # a view
        flat[0] = 5.0
        a[0, 0] = 5.0
        assert np.array_equal(x.cpu().numpy(), a)
        assert 7.0 in x and not (100.0 in x) and bool((x > -1.0).all()) and len(x) == 4
        assert float(x.sum()) == x.cpu().sum().item()
    """)


@on_devices
def test_dlpack_shares_buffers_of_devices():
    script("""
        x = shard.tensor([1.0, 2.0, 3.0], device="cuda")
        assert x.__dlpack_device__() == (2, 0)
        y = shard.from_dlpack(x)
        assert y.device == x.device
        y[0] = 9.0
        assert x.tolist() == [9.0, 2.0, 3.0]
        del x
        assert y.tolist() == [9.0, 2.0, 3.0]
        host = shard.from_dlpack(y, device="cpu")
        assert host.device == shard.Device("cpu") and host.tolist() == [9.0, 2.0, 3.0]
        with pytest.raises((BufferError, RuntimeError, ValueError)):
            np.from_dlpack(y)
    """)


@on_devices
def test_from_dlpack_asks_for_the_stream_that_the_thread_computes_on():
    script("""
        import threading
        class Array:
            def __init__(self):
                self.x, self.asked = shard.tensor([1.0, 2.0], device="cuda:0"), []
            def __dlpack_device__(self):
                return self.x.__dlpack_device__()
            def __dlpack__(self, stream=None, max_version=None):
                self.asked.append(stream)
                return self.x.__dlpack__(stream=stream, max_version=max_version)
        def stream():
            array = Array()
            assert shard.from_dlpack(array).tolist() == [1.0, 2.0]
            return array.asked[-1]
        shared, others = stream(), []
        assert shared > 2  # neither the legacy stream nor that of a thread
        thread = threading.Thread(target=lambda: others.append(stream()))
        thread.start()
        thread.join()
        assert others == [shared]
        assert shard.run(stream, nranks=2, devices=["cuda:0"]) == [2, 2]  # cudaStreamPerThread
    """)


@on_devices
def test_tensors_of_devices_are_pickled_and_copied():
    script("""
        import copy, pickle
        x = shard.tensor([1.0, 2.0], device="cuda")
        x.requires_grad = True
        for y in [pickle.loads(pickle.dumps(x)), copy.deepcopy(x)]:
            assert y.device == x.device and y.tolist() == x.tolist() and y.requires_grad
            assert not y.shares_buffer_with(x)
    """)


@on_devices
def test_gradients_hooks_and_random_numbers():
    script("""
        def loss(device):
            shard.manual_seed(3)
            w = shard.gaussian([4, 3], device=device)
            w.requires_grad = True
            seen = []
            w.register_hook(lambda g: seen.append(str(g.device)))
            x = shard.uniform([5, 4], device=device)
            y = shard.sum(shard.tanh(x @ w) * 2.0)
            y.backward()
            assert seen == [device] and w.grad.device == shard.Device(device)
            return y.item(), w.grad.cpu().numpy(), x.cpu().numpy()

        ours, theirs = loss("cuda:0"), loss("cpu")
        assert np.array_equal(ours[2], theirs[2])  # the same bits
        assert np.allclose(ours[0], theirs[0], rtol=1e-5) and np.allclose(ours[1], theirs[1], rtol=1e-4, atol=1e-6)
    """)


@on_devices
def test_default_devices():
    script("""
        with shard.default_device("cuda"):
            assert shard.zeros([2]).device == shard.Device("cuda") and shard.tensor([1.0]).device == shard.Device("cuda")
            assert shard.get_default_device() == shard.Device("cuda")
        assert shard.zeros([2]).device == shard.Device("cpu")
        devices = shard.run(lambda: str(shard.zeros([1]).device), nranks=2, devices="cuda")
        assert devices == ["cuda:0", "cuda:0"], devices
    """)
    script(
        """
        devices = shard.run(lambda: str(shard.zeros([1]).device), nranks=2)
        assert all(each.startswith("cuda:") for each in devices), devices
        """,
        SHARD_DEVICE="cuda",
    )


@on_devices
@needs_mpi
def test_processes_of_mpi_have_a_device_each():
    output = script(
        """
        from shard import ProcessMesh, Shard
        mesh = ProcessMesh([4], ["p"])
        a = np.arange(24.0, dtype=np.float32).reshape(8, 3)

        def program():
            x = shard.shard_tensor(shard.tensor(a), mesh, [Shard(0)])
            assert str(x.device).startswith("cuda:"), x.device
            x.requires_grad = True
            loss = shard.sum(x * x)
            loss.backward()
            assert loss.item() == float((a * a).sum())
            assert np.array_equal(x.grad.full_tensor().cpu().numpy(), 2 * a)
            y = shard.reshard(x.detach(), mesh, [Shard(1)])
            assert np.array_equal(y.full_tensor().cpu().numpy(), a)
            return shard.rank()

        [rank] = shard.run(program)
        print(f"rank {rank} is done", flush=True)
        """,
        launcher=[*MPI, "4"],
        SHARD_DEVICE="cuda",
    )
    assert sorted(re.findall(r"rank \d is done", output)) == [f"rank {i} is done" for i in range(4)]


@on_devices
def test_another_thread_reads_what_was_waited_for():
    script("""
        import threading
        x = shard.ones([4], device="cuda") * 3.0
        shard.synchronize("cuda")
        seen = []
        thread = threading.Thread(target=lambda: seen.append((x + 1.0).tolist()))
        thread.start()
        thread.join()
        assert seen == [[4.0] * 4], seen
        shard.gather(x, shard.tensor([9], device="cuda"))
        with pytest.raises(shard.OutOfRangeError, match="9"):
            shard.synchronize(x.device)
        with shard.default_device("cuda"):
            shard.synchronize()
        with pytest.raises(TypeError, match="device"):
            shard.synchronize(3)
    """)


@on_devices
def test_a_garbage_collector_in_another_thread_frees_tensors():
    script("""
        import gc, threading
        for _ in range(20):
            x = shard.ones([1000], device="cuda")
            y = x + 1.0
            cycle = [x]
            cycle.append(cycle)
            del x, cycle
            thread = threading.Thread(target=gc.collect)
            thread.start()
            thread.join()
            assert shard.sum(y).item() == 2000.0
    """)


TRAINING = """
    from shard import Layout, ProcessMesh, Shard, Replicate

    def train(device):
        mesh = ProcessMesh([2], ["p"])
        a = np.sin(np.arange(32.0, dtype=np.float32)).reshape(8, 4)
        x = shard.shard_tensor(shard.tensor(a, device=device), mesh, [Shard(0)])
        w = shard.shard_tensor(shard.tensor(np.cos(np.arange(8.0, dtype=np.float32)).reshape(4, 2), device=device), mesh, [Replicate()])
        w.requires_grad = True
        losses = []
        for _ in range(3):
            y = shard.mean(shard.relu(x @ w) * 3.0)
            y.backward()
            with shard.no_grad():
                w -= w.grad * 0.1
            w.grad = None
            losses.append(y.full_tensor().item())
        local, full = x.local(), x.reshard(mesh, [Replicate()]).full_tensor()
        assert str(local.device) == device and np.array_equal(full.cpu().numpy(), a)
        return losses

    def check():
        here = shard.run(lambda: train("cpu"), nranks=2)
        there = shard.run(lambda: train(f"cuda:{DEVICE}"), nranks=2)
        assert np.allclose(here, there, rtol=1e-5), (here, there)
"""


@on_devices
def test_ranks_train_on_one_device():
    script(textwrap.dedent(TRAINING).replace("{DEVICE}", "0") + "\ncheck()")


@on_devices
def test_ranks_train_on_a_device_each():
    if "0" in script("""
        try:
            shard.Device("cuda:1")
        except shard.ArgumentError:
            print("0")
        """):
        pytest.skip("needs two devices")
    script(textwrap.dedent(TRAINING).replace("{DEVICE}", "{shard.rank()}") + "\ncheck()")


@on_devices
def test_captured_functions_run_on_devices():
    script("""
        @shard.capture
        def step(x, w):
            return shard.sum(shard.relu(x @ w) + 1.0)

        x, w = shard.tensor(np.sin(np.arange(12.0)).reshape(3, 4).astype("float32")), shard.ones([4, 2])
        wanted = step(x, w).item()
        for _ in range(3):  # the first call records, and later ones may replay a graph
            y = step(x.cuda(), w.cuda())
            assert y.device == shard.Device("cuda") and abs(y.item() - wanted) < 1e-5
    """)


@on_devices
def test_errors_of_data_and_memory_are_exceptions():
    script("""
        x = shard.ones([4, 2], device="cuda")
        with pytest.raises(shard.OutOfRangeError, match="gather.*9"):  # by the device, which the host does not wait for
            shard.gather(x, shard.tensor([9], device="cuda")).cpu()
        assert shard.sum(x).item() == 8.0  # the device works
        with pytest.raises(shard.DeviceError, match="held|free"):
            shard.empty([2**42], device="cuda")
    """)


@on_devices
def test_calls_leave_no_memory_behind():
    script(f"""
        import sys
        sys.path.insert(0, {str(HERE)!r})
        from test_memory import check_flat
        x, y = shard.ones([3, 4], device="cuda"), shard.ones([4, 2], device="cuda")
        for call in [lambda: (x @ y).cpu(), lambda: (x + 1.0).cpu(), lambda: x.cpu(), lambda: x[1, 2].item(), lambda: shard.from_dlpack(x).cpu()]:
            check_flat("on a device", call, [x, y], calls=1_000)
    """)


# Tests of other files. A test of memory is left out because the work of a stream waits in the model until the host does.
OTHER_TESTS = {
    "operators": ["test_operators.py", "test_indexing.py", "test_layouts.py", "test_pickle.py", "test_ops_random.py"],
    "gradients": ["test_autograd.py", "test_functions.py", "test_programs.py", "-k", "not test_tensors_of_histories_are_freed"],
    "ops": ["test_ops.py", "-k", "test_values and not sharded"],
}


@on_devices
@pytest.mark.parametrize("tests", sorted(OTHER_TESTS))
def test_other_tests_pass_where_the_default_device_is_one(tests):
    arguments = [str(HERE / each) if each.endswith(".py") else each for each in OTHER_TESTS[tests]]
    output = script(f"""
        import sys
        to_numpy = shard.Tensor.numpy
        shard.Tensor.numpy = lambda x, *args, **kwargs: to_numpy(x.cpu(), *args, **kwargs)  # only arrays of the host have it
        with shard.default_device("cuda"):
            sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *{arguments!r}]))
    """)
    assert re.search(r"[1-9]\d* passed", output), output
