"""Functions of the ops of optim.yaml."""

import numpy as np

OPS = {}


def op(name):
    def register(function):
        OPS[name] = function
        return function

    return register


@op("sgd_")
def sgd(call):
    param, rate, grad, *master = call.inputs
    if master:  # param is a rounded copy
        updated = master[0] - rate * grad
        return [updated, updated]
    return param - rate * grad


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
