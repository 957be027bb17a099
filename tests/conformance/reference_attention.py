"""Functions of the ops of attention.yaml and of their gradients."""

import numpy as np

OPS = {}


def op(name):
    def register(function):
        OPS[name] = function
        return function

    return register


# Of all packed sequences.
QUERIES, KEYS = 5, 4


def offsets(first, rows):
    first = int(first[0])
    return [0, first, first, rows]


def each_head(call, kv):
    """Pairs of a head of q and the head of k and v that it reads."""
    heads, kv_heads = call.inputs[0].shape[-2], kv.shape[-2]
    return [(h, h // (heads // kv_heads)) for h in range(heads)]


class Sequence:
    """Queries and keys that attend: where they are in arrays [rows, heads, width], and which bias and diagonal they have.
    Query i sees the keys up to i + diagonal."""

    def __init__(self, batch, queries, keys, diagonal=None, bias=None):
        self.batch, self.queries, self.keys, self.diagonal, self.bias = batch, queries, keys, diagonal, bias

    def scores(self, q, k, h, scale):
        """Of one head: q [queries, width], k [keys, width]."""
        scores = q @ k.T * scale
        if self.bias is not None:
            scores = scores + self.bias[h, : len(q), : len(k)]
        if self.diagonal is not None:
            seen = np.arange(len(k))[None, :] <= np.arange(len(q))[:, None] + self.diagonal
            scores = np.where(seen, scores, -np.inf)
        return scores


def forward(call, sequences, scale, sums_shape, softmax_shape=None):
    """out, softmax (zeros beyond the sequences) and the logarithms of sums (-infinity there); arrays have a batch."""
    q, k, v = (x if x.ndim == 4 else x[None] for x in call.inputs[:3])
    out = np.zeros((*q.shape[:3], v.shape[3]))
    softmax, sums = np.zeros(softmax_shape or (0,)), np.full(sums_shape, -np.inf)
    for number, s in enumerate(sequences):
        for h, kv in each_head(call, k):
            scores = s.scores(q[s.batch, s.queries, h], k[s.batch, s.keys, kv], h, scale)
            with np.errstate(all="ignore"):
                total = np.log(np.exp(scores).sum(axis=1))
                weights = np.where(np.isneginf(total)[:, None], 0, np.exp(scores - total[:, None]))
            out[s.batch, s.queries, h] = weights @ v[s.batch, s.keys, kv]
            sums[number, h, : len(scores)] = total
            if softmax_shape:
                softmax[number, h, : scores.shape[0], : scores.shape[1]] = weights
    return out, softmax, sums


def backward(call, sequences, scale, results):
    """The gradients of q, k, v, and those of the scores of each sequence and head. Weights are exp(score - sum), whatever
    that is; grad . out is the sum of weight * weight_grad."""
    out, sums, _, grad = results
    q, k, v, out, grad = (x if x.ndim == 4 else x[None] for x in (*call.inputs[:3], out, grad))
    q_grad, k_grad, v_grad, slopes = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape), []
    for number, s in enumerate(sequences):
        slopes.append([])
        for h, kv in each_head(call, k):
            a, b, c = q[s.batch, s.queries, h], k[s.batch, s.keys, kv], v[s.batch, s.keys, kv]
            g = grad[s.batch, s.queries, h]
            weights = np.exp(s.scores(a, b, h, scale) - sums[number, h, : len(a), None])
            delta = (g * out[s.batch, s.queries, h]).sum(axis=1, keepdims=True)
            slope = weights * (g @ c.T - delta)
            slopes[-1].append(slope)
            q_grad[s.batch, s.queries, h] += slope @ b * scale
            k_grad[s.batch, s.keys, kv] += slope.T @ a * scale
            v_grad[s.batch, s.keys, kv] += weights.T @ g
    return q_grad, k_grad, v_grad, slopes


def packed(first, first_key):
    """The rows of q and of k of each sequence."""
    at, at_key = offsets(first, QUERIES), offsets(first_key, KEYS)
    return [(slice(at[s], at[s + 1]), slice(at_key[s], at_key[s + 1])) for s in range(3)]


def length(rows):
    return rows.stop - rows.start


def unpadded_sequences(call):
    mask = None
    if "mask" in call.case:
        heads = call.inputs[0].shape[1]
        mask = np.broadcast_to(call.inputs[-1], (3, heads, QUERIES, KEYS))
    return [
        Sequence(
            0,
            queries,
            keys,
            length(keys) - length(queries) if "causal" in call.case else None,
            None if mask is None else mask[number],
        )
        for number, (queries, keys) in enumerate(packed(*call.inputs[3:5]))
    ]


@op("flash_attn_unpadded")
def flash_attn_unpadded(call):
    heads = call.inputs[0].shape[1]
    out, softmax, sums = forward(
        call, unpadded_sequences(call), 0.5, (3, heads, QUERIES), (3, heads, QUERIES, KEYS)
    )
    return [out[0], softmax, sums, np.zeros(2, dtype=np.int64)]


@op("flash_attn_unpadded_grad")
def flash_attn_unpadded_grad(call):
    return [x[0] for x in backward(call, unpadded_sequences(call), 0.5, call.inputs[5:9])[:3]]


def efficient_sequences(call):
    """The sequences of a call, its bias, and its arguments after those."""
    q, k = call.inputs[:2]
    rest, bias, causal = list(call.inputs[3:]), None, "causal" in call.case
    batch, queries, heads, _ = q.shape
    keys = k.shape[1]
    if "bias" in call.case:
        bias = rest.pop(0)
    if "packed" in call.case:
        first, first_key = rest.pop(0), rest.pop(0)
        rows = [(0, *each) for each in packed(first, first_key)]
        diagonals, lengths = [first[0], first[0], -first[0]], [first_key[0], 0, 0]
    else:
        rows = [(b, slice(0, queries), slice(0, keys)) for b in range(batch)]
        diagonals = rest.pop(0) if "diagonals" in call.case else None
        lengths = rest.pop(0) if "lengths" in call.case else None
    wide = None if bias is None else np.broadcast_to(bias, (batch, heads, queries, keys))
    sequences = []
    for number, (b, of_q, of_k) in enumerate(rows):
        if "lengths" in call.case:
            of_k = slice(of_k.start, of_k.start + int(lengths[number]))
        diagonal = int(diagonals[number]) if "diagonals" in call.case else 0
        sequences.append(
            Sequence(b, of_q, of_k, diagonal if causal else None, None if wide is None else wide[number])
        )
    return sequences, bias, rest


def efficient_scale(call):
    return 0.5 if "half" in call.case else 1 / np.sqrt(call.inputs[0].shape[3])


@op("memory_efficient_attention")
def memory_efficient_attention(call):
    batch, queries, heads, _ = call.inputs[0].shape
    sums_shape = (3 if "packed" in call.case else batch, heads, queries)
    out, _, sums = forward(call, efficient_sequences(call)[0], efficient_scale(call), sums_shape)
    return [out, sums, np.zeros(2, dtype=np.int64)]


@op("memory_efficient_attention_grad")
def memory_efficient_attention_grad(call):
    sequences, bias, results = efficient_sequences(call)
    *grads, slopes = backward(call, sequences, efficient_scale(call), results)
    if bias is None:
        return grads
    q, k = call.inputs[:2]
    of_scores = np.reshape(slopes, (q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
    shape = (1,) * (4 - bias.ndim) + bias.shape
    axes = tuple(d for d in range(4) if shape[d] != of_scores.shape[d])
    return [*grads, of_scores.sum(axis=axes, keepdims=True).reshape(bias.shape)]
