"""Functions of the ops of optim.yaml."""

from types import SimpleNamespace

import numpy as np

OPS = {}


def op(name):
    def register(function):
        OPS[name] = function
        return function

    return register


def adam_step(param, grad, rate, moment1, moment2, beta1_pow, beta2_pow, decay):
    beta1 = beta2 = 0.5
    epsilon = float(np.float32(1e-2))
    param = param * (1 - rate * decay)
    moment1 = beta1 * moment1 + (1 - beta1) * grad
    moment2 = beta2 * moment2 + (1 - beta2) * grad**2
    # Bias is corrected with the powers of this step, and the powers of the next one are stored.
    size = rate * np.sqrt(1 - beta2_pow) / (1 - beta1_pow)
    param = param - size * moment1 / (np.sqrt(moment2) + epsilon * np.sqrt(1 - beta2_pow))
    return [param, moment1, moment2, beta1_pow * beta1, beta2_pow * beta2]


@op("adam_")
def adam(call):
    return adam_step(*call.inputs, decay=0)


@op("adamw_")
def adamw(call):
    if call.case == "float32":
        return adam_step(*call.inputs, decay=0.5)
    param, grad, rate, moment1, moment2, power1, power2, master, skip = call.inputs
    if skip[0]:
        return [param, moment1, moment2, power1, power2, master]
    master, *state = adam_step(master, grad, rate, moment1, moment2, power1, power2, decay=0)
    return [master, *state, master]


def stepped(call, states, numbers, step):
    """The outputs of step(value, grad, states, numbers), which returns the new value and states.

    The inputs are the parameter, the gradient, the states, the numbers, and in cases "... and a master copy" that copy,
    of which the parameter becomes a rounded copy.
    """
    param, grad, *rest = call.inputs
    master = rest.pop() if call.case.endswith("and a master copy") else None
    value, *updated = step(param if master is None else master, grad, rest[:states], rest[states:states + numbers])
    return [value, *updated] + ([] if master is None else [value])


@op("sgd_")
def sgd(call):
    def step(value, grad, states, numbers):
        return [value - numbers[0] * grad]

    return stepped(call, 0, 1, step)


@op("momentum_")
def momentum(call):
    nesterov = call.case.startswith("nesterov")

    def step(value, grad, states, numbers):
        g = 2 * grad + (0.25 * value if nesterov else 0)
        velocity = 0.5 * states[0] + g
        return [value - numbers[0] * (g + 0.5 * velocity if nesterov else velocity), velocity]

    return stepped(call, 1, 1, step)


@op("merged_momentum_")
def merged_momentum(call):
    params, grads, states = call.inputs[0:2], call.inputs[2:4], call.inputs[4:6]
    decayed = call.case.endswith("decayed")
    outs, velocities = [], []
    for i, (value, grad, state) in enumerate(zip(params, grads, states)):
        rate = call.inputs[6 + (i if decayed else 0)]
        g = 2 * grad + (0.25 * value if decayed and i == 0 else 0)
        velocity = 0.5 * state + g
        outs.append(value - rate * (g + 0.5 * velocity if decayed else velocity))
        velocities.append(velocity)
    return outs + velocities


def adam_steps(values, masters, decay=0):
    """The outputs of the steps of two parameters, whose master copies are in the list `masters`, which may be empty."""
    exact = masters or values[:2]
    steps = [adam_step(exact[i], values[2 + i], values[8], *(values[k + i] for k in (4, 6, 9, 11)), decay) for i in range(2)]
    param, moment1, moment2, power1, power2 = ([step[k] for step in steps] for k in range(5))
    return param + moment1 + moment2 + power1 + power2 + (param if masters else [])


@op("merged_adam_")
def merged_adam(call):
    return adam_steps(call.inputs, call.inputs[13:])


@op("fused_adam_")
def fused_adam(call):
    values = call.inputs
    if call.case.endswith("decayed"):
        return adam_steps(values, [], decay=0.5)
    masters, skip = values[13:15], values[15]
    if skip[0]:
        return [*values[:2], *values[4:8], *values[9:15]]
    return adam_steps(values, masters)


@op("rmsprop_")
def rmsprop(call):
    centered = call.case.startswith("centered")

    def step(value, grad, states, numbers):
        square = 0.5 * states[0] + 0.5 * grad**2
        means = [0.5 * states[2] + 0.5 * grad] if centered else []
        variance = square - means[0]**2 if centered else square
        moment = 0.5 * states[1] + numbers[0] * grad / np.sqrt(variance + 0.5)
        return [value - moment, square, moment, *means]

    return stepped(call, 3 if centered else 2, 1, step)


@op("adagrad_")
def adagrad(call):
    def step(value, grad, states, numbers):
        moment = states[0] + grad**2
        return [value - numbers[0] * grad / (np.sqrt(moment) + 0.5), moment]

    return stepped(call, 1, 1, step)


@op("adadelta_")
def adadelta(call):
    def step(value, grad, states, numbers):
        squares = 0.5 * states[0] + 0.5 * grad**2
        update = grad * np.sqrt((states[1] + 0.5) / (squares + 0.5))
        return [value - numbers[0] * update, squares, 0.5 * states[1] + 0.5 * update**2]

    return stepped(call, 2, 1, step)


@op("adamax_")
def adamax(call):
    def step(value, grad, states, numbers):
        moment = 0.5 * states[0] + 0.5 * grad
        largest = np.maximum(np.abs(grad), 0.5 * states[1] + 0.5)
        return [value - numbers[0] / (1 - numbers[1]) * moment / largest, moment, largest]

    return stepped(call, 2, 2, step)


@op("asgd_")
def asgd(call):
    def step(value, grad, states, numbers):
        total = states[0] - states[1] + grad
        return [value - numbers[0] / numbers[1] * total, total, grad]

    return stepped(call, 2, 2, step)


@op("lamb_")
def lamb(call):
    """Without weight decay and adaptation: a step of Adam whose epsilon is added to the unbiased root."""

    def step(value, grad, states, numbers):
        rate, power1, power2 = numbers
        moment1, moment2 = 0.5 * states[0] + 0.5 * grad, 0.5 * states[1] + 0.5 * grad**2
        update = moment1 / (1 - power1) / (np.sqrt(moment2 / (1 - power2)) + 0.5)
        return [value - rate * update, moment1, moment2, power1 * 0.5, power2 * 0.5]

    return stepped(call, 2, 3, step)


@op("rprop_")
def rprop(call):
    def step(value, grad, states, numbers):
        prev, rates = states
        limits, etas = numbers
        agreement = np.sign(grad) * np.sign(prev)
        faster, slower = rates * etas[1], rates * etas[0]
        faster = np.where(limits[1] < faster, limits[1], faster)  # a limit that is NaN limits nothing
        slower = np.where(slower < limits[0], limits[0], slower)
        rates = np.where(agreement > 0, faster, np.where(agreement < 0, slower, rates))
        grad = np.where(agreement < 0, 0.0, grad)
        # A gradient of 0 makes no step, however large the rate.
        return [value - np.where(grad > 0, rates, np.where(grad < 0, -rates, grad)), grad, rates]

    return stepped(call, 2, 2, step)


def merged(name, lists):
    """The steps of two parameters by the function of `name`.

    The inputs are lists: the parameters, the gradients, those of `lists`, and in cases "... and a master copy" these copies.
    A letter of `lists` is "o" for a list with a tensor for each parameter, "s" for one with a tensor for both, which in
    cases with master copies has one for each too. Centered steps have one more state.
    """

    @op("merged_" + name)
    def steps(call):
        master = call.case.endswith("and a master copy")
        inputs, entries = list(call.inputs), ([], [])
        letters = ("ooo" if call.case.startswith("centered") else "oo") + lists
        for letter in letters.replace("s", "o") + "o" if master else letters:
            both = [inputs.pop(0) for _ in range(2 if letter == "o" else 1)]
            for i, entry in enumerate(entries):
                entry.append(both[i % len(both)])
        outs = [OPS[name](SimpleNamespace(case=call.case, inputs=entry)) for entry in entries]
        return [out[k] for k in range(len(outs[0])) for out in outs]


merged("sgd_", "s")
merged("rmsprop_", "oos")
merged("adagrad_", "os")
merged("adadelta_", "oos")
merged("adamax_", "ooss")
merged("asgd_", "ooss")
merged("rprop_", "ooss")
merged("lamb_", "oosoo")


@op("clip_by_norm")
def clip_by_norm(call):
    x, = call.inputs
    return x * (2 / np.maximum(np.sqrt(np.sum(x**2)), 2))


@op("check_finite_and_unscale_")
def check_finite_and_unscale(call):
    x, y, scale = call.inputs
    found = not (np.isfinite(x).all() and np.isfinite(y).all())
    return [x / scale, y / scale, np.array([found])]


@op("update_loss_scaling_")
def update_loss_scaling(call):
    x, y, found, scaling, good, bad = call.inputs
    if found[0]:
        bad = bad + 1
        reached = bad >= 2
        return [np.zeros_like(x), np.zeros_like(y), np.where(reached, np.maximum(scaling / 2, 1), scaling), good * 0, bad * ~reached]
    good = good + 1
    reached = good >= 2
    return [x, y, np.where(reached, scaling * 2, scaling), good * ~reached, bad * 0]


@op("average_accumulates_")
def average_accumulates(call):
    param, sum1, sum2, sum3, count, old_count, updates = call.inputs
    updates, count, sum1 = updates + 1, count + 1, sum1 + param
    least = 10 if call.case == "a new window" else 100
    if count[0] >= least and count[0] >= min(100, int(updates[0] * 0.5)):
        sum1, sum2, sum3 = np.zeros_like(sum1), np.zeros_like(sum2), sum1 + sum2
        count, old_count = np.zeros_like(count), count
    return [sum1, sum2, sum3, count, old_count, updates]
