"""Functions of the ops of sequence.yaml and of their gradients."""

import itertools

import numpy as np

OPS = {}


def op(name):
    def register(function):
        OPS[name] = function
        return function

    return register


# Recurrent networks. They take complex numbers too, for complex_step().


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(input_part, state_part, state):
    i, f, c, o = np.split(input_part + state_part, 4)
    cell = sigmoid(f) * state[1] + sigmoid(i) * np.tanh(c)
    return [sigmoid(o) * np.tanh(cell), cell]


def gru(input_part, state_part, state):
    (input_r, input_z, input_c), (r, z, c) = np.split(input_part, 3), np.split(state_part, 3)
    update = sigmoid(input_z + z)
    return [update * state[0] + (1 - update) * np.tanh(input_c + sigmoid(input_r + r) * c)]


def rnn_tanh(input_part, state_part, state):
    return [np.tanh(input_part + state_part)]


def rnn_relu(input_part, state_part, state):
    total = input_part + state_part
    return [np.where(total.real > 0, total, 0)]


# The cell, the layers, the directions, and whether there are lengths.
NETWORKS = {
    "LSTM": (lstm, 1, 1, False),
    "GRU, lengths": (gru, 1, 1, True),
    "two layers of RNN_TANH in both directions, lengths": (rnn_tanh, 2, 2, True),
}


def network(case, inputs):
    """The outputs of each layer in turn, sequence by sequence; out and the states."""
    step, layers, directions, has_lengths = NETWORKS[case]
    states = 2 if step is lstm else 1
    cells = layers * directions
    values, first, weights = inputs[0], inputs[1 : 1 + states], inputs[1 + states : 1 + states + 4 * cells]
    time, batch = values.shape[:2]
    lengths = inputs[1 + states + 4 * cells] if has_lengths else [time] * batch
    hidden = first[0].shape[2]
    last = [np.array(f, dtype=values.dtype) for f in first]
    for layer in range(layers):
        out = np.zeros((time, batch, directions * hidden), dtype=values.dtype)
        for d, b in itertools.product(range(directions), range(batch)):
            cell = layer * directions + d
            of_input, of_state = weights[2 * cell], weights[2 * cell + 1]
            bias_input, bias_state = weights[2 * cells + 2 * cell], weights[2 * cells + 2 * cell + 1]
            state = [f[cell, b] for f in first]
            steps = range(int(lengths[b]))
            for t in reversed(steps) if d == 1 else steps:
                state = step(of_input @ values[t, b] + bias_input, of_state @ state[0] + bias_state, state)
                out[t, b, d * hidden : (d + 1) * hidden] = state[0]
            for target, value in zip(last, state):
                target[cell, b] = value
        values = out
    return [values] + last


@op("rnn")
def rnn(call):
    out, *states = network(call.case, call.inputs)
    return [out, np.ones(out.shape, dtype=np.int64)] + states


def complex_step(function, inputs, weights):
    """The gradients of the sum of all outputs times weights: the derivatives of an analytic function, without a
    difference that would cancel."""
    step = 1e-40
    grads = []
    for i, x in enumerate(inputs):
        grad = np.zeros(x.shape)
        for at in np.ndindex(x.shape):
            moved = [each.astype(np.complex128) for each in inputs]
            moved[i][at] += 1j * step
            grad[at] = sum(np.sum(out * w) for out, w in zip(function(moved), weights)).imag / step
        grads.append(grad)
    return grads


@op("rnn_grad")
def rnn_grad(call):
    step, layers, directions, has_lengths = NETWORKS[call.case]
    states = 2 if step is lstm else 1
    count = 1 + states + 4 * layers * directions
    lengths = call.inputs[count : count + has_lengths]
    out_grads = call.inputs[count + has_lengths :]
    return complex_step(lambda inputs: network(call.case, inputs + lengths), call.inputs[:count], out_grads)


# CTC, by a list of all paths.


def spells(path, blank):
    """The labels of a path: repeated classes are one, and then blanks are left out."""
    return [c for c, _ in itertools.groupby(path) if c != blank]


def ctc(logits, labels, blank):
    """The loss of logits [time, classes], and its gradient; 0 where no path spells the labels."""
    time, classes = logits.shape
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True)) if time else logits
    p = exponentials / exponentials.sum(axis=1, keepdims=True) if time else logits
    total, shares = 0.0, np.zeros_like(p)
    for path in itertools.product(range(classes), repeat=time):
        if spells(path, blank) != list(labels):
            continue
        value = np.prod([p[t, c] for t, c in enumerate(path)])
        total += value
        for t, c in enumerate(path):
            shares[t, c] += value
    if total == 0:
        return 0.0, np.zeros_like(p)
    return -np.log(total), p - shares / total


def is_normed(call):
    return {"the first class is blank": False, "the last class is blank, norm_by_times, int32": True}[call.case]


@op("warpctc")
def warpctc(call):
    logits, label, logits_length, labels_length = call.inputs
    blank = 3 if is_normed(call) else 0
    loss, grad = np.zeros((logits.shape[1], 1)), np.zeros_like(logits)
    for b, (time, count) in enumerate(zip(logits_length, labels_length)):
        loss[b, 0], grad[:time, b] = ctc(logits[:time, b], label[b, :count], blank)
    return [loss, grad]


@op("warpctc_grad")
def warpctc_grad(call):
    _, _, logits_length, _, gradient, loss_grad = call.inputs
    steps = np.maximum(logits_length, 1) if is_normed(call) else np.ones_like(logits_length)
    return gradient * (loss_grad[:, 0] / steps)[None, :, None]


# Decoders, by a list of all paths.


@op("viterbi_decode")
def viterbi_decode(call):
    potentials, transitions, lengths = call.inputs
    ends = {"a start and a stop": True, "without ends": False}[call.case]
    batch, time, tags = potentials.shape
    scores, paths = np.zeros(batch), np.zeros((batch, time), dtype=np.int64)

    def score(b, path):
        total = potentials[b, range(len(path)), path].sum() + transitions[path[:-1], path[1:]].sum()
        return total + transitions[-1, path[0]] + transitions[-2, path[-1]] if ends else total

    for b in range(batch):
        every = [list(path) for path in itertools.product(range(tags), repeat=int(lengths[b]))]
        # Of equal scores the lowest last tag wins, then the lowest one before it, and so on.
        best = max(every, key=lambda path: (score(b, path), [-tag for tag in reversed(path)]))
        scores[b], paths[b, : len(best)] = score(b, best), best
    return [scores, paths]


@op("gather_tree")
def gather_tree(call):
    ids, parents = call.inputs
    out = np.empty_like(ids)
    time, batch, beams = ids.shape
    for b, beam in itertools.product(range(batch), range(beams)):
        at = beam
        for step in reversed(range(time)):
            out[step, b, beam] = ids[step, b, at]
            at = parents[step, b, at]
    return out
